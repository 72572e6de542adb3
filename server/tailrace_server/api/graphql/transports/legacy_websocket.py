"""The sub-protocol ``graphql-ws`` of subscriptions-transport-ws, which is refused in its own words.

Its clients offer no other sub-protocol and show no close code: refused by one they connect again and again, and
whoever sits before them sees nothing. So the handshake is accepted, and the reason is in the two messages that
they show: ``connection_error`` for the connection, and ``error`` for each operation that they begin.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from tailrace_server.api.graphql.transports.websocket import SUBPROTOCOL
from tailrace_server.api.websocket.codes import CloseCode

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

LEGACY_SUBPROTOCOL: Final = "graphql-ws"
REASON: Final = (
    f"this server speaks {SUBPROTOCOL} (npm graphql-ws), and not subscriptions-transport-ws"
)
_PATIENCE_S: Final = 5.0
"""How long it may take to begin an operation."""
_MESSAGES_MAX: Final = 20


async def refuse_legacy(websocket: WebSocket) -> None:
    """Tell a client of the legacy sub-protocol which one to take, and close with 4406."""
    error = {"message": REASON, "extensions": {"code": "INVALID_REQUEST", "retriable": False}}
    told = False
    try:
        async with asyncio.timeout(_PATIENCE_S):
            for _ in range(_MESSAGES_MAX):
                received = await websocket.receive()
                if received["type"] == "websocket.disconnect":
                    return
                message = _parsed(received.get("text") or "")
                if not told:
                    told = True
                    await websocket.send_json({"type": "connection_error", "payload": error})
                if message.get("type") == "start":
                    answer = {"type": "error", "id": message.get("id"), "payload": error}
                    await websocket.send_json(answer)
                    break
    except TimeoutError:
        pass
    await websocket.close(CloseCode.SUBPROTOCOL, REASON)


def _parsed(text: str) -> dict[str, object]:
    """Return a message; an empty one for what is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
