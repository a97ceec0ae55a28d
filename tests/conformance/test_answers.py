"""Answers of another form are refused with the place that is wrong."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from converter.conformance.answers import AnswerError, read_axlearn, read_maxtext

LEAF = {"path": "decoder/scale", "shape": [2, 3], "dtype": "float32", "axes": ["norm", ""]}
MODEL = {"leaves": [LEAF], "values": {"rope_type": "default", "x": None, "y": [1]}, "unknown": ["z"], "problem": ""}
MAXTEXT = {
    "python": "3.12.1", "version": "0.2.5", "peak_memory": 7, "models": {"0 scanned": MODEL},
    "published": {"test": {"head_dim": 2}, "other": None},
}  # fmt: skip
AXLEARN = {"python": "3.12.1", "version": "", "peak_memory": 7, "leaves": [LEAF], "lines": "dir: 'x'"}


def test_valid_answers() -> None:
    maxtext, axlearn = read_maxtext(MAXTEXT), read_axlearn(AXLEARN)
    assert maxtext.models["0 scanned"].leaves["decoder/scale"].axes == ("norm", "")
    assert maxtext.published == {"test": {"head_dim": 2}, "other": None}
    assert axlearn.leaves["decoder/scale"].shape == (2, 3)


Damage = Callable[[Any], object]


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        (lambda a: a.pop("version"), "version: expected a text"),
        (lambda a: a.update(python=3), "python: expected a text"),
        (lambda a: a.update(peak_memory=-1), "peak_memory: expected a number of at least 0, found -1"),
        (lambda a: a.update(models=[]), "models: expected an object, found list"),
        (lambda a: a.update(published={"test": 3}), "published.test: expected an object, found int"),
        (lambda a: a["models"].update({"0 scanned": 1}), "models.0 scanned: expected an object"),
        (lambda a: model(a).pop("leaves"), "models.0 scanned.leaves: expected a list"),
        (lambda a: model(a)["values"].update(x={}), "models.0 scanned.values.x: expected a plain value, found dict"),
        (lambda a: model(a).update(unknown=[1]), "models.0 scanned.unknown: expected a text"),
        (lambda a: model(a)["leaves"].append(LEAF), "leaves: decoder/scale is there twice"),
        (lambda a: model(a)["leaves"][0].update(shape=[True]), "decoder/scale: shape: expected a number"),
        (lambda a: model(a)["leaves"][0].update(shape=[2**63]), "decoder/scale: shape: expected a number"),
        (lambda a: model(a)["leaves"][0].update(shape=[1] * 33), "shape: expected a list of at most 32 entries"),
        (lambda a: model(a)["leaves"][0].update(dtype=None), "decoder/scale: dtype: expected a text"),
        (lambda a: model(a)["leaves"][0].update(path="x" * 10_001), "path: expected a text of at most 10000"),
    ],
)
def test_other_forms(damage: Damage, where: str) -> None:
    answer = copy.deepcopy(MAXTEXT)
    damage(answer)
    with pytest.raises(AnswerError) as caught:
        read_maxtext(answer)
    assert where in str(caught.value)


def model(answer: Any) -> Any:
    return answer["models"]["0 scanned"]


@pytest.mark.parametrize("value", [None, 3, [], "text"])
def test_what_is_no_object(value: object) -> None:
    for read in (read_maxtext, read_axlearn):
        with pytest.raises(AnswerError, match="the answer: expected an object"):
            read(value)


def test_lines_must_be_a_text() -> None:
    with pytest.raises(AnswerError, match="lines: expected a text"):
        read_axlearn({**AXLEARN, "lines": None})
