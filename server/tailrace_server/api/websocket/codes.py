"""Close codes, those of graphql-transport-ws where it has one.

=====  =========================================================================================
1001   the server stops; every subscription was told its resume cursor
1008   a message stayed unread past the send deadline, or too many pings went unanswered
1009   a message is too large, or comes in too many fragments
1011   our bug, or a probe stayed unanswered
4400   not a message of this protocol: not JSON, an unknown type or member, a binary frame
4401   a subscribe, or anything else that needs it, before connection_ack
4403   the face refused the connection_init
4406   the client offered no sub-protocol that this path speaks
4408   no connection_init in time
4409   a subscribe with an id that is in use
4429   a second connection_init
=====  =========================================================================================
"""

from __future__ import annotations

from enum import IntEnum


class CloseCode(IntEnum):
    """Why a socket was closed by us."""

    GOING_AWAY = 1001
    TOO_SLOW = 1008
    TOO_LARGE = 1009
    INTERNAL = 1011
    MALFORMED = 4400
    UNAUTHORIZED = 4401
    FORBIDDEN = 4403
    SUBPROTOCOL = 4406
    INIT_TIMEOUT = 4408
    DUPLICATE_ID = 4409
    SECOND_INIT = 4429


class Close(Exception):
    """Ends the whole socket with a code and a reason."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        """Keep both; a reason has room for 123 bytes."""
        super().__init__(reason)
        self.code = code
        self.reason = reason
