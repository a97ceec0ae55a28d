"""The command line of a conversion, for those who meet its work area and have to finish it."""

import shlex

from converter.choices import DEFAULT_MEMORY, LAYOUTS, STORES, TREES
from converter.conversion.conversion import Request
from converter.planning import Plan
from converter.words import option_words


def convert_command(request: Request, plan: Plan, destination: str) -> str:
    """The command that does the same conversion again, with absolute paths and the step that was taken."""
    options = plan.options
    values = {
        "--step": plan.step if request.step is not None else None,
        "--mapping": request.mapping,
        "--layout": options.layout if options.layout != LAYOUTS[0] else None,
        "--max-memory": options.max_memory if options.max_memory != DEFAULT_MEMORY else None,
        "--store": options.store if options.store != STORES[0] else None,
        "--compress": options.compress,
        "--dtype": options.dtype,
        "--tree": options.tree if options.tree != TREES[0] else None,
        "--optimizer": options.optimizer,
    }
    flags = {
        "--rewrite": options.rewrite,
        "--link": options.link,
        "--state": options.state,
        "--force": options.force,
        "--check": request.check,
        "--require-exact": request.require_exact,
    }
    words = ["ax2mt", "convert", request.source, destination]
    words += [word for flag, value in values.items() if value is not None for word in (flag, str(value))]
    words += [flag for flag, given in flags.items() if given]
    words += [word for name in sorted(options.table) for word in option_words(name)]
    words += [word for setting in request.settings for word in ("--set", setting)]
    return shlex.join(words)
