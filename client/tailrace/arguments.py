"""Conversion and checks of call arguments, short forms included.

A caller may pass a version for a position, a datetime for microseconds, or one criteria for a list of criteria.
"""

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
"""One criteria, or several that are combined by OR."""

Place = Position | int
"""A position; a plain number V means the position (V, 0)."""

Time = datetime | int
"""An aware datetime, or µs since the epoch."""


def start_of(
    since: Place | None, after: Cursor | str | None, from_time: Time | None
) -> Start | None:
    """Return the start that these arguments describe; None if all of them are None.

    ``after`` and ``from_time`` may be combined: the later of the two applies.

    Raises:
        InvalidRequest: ``since`` is combined with another argument, or a value is invalid.
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
    """Return the beginning of a subscription: a state if ``initial`` is given, else the result of ``start_of``.

    Raises:
        InvalidRequest: ``initial`` is combined with ``since`` or ``from_time``, or a value is invalid.
    """
    if initial is None:
        return start_of(since, after, from_time)
    if not isinstance(initial, Initial):
        raise InvalidRequest(f"initial {initial!r}: write Initial.STATE")
    if since is not None or from_time is not None:
        raise InvalidRequest(
            "give initial without since and from_time: the initial state is always that of the "
            "current version"
        )
    return FromState(None if after is None else cursor_of(after))


def lower_bound_of(
    since: Place | None, after: Cursor | str | None, from_time: Time | None
) -> Start | None:
    """Return the lower bound of a history read; None if no argument is given.

    Raises:
        InvalidRequest: More than one argument is given, or a value is invalid.
    """
    if sum(bound is not None for bound in (since, after, from_time)) > 1:
        raise InvalidRequest("give at most one of since, after and from_time")
    return start_of(since, after, from_time)


def micros(time: Time) -> TimestampMicros:
    """Return a time as microseconds since the Unix epoch.

    Raises:
        InvalidRequest: ``time`` is a datetime without a time zone, or neither a datetime nor a whole number.
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
    # In integers: `timestamp()` is a float, which loses microseconds.
    delta = time - datetime(1970, 1, 1, tzinfo=UTC)
    return TimestampMicros((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds)


def version_of(name: str, version: object) -> int:
    """Return a version as an int; ``name`` is the argument's name in the error.

    Raises:
        InvalidRequest: ``version`` is not a whole number.
    """
    # A bool has `__index__`, too, but is surely a mistake here.
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        raise InvalidRequest(
            f"{name} {version!r}: write a version as a whole number, or a Position"
        )
    return index(version)


def cursor_of(after: object) -> Cursor:
    """Return a cursor; parse it if it is given as text.

    Raises:
        InvalidRequest: ``after`` is neither a cursor nor a text.
        CursorInvalid: The text is not a cursor.
    """
    if isinstance(after, Cursor):
        return after
    if not isinstance(after, str):
        raise InvalidRequest(
            f"after {after!r}: write a cursor, such as `capture.cursor`, or its text"
        )
    return Cursor.parse(after)


def content_numbers(content: object) -> Sequence[Body.ValueType]:
    """Return the protocol's numbers of the bodies that ``content`` names.

    Raises:
        InvalidRequest: ``content`` is not a ``Content``.
    """
    if not isinstance(content, Content):
        raise InvalidRequest(
            f"content {content!r}: write a Content, such as Content.AFTER, or several as "
            "Content.BEFORE | Content.AFTER"
        )
    return wire.body_numbers(content)


def callback(name: str, called: _Callback | None) -> _Callback | None:
    """Return a callback after checking that it is callable: a mistake fails now, not at its first call.

    Raises:
        InvalidRequest: ``called`` is not callable.
    """
    if called is not None and not callable(called):
        raise InvalidRequest(f"{name} {called!r}: write a function")
    return called


@contextmanager
def sendable(what: str) -> Iterator[None]:
    """Raise ``InvalidRequest`` for a value that protobuf refuses while a request is built in the block.

    Args:
        what: Name of the call, for the error.

    Raises:
        InvalidRequest: A number is out of range, a value has a wrong type, or a text cannot be encoded as
            UTF-8.
    """
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{what}: {error}") from error


def several(criteria: Wanted) -> Sequence[Criteria]:
    """Return a sequence of criteria; a single criteria becomes a sequence of one.

    Raises:
        InvalidRequest: ``criteria`` is neither a ``Criteria`` nor a list or tuple of them.
    """
    if isinstance(criteria, Criteria):
        return (criteria,)
    given: object = criteria
    if not isinstance(given, tuple | list) or not all(isinstance(each, Criteria) for each in given):
        raise InvalidRequest(
            f"criteria: {criteria!r}: write a Criteria or a list of them, such as "
            "Criteria(entity_type=('order',))"
        )
    return criteria


def message_bytes(number: int) -> int:
    """Return the requested maximum message size after checking it against the client's own maximum.

    Raises:
        InvalidRequest: ``number`` exceeds the size that the client's connections accept.
    """
    if number > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"max_message_bytes {number}: this client accepts messages of up to "
            f"{MAX_MESSAGE_BYTES} bytes; a larger capture is sent without bodies, with "
            "`omitted_bytes`"
        )
    return number


def milliseconds(seconds: float | None, name: str = "heartbeat_interval_s") -> int | None:
    """Return a duration in whole milliseconds; None for None.

    Raises:
        InvalidRequest: ``seconds`` is not a number.
    """
    if seconds is not None and not isinstance(seconds, int | float):
        raise InvalidRequest(f"{name} {seconds!r}: write a number of seconds")
    return None if seconds is None else round(seconds * 1000)


def not_both(decoded: bool, typed: bool) -> None:
    """Refuse the combination of ``decoded`` and ``typed``: both select a form of the values.

    Raises:
        InvalidRequest: Both are True.
    """
    if decoded and typed:
        raise InvalidRequest(
            "give either decoded (values as readable texts) or typed (values of Python types), "
            "not both"
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
    """Return a subscribe request without a start; call it inside ``sendable``.

    Raises:
        InvalidRequest: An argument is invalid.
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
    """Return the overrun policy of a request; the default is not sent, so that older servers accept it."""
    if overrun is None:
        return change_capture_pb2.OVERRUN_POLICY_UNSPECIFIED
    if not isinstance(overrun, OverrunPolicy):
        raise InvalidRequest(
            f"overrun {overrun!r}: write an OverrunPolicy, such as OverrunPolicy.DISCONNECT"
        )
    return change_capture_pb2.OverrunPolicy.ValueType(overrun)


def _catch_up(catch_up: object) -> change_capture_pb2.CatchUp.ValueType:
    """Return the catch-up policy of a request; the default is not sent, so that older servers accept it."""
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
    """Return a request for the rows of a table; call it inside ``sendable``.

    Raises:
        InvalidRequest: An argument is invalid.
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
    """Return the version that the server shall wait for; None for None.

    Raises:
        InvalidRequest: ``wait_for`` is not a whole number.
    """
    return None if wait_for is None else version_of("wait_for", wait_for)


def texts(name: str, values: Sequence[str]) -> Sequence[str]:
    """Return a list of texts after checking it.

    A single text is refused, since iterating it would give its characters.

    Raises:
        InvalidRequest: ``values`` is a single text, or contains a value that is not a text.
    """
    if isinstance(values, str):
        raise InvalidRequest(f"{name} {values!r}: write a list of texts, such as [{values!r}]")
    for each in values:
        if not isinstance(each, str):
            raise InvalidRequest(f"{name}: {each!r} is not a text; write {str(each)!r}")
    return values
