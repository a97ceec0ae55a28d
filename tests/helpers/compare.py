"""Bitwise comparison of trees of arrays."""

from collections.abc import Mapping

import numpy as np


def assert_same_leaves(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """Same paths, shapes, dtypes and bytes; the first difference is named by its path."""
    assert sorted(actual) == sorted(expected)
    for path, values in expected.items():
        found = actual[path]
        assert (found.shape, str(found.dtype)) == (values.shape, str(values.dtype)), path
        same = found.tobytes() == np.ascontiguousarray(values).tobytes()
        assert same, f"{path}: other bytes than expected"
