"""From request messages to values: the rules that every face shares, whatever its wire form.

The messages of proto/tailrace/v1 are the one shape of a request. gRPC reads them from bytes
(api/grpc/messages.py), the JSON faces from objects and query strings (api/json_requests.py).

A request that names many keys has a limit, and is read beside the event loop.
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
"""Keys that are read on the event loop, in about a millisecond."""


KEYS_MAX: Final = 100_000
"""Keys of one request, and the same of names of each kind: as objects of Python they take 20 MB, and 0.1 s to
read."""


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
"""Numbers that have a meaning, by field, where these are fewer than its type holds."""


def refuse_many_keys(message: Message) -> None:
    """Refuse a request with too many keys, or names of one kind, in all its criteria together.

    Conditions have a limit of their own.

    Raises:
        InvalidRequest: It has; says of what, how many, and the limit.
    """
    counts: Counter[str] = Counter()
    _count(message, counts)
    for name, count in counts.items():
        if count > KEYS_MAX:
            raise InvalidRequest(
                f"{name}: {count:,} in one request, the limit is {KEYS_MAX:,}; ask in several requests"
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
    """Yield the result of a function of a request; a request with many keys is read beside the event loop.

    100,000 keys take 0.1 s, in which the event loop would serve no other caller. Such requests come one after
    the other: until the engine has charged its criteria, each has copies of its keys that no budget knows. So
    the block opens what the request asks for, and keeps the lock meanwhile. A request that waits for a version
    can take minutes: it gives the lock back before its block.
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
    """A checked subscribe."""

    criteria: tuple[Criteria, ...]
    start: Beginning | None
    content: Content
    limits: SubscriptionLimits
    cdcv2: bool = False
    """True if the changes are to come as CDCv2 statements."""
    decoded: bool = False
    """True if values are to be decoded."""
    named: NamedReader | None = None
    """The named subscription that is to be read; None: none."""


def subscribe(request: SubscribeRequest) -> tuple[str, Wish]:
    """Return catalog and wish of a subscribe.

    Raises:
        InvalidRequest: Something in it has no meaning.
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
    """Open the subscription of a checked subscribe; raises as ``Engine.subscribe``."""
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
    """Return what a subscribe asks for, whatever the catalog; raises as ``subscribe``."""
    found = _captures_wish(request)
    return _cdcv2(request, found) if request.encoding == ENCODING_CDCV2 else found


def _cdcv2(request: SubscribeRequest, wish: Wish) -> Wish:
    """Return the wish for CDCv2: rows of whole versions, with both images.

    Raises:
        InvalidRequest: Criteria that tear updates apart, a body, or a start inside a version.
    """
    alternatives = []
    for place, one in enumerate(wish.criteria or (Criteria(),)):
        if one != replace(one, operation=(), container_type=(), container_name=()):
            raise InvalidRequest(
                f"criteria[{place}]: CDCV2 takes entity_type, primary_key and where only; with other "
                "criteria what goes would not match what came"
            )
        if one.area not in (None, Area.DATA):
            raise InvalidRequest(f"criteria[{place}].area: CDCV2 has rows only, area DATA")
        alternatives.append(replace(one, area=Area.DATA))
    if request.body:
        raise InvalidRequest("body: CDCV2 has the rows themselves; leave it out")
    if wish.decoded:
        raise InvalidRequest("values: CDCV2 has rows as the source wrote them; leave it out")
    if wish.named is not None:
        raise InvalidRequest("name: a named subscription has captures; leave CDCV2 out")
    if CatchUp.LATEST is wish.limits.catch_up or OverrunPolicy.LATEST is wish.limits.overrun:
        raise InvalidRequest(
            "catch_up, overrun_policy: CDCV2 says of every version what went and came; not LATEST"
        )
    start = wish.start
    if isinstance(start, FromState) or (
        isinstance(start, After) and isinstance(start.cursor, StateCursor)
    ):
        raise InvalidRequest(
            "initial: CDCV2 has no state; its updates from since_version 0 on add up to one"
        )
    inside = isinstance(start, After) and start.cursor.index != END
    if inside or request.HasField("from_time") or request.since_index:
        raise InvalidRequest(
            "CDCV2 starts at a whole version: since_version without since_index, or after a cursor whose "
            f"index is {END}"
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
    """Return the named subscription that is asked for; None: none.

    Raises:
        InvalidRequest: A name that is none, or an epoch without one.
    """
    if not request.HasField("name"):
        if request.HasField("epoch"):
            raise InvalidRequest("epoch: it needs a name")
        return None
    check_subscription_name(request.name)
    return NamedReader(request.name, request.epoch if request.HasField("epoch") else None)


def _beginning(request: SubscribeRequest) -> Beginning | None:
    """Return what a subscribe begins with; beside a cursor ``initial`` says nothing more.

    Raises:
        InvalidRequest, CursorInvalid: As ``start``; ``initial`` beside a start that is no cursor.
    """
    if request.initial == INITIAL_UNSPECIFIED:
        return start(request)
    for name in ("since_version", "since_index", "from_time"):
        if request.HasField(name):
            raise InvalidRequest(
                f"{name}: not with initial, which begins with the state as of now and goes on with the changes "
                "behind it; leave one of them out"
            )
    return FromState(Cursor.parse(request.after) if request.HasField("after") else None)


def subscribe_system(request: SubscribeSystemRequest) -> Wish:
    """Return the wish of a subscribe to the system log; raises as ``subscribe``."""
    return Wish(
        criteria=(),
        start=start(request),
        content=content(request.body),
        limits=SubscriptionLimits(heartbeat_interval_s=_heartbeat_interval_s(request)),
    )


def catalog(name: str) -> str:
    """Return a catalog's name; an empty one is refused."""
    if not name:
        raise InvalidRequest("catalog: a name is required")
    return name


