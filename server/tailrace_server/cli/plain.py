"""The ``tailrace`` command if only the client is installed: ``watch`` and ``changes``, as JSON lines.

It has the same functions and options as the full command (`option_fields`), but argparse of the standard
library parses the command line. The output for a person is missing, since it needs the extra ``cli``.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from dataclasses import MISSING
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NoReturn

from tailrace.errors import InvalidRequest
from tailrace_server.cli.commands import COMMANDS, named
from tailrace_server.cli.terminal import errors
from tailrace_server.cli.terminal.output import note, open_closed_streams
from tailrace_server.errors import CannotStart
from tailrace_server.extras import install_line, needed_by
from tailrace_server.option_fields import called_with, groups_of, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace_server.option_fields import FieldOption


def main() -> None:
    """Run the command line of this process and exit."""
    open_closed_streams()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status; errors are reported and never raised."""
    return errors.guarded(partial(_run, arguments))


def _run(arguments: Sequence[str]) -> int:
    wanted = COMMANDS.get(named(arguments) or "")
    if wanted is not None and wanted.extra is not None:
        raise CannotStart(needed_by(str(named(arguments)), wanted.extra))
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    function = given.pop("function", None)
    if function is None:
        parser.print_help()
        return errors.REFUSED
    # A person at a terminal probably expects readable lines: say how to get them.
    if sys.stdout.isatty():
        note(f"printing JSON lines; for readable output: {install_line('cli')}")
    return int(called_with(function, {**given, "as_json": True}))


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line, like our other commands."""

    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    extras: dict[str, list[str]] = {}
    for name, command in COMMANDS.items():
        if command.extra is not None:
            extras.setdefault(command.extra, []).append(name)
    others = {extra: ", ".join(names) for extra, names in extras.items()}
    width = max(map(len, others.values())) + 2
    parser = _Parser(
        prog="tailrace",
        description="Send every change of Spark-maintained tables to all of its subscribers.",
        epilog="not installed:\n"
        + "".join(f"  {names:<{width}}{install_line(extra)}\n" for extra, names in others.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tailrace {version('tailrace')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        if command.extra is None:
            _add_command(commands, name, getattr(import_module(command.module), command.attribute))
    return parser


def _add_command(commands: Any, name: str, function: Callable[..., int]) -> None:
    """Add a command, with the options of the groups that its function takes."""
    text = inspect.getdoc(function) or ""
    parser = commands.add_parser(
        name,
        help=text.partition("\n")[0],
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(function=function)
    panels: dict[str | None, Any] = {None: parser}
    for group in groups_of(function).values():
        for field, each in options_of(group).items():
            if each.panel not in panels:
                panels[each.panel] = parser.add_argument_group(each.panel)
            _add_option(panels[each.panel], field, each)


def _add_option(panel: Any, field: str, each: FieldOption) -> None:
    """Add a field's option to the parser, or to one of its headings."""
    help_text, metavar = each.help.replace("%", "%%"), each.form.metavar
    if not each.flag:
        count = None if each.default is MISSING else "?"
        panel.add_argument(field, metavar=metavar, nargs=count, help=help_text)
        return
    reading: dict[str, Any] = {"action": "store_true"}
    if each.form.kind is not bool:
        default = (
            os.environ.get(each.environment, each.default) if each.environment else each.default
        )
        reading = {"metavar": metavar, "default": default}
        if each.form.kind is int:
            reading["type"] = partial(_number, each.form.least)
        elif each.form.kind is not str:
            reading["action"] = "append"
    panel.add_argument(each.flag, dest=field, help=help_text, **reading)


def _number(least: int | None, text: str) -> int:
    """Parse a number, and refuse one below ``least``; None: 0."""
    if not text.isdecimal() or (least is not None and int(text) < least):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least or 0}")
    return int(text)
