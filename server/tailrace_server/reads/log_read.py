"""The common part of reads that end: the caller, the last message, the quota, and the end.

A message that is large waits for its turn as those of subscriptions do, and a reader that stalls on one is
ended where memory is short.
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
"""A reader that has not moved for so long may have stalled, and the cache alone keeps its block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTerms:
    """The terms of a read: its admission, and how much of it is on its way at once."""

    message_bytes: int
    """The largest message, bytes."""
    large: LargeMessages
    """Gives room to messages that are larger than that."""
    patience_s: float
    """How long such a message waits for room."""
    kept: MemoryCharge
    """The bytes charged for the criteria; given back when the read is closed."""
    use: GrantUse
    """The granted part of the request."""
    admission: Admission
    """Told how it ends."""


class LogRead(ABC):
    """One read; whoever iterates it has it by ``with``, so that its room is given back however that ends."""

    def __init__(self, terms: ReadTerms) -> None:
        """Begin with nothing handed over."""
        self.last = LastMessage(terms.message_bytes, terms.large)
        self.use = terms.use
        """The granted part of the request."""
        self.caller: Principal = ANONYMOUS
        """The caller; the read ends when its grants do."""
        self.error: TailraceError | None = None
        """Why it was ended; None while it was not."""
        self.on_end: Callable[[TailraceError], None] | None = None
        """Called once if it is ended, for a transport that is busy with a message."""
        self._terms = terms
        self._captures = self._nbytes = 0
        """Handed over so far."""
        self._wait_s = 0.0
        """How long the next message has to wait for the caller's quota."""
        self._waiter: asyncio.Future[None] | None = None
        """The waiter of a message without room; None while none waits."""

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        if isinstance(error, TailraceError):
            self._terms.admission.ended(partial(self._ending, error))
        self.close()

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Frames]:
        """Yield its messages, once."""

    @abstractmethod
    def resume_cursor(self) -> object | None:
        """Return the cursor behind the last message that was handed over, with ``str``; None before it."""

    @abstractmethod
    def _let_go(self) -> None:
        """Keep nothing that can be read again."""

    def close(self) -> None:
        """Give back what it holds; nothing is read after it. Idempotent."""
        self._let_go()
        self.on_end = None  # which has the transport, and that this read
        self.last.end(self)
        self._terms.kept.release()
        self._terms.admission.ended(partial(self._ending, self.error))

    def _ending(self, error: TailraceError | None) -> Ending:
        return Ending(error, self._captures, self._nbytes, str(self.resume_cursor() or ""))

    def end(self, error: TailraceError) -> None:
        """End with an error, which the next message raises; a transport is notified at once. Idempotent."""
        if self.error is None:
            self.error = error
            on_end = self.on_end
            self.close()
            self.wake()
            if on_end is not None:
                on_end(error)

    def end_if_refused(self) -> None:
        """End if the caller is no longer granted all that this returns."""
        if (refusal := self.use.refusal()) is not None:
            self.end(NotPermitted(refusal))

    def wake(self) -> None:
        """Let a message that waits for room continue."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def let_go_of_block(self, now: float) -> None:
        """Keep no block if the reader has not moved for a moment: its next message may never be requested."""
        if self.last.stalled_for(now) >= _MOMENT_S:
            self._let_go()

    def _handed(self, frames: Frames) -> Frames:
        """Return a message after it was noted as being on its way."""
        self.last.frames, self.last.handed_at = frames, asyncio.get_running_loop().time()
        self._captures += frames.count
        self._nbytes += len(frames.data)
        self._wait_s = self._terms.admission.passed(len(frames.data))
        return frames

    async def _taken(self) -> None:
        """Note that the last message has been taken, and wait for the caller's quota.

        Raises:
            TailraceError: The read was ended, or its caller may have no more of it.
        """
        self.last.taken(self)
        if self.error is None and self._wait_s > 0.0:
            await self._pause(self._wait_s)
        if self.error is None and (refusal := self.caller.refusal()) is not None:
            self.end(refusal)
        if self.error is not None:
            raise again(self.error)

    async def _pause(self, seconds: float) -> None:
        """Wait, keeping no block, until the caller's quota has room; the end of the read ends it."""
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
        """Wait until a large message may be on its way.

        Raises:
            ServerFull: It may not within the send deadline.
        """
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._terms.patience_s):
                await self._waiter
        except TimeoutError:
            raise ServerFull(
                f"a large row has waited for {self._terms.patience_s:g} s while those of others were not read: "
                "they share a quarter of the server's memory (memory); read on later, or without bodies"
            ) from None
        finally:
            self._waiter = None
        if self.error is not None:
            raise again(self.error)
