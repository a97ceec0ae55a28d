from collections.abc import Mapping

ITEM_SIZES: Mapping[str, int] = {
    "bool": 1, "int4": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4,
    "int64": 8, "uint64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3b11fnuz": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
"""Bytes an element; the dtypes that TensorStore stores in zarr and JAX computes with."""
