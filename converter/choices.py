"""Values that an option can have, for the command line, the Python interface and the checks."""

from typing import Literal, get_args

Store = Literal["files", "ocdbt", "zarr2"]
"""How leaves are stored."""

STORES: tuple[Store, ...] = get_args(Store)

QkNorm = Literal["plain", "fit"]
"""What becomes of q/k norm scales: copied, or fitted to stock MaxText."""

QK_NORMS: tuple[QkNorm, ...] = get_args(QkNorm)

Rope = Literal["permuted", "interleaved"]
"""How rotated pairs lie in q and k: as MaxText's usual RoPE wants them, or side by side as in AXLearn."""

ROPES: tuple[Rope, ...] = get_args(Rope)
INTERLEAVED = ROPES[1]

Tree = Literal["params", "ema"]
"""What becomes MaxText's parameters: AXLearn's, or their exponential moving average."""

TREES: tuple[Tree, ...] = get_args(Tree)

Layout = Literal["scanned", "unscanned"]
"""Where MaxText's layers are: together in one leaf, or each in leaves of its own."""

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
SCANNED, UNSCANNED = LAYOUTS

CastDtype = Literal[
    "bfloat16", "float16", "float32", "float64",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz",
]  # fmt: skip
"""Dtypes that weights can have been cast to."""

CAST_DTYPES: tuple[CastDtype, ...] = get_args(CastDtype)

ServingDtype = Literal["bfloat16"]
"""Dtypes that a conversion can cast weights to."""

SERVING_DTYPES: tuple[ServingDtype, ...] = get_args(ServingDtype)

Compressor = Literal["zstd", "none"]
"""How chunks that are rewritten are compressed."""

COMPRESSORS: tuple[Compressor, ...] = get_args(Compressor)
ZSTD, NO_COMPRESSION = COMPRESSORS

DEFAULT_MEMORY = 1 << 30
"""Bytes that work in flight may take together, where the user says nothing."""

MAX_JOBS = 256
"""Blocks in flight, at most: each has a thread."""

DEFAULT_KL = 1e-4
"""The worst token's divergence that passes by default: rounding the tied table stays below, an unequal function not."""
