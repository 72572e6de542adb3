"""Authentication of a WebSocket by its ``connection_init``, and renewal of its identity by a newer token."""

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
    """Admit a socket by the token in its ``connection_init``; without one, by the handshake's credentials.

    Raises:
        Close: With code 4400 if the token is not a text, 4401 if the server requires a token and got none, 4403
            if the token is not accepted, 1013 if the caller cannot be identified now.
    """
    try:
        token = token_in(payload, "connection_init")
        await entrance.admit(token)
    except InvalidRequest as error:
        raise malformed(str(error)) from None
    except TailraceError as error:
        raise refused(error, CloseCode.UNAUTHORIZED if token is None else None) from None


async def renew(entrance: Entrance, payload: object) -> None:
    """Renew the identity of a socket by a newer token of the same caller.

    Raises:
        Close: With code 4400 if the token is not a text, 4403 if the token is not accepted or belongs to
            another caller, 1013 if the caller cannot be identified now.
    """
    try:
        await entrance.admit(token_in(payload, "token"))
    except InvalidRequest as error:
        raise malformed(str(error)) from None
    except TailraceError as error:
        raise refused(error) from None


def refused(error: TailraceError, code: CloseCode | None = None) -> Close:
    """Return the close for a caller who is not admitted.

    Args:
        error: The reason.
        code: Close code if the caller is at fault; None means 4403. Other errors close with 1013.
    """
    is_final = isinstance(error, Unauthenticated | TokenExpired | NotPermitted)
    found = (code or CloseCode.FORBIDDEN) if is_final else CloseCode.TRY_AGAIN
    return Close(found, f"{error.code}: {error}")
