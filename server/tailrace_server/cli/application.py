"""The ``tailrace`` command: its subcommands, and the handling of their errors.

Only the module of the requested command is imported: ``tailrace watch`` need not wait for the imports of the
engine, nor ``serve`` for those of Spark.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.errors import InvalidRequest
from tailrace_server.cli.commands import COMMANDS, named
from tailrace_server.cli.terminal import errors
from tailrace_server.cli.terminal.output import open_closed_streams
from tailrace_server.cli.terminal.typer_options import with_options
from tailrace_server.errors import CannotStart
from tailrace_server.extras import install_line, installed, needed_by
from tailrace_server.process import expect_large_blocks, share_one_arena

if TYPE_CHECKING:
    from collections.abc import Sequence


def application(wanted: str | None = None) -> typer.Typer:
    """Return the ``tailrace`` command with one subcommand; with all if ``wanted`` is not a subcommand."""
    app = typer.Typer(
        name="tailrace",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(tailrace)
    for name in [wanted] if wanted in COMMANDS else COMMANDS:
        _add_command(app, name)
    return app


def _add_command(app: typer.Typer, name: str) -> None:
    """Add a command. If its packages are missing, add one that says what to install."""
    place = COMMANDS[name]
    if place.extra is not None and not installed(place.extra):
        _add_refusal(app, name, place.extra)
        return
    command: Any = getattr(import_module(place.module), place.attribute)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(with_options(command))


def _add_refusal(app: typer.Typer, name: str, extra: str) -> None:
    def refuse() -> None:
        raise CannotStart(needed_by(name, extra))

    app.command(
        name,
        help=install_line(extra).replace("[", r"\["),
        rich_help_panel="Not installed",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(refuse)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status; errors are reported and never raised."""
    return errors.guarded(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> object:
    """Run Typer, and convert its exceptions to exit statuses and to our errors."""
    app = application(named(arguments))
    try:
        return app(args=list(arguments), prog_name="tailrace", standalone_mode=False)
    except typer.Exit as exit_:
        return exit_.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as error:
        if not error.format_message():
            return errors.REFUSED  # no command: the help has been shown
        context = getattr(error, "ctx", None)
        hint = f"; see {context.command_path} --help" if context is not None else ""
        raise InvalidRequest(f"{error.format_message().rstrip('.')}{hint}") from error


def main() -> None:
    """Run the command line of this process and exit; the console script."""
    open_closed_streams()
    # Before the modules of the command are imported: pyarrow must not find pandas, and the allocator has to be
    # set up before threads start and large blocks are allocated.
    wanted = named(sys.argv[1:])
    if wanted != "ingest":
        sys.meta_path.insert(0, _NoPandas())
    if wanted == "serve":
        share_one_arena()
        expect_large_blocks()
    sys.exit(run(sys.argv[1:]))


class _NoPandas(MetaPathFinder):
    """An import hook that hides pandas.

    If pandas is installed, pyarrow imports it with its first array. That costs half a second and 40 MB in every
    process, and only Spark's Arrow functions need it.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for pandas; leave all other modules to the next finder."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is for ingest only", name=fullname)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tailrace {version('tailrace')}")
        raise typer.Exit


def tailrace(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Carry every change of Spark-maintained tables to everyone who asked for it."""
