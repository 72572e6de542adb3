"""What callers may write: a version for a position, a datetime for µs, one criteria for several."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tailrace import wire
from tailrace.criteria import After, Criteria, FromTime, Since
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest
from tailrace.position import Position, TimestampMicros
from tailrace.transport.grpc import MAX_MESSAGE_BYTES
from tailrace.v1.change_capture_pb2 import SubscribeRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.criteria import Content, Start

Wanted = Criteria | tuple[Criteria, ...] | list[Criteria]
"""One criteria or several, OR."""

Place = Position | int
"""A position; a number is a version, and stands for its lead."""

Time = datetime | int
"""An aware datetime, or µs since the epoch."""


def start_of(
    since: Place | None, after: Cursor | str | None, from_time: Time | None
) -> Start | None:
    """Return the start that three arguments name together; of ``after`` and ``from_time`` the later.

    Raises:
        InvalidRequest: ``since`` beside another, or one has no meaning.
    """
    if since is not None and not (after is None and from_time is None):
        raise InvalidRequest("give since alone, without after and from_time")
    if since is not None:
        position = since if isinstance(since, Position) else Position(since)
        if position.version < 0 or position.index < 0:
            raise InvalidRequest(
                f"since {position}: versions count from 1; 0 is the oldest retained"
            )
        return Since(position)
    if after is not None:
        cursor = after if isinstance(after, Cursor) else Cursor.parse(after)
        return After(cursor, None if from_time is None else micros(from_time))
    return None if from_time is None else FromTime(micros(from_time))


def lower_bound_of(
    since: Place | None, after: Cursor | str | None, from_time: Time | None
) -> Start | None:
    """Return the lower bound of a read that three arguments name.

    Raises:
        InvalidRequest: More than one is given, or one has no meaning.
    """
    if sum(bound is not None for bound in (since, after, from_time)) > 1:
        raise InvalidRequest("give at most one of since, after and from_time")
    return start_of(since, after, from_time)


def micros(time: Time) -> TimestampMicros:
    """Return µs since the epoch.

    Raises:
        InvalidRequest: A datetime without a time zone.
    """
    if not isinstance(time, datetime):
        return TimestampMicros(time)
    if time.tzinfo is None:
        raise InvalidRequest(f"time {time}: it has no time zone; use an aware datetime")
    delta = time - datetime(1970, 1, 1, tzinfo=UTC)
    return TimestampMicros((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds)


@contextmanager
def sendable(what: str) -> Iterator[None]:
    """Make a value that no request can hold an error of the caller's.

    Args:
        what: The call whose request is built inside.

    Raises:
        InvalidRequest: A number out of its range, a value of another type, or text that UTF-8
            cannot hold.
    """
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{what}: {error}") from error


def several(criteria: Wanted) -> Sequence[Criteria]:
    """Return one criteria as a list of one.

    Raises:
        InvalidRequest: It is something else than criteria.
    """
    if isinstance(criteria, Criteria):
        return (criteria,)
    given: object = criteria
    if not isinstance(given, tuple | list) or not all(isinstance(each, Criteria) for each in given):
        raise InvalidRequest(
            f"criteria: {criteria!r}: write a Criteria or a list of them, as Criteria(entity_type=('order',))"
        )
    return criteria


def message_bytes(number: int) -> int:
    """Return the largest message asked for, if the client's connections take it.

    Raises:
        InvalidRequest: They do not.
    """
    if number > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"max_message_bytes {number}: this client takes messages of up to {MAX_MESSAGE_BYTES} bytes; a "
            "larger capture comes without bodies, with `omitted_bytes`"
        )
    return number


def milliseconds(seconds: float | None) -> int | None:
    """Return a duration as the wire has it; None stays."""
    return None if seconds is None else round(seconds * 1000)


def subscribe_request(
    catalog: str,
    criteria: Wanted,
    content: Content,
    heartbeat_interval_s: float | None,
    max_message_bytes: int,
) -> SubscribeRequest:
    """Return a request for a catalog's changes, without a start; call it inside ``sendable``.

    Raises:
        InvalidRequest: An argument has no meaning.
    """
    return SubscribeRequest(
        catalog=catalog,
        criteria=wire.criteria_messages(several(criteria)),
        body=wire.body_numbers(content),
        max_message_bytes=message_bytes(max_message_bytes),
        heartbeat_interval_ms=milliseconds(heartbeat_interval_s),
    )
