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

    Bodies (``change``, ``before``, ``after``) are the UTF-8 JSON text of the source, byte for byte. A body is
    None if it was not requested or does not exist: an insert has no ``before``. Column-level captures
    (ordinal ≥ 1) have bodies with their one column only.

    The class is a tuple since a tuple is created in one step: as a dataclass with slots it took twice as long
    to decode (``wire.py``).
    """

    catalog_uuid: UUID
    version: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    ordinal: int
    commit_timestamp: TimestampMicros
    area: Area
    operation: Operation
    entity_type: str | None
    """Entity type of the row; None for the lead record of a transaction."""
    primary_key: str | None
    """Canonical text of the row's key; None for a lead record, and for a truncate, which affects every key."""
    changed: tuple[str, ...] | None
    """Names of the columns that an update changed, in schema order; None for inserts and removals.

    If the source sent no before-image, these are all columns of ``after``.
    """
    container_type: ContainerType | None = None
    """Role of the column of a column-level capture; None at entity level."""
    container_name: str | None = None
    """Name of the column of a column-level capture; None at entity level."""
    change: bytes | None = None
    before: bytes | None = None
    after: bytes | None = None
    omitted_bytes: int = 0
    """Size in bytes of the bodies that were left out since the capture exceeded the message limit; read them
    with ``read_changes``. 0: nothing was left out."""
    reader: RowReader | None = None
    """Converter of this row's images to Python values, by the columns of this version; set with
    ``typed=True``."""
    kind: CaptureKind = CaptureKind.CHANGE
    state: StateCursor | None = None
    """Cursor before the first row of the initial state, if this capture is a row of that state; else None."""
    transition: Transition | None = None
    """How the change moved its row into or out of the criteria's ``where``; None without a condition.

    A row that enters has no ``before`` and a row that leaves has no ``after``: these images do not meet the
    condition.
    """

    def row(self, content: Content | None = None) -> dict[str, Any] | None:
        """Return the row after the change; for a removal the row before it; None if the capture has neither.

        With ``typed=True`` in the request, values have the Python types of the columns of this version
        (docs/python-client.md). Otherwise they have the types that JSON gives them. In both cases numbers with
        a point, an exponent or more than 4,300 digits are Decimals, so no digit is lost. A null is None.

        With ``typed=True`` or ``decoded=True``, the result lacks the columns whose values the source did not
        send: they have the same value as before the change.

        Args:
            content: ``Content.BEFORE``, ``AFTER`` or ``CHANGE`` returns that body. None returns ``after`` or
                else ``before``.

        Raises:
            ValueNotHeld: Python's type for a column cannot hold its value, or the exponent of a number is too
                large for Decimal. The image has the value as text.
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
        """Position of the record that the capture comes from."""
        return Position(self.version, self.index)

    @property
    def cursor(self) -> Cursor:
        """Cursor that resumes strictly after this capture; for a row of the initial state, within the state."""
        if self.state is not None:
            return self.state.behind(self.entity_type or "", self.primary_key or "", self.ordinal)
        return Cursor(
            self.catalog_uuid, self.version, self.index, self.ordinal, self.commit_timestamp
        )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sign of life from the server, in order with the captures: all matches up to ``cursor`` came before it."""

    published: int
    """The watermark: highest published version; 0 if there is none."""
    cursor: Cursor
    """Cursor that is safe to resume from: every match up to it has been delivered."""
    records_scanned: int
    """Number of records that the server scanned for this subscription since its start."""
    records_matched: int
    """Number of scanned records that matched; a record with several captures counts once."""
    next_within_s: float
    """Maximum time until the next heartbeat or capture, in seconds."""
    expires_in_s: float | None = None
    """Seconds until the caller's token expires and the stream ends with ``TokenExpired``; None: never."""
    lost_in_s: float | None = None
    """Minimum time until retention removes changes after ``cursor``, in seconds; None: no limit by age."""
    lost_in_bytes: int | None = None
    """Minimum growth of the log until retention removes changes after ``cursor``, in bytes; None: no limit by
    size."""


@dataclass(frozen=True, slots=True)
class StateComplete:
    """Mark after the last row of the initial state of a subscription; changes follow."""

    version: int
    """The version of the state."""
    cursor: Cursor
    """Cursor at the end of that version; the changes of all later versions come after it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's bounds for one subscription."""

    queue_captures: int
    """Maximum number of captures that the server queues for the subscription."""
    message_bytes: int
    """Maximum size of a message with several captures, in bytes; lower while the server is short of memory.
    A larger capture comes in a message of its own."""
    max_message_bytes: int
    """Maximum size of a capture with bodies, in bytes; a larger one comes without bodies and with
    ``omitted_bytes``."""
    send_deadline_s: float
    """Maximum time that a write to the client may stay blocked before the server ends the stream, in
    seconds."""
    request_bytes: int
    """Maximum size of a request that the server accepts, in bytes."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The server's answer that a subscription is open.

    Every matching change that is committed after the acknowledgement was received will be delivered.
    """

    subscription_id: str
    """Name of the subscription in the server's logs and statistics."""
    catalog: str
    catalog_uuid: UUID
    """Identity of the log that the subscription's cursors belong to."""
    start: Position
    """First position that can be delivered, inclusive."""
    resume_cursor: Cursor
    """Cursor just before ``start``."""
    published: int
    """The watermark when the server resolved the start; 0 if nothing was published."""
    heartbeat_interval_s: float
    limits: Limits
    features: frozenset[str]
    """The server's features beyond the first release of the protocol."""
    catch_up: CatchUp = CatchUp.ALL
    """Catch-up policy: which captures the server sends of the versions published before the subscription
    began."""
    overrun_policy: OverrunPolicy = OverrunPolicy.RESYNC
    """Overrun policy: what the server does when its ring drops captures that this subscription has not
    received."""
    unknown_names: tuple[str, ...] = ()
    """Entity types and columns in the criteria that the log does not have yet; they match once they appear."""
    unknown_changes: tuple[str, ...] = ()
    """Entity types whose updates come without ``before``. Such an update matches all columns in the criteria,
    whether they changed or not."""
    effective_criteria: tuple[Criteria, ...] = ()
    """The criteria as narrowed by the caller's grants; empty if the grants cover all of the criteria."""
    name: str = ""
    """Name of the named subscription that this stream reads; empty: none."""
    epoch: int = 0
    """Epoch of this reader of the named subscription, higher for each new reader; 0: no named subscription."""
    state_version: int | None = None
    """Version of the initial state, which comes first; ``start`` is then the start of the changes after it.
    None: changes only."""
    where_version: int | None = None
    """Version by whose column names the server reads the conditions of the criteria; None: no condition."""
