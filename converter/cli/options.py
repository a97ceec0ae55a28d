"""The command line's options, made of the arguments of the public functions."""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_args

import typer

from converter.arguments import Option, arguments
from converter.cli.output import progress
from converter.errors import UsageError

JUnitFile = Annotated[
    str | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML, a test case for each leaf.")
]


def options_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments and options of a function of `api`, as Typer reads them."""
    return {
        parameter.name: _typer_parameter(parameter, *get_args(parameter.annotation))
        for parameter in arguments(function)
        if not get_args(parameter.annotation)[1].python_only
    }


def _typer_parameter(parameter: inspect.Parameter, kind: Any, option: Option) -> inspect.Parameter:
    """A text is read as it is written; `api` makes a path, a size or a setting of it."""
    default, repeated = parameter.default, parameter.default == ()
    if option.metavar:
        kind = list[str] if repeated else str
    if option.metavar and (repeated or default is None):
        kind, default = kind | None, None
    if parameter.kind is parameter.KEYWORD_ONLY:
        flag = "--" + parameter.name.replace("_", "-")
        flags = f"{flag}/--no-{flag[2:]}" if default is True else flag
        metavar = option.metavar or None
        read = typer.Option(flags, metavar=metavar, help=option.help, min=option.least, max=option.most)
    else:
        read = typer.Argument(metavar=option.metavar, help=option.help)
    return inspect.Parameter(parameter.name, parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, read])


def call(function: Callable[..., Any], context: typer.Context, given: dict[str, Any]) -> Any:
    """Calls a function of `api` with the options that were given, and with a progress line if it takes one."""
    keywords = {name: value for name, value in given.items() if value is not None}
    if any(parameter.name == "progress" for parameter in arguments(function)):
        keywords["progress"] = progress(context)
    if not context.obj.verbose:
        return function(**keywords)
    from converter.cli.retries import showing_retries

    with showing_retries():
        return function(**keywords)


def refuse_given(context: typer.Context, names: Iterable[str], where: str) -> None:
    """Refuses options that would have no effect.

    Args:
      context: of the command.
      names: options, as the function of `api` names them.
      where: why, such as "without --logits".

    Raises:
      UsageError: one of them was given.
    """
    given = sorted(name for name in names if _is_given(context, name))
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(f"{context.command.name}: {flags} cannot be used {where}")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def with_options(
    run: Callable[..., None], like: Callable[..., None], options: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """A command's function as Typer needs it: named and documented as `like`, with a context and these options."""
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    run.__name__, run.__doc__ = like.__name__, like.__doc__
    run.__signature__ = inspect.Signature([context, *options])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def shows(function: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a function of `api` and of the decorated one, which shows the result.

    The decorated function gets the context and the result; further parameters of its own are further options.
    """

    def decorate(show: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(show).parameters.values())[2:]

        def run(context: typer.Context, **given: Any) -> None:
            keywords = {parameter.name: given.pop(parameter.name) for parameter in own}
            show(context, call(function, context, given), **keywords)

        own_options = (parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own)
        return with_options(run, show, [*options_of(function).values(), *own_options])

    return decorate
