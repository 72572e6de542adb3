"""The two forms in which commands show captures: lines for a person, or JSON lines."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from tailrace.json_form import render_heartbeat, render_line
from tailrace_server.cli.human import HumanForm
from tailrace_server.cli.output import Palette

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.capture import Capture, Heartbeat
    from tailrace.criteria import Content
    from tailrace.schema import Schema


class OutputForm:
    """How captures look on stdout."""

    def learn(self, schema: Schema) -> None:
        """Take note of the columns that the captures to come have."""

    def captures(self, captures: Sequence[Capture]) -> list[bytes]:
        """Return the lines of each capture."""
        raise NotImplementedError

    def heartbeat(self, heartbeat: Heartbeat) -> bytes:
        """Return the line of a heartbeat."""
        raise NotImplementedError


class JsonForm(OutputForm):
    """One flat object a line."""

    def __init__(self, content: Content) -> None:
        """Show the bodies that were asked for, also where they are null."""
        self._content = content

    def captures(self, captures: Sequence[Capture]) -> list[bytes]:
        """Return one line for each."""
        return [render_line(each, self._content) for each in captures]

    def heartbeat(self, heartbeat: Heartbeat) -> bytes:
        """Return its line."""
        return render_heartbeat(heartbeat)


class TextForm(OutputForm):
    """Aligned and coloured, for a person."""

    def __init__(self, human: HumanForm) -> None:
        """Render by ``human``."""
        self._human = human

    @classmethod
    def for_stdout(cls) -> TextForm:
        """Return the form that suits what stdout is: a terminal's width and colours, or neither."""
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        return cls(HumanForm(Palette.of(sys.stdout), width=width))

    def learn(self, schema: Schema) -> None:
        """Know which columns are the key, which is shown already."""
        self._human.keys = {
            entity_type: frozenset(column.name for column in columns if column.key)
            for entity_type, columns in schema.entity_types.items()
        }

    def captures(self, captures: Sequence[Capture]) -> list[bytes]:
        """Return one line for each, and before the first of a day that."""
        pieces = []
        for capture in captures:
            day = self._human.day(capture)
            head = "" if day is None else f"{day}\n"
            pieces.append(f"{head}{self._human.render(capture)}\n".encode())
        return pieces

    def heartbeat(self, heartbeat: Heartbeat) -> bytes:
        """Return its line."""
        return f"{self._human.heartbeat(heartbeat)}\n".encode()


def form_for_stdout(content: Content, *, as_json: bool) -> OutputForm:
    """Return the form that was asked for, as it suits what stdout is."""
    return JsonForm(content) if as_json else TextForm.for_stdout()
