"""The common part of all finite reads: the caller, the quota, the last message, and errors.

A large message waits until the server has room for it, like the large messages of subscriptions. A reader that
does not take its large message is ended if other readers need the memory.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from tailrace.errors import NotPermitted, ServerFull, TailraceError, again
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.log_cache.last_message import LastMessage
from tailrace_server.resources.admission import Ending

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tailrace_server.grants.principal import Principal
    from tailrace_server.grants.use import GrantUse
    from tailrace_server.log_cache.frames import Frames
    from tailrace_server.resources.admission import Admission
    from tailrace_server.resources.memory import LargeMessages, MemoryCharge

_MOMENT_S: Final = 0.1
"""Seconds without progress after which a read drops its block, since its reader may have stalled.

The block may still be in the cache.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTerms:
    """The terms on which a read was admitted: its grants, quota and limits of memory."""

    message_bytes: int
    """Size of a message in bytes; only a single larger row makes a message larger."""
    large: LargeMessages
    """Accountant of the memory for messages above ``message_bytes``, shared by all readers."""
    patience_s: float
    """The longest time, in seconds, that such a message waits for room."""
    kept: MemoryCharge
    """The memory charged for the criteria; released when the read is closed."""
    use: GrantUse
    """The granted part of the request."""
    admission: Admission
    """The admission by quotas and audit, which is notified of the end."""


class LogRead(ABC):
    """Base class of finite reads. Use a read as a context manager, so that its memory is always released."""

    def __init__(self, terms: ReadTerms) -> None:
        """Create a read that has not delivered anything yet."""
        self.last = LastMessage(terms.message_bytes, terms.large)
        self.use = terms.use
        """The granted part of the request."""
        self.caller: Principal = ANONYMOUS
        """The caller; the read ends when the caller's credential expires."""
        self.error: TailraceError | None = None
        """The error that ``end`` was called with; None while it was not called."""
        self.on_end: Callable[[TailraceError], None] | None = None
        """Function that ``end`` calls once, so that a transport can stop sending a message."""
        self._terms = terms
        self._captures = self._nbytes = 0
        """Numbers of captures and bytes that have been delivered so far."""
        self._wait_s = 0.0
        """Seconds that the next message has to wait for the caller's quota."""
        self._waiter: asyncio.Future[None] | None = None
        """Future that wakes a message that waits for room or quota; None while no message waits."""

    def __enter__(self) -> Self:
        """Return the read."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        # Note the error before `close`: the admission records only the first end.
        if isinstance(error, TailraceError):
            self._terms.admission.ended(partial(self._ending, error))
        self.close()

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Frames]:
        """Yield the messages of the read; only once."""

    @abstractmethod
    def resume_cursor(self) -> object | None:
        """Return the cursor after the last delivered message; None if there is none. ``str`` gives its text."""

    @abstractmethod
    def _let_go(self) -> None:
        """Drop all data that can be read again."""

    def close(self) -> None:
        """Release all memory; the read delivers nothing afterwards. Idempotent."""
        self._let_go()
        self.on_end = None  # breaks the reference cycle between transport and read
        self.last.end(self)
        self._terms.kept.release()
        self._terms.admission.ended(partial(self._ending, self.error))

    def _ending(self, error: TailraceError | None) -> Ending:
        return Ending(error, self._captures, self._nbytes, str(self.resume_cursor() or ""))

    def end(self, error: TailraceError) -> None:
        """End the read with an error; the transport is notified at once. Idempotent.

        The iteration raises the error instead of yielding the next message.
        """
        if self.error is None:
            self.error = error
            on_end = self.on_end  # `close` forgets it
            self.close()
            self.wake()
            if on_end is not None:
                on_end(error)

    def end_if_refused(self) -> None:
        """End the read if the caller is no longer granted everything that it delivers."""
        if (refusal := self.use.refusal()) is not None:
            self.end(NotPermitted(refusal))

    def wake(self) -> None:
        """Wake the message that waits for room or quota, if any."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def let_go_of_block(self, now: float) -> None:
        """Drop the block if the reader has made no progress for a moment, as it may never request more."""
        if self.last.stalled_for(now) >= _MOMENT_S:
            self._let_go()

    def _handed(self, frames: Frames) -> Frames:
        """Note a message as delivered but not taken yet, and return it."""
        self.last.frames, self.last.handed_at = frames, asyncio.get_running_loop().time()
        self._captures += frames.count
        self._nbytes += len(frames.data)
        self._wait_s = self._terms.admission.passed(len(frames.data))
        return frames

    async def _taken(self) -> None:
        """Note that the reader has taken the last message, then wait for the caller's quota.

        Raises:
            TailraceError: The read was ended, or the caller's credential has expired.
        """
        self.last.taken(self)
        # Wait for the quota only after the message was taken, so that no memory is held meanwhile.
        if self.error is None and self._wait_s > 0.0:
            await self._pause(self._wait_s)
        # The credential may have expired during the wait.
        if self.error is None and (refusal := self.caller.refusal()) is not None:
            self.end(refusal)
        if self.error is not None:
            raise again(self.error)

    async def _pause(self, seconds: float) -> None:
        """Drop the block, then wait for some seconds or until ``wake``; ``end`` wakes this wait."""
        self._let_go()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._waiter
        except TimeoutError:
            return
        finally:
            self._waiter = None

    async def _turn(self) -> None:
        """Wait until there is room for a large message.

        Raises:
            ServerFull: There was no room within the send deadline.
            TailraceError: The read was ended.
        """
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._terms.patience_s):
                await self._waiter
        except TimeoutError:
            raise ServerFull(
                f"a large row has waited for {self._terms.patience_s:g} s because other large rows were "
                "not read: they share 1/4 of the server's memory (memory); try again later, or without "
                "bodies"
            ) from None
        finally:
            self._waiter = None
        if self.error is not None:
            raise again(self.error)
