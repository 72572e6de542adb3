"""What a face asks for in SQL."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOUND: Final = ("from", "to")
"""Parameters that a poll has."""


class SqlForm(Enum):
    """What the rows of an answer are sent as."""

    ROWS = "rows"
    """A JSON array a line."""
    OBJECTS = "objects"
    """JSON objects, a comma behind each."""
    LINES = "lines"
    """A JSON object a line."""
    ARROW = "arrow"
    """Pieces of an Arrow stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlAsked:
    """One statement."""

    statement: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Values of ``$name`` in it."""
    form: SqlForm = SqlForm.ROWS
    since_version: int | None = None
    """Of a poll: ``$from`` is this version, 0 the oldest kept, and ``$to`` the newest published."""
    from_time: int | None = None
    """The same from the first version committed at or after this time, µs."""
    wait_for_version: int | None = None
    """Wait until this version is published."""
    wait_s: float = 10.0
    """For so long at most."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if not self.statement.strip():
            raise InvalidRequest("statement: it is empty; give one SELECT")
        if self.since_version is not None and self.from_time is not None:
            raise InvalidRequest("give at most one of since_version and from_time")
        named = [name for name in _BOUND if name in self.parameters]
        if self.is_poll and named:
            raise InvalidRequest(
                f"parameter ${named[0]}: since_version and from_time give it; leave it out"
            )

    @property
    def is_poll(self) -> bool:
        """Whether the server binds a range of versions."""
        return self.since_version is not None or self.from_time is not None
