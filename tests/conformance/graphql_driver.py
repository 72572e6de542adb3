"""Drivers of GraphQL: live over graphql-transport-ws and graphql-sse, history as Relay connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

import tailrace
from tailrace.capture import Heartbeat
from tailrace_server.api.graphql.websocket import SUBPROTOCOL
from tests.conformance import json_captures
from tests.conformance.http_drivers import OverEvents, OverHttp, OverSocket
from tests.conformance.json_captures import JsonAcknowledgement
from tests.conformance.ways import Asked, DrivenSubscription, Page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.capture import Capture, StateComplete
    from tailrace.criteria import Content, Criteria
    from tailrace.errors import TailraceError

_HEAD: Final = (
    "version index ordinal cursor commitTimestamp area operation kind transition entityType primaryKey "
    "changed containerType containerName omittedBytes"
)
_TYPES: Final = {
    **dict.fromkeys(("first", "sinceIndex", "untilIndex", "waitMs"), "Int"),
    **dict.fromkeys(("from", "to", "fromTime", "sinceVersion", "untilVersion", "anchor"), "Long"),
    "waitForVersion": "Long",
    "catchUp": "CatchUp",
    "overrunPolicy": "OverrunPolicy",
    **dict.fromkeys(("after", "before"), "String"),
    "reverse": "Boolean",
    "initial": "Initial",
    "criteria": "[Criteria!]",
}


class GraphqlWebSocket(OverHttp):
    """``onCatalogChange`` with signals, a socket for each subscription."""

    cannot: ClassVar[Mapping[str, str]] = {
        "demand": "graphql-transport-ws has no message for it: the pace of the socket is the demand"
    }

    async def open(self, asked: Asked) -> DrivenSubscription:
        assert asked.demand is None, self.cannot["demand"]
        # A token comes with `connection_init`, as browsers send it; over REST it is in the handshake.
        socket = await self.connect(f"/v1/catalogs/{asked.catalog}/graphql", SUBPROTOCOL, {})
        subscription = _Subscription(socket)
        await subscription.begin(self.entrance.init, _payload(asked))
        return subscription

    async def page(
        self, criteria: Sequence[Criteria], content: Content, bounds: dict[str, Any]
    ) -> Page:
        asked: dict[str, Any] = {
            _RENAMED.get(name, json_captures.camel(name)): value for name, value in bounds.items()
        }
        if asked.get("reverse"):  # Relay's cursors follow the list, not the log
            asked = {_TURNED.get(name, name): value for name, value in asked.items()}
        for name in ("after", "before"):
            if name in asked:
                asked[name] = str(asked[name])
        asked["criteria"] = json_captures.criteria(tuple(criteria))
        node = " ".join((_HEAD, *json_captures.bodies(content)))
        fields = (
            f"anchor closedUntil truncated pageInfo {{ hasNextPage }} edges {{ node {{ {node} }} }}"
        )
        document, variables = _document("query", "changes", asked, f"{{ {fields} }}")
        answer = await self.http.post(
            "/v1/catalogs/shop/graphql", json={"query": document, "variables": variables}
        )
        found = msgspec.json.decode(answer.content, type=_Answer)
        if found.errors:
            raise _error(found.errors)
        assert answer.status_code == 200
        assert found.data is not None
        page = msgspec.json.decode(found.data["changes"], type=dict[str, msgspec.Raw])
        edges = msgspec.json.decode(page["edges"], type=list[dict[str, msgspec.Raw]])
        captures = [json_captures.capture(bytes(edge["node"])) for edge in edges]
        next_cursor = None
        if msgspec.json.decode(page["pageInfo"])["hasNextPage"]:
            last = captures[-1].cursor
            ordinal = 0 if bounds.get("reverse") else tailrace.END
            next_cursor = tailrace.Cursor(last.catalog_uuid, last.version, last.index, ordinal)
        return Page(
            captures=captures,
            anchor=msgspec.json.decode(page["anchor"]),
            closed_until=msgspec.json.decode(page["closedUntil"]),
            next_cursor=next_cursor,
            truncated=msgspec.json.decode(page["truncated"]),
        )


class GraphqlEvents(GraphqlWebSocket):
    """The same as an event stream for each subscription."""

    cannot: ClassVar[Mapping[str, str]] = {
        "demand": "an event stream has no way back: the pace of its connection is the demand"
    }

    async def open(self, asked: Asked) -> DrivenSubscription:
        assert asked.demand is None, self.cannot["demand"]
        headers = {"accept": "text/event-stream"}
        payload = _payload(asked)
        if "fromTime" not in payload["variables"] and "after" in payload["variables"]:
            headers["last-event-id"] = payload["variables"].pop("after")
        request = self.http.stream(
            "POST", f"/v1/catalogs/{asked.catalog}/graphql", json=payload, headers=headers
        )
        answer = await self.stack.enter_async_context(request)
        if answer.status_code != 200:
            raise _error(msgspec.json.decode(await answer.aread())["errors"])
        timed = "fromTime" in payload["variables"]
        subscription = _EventSubscription(answer, self.chunks(answer), timed=timed)
        await subscription.begin()
        return subscription


class _EventSubscription(OverEvents):
    async def begin(self) -> None:
        answer, fields = await self._next()
        self.acknowledgement = JsonAcknowledgement(answer.extensions["acknowledgement"])
        self._expect_id(fields, self.acknowledgement.resume_cursor)

    async def receive(self) -> tuple[Capture, ...] | Heartbeat:
        answer, fields = await self._next()
        found = _message(answer, self.marks)
        if isinstance(found, Heartbeat):
            self._expect_id(fields, found.cursor)
        elif found:
            assert fields["id"].decode() == str(found[0].cursor)
        else:
            self._expect_id(fields, self.marks[-1].cursor)
        return found

    async def _next(self) -> tuple[_Answer, dict[str, bytes]]:
        fields = await self._event()
        assert fields["event"] == b"next"
        return _checked(msgspec.json.decode(fields["data"], type=_Answer)), fields


def _message(answer: _Answer, marks: list[StateComplete]) -> tuple[Capture, ...] | Heartbeat:
    """Return what a result brings; the end of a state is added to ``marks``."""
    if "stateComplete" in answer.extensions:
        marks.append(json_captures.state_complete(answer.extensions["stateComplete"]))
        return ()
    if answer.extensions:
        return json_captures.heartbeat(answer.extensions["heartbeat"])
    assert answer.data is not None
    return (json_captures.capture(bytes(answer.data["onCatalogChange"])),)


def _checked(answer: _Answer) -> _Answer:
    """Return a result; its only errors may be of bodies left out."""
    if answer.data is None:
        raise _error(answer.errors)
    omitted = {"code": "BODIES_OMITTED", "retriable": False, "figures": {}}
    assert all(each["extensions"] == omitted for each in answer.errors)
    return answer


def _payload(asked: Asked) -> dict[str, Any]:
    arguments = {
        **json_captures.start(asked.start),
        **json_captures.members(asked.more),
        "criteria": json_captures.criteria(asked.criteria),
    }
    fields = " ".join((_HEAD, *json_captures.bodies(asked.content)))
    document, variables = _document(
        "subscription", "onCatalogChange", arguments, f"{{ {fields} }}", ", signals: true"
    )
    return {"query": document, "variables": variables}


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    data: dict[str, msgspec.Raw] | None = None
    errors: list[dict[str, Any]] = []
    extensions: dict[str, Any] = {}


class _Subscription(OverSocket):
    async def begin(self, init: dict[str, Any], payload: dict[str, Any]) -> None:
        await self._send("connection_init", init.get("payload"), id=None)
        assert (await self._receive()).type == "connection_ack"
        await self._send("subscribe", payload)
        answer = await self._next()
        self.acknowledgement = JsonAcknowledgement(answer.extensions["acknowledgement"])

    async def request(self, n: int) -> None:
        raise AssertionError(GraphqlWebSocket.cannot["demand"])

    async def receive(self) -> tuple[Capture, ...] | Heartbeat:
        return _message(await self._next(), self.marks)

    def error(self, payload: Any) -> TailraceError:
        return _error(payload)

    async def _next(self) -> _Answer:
        message = await self._receive()
        assert message.type == "next"
        return _checked(msgspec.json.decode(message.payload, type=_Answer))


def _document(
    kind: str, field: str, arguments: Mapping[str, Any], selection: str, rest: str = ""
) -> tuple[str, dict[str, Any]]:
    """Return a document with a variable for each argument, and their values."""
    given = {name: value for name, value in arguments.items() if value is not None}
    declared = ", ".join(f"${name}: {_TYPES[name]}" for name in given)
    passed = ", ".join(f"{name}: ${name}" for name in given)
    head = f"({declared})" if declared else ""
    return f"{kind}{head} {{ {field}({passed}{rest}) {selection} }}", given


def _error(errors: list[dict[str, Any]]) -> TailraceError:
    (one,) = errors
    return json_captures.error({"detail": one["message"], **one["extensions"]})


_RENAMED: Final = {"limit": "first", "from_time": "from", "to_time": "to"}
_TURNED: Final = {"after": "before", "before": "after"}
