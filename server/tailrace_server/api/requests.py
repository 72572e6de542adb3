"""The checks of requests that all faces share: request messages become checked values.

Every face first makes a message of proto/tailrace/v1: gRPC from bytes (api/grpc/messages.py), the JSON faces
from objects and query strings (api/json_requests.py).

The number of keys in a request is limited. A request with many keys is read in a thread, not on the event loop.
"""

# Long: the rules of all requests in one place, so that no face has rules of its own.

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from pyarrow.compute import sort_indices

from tailrace.conditions import where_of
from tailrace.criteria import (
    After,
    Area,
    CatchUp,
    ContainerType,
    Content,
    Criteria,
    FromState,
    FromTime,
    Operation,
    OverrunPolicy,
    Since,
)
from tailrace.cursor import Cursor, StateCursor
from tailrace.errors import InvalidRequest
from tailrace.position import END, MAX_VERSION, Position, TimestampMicros
from tailrace.v1 import capture_pb2
from tailrace.v1.capture_pb2 import Condition
from tailrace.v1.change_capture_pb2 import (
    ENCODING_CDCV2,
    INITIAL_UNSPECIFIED,
    VALUES_DECODED,
    Values,
)
from tailrace.wire import condition_members
from tailrace_server.named.requests import NamedReader, NewSubscription
from tailrace_server.reads.history import HistoryBounds
from tailrace_server.reads.state_place import StatePage
from tailrace_server.reads.state_request import StateRequest
from tailrace_server.resources.settings import SubscriptionLimits
from tailrace_server.resources.version_waits import VersionWait
from tailrace_server.wal.sequences.subscriptions import check_subscription_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from google.protobuf.message import Message

    from tailrace.criteria import Beginning, Start
    from tailrace.v1.change_capture_pb2 import (
        ReadChangesRequest,
        ReadStateRequest,
        SubscribeRequest,
        SubscribeSystemRequest,
    )
    from tailrace.v1.named_subscription_pb2 import AcknowledgeRequest, CreateSubscriptionRequest
    from tailrace.v1.sql_pb2 import QuerySqlRequest
    from tailrace_server.codecs import Codec
    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Peer, Principal
    from tailrace_server.live.subscription import Subscription
    from tailrace_server.reads.history import HistoryRead

    _Started = SubscribeRequest | SubscribeSystemRequest | ReadChangesRequest


_Request = TypeVar("_Request", "SubscribeRequest", "ReadChangesRequest")
_Read = TypeVar("_Read")

KEYS_AT_ONCE: Final = 2_000
"""Most keys that are read on the event loop, which takes about a millisecond."""


KEYS_MAX: Final = 100_000
"""Most keys of one request, and most names of each kind. As Python objects, this many keys take 20 MB and 0.1 s
to read."""


_CONTENT: Final = {
    capture_pb2.BODY_CHANGE: Content.CHANGE,
    capture_pb2.BODY_BEFORE: Content.BEFORE,
    capture_pb2.BODY_AFTER: Content.AFTER,
    capture_pb2.BODY_ALL: Content.BODY,
}

_INT64_MAX: Final = (1 << 63) - 1
_MESSAGE_BYTES: Final = range(1 << 10, (64 << 20) + 1)
_WAIT_MS: Final = range(600_000 + 1)
_WAIT_S: Final = 10.0
_HEARTBEAT_MS: Final = range(10, 3_600_000 + 1)

BOUNDS: Final[Mapping[str, range]] = {
    "since_version": range(_INT64_MAX + 1),
    "since_index": range(END + 1),
    "until_version": range(_INT64_MAX + 1),
    "until_index": range(END + 1),
    "limit": range(1, _INT64_MAX + 1),
    "at_version": range(_INT64_MAX + 1),
    "wait_for_version": range(_INT64_MAX + 1),
    "wait_ms": _WAIT_MS,
    "max_message_bytes": _MESSAGE_BYTES,
    "heartbeat_interval_ms": _HEARTBEAT_MS,
}
"""The valid range of a field's numbers, for fields whose range is narrower than their type's."""


def refuse_many_keys(message: Message) -> None:
    """Refuse a request whose criteria together have too many keys, or too many names of one kind.

    Conditions have another limit.

    Raises:
        InvalidRequest: There are too many; the error has the field, the number and the limit.
    """
    counts: Counter[str] = Counter()
    _count(message, counts)
    for name, count in counts.items():
        if count > KEYS_MAX:
            raise InvalidRequest(
                f"{name}: {count:,} in one request, the limit is {KEYS_MAX:,}; use several requests"
            )


