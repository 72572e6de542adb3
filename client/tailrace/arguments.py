"""Short forms of arguments: a version for a position, a datetime for µs, one criteria for several."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from operator import index
from typing import TYPE_CHECKING, TypeVar

from tailrace import wire
from tailrace.conditions import read_where, where_fields
from tailrace.criteria import (
    After,
    CatchUp,
    Content,
    Criteria,
    FromState,
    FromTime,
    Initial,
    OverrunPolicy,
    Since,
    parameter_text,
)
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest
from tailrace.position import Position, TimestampMicros
from tailrace.transport.grpc import MAX_MESSAGE_BYTES
from tailrace.v1 import change_capture_pb2
from tailrace.v1.change_capture_pb2 import (
    VALUES_DECODED,
    VALUES_UNSPECIFIED,
    ReadStateRequest,
    SubscribeRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tailrace.conditions import Where
    from tailrace.criteria import Beginning, Start
    from tailrace.v1.capture_pb2 import Body

_Callback = TypeVar("_Callback")

Wanted = Criteria | tuple[Criteria, ...] | list[Criteria]
"""One criteria or several, OR."""

Place = Position | int
"""A position; a number is a version, and means its lead."""

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
        position = since if isinstance(since, Position) else Position(version_of("since", since))
        if position.version < 0 or position.index < 0:
            raise InvalidRequest(
                f"since {position}: versions count from 1; 0 is the oldest retained"
            )
        return Since(position)
    if after is not None:
        cursor = cursor_of(after)
        return After(cursor, None if from_time is None else micros(from_time))
    return None if from_time is None else FromTime(micros(from_time))


def beginning_of(
    since: Place | None,
    after: Cursor | str | None,
    from_time: Time | None,
    initial: Initial | None,
) -> Beginning | None:
    """Return what a subscription begins with: a state, or the start of ``start_of``.

    Raises:
        InvalidRequest: ``initial`` beside another start than ``after``, or one has no meaning.
    """
    if initial is None:
        return start_of(since, after, from_time)
    if not isinstance(initial, Initial):
        raise InvalidRequest(f"initial {initial!r}: write Initial.STATE")
    if since is not None or from_time is not None:
        raise InvalidRequest(
            "give initial without since and from_time: a state is of the version of now, and changes follow"
        )
    return FromState(None if after is None else cursor_of(after))


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
        InvalidRequest: A datetime without a time zone, or no time.
    """
    if not isinstance(time, datetime):
        try:
            return TimestampMicros(index(time))
        except TypeError:
            raise InvalidRequest(
                f"time {time!r}: write an aware datetime, or a whole number of µs since the epoch"
            ) from None
    if time.tzinfo is None:
        raise InvalidRequest(f"time {time}: it has no time zone; use an aware datetime")
    delta = time - datetime(1970, 1, 1, tzinfo=UTC)
    return TimestampMicros((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds)


def version_of(name: str, version: object) -> int:
    """Return a version.

    Raises:
        InvalidRequest: It is no whole number.
    """
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        raise InvalidRequest(
            f"{name} {version!r}: write a version, which is a whole number, or a Position"
        )
    return index(version)


def cursor_of(after: object) -> Cursor:
    """Return a cursor that may be given as its text.

    Raises:
        InvalidRequest: It is neither.
        CursorInvalid: The text is none.
    """
    if isinstance(after, Cursor):
        return after
    if not isinstance(after, str):
        raise InvalidRequest(f"after {after!r}: write a cursor, as `capture.cursor`, or its text")
    return Cursor.parse(after)


def content_numbers(content: object) -> Sequence[Body.ValueType]:
    """Return the bodies of a request.

    Raises:
        InvalidRequest: It is no content.
    """
    if not isinstance(content, Content):
        raise InvalidRequest(
            f"content {content!r}: write Content.AFTER, or several as Content.BEFORE | Content.AFTER"
        )
    return wire.body_numbers(content)


def callback(name: str, called: _Callback | None) -> _Callback | None:
    """Return what is to be called, which would otherwise fail when its time has come.

    Raises:
        InvalidRequest: It cannot be called.
    """
    if called is not None and not callable(called):
        raise InvalidRequest(f"{name} {called!r}: write a function")
    return called


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


def milliseconds(seconds: float | None, name: str = "heartbeat_interval_s") -> int | None:
    """Return a duration as the wire has it; None stays.

    Raises:
        InvalidRequest: It is no number.
    """
    if seconds is not None and not isinstance(seconds, int | float):
        raise InvalidRequest(f"{name} {seconds!r}: write a number of seconds")
    return None if seconds is None else round(seconds * 1000)


def not_both(decoded: bool, typed: bool) -> None:
    """Refuse values decoded twice.

    Raises:
        InvalidRequest: Texts and Python's values are both asked for.
    """
    if decoded and typed:
        raise InvalidRequest(
            "give one of decoded (texts that say what they mean) and typed (Python's values)"
        )


def subscribe_request(
    catalog: str,
    criteria: Wanted,
    content: Content,
    heartbeat_interval_s: float | None,
    max_message_bytes: int,
    *,
    decoded: bool = False,
    catch_up: CatchUp = CatchUp.ALL,
    overrun: OverrunPolicy | None = None,
    wait_for: int | None = None,
    wait_s: float = 0.0,
) -> SubscribeRequest:
    """Return a request for a catalog's changes, without a start; call it inside ``sendable``.

    Raises:
        InvalidRequest: An argument has no meaning.
    """
    return SubscribeRequest(
        catalog=catalog,
        criteria=wire.criteria_messages(several(criteria)),
        body=content_numbers(content),
        max_message_bytes=message_bytes(max_message_bytes),
        heartbeat_interval_ms=milliseconds(heartbeat_interval_s),
        values=VALUES_DECODED if decoded else VALUES_UNSPECIFIED,
        catch_up=_catch_up(catch_up),
        overrun_policy=_policy(overrun),
        wait_for_version=waited_version(wait_for),
        wait_ms=None if wait_for is None else milliseconds(wait_s, "wait_s"),
    )


def _policy(overrun: object) -> change_capture_pb2.OverrunPolicy.ValueType:
    """Return the policy of a request; the default is left out, so that an older server takes it."""
    if overrun is None:
        return change_capture_pb2.OVERRUN_POLICY_UNSPECIFIED
    if not isinstance(overrun, OverrunPolicy):
        raise InvalidRequest(f"overrun {overrun!r}: write OverrunPolicy.DISCONNECT, for one")
    return change_capture_pb2.OverrunPolicy.ValueType(overrun)


def _catch_up(catch_up: object) -> change_capture_pb2.CatchUp.ValueType:
    """Return the same of what a reader that is behind gets."""
    if not isinstance(catch_up, CatchUp):
        raise InvalidRequest(f"catch_up {catch_up!r}: write CatchUp.LATEST, or CatchUp.ALL")
    if catch_up is CatchUp.ALL:
        return change_capture_pb2.CATCH_UP_UNSPECIFIED
    return change_capture_pb2.CatchUp.ValueType(catch_up)


def state_request(
    catalog: str,
    entity_type: str,
    keys: Sequence[str],
    at: int | datetime | None,
    columns: Sequence[str],
    max_message_bytes: int,
    *,
    keys_only: bool,
    decoded: bool,
    limit: int | None,
    page: str | None,
    wait_for: int | None,
    wait_s: float,
    where: Where | None,
    parameters: Mapping[str, object],
) -> ReadStateRequest:
    """Return a request for a table's rows; call it inside ``sendable``.

    Raises:
        InvalidRequest: An argument has no meaning.
    """
    request = ReadStateRequest(
        catalog=catalog,
        entity_type=entity_type,
        primary_key=texts("keys", keys),
        column=texts("columns", columns),
        keys_only=keys_only,
        limit=limit,
        page=page,
        wait_for_version=waited_version(wait_for),
        wait_ms=None if wait_for is None else milliseconds(wait_s, "wait_s"),
        max_message_bytes=message_bytes(max_message_bytes),
        values=VALUES_DECODED if decoded else VALUES_UNSPECIFIED,
        **where_fields(read_where(where)),
        where_parameter=[f"{name}={parameter_text(value)}" for name, value in parameters.items()],
    )
    if isinstance(at, datetime):
        request.at_time = micros(at)
    elif at is not None:
        request.at_version = version_of("at", at)
    return request


def waited_version(wait_for: int | None) -> int | None:
    """Return the version that is waited for; None: none is.

    Raises:
        InvalidRequest: It is no version.
    """
    return None if wait_for is None else version_of("wait_for", wait_for)


def texts(name: str, values: Sequence[str]) -> Sequence[str]:
    """Return several texts; one text by itself would be read as its characters.

    Raises:
        InvalidRequest: It is one text, or one of them is no text.
    """
    if isinstance(values, str):
        raise InvalidRequest(f"{name} {values!r}: write a list of texts, as [{values!r}]")
    for each in values:
        if not isinstance(each, str):
            raise InvalidRequest(f"{name}: {each!r} is no text; write {str(each)!r}")
    return values
