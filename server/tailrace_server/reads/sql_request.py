"""A request in SQL, as a face makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from tailrace.cursor import Cursor, StateCursor
from tailrace.errors import InvalidRequest
from tailrace.position import END
from tailrace_server.typed.misfits import OnMisfit

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOUND: Final = ("from", "to")
"""Parameters that a poll has."""


class SqlForm(Enum):
    """The format of an answer's rows."""

    ROWS = "rows"
    """A JSON array a line."""
    OBJECTS = "objects"
    """JSON objects, a comma behind each."""
    LINES = "lines"
    """A JSON object a line."""
    ARROW = "arrow"
    """Pieces of an Arrow stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlRequest:
    """One statement."""

    statement: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Values of ``$name`` in it."""
    form: SqlForm = SqlForm.ROWS
    since_version: int | None = None
    """Of a poll: ``$from`` is this version, 0 the oldest kept, and ``$to`` the newest published."""
    from_time: int | None = None
    """The same from the first version committed at or after this time, µs."""
    after: Cursor | None = None
    """The same from the version behind this cursor."""
    wait_for_version: int | None = None
    """Wait until this version is published."""
    wait_s: float = 10.0
    """For so long at most."""
    on_misfit: OnMisfit = OnMisfit.RAISE
    """The treatment of a value that its column's type cannot hold."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if not self.statement.strip():
            raise InvalidRequest("statement: it is empty; give one SELECT")
        if len(self._begins) > 1:
            raise InvalidRequest(
                f"give at most one of since_version, from_time, after, not {' and '.join(self._begins)}"
            )
        if self.after is not None and (
            self.after.index != END or isinstance(self.after, StateCursor)
        ):
            raise InvalidRequest(
                f"after: a poll is of whole versions, and {self.after} does not stand behind one; give the "
                "resume_cursor of an answer"
            )
        named = [name for name in _BOUND if name in self.parameters]
        if self.is_poll and named:
            raise InvalidRequest(f"parameter ${named[0]}: {self._begins[0]} gives it; leave it out")

    @property
    def is_poll(self) -> bool:
        """True if the server binds a range of versions."""
        return bool(self._begins)

    @property
    def read_version(self) -> int:
        """Of a poll: the version that its reader says it has read, with all before it; 0: none."""
        return max((self.since_version or 0) - 1, 0) if self.after is None else self.after.version

    @property
    def _begins(self) -> list[str]:
        """The parameter that gives the begin of a poll."""
        names = ("since_version", "from_time", "after")
        return [name for name in names if getattr(self, name) is not None]
