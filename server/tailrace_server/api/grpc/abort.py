"""Ends a call with an error of ours: the one way out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
import structlog

from tailrace.errors import forget_frames
from tailrace_server.api.errors import grpc_status, logged

if TYPE_CHECKING:
    from tailrace.errors import TailraceError

_ABORT_S: Final = 5.0
"""How long a handler waits for its status to leave. It goes behind what is unread; the connection keeps it."""

_log = structlog.get_logger("tailrace.grpc")


async def abort(error: TailraceError, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """End a call with an error.

    The status goes behind the messages that the client has not read, so a stalled one gets it when it reads
    again; the handler does not wait for that.
    """
    code, text, trailer = grpc_status(logged(error, _log))
    try:
        async with asyncio.timeout(_ABORT_S):
            await context.abort(code, text, trailer)
    except grpc.aio.AbortError as aborted:
        # grpc.aio keeps it with the call, and raises it again once the handler has returned. Its frames hold
        # the call in turn, and all that the handler held.
        forget_frames(aborted)
    except (TimeoutError, grpc.aio.InternalError):
        # Unread, or nobody is there any more; either way the handler has nothing left to do.
        return
