"""The forms in which commands show captures: JSON lines, or lines for a person (`text_form`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.json_form import render_heartbeat, render_line, render_state_complete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.capture import Capture, Heartbeat, StateComplete
    from tailrace.criteria import Content
    from tailrace.schema import Schema


class OutputForm:
    """How captures look on stdout."""

    def learn(self, schema: Schema) -> None:
        """Take note of the columns that the captures to come have."""

    def captures(self, captures: Sequence[Capture]) -> list[bytes]:
        """Return the lines of each capture."""
        raise NotImplementedError

    def state_complete(self, mark: StateComplete) -> bytes:
        """Return the line behind the last row of a state."""
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

    def state_complete(self, mark: StateComplete) -> bytes:
        """Return its line."""
        return render_state_complete(mark)

    def heartbeat(self, heartbeat: Heartbeat) -> bytes:
        """Return its line."""
        return render_heartbeat(heartbeat)
