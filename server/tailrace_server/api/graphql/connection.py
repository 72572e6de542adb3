"""A page of history in Relay's form.

The list runs up the log, or down it with ``reverse``. ``first`` so many after a cursor are its beginning,
``last`` so many before one its end; both count records, and a page never splits one. The log is read from the
side on which the page begins, so no more is read than is shown.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tailrace import wire
from tailrace.criteria import After, FromTime, Since
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest
from tailrace.position import Position, TimestampMicros
from tailrace.v1.capture_fields_pb2 import SubscribeResponseParts
from tailrace.v1.change_capture_pb2 import ReadChangesRequest
from tailrace_server.api import requests
from tailrace_server.api.graphql import types
from tailrace_server.api.graphql.arguments import plain
from tailrace_server.api.json_requests import from_json, in_json, in_json_names
from tailrace_server.api.many_keys import reading
from tailrace_server.codecs import PROTOBUF
from tailrace_server.log_cache.start import refuse_other_history

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.capture import Capture
    from tailrace.criteria import Start
    from tailrace_server.api.graphql.arguments import Scope
    from tailrace_server.api.graphql.where.values import TypedCondition
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Peer, Principal
    from tailrace_server.reads.history import HistoryBounds, HistoryRead
    from tailrace_server.resources.memory import MemoryCharge
    from tailrace_server.wal.state.view import LogView

_BOUNDS: Final = (
    *("sinceVersion", "sinceIndex", "untilVersion", "untilIndex"),
    *("anchor", "waitForVersion", "waitMs"),
)
"""Arguments that go to the request as they are."""
COPIES: Final = 4
"""A page is messages, then captures, then values of an answer, then its text."""


async def read_page(
    engine: Engine,
    caller: Principal,
    peer: Peer,
    settings: HttpSettings,
    catalog: str,
    arguments: Mapping[str, Any],
    scope: Scope,
    bodies: frozenset[str],
    condition: TypedCondition | None,
    *,
    bytes_max: int,
    pages: MemoryCharge,
) -> types.HistoryPage:
    """Read a page; it ends behind the record that takes it above ``bytes_max``, and is charged to ``pages``.

    Raises:
        InvalidRequest: Arguments that contradict each other.
        TailraceError: The range cannot be read.
        ServerFull: There is no room for it.
    """
    asked = {name: plain(value) for name, value in arguments.items() if value is not None}
    limit, from_end = _limit(asked, settings.page_records)
    reverse = bool(asked.get("reverse", False))
    backwards = reverse != from_end
    message = _message(asked, scope, bodies, condition, engine.settings.criteria)
    try:
        bounds = requests.history_bounds(message)
    except InvalidRequest as error:
        raise in_json_names(error) from None
    names = [name for name in ("after", "before") if name in asked]
    cursors: dict[str, Cursor] = {name: Cursor.parse(asked[name]) for name in names}
    newest = max((each.version for each in cursors.values()), default=0)
    if bounds.wait is not None:
        await engine.view(caller, catalog, bounds.wait)  # a cursor may be of what is waited for
    view = await engine.view(caller, catalog, newest)
    with nullcontext() if condition is None else condition.told():
        async with reading(
            engine.turns.many_keys, in_json(requests.history_criteria), message
        ) as criteria:
            history = await engine.history(
                caller,
                catalog,
                criteria,
                bounds=_bounds(asked, cursors, bounds, view, reverse=reverse),
                reverse=backwards,
                content=requests.content(message.body),
                codec=PROTOBUF,
                limit=limit,
                peer=peer,
            )
    with history:
        capture_bytes_max = engine.settings.max_message_bytes
        captures, more, size = await _read(history, bytes_max, capture_bytes_max, pages)
    if from_end:
        captures.reverse()
    return types.HistoryPage(
        captures,
        types.PageInfo(
            has_next_page="before" in asked if from_end else more,
            has_previous_page=more if from_end else "after" in asked,
            start_cursor=str(captures[0].cursor) if captures else None,
            end_cursor=str(captures[-1].cursor) if captures else None,
        ),
        anchor=history.anchor,
        closed_until=history.closed_until,
        oldest=types.PositionObject(version=history.oldest.version, index=history.oldest.index),  # type: ignore[arg-type]
        truncated=history.truncated,
        unknown_changes=list(history.unknown_changes),
        nbytes=size,
        schema_of=view.schema_of,
    )


def _limit(asked: Mapping[str, Any], most: int) -> tuple[int, bool]:
    """Return how many records to read, and whether from the end of the list."""
    if "first" in asked and "last" in asked:
        raise InvalidRequest("give first or last, not both")
    name = "last" if "last" in asked else "first"
    count = asked.get(name, most)
    if not 1 <= count <= most:
        raise InvalidRequest(f"{name} {count}: it must lie in 1 to {most}, the largest page")
    return count, name == "last"


def _message(
    asked: Mapping[str, Any],
    scope: Scope,
    bodies: frozenset[str],
    condition: TypedCondition | None,
    criteria_max: int,
) -> ReadChangesRequest:
    """Return the request that every face makes of a read, without cursors and times, which may add up here."""
    fields = {name: asked[name] for name in _BOUNDS if name in asked}
    fields["criteria"] = scope.narrowed(
        asked.get("criteria"), None if condition is None else condition.tree
    )
    fields["body"] = sorted(bodies)
    return from_json(ReadChangesRequest, fields, criteria_max=criteria_max)


def _bounds(
    asked: Mapping[str, Any],
    cursors: Mapping[str, Cursor],
    bounds: HistoryBounds,
    view: LogView,
    *,
    reverse: bool,
) -> HistoryBounds:
    """Return the range: every bound that is given holds, so that a page after a cursor stays in its range.

    Raises:
        CatalogReplaced, CursorAhead, HistoryReplaced: A cursor's history is not this log's.
    """
    lower_name, upper_name = ("before", "after") if reverse else ("after", "before")
    for name, cursor in cursors.items():  # the reader sees one lower bound only
        refuse_other_history(view, cursor, upper=name == upper_name)
    lowers = [] if bounds.lower is None else [bounds.lower]
    if lower_name in cursors:
        lowers.append(After(cursors[lower_name]))
    if "from" in asked:
        lowers.append(FromTime(TimestampMicros(asked["from"])))

    def begins_at(start: Start) -> Position:
        match start:
            case Since(position):
                return position
            case After(cursor):
                return cursor.position
            case FromTime(timestamp):
                return Position(view.version_at(timestamp), 0)

    return replace(
        bounds,
        lower=max(lowers, key=begins_at, default=None),
        until_time=asked.get("to"),
        before=cursors.get(upper_name),
    )


async def _read(
    history: HistoryRead, bytes_max: int, capture_bytes_max: int, pages: MemoryCharge
) -> tuple[list[Capture], bool, int]:
    """Return captures, whether there are more, and their bytes; one that is too large comes as its header."""
    captures: list[Capture] = []
    size = 0
    async for frames in history:
        message = SubscribeResponseParts.FromString(frames.data)
        found = wire.captures(message.captures, history.catalog_uuid)
        if size > bytes_max and found[0].position != captures[-1].position:
            return captures, True, size
        if len(found) == 1 and len(frames.data) > capture_bytes_max:
            found = (without_bodies(found[0]),)
        else:
            pages.add(len(frames.data) * COPIES)
            size += len(frames.data)
        captures += found
    return captures, history.has_next, size


def without_bodies(capture: Capture) -> Capture:
    """Return a capture as its header, with the size of its bodies."""
    bodies = (capture.change, capture.before, capture.after)
    size = sum(len(body or b"") for body in bodies)
    return capture._replace(change=None, before=None, after=None, omitted_bytes=size)
