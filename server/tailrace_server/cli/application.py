"""The ``tailrace`` command: its subcommands, and what happens to their errors.

Only the module of the command that is asked for is imported: ``tailrace watch`` need not wait for the
engine's imports, nor ``serve`` for Spark's.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tailrace_server.cli import errors
from tailrace_server.cli.output import open_closed_streams
from tailrace_server.process import share_one_arena

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "play": ("tailrace_server.demo.play", "play"),
    "demo": ("tailrace_server.demo.command", "demo"),
    "ingest": ("tailrace_server.cli.ingest", "ingest_app"),
    "export": ("tailrace_server.cli.export", "export_app"),
    "serve": ("tailrace_server.cli.serve", "serve_command"),
    "watch": ("tailrace_server.cli.watch", "watch"),
    "changes": ("tailrace_server.cli.changes", "changes"),
    "catalog": ("tailrace_server.cli.catalog", "app"),
    "log": ("tailrace_server.cli.log", "app"),
}
"""Command → its module, and the command's function or group in it; in the order of the help."""


def application(wanted: str | None = None) -> typer.Typer:
    """Return the command with one of its subcommands, or with all where the name is none of them."""
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
        module, attribute = COMMANDS[name]
        command: Any = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status; no error leaves as an exception."""
    return errors.guarded(
        lambda: application(_wanted(arguments))(
            args=list(arguments), prog_name="tailrace", standalone_mode=False
        )
    )


def main() -> None:
    """Run the command line of this process and exit; the console script."""
    open_closed_streams()
    wanted = _wanted(sys.argv[1:])
    if wanted != "ingest":
        sys.meta_path.insert(0, _NoPandas())
    if wanted == "serve":
        share_one_arena()
    sys.exit(run(sys.argv[1:]))


class _NoPandas(MetaPathFinder):
    """Hides pandas from a process that has no use for it.

    pyarrow imports pandas, where it can, as soon as it makes its first array: half a second of every start
    and 40 MB, of use to Spark's Arrow functions only.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Say that there is no pandas, and leave all else to others."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is for ingest only", name=fullname)


def _wanted(arguments: Sequence[str]) -> str | None:
    return next((each for each in arguments if not each.startswith("-")), None)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tailrace {version('tailrace')}")
        raise typer.Exit


def tailrace(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Carry every change of Spark-maintained tables to everyone who asked for it."""