def refuse_excess(count: int, limit: int) -> None:
    """Refuse more criteria than one request may have, which is asked before they are read.

    Raises:
        InvalidRequest: There are more; names the setting, what was given and the limit.
    """
    if count > limit:
        raise InvalidRequest(
            f"criteria: {count} in one request, the limit is {limit} (criteria); put keys of equal "
            "criteria into one, or ask in several requests"
        )


def _sorted(keys: Sequence[str]) -> tuple[str, ...]:
    """Return keys in order, so that `Criteria` has nothing left to sort.

    Python holds its lock while it sorts, and no other thread runs; Arrow does not. Both order texts alike.
    """
    values = tuple(keys)
    if len(values) <= KEYS_AT_ONCE:
        return values
    order = sort_indices(pa.array(values, pa.string())).to_numpy()
    return tuple([values[place] for place in order.tolist()])


def history_criteria(request: ReadChangesRequest) -> tuple[Criteria, ...]:
    """Return the criteria of a read; raises as ``criteria``."""
    return criteria(request.criteria)


def criteria(messages: Iterable[capture_pb2.Criteria]) -> tuple[Criteria, ...]:
    """Return criteria.

    Raises:
        InvalidRequest: One contradicts itself; says which.
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
    """Return the content that a list of bodies names."""
    _refuse_unspecified(bodies, "body")
    wanted = Content.HEADER
    for body in bodies:
        wanted |= _CONTENT[capture_pb2.Body.ValueType(body)]
    return wanted


def decoded(values: int) -> bool:
    """Return whether values are to be decoded.

    Raises:
        InvalidRequest: It is no form of values.
    """
    if values not in Values.values():
        raise InvalidRequest(f"values: {values} is none of {', '.join(Values.keys())}")
    return values == VALUES_DECODED


def start(request: _Started) -> Start | None:
    """Return the start, or the lower bound, that a request names.

    Raises:
        InvalidRequest: More than one, or one without meaning.
        CursorInvalid: ``after`` is not a cursor.
    """
    _refuse_several(request, ("since_version", "after"))
    _refuse_several(request, ("since_version", "from_time"))
    if request.HasField("since_index") and not request.since_version:
        raise InvalidRequest("since_index: it needs a since_version from 1")
    from_time = TimestampMicros(request.from_time) if request.HasField("from_time") else None
    if request.HasField("since_version"):
        version = at_least(0, request.since_version, "since_version")
        return Since(Position(version, at_least(0, request.since_index, "since_index")))
    if request.HasField("after"):
        return After(Cursor.parse(request.after), from_time)
    return None if from_time is None else FromTime(from_time)


def history_bounds(request: ReadChangesRequest) -> HistoryBounds:
    """Return the range of a read.

    Raises:
        InvalidRequest: Bounds without meaning.
        CursorInvalid: ``after`` or ``before`` is not a cursor.
    """
    _refuse_several(request, ("since_version", "after", "from_time"))
    _refuse_several(request, ("until_version", "before", "to_time"))
    wait = waited(request)
    if wait is not None and request.HasField("anchor"):
        raise InvalidRequest("wait_for_version: not with anchor, whose version is past")
    if request.HasField("until_index") and not request.HasField("until_version"):
        raise InvalidRequest("until_index: it needs an until_version")
    return HistoryBounds(
        lower=start(request),
        until=_until(request),
        until_time=request.to_time if request.HasField("to_time") else None,
        before=Cursor.parse(request.before) if request.HasField("before") else None,
        anchor=request.anchor if request.HasField("anchor") else None,
        wait=wait,
    )


def _until(request: ReadChangesRequest) -> Position | None:
    """Return the first position behind the bound."""
    if not request.HasField("until_version"):
        return None
    version = at_least(0, request.until_version, "until_version")
    if request.HasField("until_index"):
        index = at_least(0, request.until_index, "until_index")
        if index < END:
            return Position(version, index + 1)
    return Position(min(version, MAX_VERSION - 1) + 1, 0)


def limit(request: ReadChangesRequest) -> int | None:
    """Return how many records a read may give; None: no limit."""
    return at_least(1, request.limit, "limit") if request.HasField("limit") else None


def state(request: ReadStateRequest) -> StateRequest:
    """Return what state a request asks for.

    Raises:
        InvalidRequest: No entity type, or what has no meaning or contradicts itself.
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
    """Return what a request waits for before it is answered; None: nothing."""
    if not request.HasField("wait_for_version"):
        if request.HasField("wait_ms"):
            raise InvalidRequest("wait_ms: it needs a wait_for_version")
        return None
    version = at_least(0, request.wait_for_version, "wait_for_version")
    if not request.HasField("wait_ms"):
        return VersionWait(version, _WAIT_S)
    return VersionWait(version, _within(_WAIT_MS, request.wait_ms, "wait_ms") / 1000)


