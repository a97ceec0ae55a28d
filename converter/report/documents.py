"""The JSON documents of all commands, field by field. Imports nothing of what they are about."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from converter.choices import COMPRESSORS, INTERLEAVED, LAYOUTS, QK_NORMS, ROPES, SERVING_DTYPES, STORES, TREES
from converter.report.fields import (
    ANY,
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
    embedded,
    group,
    items,
    objects,
    optional,
    record,
)


def _itself(value: Any) -> Any:
    return value


def _fit(fitted: Any) -> str:
    return "fit" if fitted else "plain"


STEP = Field("step", optional(INTEGER), "the training step; null where it is not known")
NOTES = Field("notes", TEXTS, "remarks that are not errors: steps that were skipped, an EMA that is left behind")
PEAK_MEMORY = Field("peak_memory", COUNT, "the largest resident set, in bytes")
SECONDS_TAKEN = Field("seconds", SECONDS, "since the start of the process")
QK_NORM = "plain: q/k norm scales are copies, fit: they were fitted"

ERROR_KINDS = (
    "usage", "source", "mapping", "destination", "verification", "inexact", "interrupted", "resources", "environment",
    "internal",
)  # fmt: skip

ERROR = Record(
    "error",
    (
        group(
            "error",
            "why there is no result",
            Field(
                "kind",
                choice(*ERROR_KINDS),
                "what is at fault",
                itemgetter("kind"),
            ),
            Field("exit_code", COUNT, "of the process", itemgetter("exit_code")),
            Field("message", TEXT, "one line", itemgetter("message")),
            Field("details", TEXTS, "further lines, one a finding", itemgetter("details")),
            source=_itself,
        ),
    ),
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
        Field("qk_norm", choice(*QK_NORMS), QK_NORM, lambda options: _fit("qk_norm" in options.table)),
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
        source=_itself,
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
            Field("qk_norm", choice(*QK_NORMS), QK_NORM, lambda result: _fit(result.plan.fitted)),
            PAIRS,
            source=_itself,
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

VERIFY = Record(
    "verify",
    (
        Field("ok", FLAG, "nothing is wrong; otherwise the exit code is 6"),
        Field("method", choice("source", "digests"), "what the checkpoint was compared with"),
        Field("source", TEXT, "the step directory; empty where it is not known"),
        STEP,
        Field("destination", TEXT, "the checkpoint"),
        Field("leaves", COUNT, "compared"),
        Field("stored_leaves", COUNT, "of them by their chunks as they are stored, without decoding"),
        Field("elements", COUNT, "compared"),
        Field("bytes", COUNT, "their size, decoded", "compared_bytes"),
        Field("sample", optional(NUMBER), "the fraction of blocks that was compared; null for all"),
        Field(
            "process",
            optional(
                record(Field("index", COUNT, "number of the share, from 0"), Field("count", COUNT, "of all shares"))
            ),
            "the share that was compared; null for all",
            "share",
        ),
        objects(
            "findings",
            "all that is wrong",
            Field(
                "check",
                TEXT,
                "coverage, shape, dtype, chunks, values, cast, digest, receipt, metadata, "
                "markers, scan_layers or config",
            ),
            Field("place", TEXT, "leaf or file"),
            Field("message", TEXT, "one line"),
            Field("elements", optional(COUNT), "how many differ"),
            Field("first_index", optional(SHAPE), "of the first one"),
            Field("expected", optional(TEXT), "its value in the source"),
            Field("found", optional(TEXT), "its value in the checkpoint"),
            Field("diagnosis", optional(TEXT), "what the wrong values are"),
        ),
        NOTES,
        Field(
            "cast",
            optional(
                record(
                    Field("dtype", TEXT, "of the checkpoint"),
                    Field("max_absolute_error", NUMBER, "of a finite element", "max_absolute"),
                    Field("max_relative_error", NUMBER, "of a finite element that is not zero", "max_relative"),
                    Field("overflows", COUNT, "finite elements that became infinite"),
                )
            ),
            "errors of the cast; null where no leaf was cast",
        ),
        SECONDS_TAKEN,
        PEAK_MEMORY,
    ),
)

MODEL = record(
    Field("kind", choice("AXLearn", "MaxText"), "whose arithmetic"),
    Field("path", TEXT, "the checkpoint", "weights.path"),
    Field("qk_norm", choice(*QK_NORMS), QK_NORM, lambda model: _fit(model.weights.fitted)),
    group(
        "semantics",
        "what is computed",
        Field("query_order", TEXT, "how rotated pairs lie in the query"),
        Field("key_order", TEXT, "in the key"),
        Field("scale_order", TEXT, "in the q/k norm scales"),
        Field("norm_after_rope", FLAG, "q/k norms come after RoPE"),
        Field("top_k", COUNT, "experts of a token"),
        Field("renormalise", FLAG, "the shares of the chosen experts sum to one"),
        Field("share_epsilon", NUMBER, "added to that sum"),
        Field("tied", FLAG, "logits come from the embedding table"),
        Field("round_table", FLAG, "which is rounded to bfloat16 for them"),
        Field("normalize_logits", FLAG, "tied logits are divided by the root of the width"),
        Field("epsilon", NUMBER, "of all norms"),
        Field("theta", NUMBER, "RoPE's base"),
        Field("scaled_frequencies", FLAG, "RoPE's low frequencies are divided as Llama 3.1 does it"),
    ),
    Field("semantics_from", TEXT, "where that was read", "origin"),
    Field("notes", TEXTS, "remarks about the weights", "weights.notes"),
)
TOKENS = group(
    "tokens",
    "what the model was given",
    Field("origin", TEXT, "the file, or built-in"),
    Field("count", COUNT, "of all tokens", lambda tokens: len(tokens.ids)),
    Field("sequences", COUNT, "number of sequences", lambda tokens: len(tokens.sequences)),
)
NON_FINITE = optional(
    record(
        Field("tokens", COUNT, "how many have NaN or infinite logits", itemgetter(1)),
        Field("first", TEXT, 'where this begins, such as "layer 3, attention"', lambda entry: entry[0].place),
        Field(
            "weights",
            TEXTS,
            "weights used there that hold NaN or infinity; empty where values overflow",
            lambda entry: entry[0].weights,
        ),
    )
)


def _non_finite(found: Any, tokens: int) -> tuple[Any, int] | None:
    return None if found is None else (found, tokens)


LOGITS = Record(
    "logits",
    (
        Field("model", MODEL, "the checkpoint and what is computed from it"),
        TOKENS,
        Field("file", optional(TEXT), "the file that was written"),
        Field("mean", NUMBER, "of all logits"),
        Field("deviation", NUMBER, "standard deviation of all logits"),
        Field(
            "non_finite",
            NON_FINITE,
            "null where all logits are finite",
            lambda result: _non_finite(result.non_finite, result.bad_tokens),
        ),
        SECONDS_TAKEN,
        PEAK_MEMORY,
    ),
)


DISTANCE_FIELDS = (
    Field("max_abs", NUMBER, "largest absolute difference"),
    Field("relative", NUMBER, "norm of the difference over the norm of the reference"),
    Field("kl_mean", NUMBER, "Kullback-Leibler divergence in nats, mean over the tokens"),
    Field("kl_max", NUMBER, "the same, of the worst token"),
    Field("top1", NUMBER, "share of tokens with the same most likely next token"),
)
DISTANCE = record(*DISTANCE_FIELDS)
ITS_DISTANCE = tuple(entry.at("difference") for entry in DISTANCE_FIELDS)
VERDICTS = "equal", "equal but for the bfloat16 rounding", "different", "not finite"

COMPARISON = Record(
    "verify --logits",
    (
        Field("verdict", choice(*VERDICTS), "in words"),
        Field("passed", FLAG, "within the limits; otherwise the exit code is 6"),
        Field("exceeded", TEXTS, "limits that were exceeded", "limits"),
        Field("source", MODEL, "the AXLearn model"),
        Field("destination", MODEL, "the MaxText model"),
        TOKENS,
        group(
            "non_finite",
            "where logits are not finite",
            Field("source", NON_FINITE, "AXLearn's", lambda r: _non_finite(r.non_finite[0], r.bad_tokens[0])),
            Field("destination", NON_FINITE, "MaxText's", lambda r: _non_finite(r.non_finite[1], r.bad_tokens[1])),
            source=_itself,
        ),
        Field("difference", DISTANCE, "over all tokens"),
        objects(
            "positions",
            "the difference by position",
            Field("first", COUNT, "first position"),
            Field("last", COUNT, "last position"),
            *ITS_DISTANCE,
            source="buckets",
        ),
        objects(
            "causes",
            "what explains the difference, the largest first",
            Field("name", TEXT, "the known difference"),
            Field("advice", TEXT, "what to do about it"),
            Field("before", DISTANCE, "the difference with it"),
            Field("after", DISTANCE, "the difference once it is undone too"),
            source="steps",
        ),
        objects(
            "switched_alone",
            "each known difference undone alone",
            Field("name", TEXT, "the known difference"),
            *ITS_DISTANCE,
            source="switched",
        ),
        Field("findings", TEXTS, "further evidence"),
        Field("remaining", DISTANCE, "what no known difference explains"),
        PAIRS,
        SECONDS_TAKEN,
        PEAK_MEMORY,
    ),
)

SHAPED = (
    Field("path", TEXT, "of the tensor or leaf", itemgetter(0)),
    Field("shape", SHAPE, "in elements", itemgetter(1)),
)


def _targets(row: Any) -> list[tuple[Any, ...]]:
    found = row.found_shapes or (None,) * len(row.targets)
    return list(zip(row.targets, row.target_shapes, found, strict=True))


PARAMETERS = Record(
    "params",
    (
        Field("title", TEXT, "the source, or the published model"),
        Field("destination", optional(TEXT), "the checkpoint that was looked at"),
        Field("mapping", TEXT, "name of the mapping table", "table"),
        Field("equivalent", FLAG, "counts and shapes agree; otherwise the exit code is 6"),
        group(
            "totals",
            "sums",
            Field("axlearn", COUNT, "parameters in AXLearn", "source_total"),
            Field("maxtext", COUNT, "parameters in MaxText", "target_total"),
            Field("added", COUNT, "those that are copies made on request", "added_total"),
            Field("difference", INTEGER, "0 where both sides agree"),
            Field("experts", COUNT, "parameters in experts", "expert_total"),
            Field("active_per_token", COUNT, "parameters that one token meets", "active_total"),
            source=_itself,
        ),
        Field("experts", COUNT, "experts of a layer; 0 without any"),
        Field("experts_per_token", COUNT, "experts that each token is sent to"),
        objects(
            "rows",
            "in the order of the model",
            Field("group", TEXT, "part of the model"),
            objects(
                "axlearn",
                "tensors",
                *SHAPED,
                source=lambda row: list(zip(row.sources, row.source_shapes, strict=True)),
            ),
            objects(
                "maxtext",
                "leaves",
                *SHAPED,
                Field("found", optional(SHAPE), "in the checkpoint", itemgetter(2)),
                source=_targets,
            ),
            Field("relation", TEXT, "what becomes of the elements, in words"),
            Field("axes", TEXT, "the same as an axis expression"),
            Field("note", TEXT, "why; may be empty"),
            Field("axlearn_parameters", COUNT, "elements", "source_parameters"),
            Field("maxtext_parameters", COUNT, "elements", "target_parameters"),
            Field("added", FLAG, "a copy made on request"),
            Field("expert", FLAG, "the tensors belong to single experts"),
            Field("fits", FLAG, "the checkpoint has the planned shapes"),
        ),
        objects(
            "extra",
            "leaves that no row produces",
            *SHAPED,
            source=lambda r: list(r.extra.items()),
        ),
        NOTES,
    ),
)

LEAF = optional(
    record(
        Field("shape", SHAPE, "in elements"),
        Field("dtype", TEXT, "its dtype"),
        Field("axes", TEXTS, "MaxText's logical names of its dimensions; empty texts where one has none"),
    )
)
FLAGS = (
    Field("key", TEXT, "MaxText's name, or the path of a line of AXLearn's configuration"),
    Field("status", choice("equal", "other", "unknown"), "whether it differs, or is not known to MaxText"),
    Field("kind", choice("written", "default", "axlearn"), "in maxtext.yml, left to MaxText, or AXLearn's"),
    Field("expected", TEXT, "the value that the weights need"),
    Field("found", TEXT, "the framework's; empty where it has none"),
    Field("consequence", TEXT, "what the difference does, by the mapping table; may be empty"),
)

CONFORM = Record(
    "conform",
    (
        Field("ok", FLAG, "no difference; otherwise the exit code is 6"),
        Field("differences", COUNT, "leaves and flags that differ, and models that cannot be made"),
        objects(
            "installed",
            "the frameworks",
            Field("framework", choice("MaxText", "AXLearn"), "which one"),
            Field("interpreter", TEXT, "the Python that was asked"),
            Field("python", TEXT, "its version"),
            Field("version", optional(TEXT), "the framework's; null for a source tree without one"),
            Field("checked", ANY_OBJECT, "mapping table to the versions that it was checked with"),
        ),
        objects(
            "models",
            "each model in each framework and layout",
            Field("framework", choice("MaxText", "AXLearn"), "which one"),
            Field("model", TEXT, "the checkpoint, published size or configuration"),
            Field("mapping", TEXT, "name of the mapping table"),
            Field("layout", optional(choice(*LAYOUTS)), "MaxText's layer layout"),
            Field("differences", COUNT, "of this model"),
            Field("problem", optional(TEXT), "why the framework cannot make the model"),
            objects(
                "leaves",
                "of either side",
                Field("path", TEXT, "of the leaf, for MaxText below `params/params`"),
                Field("status", choice("equal", "missing", "extra", "shape", "dtype"), "what is different"),
                Field("expected", LEAF, "by the mapping; null for a leaf that only the framework has"),
                Field("found", LEAF, "in the framework; null for a leaf that it lacks"),
            ),
            objects("flags", "that are compared", *FLAGS),
        ),
        objects(
            "published",
            "MaxText's own model files; they do not count",
            Field("model", TEXT, "the published size"),
            Field("name", TEXT, "MaxText's `model_name`"),
            Field("present", FLAG, "this MaxText has the file"),
            objects("differences", "keys whose effective value is not what the weights need", *FLAGS),
        ),
        NOTES,
        SECONDS_TAKEN,
        Field("peak_memory", COUNT, "the largest resident set of a framework's process, in bytes"),
    ),
)

STATE = choice("passed", "failed", "caution", "open")

REPORT = Record(
    "report",
    (
        Field("passed", FLAG, "nothing speaks against the checkpoint; otherwise the exit code is 6", "evidence.passed"),
        Field("title", TEXT, "the verdict in a few words"),
        Field("summary", TEXT, "the verdict in a sentence or two"),
        Field("tool", TEXT, "program and version", "evidence.tool"),
        Field("source", TEXT, "the step directory", "evidence.source"),
        STEP.at("plan").at("evidence"),
        Field("destination", TEXT, "the checkpoint", "evidence.destination"),
        objects(
            "proofs",
            "what was proved",
            Field("name", TEXT, "of the proof"),
            Field("state", STATE, "what came of it; caution: it holds, with something to know; open: not asked for"),
            Field("lines", TEXTS, "in words"),
        ),
        objects(
            "groups",
            "the parts of the model",
            Field("name", TEXT, "of the part"),
            Field("tensors", COUNT, "AXLearn's"),
            Field("leaves", COUNT, "MaxText's"),
            Field("axlearn", COUNT, "parameters", "source"),
            Field("maxtext", COUNT, "parameters", "target"),
            Field("experts", COUNT, "AXLearn's parameters that are in experts"),
        ),
        Field("params", embedded(PARAMETERS), "see [params](#params)", "evidence.parameters"),
        Field("verify", embedded(VERIFY), "see [verify](#verify)", "evidence.bits"),
        Field("logits", optional(embedded(COMPARISON)), "see [verify --logits](#verify---logits)", "evidence.logits"),
        Field("logits_problem", optional(TEXT), "why the logits could not be computed", "evidence.logits_problem"),
        PAIRS.at("evidence"),
        objects(
            "configuration",
            "the keys of `maxtext.yml`",
            Field("key", TEXT, "its name", "name"),
            Field("value", ANY, "what the weights need, or the training"),
            Field("origin", TEXT, "where that is known from"),
            Field("problem", optional(TEXT), "what is different in the file"),
            source="evidence.configuration",
        ),
        group(
            "receipt",
            "what the checkpoint says of itself",
            Field("problem", optional(TEXT), "why there is no receipt"),
            Field("tool", TEXT, "program and version that wrote it"),
            Field("mapping", TEXT, "name of the mapping table"),
            Field("mapping_digest", TEXT, "hash of the table"),
            Field("patches", TEXTS, "changes to MaxText that the checkpoint needs"),
            objects(
                "leaves",
                "digests of the leaves",
                Field("path", TEXT, "of the leaf"),
                Field("kind", choice("stored", "sums", "none"), "what the digest is made of"),
                Field("xxh3", TEXT, "the digest; empty without one"),
                Field("chunks", COUNT, "number of chunks"),
            ),
            objects(
                "files",
                "digests of the other files",
                Field("path", TEXT, "below the checkpoint"),
                Field("bytes", COUNT, "its size"),
                Field("xxh3", TEXT, "XXH3 of 128 bits"),
            ),
            source="evidence.receipt",
        ),
        objects(
            "commands",
            "how to come by all of this again",
            Field("purpose", TEXT, "what it does"),
            Field("line", TEXT, "for a shell"),
            source="evidence.commands",
        ),
        NOTES,
        Field("html", optional(TEXT), "the page that was written"),
        SECONDS_TAKEN.at("evidence"),
        PEAK_MEMORY.at("evidence"),
    ),
)

INSPECTION = Record(
    "inspect",
    (
        Field("path", TEXT, "as it was given"),
        Field(
            "kind",
            TEXT,
            "axlearn-trainer, axlearn-step, axlearn-step-uncommitted, axlearn-orbax-step, "
            "maxtext-checkpoint, half-written, directory, no-directory, unreadable or absent",
        ),
        Field("title", TEXT, "the kind in words"),
        Field(
            "facts",
            ANY_OBJECT,
            "named values that depend on the kind; `litter` counts entries that systems and tools left",
        ),
        objects(
            "leaves",
            "the arrays",
            Field("path", TEXT, "of the array"),
            Field("dtype", TEXT, "its dtype"),
            Field("shape", SHAPE, "in elements"),
            Field("chunks", SHAPE, "shape of a chunk, in elements"),
            Field("problem", optional(TEXT), "what is wrong with it"),
        ),
        Field("missing", TEXTS, "what a whole checkpoint would have, and what is wrong"),
    ),
)

TABLE_FIELDS = (
    Field("name", TEXT, "of the table"),
    Field("title", TEXT, "what it is for"),
    Field("path", TEXT, "its file"),
    Field("digest", TEXT, "hash of its text"),
    Field("rows", COUNT, "number of rows", lambda table: len(table.rows)),
    Field("models", TEXTS, "published sizes", lambda table: [model.name for model in table.models]),
)

MAPPINGS = Record(
    "mappings list",
    (
        objects(
            "mappings",
            "the bundled tables",
            *TABLE_FIELDS,
            source=_itself,
        ),
    ),
)

MAPPING = Record(
    "mappings show",
    (
        *TABLE_FIELDS,
        Field("options", TEXTS, "names for `--option`", lambda table: sorted(table.options)),
        group(
            "checked",
            "versions of the frameworks in which `conform` found no difference",
            Field("maxtext", TEXTS, "of MaxText"),
            Field("axlearn", TEXTS, "of AXLearn, or commits"),
            source="conformance",
        ),
        objects(
            "tensors",
            "the rows",
            Field("axlearn", TEXTS, "paths"),
            Field("maxtext", TEXTS, "paths"),
            Field("axes", TEXT, "the axis expression", lambda row: str(row.expression)),
            Field("group", TEXT, "part of the model; may be empty"),
            Field("note", TEXT, "why; may be empty"),
            Field("when", optional(TEXT), "only in layers of this kind"),
            Field("option", optional(TEXT), "only with this option"),
            Field("unpermuted", optional(TEXT), "the option that leaves axes in AXLearn's order"),
            source="rows",
        ),
        objects(
            "drops",
            "what is left behind",
            Field("axlearn", TEXT, "pattern of paths", "pattern"),
            Field("reason", TEXT, "what the tensors are"),
            Field("note", optional(TEXT), "what to tell the user"),
        ),
    ),
)

MAPPING_CHECK = Record(
    "mappings check",
    (Field("valid", Kind(name="true", schema={"const": True}), "always", lambda _: True), *TABLE_FIELDS),
)

DOCUMENTS: dict[str, Record] = {
    kind.name: kind
    for kind in (
        ERROR, PLAN, CONVERT, BEAM, STATUS, VERIFY, COMPARISON, LOGITS, PARAMETERS, CONFORM, REPORT, INSPECTION,
        MAPPINGS, MAPPING, MAPPING_CHECK,
    )
}  # fmt: skip
"""Name of a command to its document; `error` is any command's."""
