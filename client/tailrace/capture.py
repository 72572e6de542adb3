"""Messages of a subscription: the acknowledgement that opens it, captures, and the marks between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.criteria import CaptureKind, CatchUp, Content, OverrunPolicy
from tailrace.cursor import Cursor, StateCursor
from tailrace.errors import InvalidRequest
from tailrace.position import Position, TimestampMicros
from tailrace.typed.row_reader import untyped_row

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace.criteria import Area, ContainerType, Criteria, Operation, Transition
    from tailrace.typed.row_reader import RowReader

_BODIES: Final = {Content.BEFORE: "before", Content.AFTER: "after", Content.CHANGE: "change"}


class Capture(NamedTuple):
    """One delivered change.

    Bodies are the source's own UTF-8 JSON text, byte for byte; None = not asked for, or not there
    (an insert has no ``before``). Column-level captures (ordinal ≥ 1) carry bodies cut down to
    their one column.

    A tuple, since it is made in one step: as a dataclass whose slots were stored one by one it took twice as
    long to decode (``wire.py``).
    """

    catalog_uuid: UUID
    version: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    ordinal: int
    commit_timestamp: TimestampMicros
    area: Area
    operation: Operation
    entity_type: str | None
    """None on transaction leads."""
    primary_key: str | None
    """Canonical text; None on leads and on a truncate, which means every key."""
    changed: tuple[str, ...] | None
    """Names of the columns that an update changed, in schema order; None for inserts and removals.

    All that ``after`` has, where the source did not say what was before.
    """
    container_type: ContainerType | None = None
    """Role of the column of a column-level capture; None at entity level."""
    container_name: str | None = None
    """Name of that column."""
    change: bytes | None = None
    before: bytes | None = None
    after: bytes | None = None
    omitted_bytes: int = 0
    """Size of bodies left out because the capture exceeded the subscription's message limit; read them back
    with ``read_changes``."""
    reader: RowReader | None = None
    """With ``typed=True``, of rows: knows the columns as of this version."""
    kind: CaptureKind = CaptureKind.CHANGE
    state: StateCursor | None = None
    """Of a row of the state that a subscription begins with: the cursor before the first row."""
    transition: Transition | None = None
    """How it moved its row, as the criteria's ``where`` sees it; None without a condition. A row that enters
    has no ``before``, and a row that leaves no ``after``: these images are outside."""

    def row(self, content: Content | None = None) -> dict[str, Any] | None:
        """Return the row as the change left it: ``after``, or of a removal ``before``; None without either.

        With ``typed=True`` in the request the values are Python's, by the columns of this version
        (docs/python-client.md). Without it they are what JSON says. Either way numbers with a point, an
        exponent or more than 4,300 digits are Decimals, so no digit is lost. A null is None. With
        ``typed=True`` or ``decoded=True``, a column whose value the source did not send is missing: it has the
        value from before.

        Args:
            content: ``Content.BEFORE``, ``AFTER`` or ``CHANGE``: this body alone. None = as said.

        Raises:
            ValueNotHeld: Python's type for a column cannot hold its value, or the exponent of a number is too
                large for Decimal; the image has it.
            InvalidRequest: ``content`` names no body, or several.
        """
        if content is None:
            image = self.before if self.after is None else self.after
        elif content not in _BODIES:
            raise InvalidRequest(f"row: content {content!r}: write one of BEFORE, AFTER and CHANGE")
        else:
            image = getattr(self, _BODIES[content])
        if image is None:
            return None
        # `change` has columns in it only if there was a row before.
        if self.reader is not None and (content is not Content.CHANGE or self.changed is not None):
            return self.reader.read(image)
        return untyped_row(self.entity_type or "", image)

    @property
    def position(self) -> Position:
        """The record that it comes from."""
        return Position(self.version, self.index)

    @property
    def cursor(self) -> Cursor:
        """Resume strictly after this capture; of a row of a state this is a place in the state."""
        if self.state is not None:
            return self.state.behind(self.entity_type or "", self.primary_key or "", self.ordinal)
        return Cursor(
            self.catalog_uuid, self.version, self.index, self.ordinal, self.commit_timestamp
        )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Proof of life, in order with the captures: all matches up to ``cursor`` have been sent before it."""

    published: int
    """The watermark: highest published version, 0 for none."""
    cursor: Cursor
    """Safe to resume from: nothing that matches at or before it is still to come."""
    records_scanned: int
    """Records looked at for this subscription since its resolved start."""
    records_matched: int
    """Records of those that matched, whether or not several captures came of one."""
    next_within_s: float
    """The next heartbeat or capture comes within this many seconds."""
    expires_in_s: float | None = None
    """Seconds until the caller's token expires and the stream ends with ``TokenExpired``; None: never."""
    lost_in_s: float | None = None
    """Seconds until retention may take what lies behind ``cursor``, at least; None: it does not by time."""
    lost_in_bytes: int | None = None
    """How much more the log may grow before that, at least; None: retention does not take it by bytes."""


@dataclass(frozen=True, slots=True)
class StateComplete:
    """All rows of the state that a subscription began with were sent; what follows are changes."""

    version: int
    """The version of the state."""
    cursor: Cursor
    """Goes on from there: every change of a later version is still to come."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's bounds for one subscription."""

    queue_captures: int
    """Captures that the server keeps ready at most."""
    message_bytes: int
    """Largest message, bytes; less while the server is short of memory. A larger capture comes alone."""
    max_message_bytes: int
    """A larger capture comes without bodies and with ``omitted_bytes``."""
    send_deadline_s: float
    """How long a write may stay blocked before the server ends the stream as too slow."""
    request_bytes: int
    """Largest request that the server takes."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A subscription is open. Changes that are committed after it was received will be delivered."""

    subscription_id: str
    """Name of the subscription in the server's logs and statistics."""
    catalog: str
    catalog_uuid: UUID
    """Identity of the log that its cursors belong to."""
    start: Position
    """First position that can come, inclusive."""
    resume_cursor: Cursor
    """Stands just before ``start``."""
    published: int
    """The watermark when the start was resolved, 0 for none."""
    heartbeat_interval_s: float
    limits: Limits
    features: frozenset[str]
    """The server's features beyond the first release of the protocol."""
    catch_up: CatchUp = CatchUp.ALL
    """The catch-up policy: what it gets of the versions that it is behind as it begins."""
    overrun_policy: OverrunPolicy = OverrunPolicy.RESYNC
    """The overrun policy: what happens when the server's ring has overtaken it."""
    unknown_names: tuple[str, ...] = ()
    """Entity types and columns in the criteria that the log does not have; what they name is waited for."""
    unknown_changes: tuple[str, ...] = ()
    """Entity types whose updates come without ``before``: each matches the columns in the criteria, changed or
    not."""
    effective_criteria: tuple[Criteria, ...] = ()
    """The criteria narrowed to the grants; empty if all of them are granted."""
    name: str = ""
    """The named subscription that is read; empty: none."""
    epoch: int = 0
    """This reader's among all that the named subscription has had; 0: none."""
    state_version: int | None = None
    """The version of the state that is sent first; ``start`` is that of the changes. None: changes only."""
    where_version: int | None = None
    """The version whose names the conditions of the criteria have; None: there is no condition."""
