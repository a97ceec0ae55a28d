"""Where an AXLearn checkpoint keeps an optimizer's moments, its counts and an average of the parameters.

AXLearn's optimizers are chains of any length, and a CompositeLearner keeps each learner's state below a name of its
own, so that the place of a tree is not known (`learner/optimizer/1/0/mu/...` with the published learner). Trees are
found by their shape: below them is the path of every parameter. A moment's tree is called `mu` or `nu`, Adam's count
is beside both, an average's tree is called `ema`.
"""

from converter.errors import MappingError, SourceError
from converter.mapping import Match, join
from converter.words import shorten

MOMENTS = {"mu": 1, "nu": 2}
"""Adam's moments: the name of the tree, in AXLearn as in MaxText, and the order."""

AVERAGE = "ema"
COUNT = "count"

OTHERS = {
    "gradient_square_ema": "AdaStar",
    "v_row": "Adafactor",
    "v_col": "Adafactor",
    "trace": "SGD with momentum",
}
"""Optimizers of AXLearn's whose state no optimizer of MaxText can continue from, by what they keep for each parameter:
a tree of that name, or a tensor of that name below the parameter's path."""


def find_average(match: Match) -> str:
    """Where the moving average of the parameters is.

    Args:
      match: the table on the parameters.

    Raises:
      SourceError: there is none.
      MappingError: there are several.
    """
    found = [root for root in _trees(match) if _name(root) == AVERAGE]
    if not found:
        raise SourceError(
            f"--tree {AVERAGE}: the checkpoint holds no moving average of the parameters "
            f"(.../{AVERAGE}/<parameter>); {_found_text(match)}"
        )
    if len(found) > 1:
        raise MappingError(f"--tree {AVERAGE}: the checkpoint holds {len(found)} averages: {', '.join(found)}")
    return found[0]


def find_adam(match: Match) -> str:
    """The node that holds Adam's moments, one of each for every parameter and of its shape.

    Args:
      match: the table on the parameters.

    Raises:
      SourceError: there is no Adam state, or it is incomplete.
      MappingError: there are several.
    """
    roots = [root for root in _trees(match) if _name(root) in MOMENTS]
    bases = list(dict.fromkeys(root.rpartition("/")[0] for root in roots))
    other = _other_optimizer(match)
    if other and not bases:
        raise SourceError(
            f"--state: the checkpoint holds the state of {other}, which no optimizer of MaxText can continue from; "
            f"convert without --state, to train on with another optimizer; {_found_text(match)}"
        )
    if not bases:
        raise SourceError(
            f"--state: the checkpoint holds no Adam state (.../mu and .../nu with the path of every parameter below); "
            f"{_found_text(match)}"
        )
    if len(bases) > 1:
        raise MappingError(
            f"--state: the checkpoint holds {len(bases)} optimizers' states, MaxText has one: "
            f"{', '.join(shorten(bases, 4))}"
        )
    (base,) = bases
    missing = [name for name in MOMENTS if f"{base}/{name}" not in roots]
    if missing:
        there = ", ".join(f"{base}/{name}" for name in MOMENTS if name not in missing)
        raise SourceError(
            f"--state: found {there} but no {base}/{missing[0]}: this is not Adam's state, or is incomplete"
        )
    _check_moments(match, base)
    return base


def find_counts(match: Match, base: str) -> tuple[str, ...]:
    """Adam's count, and all others of the learner but those of averages, which MaxText does not have.

    Args:
      match: the table on the parameters.
      base: the node that `find_adam` found.

    Raises:
      SourceError: Adam has no count.
    """
    shapes = match.shapes
    adam = f"{base}/{COUNT}"
    if adam not in shapes:
        raise SourceError(f"--state: {adam} is missing; expected Adam's count beside its moments")
    averages = {root.rpartition("/")[0] for root in _trees(match) if _name(root) == AVERAGE}
    own = join(match.prefix, "")
    others = [
        path
        for path in shapes
        if _name(path) == COUNT
        and path != adam
        and not path.startswith(own)
        and path.rpartition("/")[0] not in averages
    ]
    return (adam, *sorted(others))


def _parameters(match: Match) -> dict[str, str]:
    """Path below the prefix to whole path, of every source tensor."""
    prefix = join(match.prefix, "")
    return {path.removeprefix(prefix): path for row in match.rows for path in row.sources}


def _trees(match: Match) -> dict[str, set[str]]:
    """Every tree beside the parameters that has paths of parameters below it: its path, and the parameters found."""
    parameters = _parameters(match)
    deepest = max(path.count("/") for path in parameters) + 1
    own = join(match.prefix, "")
    found: dict[str, set[str]] = {}
    for path in match.shapes:
        if path.startswith(own):
            continue
        parts = path.split("/")
        for at in range(max(1, len(parts) - deepest), len(parts)):
            below = "/".join(parts[at:])
            if below in parameters:
                found.setdefault("/".join(parts[:at]), set()).add(below)
                break
    return found


def _name(root: str) -> str:
    return root.rpartition("/")[2]


def _other_optimizer(match: Match) -> str:
    """The name of an optimizer that keeps something else than Adam's moments for the parameters; empty for none."""
    own, parameters = join(match.prefix, ""), tuple(f"/{path}" for path in _parameters(match))
    names = [_name(root) for root in _trees(match)]
    below = [path.rpartition("/") for path in match.shapes if not path.startswith(own)]
    names += [name for parameter, _, name in below if name in OTHERS and parameter.endswith(parameters)]
    return next((OTHERS[name] for name in names if name in OTHERS), "")


def _check_moments(match: Match, base: str) -> None:
    """Refuses moments that are not one for each parameter, each of its parameter's shape."""
    shapes, parameters = match.shapes, _parameters(match)
    expected = {f"{base}/{name}/{path}": full for name in MOMENTS for path, full in parameters.items()}
    missing = [path for path in expected if path not in shapes]
    if missing:
        raise SourceError(
            f"--state: {len(missing)} of {len(expected)} moments are missing, the first is {missing[0]}",
            shorten(missing[1:]),
        )
    prefixes = tuple(f"{base}/{name}/" for name in MOMENTS)
    extra = [path for path in shapes if path.startswith(prefixes) and path not in expected]
    if extra:
        raise MappingError(f"--state: {extra[0]} is a moment, but there is no such parameter", shorten(extra[1:]))
    wrong = [
        f"{path} has the shape {list(shapes[path])}, its parameter {list(shapes[full])}"
        for path, full in expected.items()
        if shapes[path] != shapes[full]
    ]
    if wrong:
        raise SourceError(f"--state: {wrong[0]}", shorten(wrong[1:]))


def _found_text(match: Match) -> str:
    """What a checkpoint holds beside the parameters."""
    count = len(_parameters(match))
    found = [f"{root} ({len(below)} of {count} parameters)" for root, below in _trees(match).items()]
    own = join(match.prefix, "")
    others = [path for path in match.shapes if not path.startswith(own)]
    if found:
        return f"found {', '.join(shorten(found, 4))}"
    return f"found {', '.join(shorten(others, 4))}" if others else "found the parameters alone"
