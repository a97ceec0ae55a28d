"""The documents of `logits` and `verify --logits`."""

from operator import itemgetter
from typing import Any

from converter.choices import QK_NORMS
from converter.report.documents.common import PEAK_MEMORY, QK_NORM, SECONDS_TAKEN, fit, itself
from converter.report.documents.conversions import PAIRS
from converter.report.fields import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    TEXTS,
    Field,
    Record,
    choice,
    group,
    objects,
    optional,
    record,
)

MODEL = record(
    Field("kind", choice("AXLearn", "MaxText"), "whose arithmetic"),
    Field("path", TEXT, "the checkpoint", "weights.path"),
    Field("qk_norm", choice(*QK_NORMS), QK_NORM, lambda model: fit(model.weights.fitted)),
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
            source=itself,
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
