"""Captures as lines for a person, on what stdout is."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from tailrace_server.cli.output import Palette
from tailrace_server.cli.shown.forms import OutputForm
from tailrace_server.cli.shown.human import HumanForm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.capture import Capture, Heartbeat, StateComplete
    from tailrace.schema import Schema


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

    def state_complete(self, mark: StateComplete) -> bytes:
        """Return its line."""
        return f"{self._human.state_complete(mark)}\n".encode()

    def heartbeat(self, heartbeat: Heartbeat) -> bytes:
        """Return its line."""
        return f"{self._human.heartbeat(heartbeat)}\n".encode()
