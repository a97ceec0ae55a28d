"""Arguments and options that several commands have."""

from typing import Annotated

import typer

SourceArgument = Annotated[str, typer.Argument(metavar="SRC", help="AXLearn step directory, or a trainer directory.")]
StepOption = Annotated[int | None, typer.Option("--step", min=0, help="Step to take; default: latest committed.")]
MappingOption = Annotated[str | None, typer.Option("--mapping", metavar="FILE", help="Your own mapping table.")]
UntieOption = Annotated[bool, typer.Option("--untie", help="Write the output projection as a leaf of its own.")]
MemoryOption = Annotated[str, typer.Option("--max-memory", metavar="SIZE", help="Budget for blocks in flight.")]
StoreOption = Annotated[str, typer.Option("--store", help="files, ocdbt (one database) or zarr2 (for old readers).")]
RewriteOption = Annotated[bool, typer.Option("--rewrite", help="Decode and encode every chunk, pass none through.")]
LinkOption = Annotated[bool, typer.Option("--link", help="Hard-link chunks instead of copying: no checksums.")]
JobsOption = Annotated[int, typer.Option("--jobs", min=1, max=256, help="Blocks in flight, as memory allows.")]
QkNormOption = Annotated[
    str, typer.Option("--qk-norm", help="plain: copy the q/k norm scales; fit: fit them to stock MaxText.")
]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change maxtext.yml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Name each finished leaf.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
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
