"""Patterns of parameter paths: the answers of Python's `re`, in linear time, and all other notation refused by name."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.mapping.path_pattern import MAX_PATTERN, PathPattern, PatternError

PATH = "decoder/transformer/repeat/layer/layer1/feed_forward/wi_0_weight"


@pytest.mark.parametrize(
    "pattern",
    [
        ".*feed_forward/wi_0_weight", ".*", ".*/(wi_0|wi_1)_weight", ".*wi_0.weight", r".*\/wi_0_weight", ".+weight",
        "(decoder|encoder)/.*", ".*/layer1?/.*", "feed_forward/wi_0_weight", ".*wi_0", "", "|", ".*(/layer.)+/.*",
    ],
)  # fmt: skip
def test_patterns_as_they_occur(pattern: str) -> None:
    assert PathPattern.compile(pattern).matches(PATH) == bool(re.fullmatch(pattern, PATH))


@given(pattern=st.text("ab.*+?|()\\/", max_size=10), paths=st.lists(st.text("ab./\n", max_size=8), max_size=5))
def test_the_answers_are_those_of_re(pattern: str, paths: list[str]) -> None:
    try:
        compiled = PathPattern.compile(pattern)
    except PatternError:
        return
    for path in paths:
        assert compiled.matches(path) == bool(re.fullmatch(pattern, path)), (pattern, path)


@given(pattern=st.text(max_size=MAX_PATTERN + 5))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    with contextlib.suppress(PatternError):
        assert PathPattern.compile(pattern).matches(PATH) in (True, False)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a[bc]", "'[' at character 2"),
        ("a{2}", "'{' at character 2"),
        ("^a", "'^' at character 1"),
        ("a$", "'$' at character 2"),
        (r"\d", r"'\d' at character 1"),
        ("a\\", "'\\' at character 2"),
        ("(?:a)", "'(?' at character 1"),
        ("(a", "'(' without ')' at character 1"),
        ("a)", "')' without '(' at character 2"),
        ("a*?", "'*?' at character 2"),
        ("*a", "'*' at character 1"),
        ("(" * 20 + "a" + ")" * 20, "more than 16 groups inside each other"),
        ("a" * (MAX_PATTERN + 1), f"a pattern of {MAX_PATTERN + 1} characters, expected at most {MAX_PATTERN}"),
    ],
)
def test_other_notation_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(PatternError) as caught:
        PathPattern.compile(pattern)
    assert str(caught.value) == message


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(.*)*b", "(a+)+b", "(a?)*" * 20 + "b"])
def test_no_pattern_is_a_trap(pattern: str) -> None:
    # With `re` each of them takes longer than the universe has been there.
    assert not PathPattern.compile(pattern).matches("a" * 1000)
