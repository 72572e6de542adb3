"""The AsyncAPI 3 document of the live part, made from the code; served at ``/v1/asyncapi.json``.

One JSON Schema for each message. The components are those of the OpenAPI document.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any, Final

from tailrace_server.api.rest import components
from tailrace_server.api.rest.live import SUBPROTOCOL
from tailrace_server.api.websocket.codes import CloseCode
from tailrace_server.api.websocket.messages import ID_CHARACTERS_MAX

_ANY: Final = {"type": "object"}


def reference(name: str) -> dict[str, Any]:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


_EITHER: Final = {"oneOf": [reference("Captures"), reference("CloudEvents")]}

_MESSAGES: Final[dict[str, tuple[str, bool, str | dict[str, Any] | None, str]]] = {
    "connection_init": ("send", False, _ANY, "Introduces the client; the first message."),
    "connection_ack": ("receive", False, None, "The socket may be used."),
    "ping": ("both", False, _ANY, "Asks for a pong, at any time."),
    "pong": ("both", False, _ANY, "Answers a ping with its payload."),
    "subscribe": ("send", True, "Subscribe", "Begins a subscription under an id of its own."),
    "subscribed": ("receive", True, "Acknowledgement", "What the server made of it; comes first."),
    "next": ("receive", True, _EITHER, "Captures, in order; as CloudEvents where asked for."),
    "heartbeat": ("receive", True, "Heartbeat", "Proof of life, in order with the captures."),
    "request": ("send", True, "Demand", "So many captures more may be sent."),
    "token": (
        "send",
        False,
        "Token",
        "A newer token of the same caller: the socket goes on by it.",
    ),
    "error": ("receive", True, "Error", "The subscription has ended; nothing follows."),
    "complete": ("both", True, None, "Ends the subscription."),
}
"""Type → who sends it, whether it has an id, its payload, what it says."""

_REQUIRED: Final = ("subscribe", "subscribed", "next", "heartbeat", "request", "error", "token")


def message_schema(type: str) -> dict[str, Any]:
    """Return the JSON Schema of one message."""
    _, identified, payload, summary = _MESSAGES[type]
    members: dict[str, Any] = {"type": {"const": type}}
    required = ["type"]
    if identified:
        members["id"] = {"type": "string", "minLength": 1, "maxLength": ID_CHARACTERS_MAX}
        required.append("id")
    if payload is not None:
        members["payload"] = reference(payload) if isinstance(payload, str) else payload
    if type in _REQUIRED:
        required.append("payload")
    return {
        "type": "object",
        "description": summary,
        "properties": members,
        "required": required,
        "additionalProperties": False,
    }


@cache
def document() -> dict[str, Any]:
    """Return the document."""
    channels, operations = {}, {}
    for name, address in (
        ("changes", "/v1/catalogs/{catalog}/changes/live"),
        ("systemChanges", "/v1/system/changes/live"),
    ):
        channel: dict[str, Any] = {
            "address": address,
            "messages": {type: {"$ref": f"#/components/messages/{type}"} for type in _MESSAGES},
            "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
        }
        if "{" in address:
            channel["parameters"] = {"catalog": {"description": "Name of the catalog."}}
        channels[name] = channel
        for action in ("send", "receive"):
            operations[f"{action}{name[0].upper()}{name[1:]}"] = {
                "action": action,
                "channel": {"$ref": f"#/channels/{name}"},
                "messages": [
                    {"$ref": f"#/channels/{name}/messages/{type}"}
                    for type, (who, *_) in _MESSAGES.items()
                    if who in (action, "both")
                ],
            }
    codes = ", ".join(f"{int(code)} {code.name.lower().replace('_', ' ')}" for code in CloseCode)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "tailrace live changes",
            "version": version("tailrace"),
            "description": f"WebSocket, sub-protocol `{SUBPROTOCOL}`, seen from the client. Several "
            f"subscriptions share one socket. Close codes: {codes}.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {
            "schemas": components.schemas(reference),
            "messages": {
                type: {
                    "name": type,
                    "summary": _MESSAGES[type][3],
                    "contentType": "application/json",
                    "payload": message_schema(type),
                }
                for type in _MESSAGES
            },
        },
    }
