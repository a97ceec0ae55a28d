"""The documents of `plan`, `convert`, `beam` and `status`."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from converter.choices import COMPRESSORS, INTERLEAVED, LAYOUTS, QK_NORMS, ROPES, SERVING_DTYPES, STORES, TREES
from converter.report.documents.common import NOTES, PEAK_MEMORY, QK_NORM, SECONDS_TAKEN, STEP, fit, itself
from converter.report.fields import (
    ANY_OBJECT,
    COUNT,
    COUNTS,
    FLAG,
    INTEGER,
    NUMBER,
    SECONDS,
    SHAPE,
    TEXT,
    TEXTS,
    Field,
    Kind,
    Record,
    choice,
    group,
    items,
    objects,
    optional,
    record,
)

ARRAYS = items(
    record(
        Field("path", TEXT, "of the tensor or leaf; `{0..11}` in it stands for numbers, one tensor or leaf each"),
        Field("shape", SHAPE, "in elements; the first dimension counts those numbers"),
        Field("dtype", TEXT, "its dtype"),
        Field("chunks", SHAPE, "shape of a chunk, in elements"),
        Field("bytes", COUNT, "decoded"),
    )
)

PAIRS = objects(
    "qk_norm_pairs",
    "how unequal the q/k norm scales of each layer are",
    Field("layer", COUNT, "number in the model"),
    Field("product", NUMBER, "largest abs(a-b)/abs(a+b) inside a rotated pair, of the product of the scales"),
    Field("query", NUMBER, "the same of the query's scale"),
    Field("key", NUMBER, "the same of the key's scale"),
    source="mismatches",
)


def _rope_order(options: Any) -> str:
    return INTERLEAVED if INTERLEAVED in options.table else ROPES[0]


def _dropped(plan: Any) -> list[tuple[str, Sequence[tuple[str, int | None]]]]:
    return list(plan.dropped.items())


PLAN_FIELDS = (
    Field("source", TEXT, "the step directory"),
    STEP,
    Field("mapping", TEXT, "name of the mapping table", "table"),
    Field("mapping_digest", TEXT, "hash of the table", "table_digest"),
    group(
        "options",
        "what shapes the result",
        Field("table", TEXTS, "options of the mapping table that are on", lambda options: sorted(options.table)),
        Field("untie", FLAG, "whether `untie` is one of them", lambda options: "untie" in options.table),
        Field("rope", choice(*ROPES), "order of the rotated pairs in q and k", _rope_order),
        Field("max_memory", COUNT, "budget for blocks in flight, in bytes"),
        Field("store", choice(*STORES), "how leaves are stored"),
        Field("compress", choice(*COMPRESSORS), "how chunks that are rewritten are compressed", "compressor"),
        Field("rewrite", FLAG, "every chunk is decoded and encoded"),
        Field("link", FLAG, "chunks are hard-linked"),
        Field("tree", choice(*TREES), "what becomes the parameters"),
        Field("state", FLAG, "the training state is converted as well"),
        Field("force", FLAG, "even if training cannot continue exactly"),
        Field("layout", choice(*LAYOUTS), "where MaxText's layers are"),
        Field("dtype", optional(choice(*SERVING_DTYPES)), "what weights are cast to; null for none"),
        Field("qk_norm", choice(*QK_NORMS), QK_NORM, lambda options: fit("qk_norm" in options.table)),
    ),
    group(
        "totals",
        "sums",
        Field("source_parameters", COUNT, "elements that become parameters", "totals.source_parameters"),
        Field("target_parameters", COUNT, "elements of all leaves of parameters", "totals.target_parameters"),
        Field("added_parameters", COUNT, "those that are copies made on request", "totals.added_parameters"),
        Field("difference", INTEGER, "0 in a correct plan", "totals.difference"),
        Field("state_elements", COUNT, "elements of the training state's leaves", "totals.state_elements"),
        Field("state_bytes", COUNT, "their size, decoded", "totals.state_bytes"),
        Field("leaves", COUNT, "number of leaves, the training state's included", lambda plan: len(plan.leaves)),
        Field("read_bytes", COUNT, "to read, decoded", "totals.read_bytes"),
        Field("write_bytes", COUNT, "to write, decoded", "totals.write_bytes"),
        Field("stored_bytes", COUNT, "of the source's files; 0 with `--metadata-only`", "totals.stored_bytes"),
        Field("memory", COUNT, "of blocks in flight, in bytes", "totals.memory"),
        source=itself,
    ),
    Field(
        "traffic",
        optional(
            record(
                Field("destination", TEXT, "where the checkpoint goes"),
                Field("class_a", COUNT, "requests that write, copy or list, about"),
                Field("class_b", COUNT, "requests that read, about"),
                Field("free", COUNT, "requests that delete, about"),
                Field("read_bytes", COUNT, "that this machine reads from a store"),
                Field("sent_bytes", COUNT, "that this machine sends to a store"),
                Field("moved_bytes", COUNT, "that the store moves by itself"),
                Field("moved_objects", COUNT, "chunks of which it does so"),
                Field("leaving", TEXT, "what the bytes leave, such as a region; empty for nothing"),
            )
        ),
        "what is asked of object stores; null where both sides are local or no destination is given",
    ),
    Field("sizes", COUNTS, "axis to its solved size"),
    Field("directory", TEXT, "the step's directory below the destination", lambda plan: f"{plan.step_directory}/items"),
    objects(
        "trees",
        "what is converted by the rows of the table; the first becomes the parameters",
        Field("name", TEXT, "params, ema, mu or nu"),
        Field("source", TEXT, "the path before AXLearn's tensors"),
        Field("target", TEXT, "the path before MaxText's leaves"),
        Field("order", COUNT, "of a moment; 0 for parameters"),
        Field("factor", NUMBER, "what all values are multiplied by; 1 for copies"),
    ),
    Field(
        "state",
        optional(
            record(
                Field("optimizer", TEXT, "MaxText's `opt_type`", "optimizer.name"),
                Field("step", COUNT, "updates done"),
                Field("counts", TEXTS, "AXLearn's counts, all equal to the step"),
                objects(
                    "scalars",
                    "leaves of one number",
                    Field("path", TEXT, "of the leaf"),
                    Field("value", COUNT, "what it holds"),
                    Field("meaning", TEXT, "what that is"),
                ),
            )
        ),
        "the training state; null where only parameters are converted",
    ),
    objects(
        "tasks",
        "the work, in the order of the model",
        Field("axes", TEXT, "the axis expression", lambda task: str(task.axis_map.expression)),
        Field("route", choice("pass", "link", "rewrite"), "how bytes travel"),
        Field("reason", TEXT, "why not by a cheaper route; may be empty"),
        Field("tree", TEXT, "name of the tree"),
        Field("group", TEXT, "part of the model"),
        Field("note", TEXT, "the row's explanation; may be empty"),
        Field("added", FLAG, "the leaves are copies made on request", "extra"),
        Field("units", COUNT, "blocks or chunks"),
        Field("memory", COUNT, "of one unit, in bytes"),
        Field("stored_bytes", COUNT, "of the source's chunk files"),
        Field("sources", ARRAYS, "what is read"),
        Field("leaves", ARRAYS, "what is written"),
    ),
    objects(
        "dropped",
        "tensors that are left behind, by reason",
        Field("reason", TEXT, "why", itemgetter(0)),
        Field("tensors", COUNT, "how many", lambda entry: len(entry[1])),
        Field("elements", COUNT, "of those with a known shape", lambda entry: sum(n or 0 for _, n in entry[1])),
        Field("unknown_shapes", COUNT, "how many have none", lambda entry: sum(n is None for _, n in entry[1])),
        Field("paths", TEXTS, "their names", lambda entry: [path for path, _ in entry[1]]),
        source=_dropped,
    ),
    Field("ignored_entries", TEXTS, "index entries that are not tensors", "others"),
    NOTES,
    Field("config", ANY_OBJECT, "the keys of `maxtext.yml`"),
    Field("origins", ANY_OBJECT, "where the value of each of them comes from", "configuration.origins"),
    Field("settings", ANY_OBJECT, "what was set with `--set`: keys of `maxtext.yml`, and constants of the learner"),
    Field("jobs", COUNT, "blocks in flight, as given with `--jobs`"),
)

PLAN = Record("plan", PLAN_FIELDS)


PROCESS = record(
    Field("index", COUNT, "number of the share, from 0", "share.index"),
    Field("count", COUNT, "how many shares there are", "share.count"),
    Field("units", COUNT, "blocks and chunks of it", "unit_count"),
    Field("bytes", COUNT, "of its leaves, decoded, about"),
    Field("total_bytes", COUNT, "the same of all shares"),
)

SHARES = Kind(
    name="list of texts",
    schema=TEXTS.schema,
    convert=lambda shares: [str(share) for share in shares],
    inner=TEXTS.inner,
)

CONVERT = Record(
    "convert",
    (
        *(entry.at("plan") for entry in PLAN_FIELDS),
        Field("destination", TEXT, "the checkpoint"),
        SECONDS_TAKEN,
        PEAK_MEMORY,
        Field("written_bytes", COUNT, "size of the checkpoint's files"),
        Field("resumed", FLAG, "an interrupted run was resumed"),
        Field("finished", FLAG, "the checkpoint is in its place; false where shares of other processes are awaited"),
        Field("process", optional(PROCESS), "the share of this process; null where it worked alone", "portion"),
        Field("awaited", SHARES, "shares that were not done yet when this process ended"),
        group(
            "work",
            "what was done",
            Field("decoded", COUNT, "chunks", "counts.decoded"),
            Field("encoded", COUNT, "chunks", "counts.encoded"),
            Field("passed", COUNT, "chunks that were not decoded", "counts.passed"),
            Field("moved", COUNT, "those of them that an object store moved by itself", "counts.moved"),
            Field("moved_bytes", COUNT, "their size as they are stored", "counts.moved_bytes"),
            Field("kept", COUNT, "units from the interrupted run", "counts.kept"),
            Field("peak_in_flight", COUNT, "bytes of blocks in flight"),
            source="written",
        ),
        group(
            "fidelity",
            "what equal shapes do not show",
            Field("exact_attention", FLAG, "stock MaxText computes AXLearn's attention"),
            Field("exact_logits", FLAG, "stock MaxText computes AXLearn's logits"),
            Field("qk_norm", choice(*QK_NORMS), QK_NORM, lambda result: fit(result.plan.fitted)),
            PAIRS,
            source=itself,
        ),
        Field("command", TEXT, "the command line to train on in MaxText, with the patch where only that is exact"),
        Field("patches", items(ANY_OBJECT), "what the patch changes, as `maxtext.yml` has it: each with its `name`"),
        Field("stock_command", TEXT, "the same without the patch"),
    ),
)

BEAM = Record(
    "beam",
    (
        Field("destination", TEXT, "the checkpoint"),
        Field("shares", COUNT, "elements of the pipeline; 0 where nothing was left to do"),
        SECONDS_TAKEN,
        Field("command", TEXT, "the command line to train on in MaxText, with the patch where only that is exact"),
    ),
)

STATUS = Record(
    "status",
    (
        Field("destination", TEXT, "where the checkpoint goes"),
        Field(
            "state",
            choice("nothing", "begun", "finished"),
            "begun: under way or interrupted; finished: a checkpoint is in its place, and nothing beside it",
        ),
        Field("source", optional(TEXT), "the AXLearn step directory; null where it is not known"),
        STEP,
        Field("version", optional(TEXT), "of the ax2mt that began it; null where it is not known"),
        Field("leaves", COUNT, "that there will be; 0 where that is not known"),
        Field("total_bytes", COUNT, "their size, decoded"),
        Field("done_bytes", COUNT, "of the shares that are done, decoded, about"),
        Field("stored_bytes", COUNT, "of what is in place, as it is stored"),
        Field("idle_seconds", optional(SECONDS), "since the last of it was written; null where that is not known"),
        Field("done", SHARES, "shares that are done", lambda status: [one.share for one in status.done]),
        Field("awaited", SHARES, "shares that are not, of as many processes"),
        Field("command", optional(TEXT), "finishes the conversion; null where there is nothing to finish"),
    ),
)
