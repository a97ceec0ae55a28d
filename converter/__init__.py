"""ax2mt: converts AXLearn checkpoints into MaxText checkpoints.

The public functions are loaded when they are first used; see docs/api.md. Nothing is imported before: a process of ours
loads this package before its import path is in order, see `launch`.
"""

__all__ = [
    "beam",
    "compare_logits",
    "conform",
    "convert",
    "errors",
    "gather_evidence",
    "inspect",
    "logits",
    "parameters",
    "plan",
    "status",
    "verify",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from converter import errors
    from converter.api import (
        beam,
        compare_logits,
        conform,
        convert,
        gather_evidence,
        inspect,
        logits,
        parameters,
        plan,
        status,
        verify,
    )
    from converter.version import __version__ as __version__


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "__version__":
        return import_module("converter.version").__version__
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("converter.errors") if name == "errors" else getattr(import_module("converter.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
