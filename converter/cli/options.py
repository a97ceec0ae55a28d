"""Arguments and options that several commands have."""

from typing import Annotated

import typer

from converter.choices import MAX_JOBS, QkNorm, Store

SourceArgument = Annotated[str, typer.Argument(metavar="SRC", help="AXLearn step directory, or a trainer directory.")]
StepOption = Annotated[int | None, typer.Option("--step", min=0, help="Step to take; default: latest committed.")]
MappingOption = Annotated[
    str | None, typer.Option("--mapping", metavar="FILE", help="Your own mapping table, or a bundled one.")
]
TableOption = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME", help="Switch on an option of the mapping table.")
]
UntieOption = Annotated[
    bool, typer.Option("--untie", help="Write the output projection as a leaf of its own: --option untie.")
]
MemoryOption = Annotated[str, typer.Option("--max-memory", metavar="SIZE", help="Budget for blocks in flight.")]
StoreOption = Annotated[
    Store, typer.Option("--store", help="Plain files, one OCDBT database, or zarr2 files for old readers.")
]
RewriteOption = Annotated[bool, typer.Option("--rewrite", help="Decode and encode every chunk; pass none through.")]
LinkOption = Annotated[bool, typer.Option("--link", help="Hard-link chunks instead of copying: no checksums.")]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, max=MAX_JOBS, help="Blocks in flight, as memory allows.")]
QkNormOption = Annotated[
    QkNorm, typer.Option("--qk-norm", help="Copy the q/k norm scales, or fit them to stock MaxText.")
]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change maxtext.yml.")]
TokensOption = Annotated[
    str | None, typer.Option("--tokens", metavar="FILE", help="JSON lines of ids, or .npz; default: a built-in set.")
]
WhatIfOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Compute as with other model keys.")
]
PatchedOption = Annotated[
    bool, typer.Option("--norm-after-rope", help="Compute as MaxText does with converter.maxtext_patch.")
]
ProcessMemoryOption = Annotated[str, typer.Option("--max-memory", metavar="SIZE", help="Budget for the process.")]
