"""A request in SQL, in the form that all faces share."""

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
"""Names of the parameters that the server sets in a poll."""


class SqlForm(Enum):
    """The format of a result's rows."""

    ROWS = "rows"
    """JSON arrays, one on each line."""
    OBJECTS = "objects"
    """JSON objects, each followed by a comma."""
    LINES = "lines"
    """JSON objects, one on each line."""
    ARROW = "arrow"
    """Pieces of an Arrow stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlRequest:
    """One statement with its parameters.

    It is a *poll* if it has ``since_version``, ``from_time`` or ``after``: then the server sets the parameters
    ``$from`` and ``$to`` to a range of versions.
    """

    statement: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Name → value of each parameter, which is written ``$name`` in the statement."""
    form: SqlForm = SqlForm.ROWS
    since_version: int | None = None
    """The first version of a poll, 0 for the oldest retained; the last one is the newest published version."""
    from_time: int | None = None
    """Time of a poll, in microseconds: it begins with the first version committed at or after this time."""
    after: Cursor | None = None
    """Cursor of a poll: it begins with the version after this cursor."""
    wait_for_version: int | None = None
    """Version that must be published before the statement begins; None: no wait."""
    wait_s: float = 10.0
    """The longest wait for that version, in seconds."""
    on_misfit: OnMisfit = OnMisfit.RAISE
    """The treatment of a value that its column's type cannot hold."""

    def __post_init__(self) -> None:
        """Check that the fields do not contradict each other."""
        if not self.statement.strip():
            raise InvalidRequest("statement: it is empty; write one SELECT")
        if len(self._begins) > 1:
            raise InvalidRequest(
                f"give at most one of since_version, from_time, after, not {' and '.join(self._begins)}"
            )
        if self.after is not None and (
            self.after.index != END or isinstance(self.after, StateCursor)
        ):
            raise InvalidRequest(
                f"after: a poll reads whole versions, but {self.after} is not at the end of one; use the "
                "resume_cursor of an answer"
            )
        named = [name for name in _BOUND if name in self.parameters]
        if self.is_poll and named:
            raise InvalidRequest(f"parameter ${named[0]}: {self._begins[0]} sets it; leave it out")

    @property
    def is_poll(self) -> bool:
        """True if the server binds a range of versions."""
        return bool(self._begins)

    @property
    def read_version(self) -> int:
        """The last version that the client of a poll has already read, by its own account; 0: none."""
        return max((self.since_version or 0) - 1, 0) if self.after is None else self.after.version

    @property
    def _begins(self) -> list[str]:
        """The names of the fields that set the begin of a poll; at most one in a valid request."""
        names = ("since_version", "from_time", "after")
        return [name for name in names if getattr(self, name) is not None]