def demand(n: int) -> int:
    """Return a demand.

    Raises:
        InvalidRequest: It is not positive.
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
    """Return the size above which a read gives headers only."""
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
        raise InvalidRequest(f"{path}: UNSPECIFIED asks for nothing; leave the value out")


def at_least(least: int, value: int, path: str) -> int:
    """Return a number that is large enough, or refuse it by its path."""
    if value < least:
        raise InvalidRequest(f"{path} {value}: it must be at least {least}")
    return value


def _within(allowed: range, value: int, path: str) -> int:
    if value not in allowed:
        raise InvalidRequest(
            f"{path} {value}: it must lie in {allowed.start} to {allowed.stop - 1}"
        )
    return value


def next_cursor(
    history: HistoryRead, last: tuple[int, int, int] | None, *, reverse: bool
) -> Cursor | None:
    """Return the bound of the page behind a read that is over; None when nothing follows."""
    if not history.has_next or last is None:
        return None
    version, index, _ = last
    return history.cursor_of(version, index, 0 if reverse else END)


def create(request: CreateSubscriptionRequest) -> NewSubscription:
    """Return the subscription that is to be created.

    Raises:
        InvalidRequest: Criteria that contradict themselves.
    """
    return NewSubscription(
        name=request.name,
        criteria=criteria(request.criteria),
        place=getattr(request, "from") if request.HasField("from") else "latest",
        hold_us=request.hold_ms * 1000 if request.HasField("hold_ms") else None,
        hold_bytes=request.hold_bytes if request.HasField("hold_bytes") else None,
    )


def acknowledgement(request: AcknowledgeRequest) -> tuple[str, int, Cursor]:
    """Return name, epoch and cursor of an acknowledgement.

    Raises:
        InvalidRequest: There is no epoch.
        CursorInvalid: It is no cursor.
    """
    if request.epoch < 1:
        raise InvalidRequest(
            "epoch: that of the acknowledgement which the reader got when it subscribed is required"
        )
    cursor = Cursor.parse(request.cursor)
    if isinstance(cursor, StateCursor):
        raise InvalidRequest("cursor: it is a place in a state, which is no place in the log")
    return request.name, request.epoch, cursor
