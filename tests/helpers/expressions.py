"""hypothesis strategies: random axis expressions, with sizes."""

from hypothesis import strategies as st

NAMES = "abcde"


def _group(draw: st.DrawFn, factors: list[str]) -> list[str]:
    """Cuts a row of axes into dimensions."""
    dims: list[str] = []
    rest = list(factors)
    while rest:
        count = draw(st.integers(1, min(3, len(rest))))
        part, rest = rest[:count], rest[count:]
        dims.append(part[0] if count == 1 else f"({' '.join(part)})")
    return dims


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """The text of a valid expression: any permutation and regrouping, fixed sizes, and splits or joins along a sum."""
    names = list(NAMES[: draw(st.integers(1, 4))])
    fixed = draw(st.sampled_from([[], ["2"], ["1"], ["3"], ["2", "3"]]))
    factors = draw(st.permutations(names + fixed))
    parts = draw(st.integers(1, 3))
    if parts == 1:
        sides = [" ".join(_group(draw, list(draw(st.permutations(factors))))) for _ in range(2)]
        return " -> ".join(sides)
    terms = draw(st.lists(st.sampled_from("xyz"), min_size=parts, max_size=parts))
    joined = _group(draw, list(factors))
    joined.insert(draw(st.integers(0, len(joined))), f"({' + '.join(terms)})")
    tensors = [" ".join(_group(draw, list(draw(st.permutations([*factors, term]))))) for term in terms]
    sides = [" ".join(joined), " | ".join(tensors)]
    return " -> ".join(sides if draw(st.booleans()) else sides[::-1])


def sizes(names: tuple[str, ...], most: int = 4) -> st.SearchStrategy[dict[str, int]]:
    """A size for each axis, equal ones among them."""
    return st.fixed_dictionaries({name: st.integers(1, most) for name in names})
