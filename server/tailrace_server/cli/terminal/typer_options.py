"""Declared options as Typer takes them, and those that groups of commands share."""

from __future__ import annotations

import inspect
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from tailrace_server.cli.terminal import options
from tailrace_server.cli.terminal.declared import Argument, Option
from tailrace_server.cli.terminal.options import TOKEN_FILE

if TYPE_CHECKING:
    from collections.abc import Callable


def typed(declared: Option | Argument) -> Any:
    """Return an option or argument as Typer declares it. Its help is text, not markup."""
    help_text = declared.help.replace("[", r"\[")
    if isinstance(declared, Argument):
        return typer.Argument(metavar=declared.metavar, help=help_text)
    return typer.Option(
        declared.name,
        metavar=declared.metavar,
        envvar=declared.environment,
        min=declared.least,
        help=help_text,
        rich_help_panel=declared.panel,
    )


def typed_command(function: Callable[..., int]) -> Callable[..., int]:
    """Return a command whose options are declared (`declared`) with Typer's in their place."""
    signature = inspect.signature(function, eval_str=True)
    parameters = []
    for parameter in signature.parameters.values():
        kind, declared = get_args(parameter.annotation)
        annotation = Annotated[kind, typed(declared)]  # type: ignore[valid-type]
        parameters.append(parameter.replace(annotation=annotation))

    @wraps(function)
    def command(**given: Any) -> int:
        return function(**given)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


Server = Annotated[str, typed(options.SERVER)]
TokenFile = Annotated[str | None, typed(TOKEN_FILE)]
AsJson = Annotated[bool, typed(options.AS_JSON)]
WithTls = Annotated[bool, typed(options.TLS)]
TlsCa = Annotated[str | None, typed(options.TLS_CA)]
TlsCertificate = Annotated[str | None, typed(options.TLS_CERTIFICATE)]
TlsKey = Annotated[str | None, typed(options.TLS_KEY)]
LogRoot = Annotated[
    Path,
    typer.Option(
        "--log",
        metavar="ROOT",
        envvar="TAILRACE_LOG",
        help="The log root, one folder per catalog.",
    ),
]
LogOrServer = Annotated[
    Path | None,
    typer.Option(
        "--log",
        metavar="ROOT",
        envvar="TAILRACE_LOG",
        help="The log root, one folder per catalog; not with --server.",
    ),
]
LogInsteadOfServer = Annotated[
    Path | None,
    typer.Option(
        "--log", metavar="ROOT", help="Look into this log root instead of asking a server."
    ),
]
