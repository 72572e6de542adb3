"""The token that a client shows: a text, or a function that is asked for one at each call.

It goes into the metadata ``authorization`` of every call, and nowhere else: no message, log or error has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest, SubscriptionClosed, TailraceError, TransportError

if TYPE_CHECKING:
    from tailrace.transport import Stream

TokenSource = str | Callable[[], Awaitable[str]]
"""The types that ``connect`` takes."""

Metadata = tuple[tuple[str, str], ...]
_HEADER: Final = "authorization"


class Token:
    """The credential of a client."""

    def __init__(self, source: TokenSource | None) -> None:
        """Take a text or a function; None shows nothing.

        Raises:
            InvalidRequest: It is neither, or no token.
        """
        self._ask = source if callable(source) else None
        if source is not None and not isinstance(source, str) and not callable(source):
            raise InvalidRequest("token: must be a text, or an async function that returns one")
        self._metadata = _metadata(source) if isinstance(source, str) else ()

    @property
    def changes(self) -> bool:
        """True if the next call may show another one."""
        return self._ask is not None

    @property
    def at_hand(self) -> Metadata:
        """The metadata of a call, where the token does not change."""
        return self._metadata

    async def metadata(self) -> Metadata:
        """Return the metadata of a call.

        Raises:
            InvalidRequest: What the function returned is no token.
            TransportError: It raised; its error is the cause.
        """
        if self._ask is None:
            return self._metadata
        try:
            found = await self._ask()
        except TailraceError:
            raise
        except Exception as error:
            # Only its kind: the text of an HTTP library may have what it was asked with.
            raise TransportError(f"token: the function raised {type(error).__name__}") from error
        return _metadata(found)


def _metadata(token: object) -> Metadata:
    if not isinstance(token, str):
        raise InvalidRequest(f"token: must be a text, not {type(token).__name__}")
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest("token: must be one word of ASCII, as its issuer gave it")
    return ((_HEADER, f"Bearer {token}"),)


class LateStream:
    """A call that begins with its first ``receive``, once its token is there."""

    def __init__(self, token: Token, begin: Callable[[Metadata], Stream]) -> None:
        """Keep what begins it."""
        self._token = token
        self._begin = begin
        self._stream: Stream | None = None
        self._closed = False

    async def receive(self) -> bytes | None:
        """Return the next message, as `Stream.receive`; at first ask for the token.

        Raises:
            TailraceError: There is no token, or as `Stream.receive`.
        """
        if self._stream is None:
            metadata = await self._token.metadata()
            if self._closed:
                raise SubscriptionClosed("the connection was closed")
            self._stream = self._begin(metadata)
        return await self._stream.receive()

    def close(self) -> None:
        """End the call, if it has not ended."""
        self._closed = True
        if self._stream is not None:
            self._stream.close()
