"""Conversion of option fields (`option_fields`) to parameters of Typer's commands; options of log roots."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import MISSING
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tailrace_server.cli.terminal.options import AS_JSON, FORM
from tailrace_server.option_fields import RUNNING, called_with, groups_of, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from tailrace_server.option_fields import FieldOption


def parameters_of(group: type) -> list[inspect.Parameter]:
    """Return the option fields of a dataclass as parameters of a command; markup in help texts is escaped."""
    return [_parameter(name, each) for name, each in options_of(group).items()]


def _parameter(name: str, each: FieldOption) -> inspect.Parameter:
    help_text = each.help.replace("[", r"\[")
    option: Any
    if each.flag:
        option = typer.Option(
            each.flag,
            metavar=each.form.metavar,
            envvar=each.environment,
            min=each.form.least,
            help=help_text,
            rich_help_panel=each.panel,
        )
    else:
        option = typer.Argument(metavar=each.form.metavar, help=help_text)
    default = inspect.Parameter.empty if each.default is MISSING else each.default
    return keyword(name, Annotated[each.kind, option], default)


def keyword(
    name: str, annotation: Any, default: object = inspect.Parameter.empty
) -> inspect.Parameter:
    """Return a keyword-only parameter of a command."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def with_parameters(
    command: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> Callable[..., Any]:
    """Replace the signature of a command by parameters that Typer reads."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def with_settings(
    command: Callable[..., int],
    settings: type,
    written_here: Mapping[str, list[inspect.Parameter]],
    without: Collection[str] = (),
) -> Callable[..., int]:
    """Add the options of a command's settings to it, in the order of the fields.

    Args:
        command: Function that takes the options by the names of the fields, and ``quiet``.
        settings: Dataclass of the settings.
        written_here: Name of a field → options to add in its place, or before the field's own option.
        without: Names of fields whose options the command lacks.
    """
    own = {each.name: each for each in parameters_of(settings) if each.name not in without}
    parameters: list[inspect.Parameter] = []
    for each in dataclasses.fields(settings):
        parameters += written_here.get(each.name, ())
        if each.name in own:
            parameters.append(own[each.name])
    return with_parameters(command, [*parameters, _QUIET])


def with_options(function: Callable[..., int]) -> Callable[..., int]:
    """Return a command for Typer in which each field of the function's option groups is an option."""
    groups = groups_of(function)
    parameters: list[inspect.Parameter] = []
    for name, each in inspect.signature(function, eval_str=True).parameters.items():
        if name in groups:
            parameters += parameters_of(groups[name])
        else:
            parameters.append(keyword(name, each.annotation, each.default))

    @wraps(function)
    def command(**given: Any) -> int:
        return called_with(function, given)

    return with_parameters(command, parameters)


AsJson = Annotated[bool, typer.Option(AS_JSON[0], help=AS_JSON[1], rich_help_panel=FORM)]
LogRoot = Annotated[
    Path,
    typer.Option(
        "--log",
        metavar="ROOT",
        envvar="TAILRACE_LOG",
        help="Log root, with one folder per catalog.",
    ),
]
LogInsteadOfServer = Annotated[
    Path | None,
    typer.Option("--log", metavar="ROOT", help="Read this log root instead of a server."),
]
LOG_ROOT: Final = keyword("log", LogRoot)
_QUIET: Final = keyword(
    "quiet",
    Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print only errors.", rich_help_panel=RUNNING),
    ],
    default=False,
)
