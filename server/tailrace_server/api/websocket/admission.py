"""Lets a socket in by its ``connection_init``, and lets it stay by a newer token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import (
    InvalidRequest,
    NotPermitted,
    TailraceError,
    TokenExpired,
    Unauthenticated,
)
from tailrace_server.access.entrance import token_in
from tailrace_server.api.websocket.messages import Close, CloseCode, malformed

if TYPE_CHECKING:
    from tailrace_server.access.entrance import Entrance


async def admit_at_init(entrance: Entrance, payload: object) -> None:
    """Let in who brings a token in the payload of a ``connection_init``, or brought one in the handshake.

    Raises:
        Close: 4401: there is none, and one is wanted; 4403: it proves nothing; 1013: that is unknown now.
    """
    try:
        token = token_in(payload, "connection_init")
        await entrance.admit(token)
    except InvalidRequest as error:
        raise malformed(str(error)) from None
    except TailraceError as error:
        raise refused(error, CloseCode.UNAUTHORIZED if token is None else None) from None


async def renew(entrance: Entrance, payload: object) -> None:
    """Let a socket stay by a newer token of the same caller.

    Raises:
        Close: 4403: the token proves nothing, or somebody else; 1013: that is unknown now.
    """
    try:
        await entrance.admit(token_in(payload, "token"))
    except InvalidRequest as error:
        raise malformed(str(error)) from None
    except TailraceError as error:
        raise refused(error) from None


def refused(error: TailraceError, code: CloseCode | None = None) -> Close:
    """Return what ends a socket whose caller is not let in; ``code`` is told of a caller who is to blame."""
    is_final = isinstance(error, Unauthenticated | TokenExpired | NotPermitted)
    found = (code or CloseCode.FORBIDDEN) if is_final else CloseCode.TRY_AGAIN
    return Close(found, f"{error.code}: {error}")