def _count(message: Message, counts: Counter[str]) -> None:
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                counts[field.name] += len(value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE and (
            field.message_type is not Condition.DESCRIPTOR
        ):
            for each in value if field.is_repeated else (value,):
                _count(each, counts)


def has_many_keys(message: SubscribeRequest | ReadChangesRequest) -> bool:
    """Return True if a request names so many keys that the event loop should not read them."""
    return sum(len(each.primary_key) for each in message.criteria) > KEYS_AT_ONCE


@asynccontextmanager
async def reading(
    many_keys: asyncio.Lock, function: Callable[[_Request], _Read], message: _Request
) -> AsyncIterator[_Read]:
    """Yield the result of a function that reads a request; a thread reads a request with many keys.

    Reading 100,000 keys takes 0.1 s, in which the event loop would serve no other caller. Such requests are
    handled one at a time: until the engine has charged the criteria, the copies of the keys are in no budget.
    So the lock is held while the body opens the subscription or read. A request that waits for a version may
    take minutes; for that request the lock is released before the body runs.
    """
    if not has_many_keys(message):
        yield function(message)
        return
    async with many_keys:
        found = await asyncio.to_thread(function, message)
        waits = message.HasField("wait_for_version")
        del message
        if not waits:
            yield found
            return
    yield found


@dataclass(frozen=True, slots=True)
class Wish:
    """A checked request to subscribe."""

    criteria: tuple[Criteria, ...]
    start: Beginning | None
    content: Content
    limits: SubscriptionLimits
    cdcv2: bool = False
    """True if changes are requested as CDCv2 statements."""
    decoded: bool = False
    """True if decoded values are requested."""
    named: NamedReader | None = None
    """The named subscription to read; None for an unnamed one."""


def subscribe(request: SubscribeRequest) -> tuple[str, Wish]:
    """Return the catalog and the checked form of a request to subscribe.

    Raises:
        InvalidRequest: A part of the request is not valid.
    """
    found = wish(request)
    return catalog(request.catalog), found


async def open_subscription(
    engine: Engine,
    caller: Principal,
    catalog: str,
    wish: Wish,
    *,
    codec: Codec,
    peer: Peer,
    demand: int | None = None,
) -> Subscription:
    """Open a subscription by a checked request; raises the errors of ``Engine.subscribe``."""
    return await engine.subscribe(
        caller,
        catalog,
        wish.criteria,
        start=wish.start,
        content=wish.content,
        codec=codec,
        demand=demand,
        limits=wish.limits,
        peer=peer,
        named=wish.named,
    )


def wish(request: SubscribeRequest) -> Wish:
    """Return the checked form of a request to subscribe, without its catalog.

    Raises:
        InvalidRequest: A part of the request is not valid.
    """
    found = _captures_wish(request)
    return _cdcv2(request, found) if request.encoding == ENCODING_CDCV2 else found


def _cdcv2(request: SubscribeRequest, wish: Wish) -> Wish:
    """Return a request in the form for CDCv2: rows of whole versions, with both images.

    Raises:
        InvalidRequest: The request has criteria that separate the two sides of an update, a body, a start
            inside a version, or another option that CDCv2 does not have.
    """
    # CDCv2 describes rows that come and go. Criteria on the change itself, for instance its operation, could
    # match the removal of a row whose insertion did not match.
    alternatives = []
    for place, one in enumerate(wish.criteria or (Criteria(),)):
        if one != replace(one, operation=(), container_type=(), container_name=()):
            raise InvalidRequest(
                f"criteria[{place}]: CDCV2 allows only entity_type, primary_key and where; with other "
                "criteria, removed and added rows would not match"
            )
        if one.area not in (None, Area.DATA):
            raise InvalidRequest(f"criteria[{place}].area: CDCV2 has only rows, area DATA")
        alternatives.append(replace(one, area=Area.DATA))
    if request.body:
        raise InvalidRequest("body: CDCV2 always has whole rows; leave body out")
    if wish.decoded:
        raise InvalidRequest("values: CDCV2 has rows as the source wrote them; leave values out")
    if wish.named is not None:
        raise InvalidRequest("name: a named subscription delivers captures; leave CDCV2 out")
    if CatchUp.LATEST is wish.limits.catch_up or OverrunPolicy.LATEST is wish.limits.overrun:
        raise InvalidRequest(
            "catch_up, overrun_policy: CDCV2 delivers the changes of every version; leave LATEST out"
        )
    start = wish.start
    if isinstance(start, FromState) or (
        isinstance(start, After) and isinstance(start.cursor, StateCursor)
    ):
        raise InvalidRequest(
            "initial: CDCV2 has no initial state; its updates from since_version 0 on add up to the "
            "state"
        )
    inside = isinstance(start, After) and start.cursor.index != END
    if inside or request.HasField("from_time") or request.since_index:
        raise InvalidRequest(
            "CDCV2 must start at a whole version: since_version without since_index, or after a cursor "
            f"whose index is {END}"
        )
    return replace(wish, criteria=tuple(alternatives), content=Content.BODY, cdcv2=True)


def _overrun(request: SubscribeRequest, catch_up: CatchUp) -> OverrunPolicy:
    if request.overrun_policy:
        return OverrunPolicy(request.overrun_policy)
    return OverrunPolicy.LATEST if catch_up is CatchUp.LATEST else OverrunPolicy.RESYNC


def _captures_wish(request: SubscribeRequest) -> Wish:
    catch_up = CatchUp(request.catch_up or CatchUp.ALL)
    return Wish(
        criteria=criteria(request.criteria),
        start=_beginning(request),
        content=content(request.body),
        limits=SubscriptionLimits(
            max_message_bytes=_max_message_bytes(request),
            heartbeat_interval_s=_heartbeat_interval_s(request),
            catch_up=catch_up,
            overrun=_overrun(request, catch_up),
            wait=waited(request),
        ),
        decoded=decoded(request.values),
        named=name_asked(request),
    )


def name_asked(request: SubscribeRequest) -> NamedReader | None:
    """Return the requested named subscription; None if the request has no name.

    Raises:
        InvalidRequest: The name is not valid, or there is an epoch without a name.
    """
    if not request.HasField("name"):
        if request.HasField("epoch"):
            raise InvalidRequest("epoch: also needs name")
        return None
    check_subscription_name(request.name)
    return NamedReader(request.name, request.epoch if request.HasField("epoch") else None)


def _beginning(request: SubscribeRequest) -> Beginning | None:
    """Return the beginning of a subscription: a state or a start in the log.

    Raises:
        InvalidRequest: The start is not valid, or ``initial`` comes with a start other than a cursor.
        CursorInvalid: ``after`` is not a cursor.
    """
    if request.initial == INITIAL_UNSPECIFIED:
        return start(request)
    for name in ("since_version", "since_index", "from_time"):
        if request.HasField(name):
            raise InvalidRequest(
                f"{name}: not with initial, which begins with the present state and continues with its "
                "changes; leave one of them out"
            )
    return FromState(Cursor.parse(request.after) if request.HasField("after") else None)


def subscribe_system(request: SubscribeSystemRequest) -> Wish:
    """Return the checked form of a request to subscribe to the system log.

    Raises:
        InvalidRequest: A part of the request is not valid.
    """
    return Wish(
        criteria=(),
        start=start(request),
        content=content(request.body),
        limits=SubscriptionLimits(heartbeat_interval_s=_heartbeat_interval_s(request)),
    )


def catalog(name: str) -> str:
    """Return a catalog's name; raise InvalidRequest if it is empty."""
    if not name:
        raise InvalidRequest("catalog: a name is required")
    return name


def refuse_excess(count: int, limit: int) -> None:
    """Refuse a request with too many criteria, before the criteria are read.

    Raises:
        InvalidRequest: There are too many; the error has the setting, the number and the limit.
    """
    if count > limit:
        raise InvalidRequest(
            f"criteria: {count} in one request, the limit is {limit} (criteria); merge the keys of equal "
            "criteria, or use several requests"
        )


def _sorted(keys: Sequence[str]) -> tuple[str, ...]:
    """Return many keys sorted, so that `Criteria` need not sort them.

    Python holds the GIL while it sorts, so no other thread runs; Arrow releases it. Both sort texts in the same
    order.
    """
    values = tuple(keys)
    if len(values) <= KEYS_AT_ONCE:
        return values
    order = sort_indices(pa.array(values, pa.string())).to_numpy()
    return tuple([values[place] for place in order.tolist()])


def history_criteria(request: ReadChangesRequest) -> tuple[Criteria, ...]:
    """Return the criteria of a read of history; raises the errors of ``criteria``."""
    return criteria(request.criteria)


def criteria(messages: Iterable[capture_pb2.Criteria]) -> tuple[Criteria, ...]:
    """Return criteria from their messages.

    Raises:
        InvalidRequest: One of the criteria contradicts itself; the error has its index.
    """
    out = []
    for place, message in enumerate(messages):
        _refuse_unspecified(message.operation, f"criteria[{place}].operation")
        _refuse_unspecified(message.container_type, f"criteria[{place}].container_type")
        try:
            one = Criteria(
                area=Area(message.area) if message.area else None,
                entity_type=tuple(message.entity_type),
                primary_key=_sorted(message.primary_key),
                operation=tuple(map(Operation, message.operation)),
                container_type=tuple(map(ContainerType, message.container_type)),
                container_name=tuple(message.container_name),
                **condition_members(message),
            )
        except InvalidRequest as error:
            raise InvalidRequest(str(error).replace("criteria", f"criteria[{place}]", 1)) from None
        out.append(one)
    return tuple(out)


def content(bodies: Sequence[int]) -> Content:
    """Return the content for a list of bodies."""
    _refuse_unspecified(bodies, "body")
    wanted = Content.HEADER
    for body in bodies:
        wanted |= _CONTENT[capture_pb2.Body.ValueType(body)]
    return wanted


def decoded(values: int) -> bool:
    """Return True if decoded values are requested.

    Raises:
        InvalidRequest: The number is no form of values.
    """
    if values not in Values.values():
        raise InvalidRequest(f"values: {values} is not one of {', '.join(Values.keys())}")
    return values == VALUES_DECODED


def start(request: _Started) -> Start | None:
    """Return the start of a subscription, or the lower bound of a read.

    Raises:
        InvalidRequest: There are several starts, or the start is not valid.
        CursorInvalid: ``after`` is not a cursor.
    """
    _refuse_several(request, ("since_version", "after"))
    _refuse_several(request, ("since_version", "from_time"))
    if request.HasField("since_index") and not request.since_version:
        raise InvalidRequest("since_index: also needs a since_version from 1")
    from_time = TimestampMicros(request.from_time) if request.HasField("from_time") else None
    if request.HasField("since_version"):
        version = at_least(0, request.since_version, "since_version")
        return Since(Position(version, at_least(0, request.since_index, "since_index")))
    if request.HasField("after"):
        return After(Cursor.parse(request.after), from_time)
    return None if from_time is None else FromTime(from_time)


def history_bounds(request: ReadChangesRequest) -> HistoryBounds:
    """Return the range of a read of history.

    Raises:
        InvalidRequest: The bounds contradict each other or are not valid.
        CursorInvalid: ``after`` or ``before`` is not a cursor.
    """
    _refuse_several(request, ("since_version", "after", "from_time"))
    _refuse_several(request, ("until_version", "before", "to_time"))
    wait = waited(request)
    if wait is not None and request.HasField("anchor"):
        raise InvalidRequest(
            "wait_for_version: not with anchor, whose version is already published"
        )
    if request.HasField("until_index") and not request.HasField("until_version"):
        raise InvalidRequest("until_index: also needs until_version")
    return HistoryBounds(
        lower=start(request),
        until=_until(request),
        until_time=request.to_time if request.HasField("to_time") else None,
        before=Cursor.parse(request.before) if request.HasField("before") else None,
        anchor=request.anchor if request.HasField("anchor") else None,
        wait=wait,
    )


def _until(request: ReadChangesRequest) -> Position | None:
    """Return the upper bound of a read as the first position after it; None: no bound."""
    if not request.HasField("until_version"):
        return None
    version = at_least(0, request.until_version, "until_version")
    if request.HasField("until_index"):
        index = at_least(0, request.until_index, "until_index")
        if index < END:
            return Position(version, index + 1)
    return Position(min(version, MAX_VERSION - 1) + 1, 0)


def limit(request: ReadChangesRequest) -> int | None:
    """Return the most records that a read returns; None: no limit."""
    return at_least(1, request.limit, "limit") if request.HasField("limit") else None


def state(request: ReadStateRequest) -> StateRequest:
    """Return the checked form of a request for a state.

    Raises:
        InvalidRequest: The entity type is missing, or a value is not valid.
    """
    if not request.entity_type:
        raise InvalidRequest("entity_type: a name is required")
    wait = waited(request)

    def given(name: Any) -> int | None:
        if not request.HasField(name):
            return None
        value: int = getattr(request, name)
        return value if name == "at_time" else at_least(0, value, name)

    return StateRequest(
        entity_type=request.entity_type,
        primary_keys=tuple(request.primary_key),
        at_version=given("at_version"),
        at_time=given("at_time"),
        page=StatePage.parse(request.page) if request.HasField("page") else None,
        columns=tuple(request.column),
        keys_only=request.keys_only,
        limit=at_least(1, request.limit, "limit") if request.HasField("limit") else None,
        wait_for_version=None if wait is None else wait.version,
        wait_s=_WAIT_S if wait is None else wait.patience_s,
        where=where_of(request),
        where_parameters=tuple(request.where_parameter),
    )


def waited(
    request: SubscribeRequest | ReadChangesRequest | ReadStateRequest | QuerySqlRequest,
) -> VersionWait | None:
    """Return the version for whose publication a request waits; None: it does not wait."""
    if not request.HasField("wait_for_version"):
        if request.HasField("wait_ms"):
            raise InvalidRequest("wait_ms: also needs wait_for_version")
        return None
    version = at_least(0, request.wait_for_version, "wait_for_version")
    if not request.HasField("wait_ms"):
        return VersionWait(version, _WAIT_S)
    return VersionWait(version, _within(_WAIT_MS, request.wait_ms, "wait_ms") / 1000)


def demand(n: int) -> int:
    """Return a requested demand.

    Raises:
        InvalidRequest: The demand is not positive.
    """
    if n <= 0:
        raise InvalidRequest(f"request({n}): demand must be positive (Reactive Streams rule 3.9)")
    return n


def _max_message_bytes(
    request: SubscribeRequest | ReadChangesRequest | ReadStateRequest | QuerySqlRequest,
) -> int | None:
    if not request.HasField("max_message_bytes"):
        return None
    return _within(_MESSAGE_BYTES, request.max_message_bytes, "max_message_bytes")


def max_message_bytes(
    request: ReadChangesRequest | ReadStateRequest | QuerySqlRequest, default: int
) -> int:
    """Return the size in bytes above which a read returns a capture as its header only."""
    return _max_message_bytes(request) or default


def _heartbeat_interval_s(request: SubscribeRequest | SubscribeSystemRequest) -> float | None:
    if not request.HasField("heartbeat_interval_ms"):
        return None
    return _within(_HEARTBEAT_MS, request.heartbeat_interval_ms, "heartbeat_interval_ms") / 1000


def _refuse_several(request: _Started, names: tuple[str, ...]) -> None:
    given = [name for name in names if request.HasField(name)]  # type: ignore[arg-type]
    if len(given) > 1:
        raise InvalidRequest(f"give at most one of {', '.join(names)}, not {' and '.join(given)}")


def _refuse_unspecified(values: Iterable[int], path: str) -> None:
    if 0 in values:
        raise InvalidRequest(f"{path}: UNSPECIFIED is not a value; leave it out")


def at_least(least: int, value: int, path: str) -> int:
    """Return a number; raise InvalidRequest with its path if the number is too small."""
    if value < least:
        raise InvalidRequest(f"{path} {value}: must be at least {least}")
    return value


def _within(allowed: range, value: int, path: str) -> int:
    if value not in allowed:
        raise InvalidRequest(f"{path} {value}: must be from {allowed.start} to {allowed.stop - 1}")
    return value


def next_cursor(
    history: HistoryRead, last: tuple[int, int, int] | None, *, reverse: bool
) -> Cursor | None:
    """Return the cursor at which the page after a completed read begins; None if nothing follows."""
    if not history.has_next or last is None:
        return None
    version, index, _ = last
    return history.cursor_of(version, index, 0 if reverse else END)


def create(request: CreateSubscriptionRequest) -> NewSubscription:
    """Return the checked form of a request to create a named subscription.

    Raises:
        InvalidRequest: The criteria contradict themselves.
    """
    return NewSubscription(
        name=request.name,
        criteria=criteria(request.criteria),
        place=getattr(request, "from") if request.HasField("from") else "latest",
        hold_us=request.hold_ms * 1000 if request.HasField("hold_ms") else None,
        hold_bytes=request.hold_bytes if request.HasField("hold_bytes") else None,
    )


def acknowledgement(request: AcknowledgeRequest) -> tuple[str, int, Cursor]:
    """Return the name, epoch and cursor of an acknowledgement.

    Raises:
        InvalidRequest: The epoch is missing, or the cursor is a place in a state.
        CursorInvalid: The text is not a cursor.
    """
    if request.epoch < 1:
        raise InvalidRequest("epoch: required; send the epoch of the reader's acknowledgement")
    cursor = Cursor.parse(request.cursor)
    if isinstance(cursor, StateCursor):
        raise InvalidRequest("cursor: it is a position in a state, not in the log")
    return request.name, request.epoch, cursor
