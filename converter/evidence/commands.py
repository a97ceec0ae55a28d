"""The command lines by which the evidence can be made again."""

import shlex
from collections.abc import Iterator

from converter.choices import DEFAULT_KL, UNSCANNED
from converter.evidence.digests import Receipt
from converter.evidence.evidence import Command, Request
from converter.words import option_words

COPY = "NEW"
"""Stands for a directory that does not exist yet."""

NO_FLAG = {"store": "files", "compress": "zstd", "tree": "params", "layout": "scanned", "dtype": None}
"""Options of `convert` as a receipt has them, and the values that need no flag."""


def commands(request: Request, source: str, receipt: Receipt) -> tuple[Command, ...]:
    """The commands, from the conversion to this report.

    Args:
      request: what was asked for.
      source: the source step directory, in the user's words.
      receipt: what the checkpoint says of its conversion.
    """
    both, mapping = [source, request.destination], _option("--mapping", request.mapping)
    chosen = [*mapping, *_option("--tree", request.tree), *_option("--dtype", request.dtype)]
    shown = [*chosen, *_option("--sample", request.sample), *(["--decode"] if request.decode else [])]
    made: list[tuple[str, list[str]]] = []
    if not receipt.problem:
        made.append(
            (f"convert again, into a new directory {COPY}", ["convert", source, COPY, *mapping, *_made(receipt)])
        )
    made += [
        ("compare every element with the source", ["verify", *both, *shown]),
        ("check the digests, without the source", ["verify", request.destination]),
        ("compare what the two models compute", ["verify", *both, "--logits", *_of_logits(request, mapping)]),
        ("make this report", ["report", *both, *shown, *(_report_of_logits(request) if request.logits else [])]),
    ]
    return tuple(Command(purpose=purpose, line=shlex.join(["ax2mt", *words])) for purpose, words in made)


def _option(flag: str, value: object) -> list[str]:
    return [] if value is None else [flag, str(value)]


def _made(receipt: Receipt) -> Iterator[str]:
    """The options of the conversion, by its receipt."""
    # The usual compressor depends on the layout, see `planning.Options`.
    usual = {**NO_FLAG, "compress": None} if receipt.options.get("layout") == UNSCANNED else NO_FLAG
    for name, value in receipt.options.items():
        if name in usual:
            if value != usual[name] and isinstance(value, str):
                yield from (f"--{name}", value)
        elif name == "set" and isinstance(value, dict):
            for key, setting in value.items():
                yield from ("--set", f"{key}={str(setting).lower() if isinstance(setting, bool) else setting}")
        elif name == "state" and isinstance(value, dict):
            yield from ("--state", "--optimizer", str(value.get("optimizer")))
        elif value in (True, "fit"):
            yield from option_words(name)


def _of_logits(request: Request, mapping: list[str]) -> list[str]:
    words = [*mapping, *_option("--tree", request.tree)]
    return [*words, *_report_of_logits(request)[1:]] if request.logits else words


def _report_of_logits(request: Request) -> list[str]:
    flags = {"kl_max": "--max-kl", "max_abs": "--max-difference", "top1": "--min-top1"}
    usual = {"kl_max": DEFAULT_KL, "top1": 0.0}
    settings = [word for setting in request.settings for word in ("--set", setting)]
    limits = [word for name, limit in request.limits if limit != usual.get(name) for word in (flags[name], str(limit))]
    return [
        "--logits",
        *_option("--tokens", request.tokens),
        *settings,
        *(["--norm-after-rope"] if request.norm_after_rope else []),
        *limits,
        *([] if request.explain else ["--no-explain"]),
    ]
