"""Acknowledgement and heartbeats, as the ``extensions`` of a result whose data is null (docs/adr/0061).

::

    {"data": {"onProductChange": null}, "extensions": {"heartbeat": {"publishedVersion": …, "resumeCursor": …}}}

A subscription that asks for ``signals: true`` gets them, in order with its changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace_server.api.rest import responses

if TYPE_CHECKING:
    from tailrace.capture import Heartbeat, StateComplete
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.engine.engine import Engine
    from tailrace_server.live.options import SubscribeAcknowledgement


def acknowledgement(
    value: SubscribeAcknowledgement, engine: Engine, settings: HttpSettings
) -> dict[str, Any]:
    """Return what the server made of a subscribe."""
    return {
        "acknowledgement": responses.acknowledgement(
            value,
            send_deadline_s=engine.settings.send_deadline_s,
            request_bytes=settings.ws_message_bytes,
        )
    }


def state_complete(value: StateComplete) -> dict[str, Any]:
    """Return the event behind the last row of a state."""
    return {"stateComplete": responses.state_complete(value)}


def heartbeat(value: Heartbeat) -> dict[str, Any]:
    """Return a heartbeat."""
    return {"heartbeat": responses.heartbeat(value)}
