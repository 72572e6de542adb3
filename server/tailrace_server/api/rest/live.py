"""Live changes over WebSocket: the payloads of the sub-protocol ``tailrace.v1``.

::

    subscribe   {"sinceVersion" | "after" | "fromTime", "sinceIndex", "body": ["after"], "criteria": [{…}],
                 "maxMessageBytes", "heartbeatIntervalMs", "request": 100, "format", "bodies", "values"}
    subscribed  {"subscriptionId", "start", "resumeCursor", "publishedVersion", "limits", …}
    next        {"captures": [{…}, …], "cursor": "1.….42.2.0", "position": {"version", "index", "ordinal"}}
                "events" instead of "captures" if the format is cloudevents
    stateComplete  {"version", "resumeCursor"}, after the last row if "initial": "STATE" was requested
    heartbeat   {"publishedVersion", "resumeCursor", "recordsScanned", "recordsMatched", "nextWithinMs"}
    request     {"n": 100}
    token       {"token": "…"}, without an id: a newer token of the same caller, for the whole socket
    error       a Problem Details object

A subscribe with the member ``request`` has explicit demand: the server sends at most the requested number of
captures, and with 0 it waits for the first ``request`` message. A subscribe without this member receives
everything as fast as the client reads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace.capture import Heartbeat, StateComplete
from tailrace.errors import InvalidRequest, TailraceError
from tailrace.v1.change_capture_pb2 import SubscribeRequest
from tailrace_server.api import requests, responses
from tailrace_server.api.errors import problem
from tailrace_server.api.json_requests import ELSEWHERE, from_json, in_json, integer
from tailrace_server.api.requests import has_many_keys, reading
from tailrace_server.api.rest.forms import CaptureForm, form_of
from tailrace_server.api.send_guard import on_end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace_server.access.entrance import Entrance
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.api.websocket import SocketOperation
    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Peer
    from tailrace_server.live.subscription import Subscription

SUBPROTOCOL: Final = "tailrace.v1"
_INT64: Final = range(-(1 << 63), 1 << 63)
_DEMAND: Final = range(1 << 63)
"""Valid values of the initial demand; 0 waits for a request. Later requests are at least 1."""


@dataclass(slots=True)
class _Live:
    """The state of one operation: its request, and the demand that arrives before its subscription is open."""

    message: SubscribeRequest
    """The request; removed when the operation runs, to free its keys."""
    demand: int | None
    """Initial demand; None if the client's reading speed is the demand."""
    form: CaptureForm
    waiting: list[int] = field(default_factory=list)
    """Requests that arrived before the subscription was open, in order."""
    subscription: Subscription | None = None
    """The open subscription; None until then."""


class LiveFace:
    """The face of one WebSocket: interprets the payloads for one catalog."""

    def __init__(
        self,
        engine: Engine,
        settings: HttpSettings,
        catalog: str,
        peer: Peer,
        entrance: Entrance,
    ) -> None:
        """Bind a peer to a catalog by name; an unknown catalog is an error only at a subscribe."""
        self.entrance = entrance
        self._engine = engine
        self._settings = settings
        self._catalog = catalog
        self._peer = peer

    takes_tokens = True

    @property
    def extra(self) -> Mapping[str, Callable[[SocketOperation, object], None]]:
        """The handler of ``request`` messages."""
        # Not stored: a bound method stored in its own object is a reference cycle.
        return {"request": self._request}

    def error_payload(self, error: TailraceError) -> object:
        """Return an error as a Problem Details object."""
        return problem(error)

    def begin(self, operation: SocketOperation, payload: object) -> None:
        """Parse the subscribe; if it has many keys, the socket waits until they have been processed."""
        operation.state = _Live(*asked_of(payload, self._engine.settings.criteria))
        if has_many_keys(operation.state.message):
            operation.reading = asyncio.Event()

    async def run(self, operation: SocketOperation) -> None:
        """Serve one subscription until it ends."""
        # Take the request out of the state, so that its keys are freed when the wish has been made.
        state: _Live = operation.state
        message = state.message
        del state.message
        async with reading(self._engine.turns.many_keys, in_json(requests.wish), message) as wish:
            # The wish has the only copy of the keys now.
            del message
            operation.answered()
            subscription = await requests.open_subscription(
                self._engine,
                self.entrance.principal,
                self._catalog,
                wish,
                codec=state.form.objects,
                peer=self._peer,
                demand=state.demand,
            )
        del wish
        subscription.on_end = on_end(operation.interrupt)
        operation.serves(subscription)
        try:
            state.subscription = subscription
            # No await between the assignment and this loop: no request is lost or overtaken.
            for n in state.waiting:
                subscription.request(n)
            await self._pump(operation, subscription, state.form)
        finally:
            subscription.cancel()

    async def _pump(
        self, operation: SocketOperation, subscription: Subscription, form: CaptureForm
    ) -> None:
        """Send the acknowledgement, then captures and heartbeats, until the subscription ends."""
        acknowledgement = responses.acknowledgement(
            subscription.acknowledgement,
            send_deadline_s=self._engine.settings.send_deadline_s,
            request_bytes=self._settings.ws_message_bytes,
        )
        await operation.send("subscribed", responses.as_json(acknowledgement))
        opening = b'{"events":[' if form.is_cloud else b'{"captures":['
        while True:
            message = await subscription.receive()
            if isinstance(message, Heartbeat):
                await operation.send("heartbeat", responses.as_json(responses.heartbeat(message)))
            elif isinstance(message, StateComplete):
                await operation.send(
                    "stateComplete", responses.as_json(responses.state_complete(message))
                )
            else:
                # The captures are shared bytes that end with a comma, which the closing bracket replaces.
                await operation.next(
                    opening,
                    memoryview(message.data)[:-1],
                    responses.after_captures(message, subscription.cursor_behind(message)),
                )
            # Free the message before waiting: the next one may need its memory.
            del message

    def _request(self, operation: SocketOperation, payload: object) -> None:
        """Add to the demand of an operation.

        Raises:
            InvalidRequest: The payload is not a demand, or the operation has no explicit demand. The operation
                ends with this error.
        """
        if not isinstance(payload, dict) or set(payload) != {"n"}:
            raise InvalidRequest('request: the payload must be {"n": captures}')
        n = requests.demand(integer(_INT64, payload["n"], "request.n", bounds=_DEMAND[1:]))
        state: _Live = operation.state
        if state.demand is None:
            raise InvalidRequest(
                'request: this subscription has no demand; subscribe with "request": 0 or more'
            )
        # A request may arrive while the subscription is being opened: `run` passes it on.
        if state.subscription is None:
            state.waiting.append(n)
        else:
            state.subscription.request(n)


def asked_of(
    payload: object, criteria_max: int
) -> tuple[SubscribeRequest, int | None, CaptureForm]:
    """Return the request of a subscribe, its initial demand and its form.

    The demand is None if the client's reading speed is the demand.

    Raises:
        InvalidRequest, Unsupported: A member is unknown or invalid; the error uses its JSON name.
    """
    form, payload = form_of(payload)
    demand = None
    if isinstance(payload, dict) and payload.get("request") is not None:
        payload = dict[Any, Any](payload)
        demand = integer(_DEMAND, payload.pop("request"), "request")
    message = from_json(SubscribeRequest, payload, criteria_max=criteria_max, without=ELSEWHERE)
    return message, demand, form
