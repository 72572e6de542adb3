"""Publisher, Subscriber and Subscription of Reactive Streams 1.0.4, over the link of the async iterator.

A publisher is cold: making one sends nothing, each ``subscribe`` opens a stream of its own. All signals of
one subscriber come from one task, one after the other, never from inside ``request`` or ``cancel``: so
``request(1)`` from ``on_next`` does not recurse. Every rule with its test: docs/reactive-streams.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from tailrace.errors import InvalidRequest, SubscriptionClosed, TailraceError, kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.capture import Acknowledgement, Capture, Heartbeat, StateComplete
    from tailrace.link import Link

_TURN: Final = 256
"""Captures handed to a subscriber before the event loop has its turn."""


class Subscription(Protocol):
    """How a subscriber asks for captures and stops. Callable from any signal, on the event loop."""

    def request(self, n: int) -> None:
        """Ask for ``n`` captures more; adds up, saturates at 2^63 - 1.

        Not positive: the subscription ends with ``on_error(InvalidRequest)`` (rule 3.9). After the end:
        nothing. Not a whole number: TypeError, here, and the subscription continues.
        """

    def cancel(self) -> None:
        """End it: no further signal, not even a completion, and the subscriber is forgotten. Idempotent."""


class Subscriber(Protocol):
    """The receiver of the captures. Its methods return soon and raise nothing (rules 2.2 and 2.13)."""

    def on_subscribe(self, subscription: Subscription) -> None:
        """Come first, once. Ask for captures through the subscription, now or later."""

    def on_next(self, capture: Capture) -> None:
        """Take a capture; at most as often as was requested."""

    def on_error(self, error: TailraceError) -> None:
        """Take the last signal: it has failed, or was closed together with the client."""

    def on_complete(self) -> None:
        """Take the last signal: there is no more. Change streams have no end, so it does not come from them."""


class Publisher:
    """A source of captures; made by ``Client.publisher``."""

    def __init__(
        self, open_link: Callable[[], Link], start: Callable[[StreamSubscription], None]
    ) -> None:
        """Keep how to begin; nothing is sent before ``subscribe``."""
        self._open_link = open_link
        self._start = start

    def subscribe(self, subscriber: Subscriber) -> None:
        """Open a stream for a subscriber; its signals begin with ``on_subscribe`` and come later, from a task.

        A given start is the same for each subscriber; without one each starts at its own moment.

        Raises:
            TypeError: ``subscriber`` is not one (rules 1.9 and 2.13); nothing else is ever raised.
        """
        names = ("on_subscribe", "on_next", "on_error", "on_complete")
        if not all(callable(getattr(subscriber, name, None)) for name in names):
            raise TypeError(f"a subscriber has the methods {', '.join(names)}")
        self._start(StreamSubscription(subscriber, self._open_link))


class StreamSubscription:
    """One subscriber's stream: the link's sink and the subscriber's subscription."""

    def __init__(self, subscriber: Subscriber, open_link: Callable[[], Link]) -> None:
        """Keep both; ``run`` begins."""
        self._subscriber: Subscriber | None = subscriber
        self._open_link: Callable[[], Link] | None = open_link
        self._link: Link | None = None
        self._waiting: deque[Capture] = deque()
        """Received in the message that is being handed over, or before the subscriber asked for it."""
        self._task: asyncio.Task[None] | None = None
        self._terminal: TailraceError | None = None
        """An error that is to be signalled; set by ``request`` and ``end``, signalled by ``run``."""

    @property
    def cancelled(self) -> bool:
        """True if nothing more is to be signalled."""
        return self._subscriber is None

    def request(self, n: int) -> None:
        """Ask for more; see ``Subscription``."""
        if self._subscriber is None or self._link is None or self._terminal is not None:
            return
        try:
            self._link.demand.request(n)
        except InvalidRequest as error:
            self.end(error)

    def cancel(self) -> None:
        """End without a signal; see ``Subscription``."""
        self._forget()
        self._stop()

    def end(self, error: TailraceError) -> None:
        """Let ``run`` signal an error as the last thing."""
        if self._terminal is None and self._subscriber is not None:
            self._terminal = error
            self._waiting.clear()
            self._stop()

    def shut(self, error: TailraceError) -> None:
        """End because the client is closed."""
        self.end(error)

    def refuse(self, error: TailraceError) -> None:
        """Signal that there will be no stream: first ``on_subscribe``, then the error (rule 1.9)."""
        assert self._subscriber is not None
        self._call(self._subscriber.on_subscribe, self)
        if self._subscriber is not None:
            self._call(self._subscriber.on_error, error)
        self._forget()

    async def run(self) -> None:
        """Signal until the end; the client owns the task."""
        self._task = asyncio.current_task()
        try:
            await self._signal_captures()
        except asyncio.CancelledError:
            # From `_stop`: an end of this subscription alone. Otherwise the client's group is being torn down.
            if not (self.cancelled or self._terminal):
                self._forget()
                raise
        except Exception as error:
            self._terminal = self._terminal or kept(error)
        finally:
            self._task = None  # it keeps what it ends with, that its frames, and they this object
        subscriber, terminal = self._subscriber, self._terminal
        self._forget()
        if subscriber is not None and terminal is not None:
            self._call(subscriber.on_error, terminal)

    async def _signal_captures(self) -> None:
        subscriber, open_link = self._subscriber, self._open_link
        if subscriber is None or open_link is None:
            return
        refusal = None
        try:
            self._link = open_link()
        except TailraceError as error:
            refusal = error
        self._call(subscriber.on_subscribe, self)
        del subscriber, open_link
        if refusal is not None:
            raise refusal
        if self._link is not None and self._terminal is None:
            await self._link.run(self)

    def _call(self, signal: Callable[..., None], argument: object) -> None:
        """Signal; a subscriber that raises counts as cancelled, and its error goes to the loop's handler."""
        try:
            signal(argument)
        except Exception as error:
            self.cancel()
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a subscriber's signal handler raised (rule 2.13)", "exception": error}
            )

    def _stop(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def _forget(self) -> None:
        self._subscriber = self._open_link = self._link = None
        self._waiting.clear()

    # The link's sink.

    def acknowledged(self, acknowledgement: Acknowledgement) -> None:
        """Do nothing: subscribers hear of captures and of the end."""

    def deliver(self, captures: tuple[Capture, ...], nbytes: int) -> None:
        """Queue captures; ``room`` hands them over before anything else is read."""
        self._waiting.extend(captures)

    def beat(self, heartbeat: Heartbeat | StateComplete) -> None:
        """Do nothing: the link has noted the cursor."""

    async def room(self) -> None:
        """Hand over what came. The server never sends more than was requested, so nothing has to be kept."""
        turn = _TURN
        while self._waiting and self._subscriber is not None:
            self._call(self._subscriber.on_next, self._waiting.popleft())
            turn -= 1
            if turn == 0:
                turn = _TURN
                await asyncio.sleep(0)


def closed_with_client() -> SubscriptionClosed:
    """Return the error of streams that end because their client was closed."""
    return SubscriptionClosed("the client was closed")
