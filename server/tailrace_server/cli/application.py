"""The ``tailrace`` command: its subcommands, and what happens to their errors."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from tailrace_server.cli import errors
from tailrace_server.cli.changes import changes
from tailrace_server.cli.serve import serve_command
from tailrace_server.cli.watch import watch

app: Final = typer.Typer(
    name="tailrace",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve_command)
app.command("watch")(watch)
app.command("changes")(changes)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tailrace {version('tailrace')}")
        raise typer.Exit


@app.callback()
def tailrace(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Carry every change of Spark-maintained tables to everyone who asked for it."""


def main() -> None:
    """Run the command line of this process and exit; the console script."""
    sys.exit(errors.guarded(lambda: app(standalone_mode=False)))
