"""The token of a client: a text, or a function that is called for a token at each call.

The token is sent in the metadata ``authorization`` of every call. Messages, logs and errors never contain it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest, SubscriptionClosed, TailraceError, TransportError

if TYPE_CHECKING:
    from tailrace.transport import Stream

TokenSource = str | Callable[[], Awaitable[str]]
"""The types of tokens that ``connect`` accepts."""

Metadata = tuple[tuple[str, str], ...]
_HEADER: Final = "authorization"


class Token:
    """The credential of a client."""

    def __init__(self, source: TokenSource | None) -> None:
        """Store a text or a function; with None no token is sent.

        Raises:
            InvalidRequest: ``source`` is neither, or the text is not a token.
        """
        self._ask = source if callable(source) else None
        if source is not None and not isinstance(source, str) and not callable(source):
            raise InvalidRequest("token: must be a text, or an async function that returns one")
        self._metadata = _metadata(source) if isinstance(source, str) else ()

    @property
    def changes(self) -> bool:
        """True if the token comes from a function, so that the next call may send another one."""
        return self._ask is not None

    @property
    def at_hand(self) -> Metadata:
        """The metadata of a call, for a token that does not change."""
        return self._metadata

    async def metadata(self) -> Metadata:
        """Return the metadata of a call; call the function for a token if there is one.

        Raises:
            InvalidRequest: The function returned something else than a token.
            TransportError: The function raised; its error is the cause.
        """
        if self._ask is None:
            return self._metadata
        try:
            found = await self._ask()
        except TailraceError:
            raise
        except Exception as error:
            # Only the type of the error: its text may contain the secret that the function has sent.
            raise TransportError(f"token: the function raised {type(error).__name__}") from error
        return _metadata(found)


def _metadata(token: object) -> Metadata:
    if not isinstance(token, str):
        raise InvalidRequest(f"token: must be a text, not {type(token).__name__}")
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest("token: must be one word of ASCII, exactly as issued")
    return ((_HEADER, f"Bearer {token}"),)


class LateStream:
    """A call that begins at the first ``receive``, since its token has to be awaited."""

    def __init__(self, token: Token, begin: Callable[[Metadata], Stream]) -> None:
        """Store the token, and the function that begins the call."""
        self._token = token
        self._begin = begin
        self._stream: Stream | None = None
        self._closed = False

    async def receive(self) -> bytes | None:
        """Return the next message; the first call gets the token and begins the call.

        Raises:
            TailraceError: There is no token, or the call failed.
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
