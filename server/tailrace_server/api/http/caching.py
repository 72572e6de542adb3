"""The cache headers of an answer: it may not be stored, unless the answer itself says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NAME: Final = b"cache-control"
_NO_STORE: Final = (_NAME, b"no-store")


def with_no_store(application: ASGIApp) -> ASGIApp:
    """Tell browsers and proxies not to keep an answer that does not say who may.

    Without a word they may keep some refusals too, and show them to somebody else.
    """

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        async def first(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ())]
                if all(name.lower() != _NAME for name, _ in headers):
                    message = {**message, "headers": [*headers, _NO_STORE]}
            await send(message)

        await application(scope, receive, first if scope["type"] == "http" else send)

    return told
