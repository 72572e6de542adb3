"""Publisher, Subscriber and Subscription of Reactive Streams 1.0.4, over the same link as the async iterator.

A publisher is cold: creating it sends nothing, and each ``subscribe`` opens its own stream. All signals of a
subscriber come from one task, one after the other, and never from inside ``request`` or ``cancel``. So
``request(1)`` in ``on_next`` does not recurse. docs/reactive-streams.md lists every rule with its test.
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
"""Number of captures passed to a subscriber before the event loop gets a turn."""


class Subscription(Protocol):
    """The subscriber's handle to request captures and to stop. Call it on the event loop, from any signal."""

    def request(self, n: int) -> None:
        """Request ``n`` more captures. Requests add up and saturate at 2^63 - 1; after the end they do nothing.

        If ``n`` is not positive, the subscription ends with ``on_error(InvalidRequest)`` (rule 3.9).

        Raises:
            TypeError: ``n`` is not a whole number; the subscription continues.
        """

    def cancel(self) -> None:
        """End the subscription without a further signal, and release the subscriber. Idempotent."""


class Subscriber(Protocol):
    """The receiver of captures. Its methods must return soon and not raise (rules 2.2 and 2.13)."""

    def on_subscribe(self, subscription: Subscription) -> None:
        """Receive the subscription; the first signal, sent once. Request captures through it, now or later."""

    def on_next(self, capture: Capture) -> None:
        """Receive a capture. There are never more of these signals than were requested."""

    def on_error(self, error: TailraceError) -> None:
        """Receive the error that ended the subscription, or ``SubscriptionClosed`` if the client was closed.

        This is the last signal.
        """

    def on_complete(self) -> None:
        """Receive the end of the stream, as the last signal. Change streams have no end and never send it."""


class Publisher:
    """A Reactive Streams publisher of captures; made by ``Client.publisher``."""

    def __init__(
        self, open_link: Callable[[], Link], start: Callable[[StreamSubscription], None]
    ) -> None:
        """Store how to open a link and start a stream; nothing is sent before ``subscribe``."""
        self._open_link = open_link
        self._start = start

    def subscribe(self, subscriber: Subscriber) -> None:
        """Start a task that opens a stream for a subscriber and sends all its signals.

        If the publisher has a start, all subscribers begin there. Otherwise each begins after the version that
        is published when its stream opens.

        Raises:
            TypeError: ``subscriber`` lacks a method of a subscriber (rules 1.9 and 2.13). This is the only
                error that is raised; others are signalled.
        """
        names = ("on_subscribe", "on_next", "on_error", "on_complete")
        if not all(callable(getattr(subscriber, name, None)) for name in names):
            raise TypeError(f"a subscriber must have the methods {', '.join(names)}")
        self._start(StreamSubscription(subscriber, self._open_link))


class StreamSubscription:
    """The stream of one subscriber: the sink of its link, and its subscription."""

    def __init__(self, subscriber: Subscriber, open_link: Callable[[], Link]) -> None:
        """Store the subscriber and how to open its link; ``run`` begins."""
        self._subscriber: Subscriber | None = subscriber
        self._open_link: Callable[[], Link] | None = open_link
        self._link: Link | None = None
        self._waiting: deque[Capture] = deque()
        """Captures of the last message that were not passed to the subscriber yet."""
        self._task: asyncio.Task[None] | None = None
        self._terminal: TailraceError | None = None
        """Error to signal at the end; set by ``request`` and ``end``, signalled by ``run``."""

    @property
    def cancelled(self) -> bool:
        """True if no more signals may be sent."""
        return self._subscriber is None

    def request(self, n: int) -> None:
        """Request ``n`` more captures; see ``Subscription``."""
        if self._subscriber is None or self._link is None or self._terminal is not None:
            return
        try:
            self._link.demand.request(n)
        except InvalidRequest as error:
            self.end(error)

    def cancel(self) -> None:
        """End the subscription without a signal; see ``Subscription``."""
        self._forget()
        self._stop()

    def end(self, error: TailraceError) -> None:
        """Make ``run`` signal an error as the last signal; the first error wins."""
        if self._terminal is None and self._subscriber is not None:
            self._terminal = error
            self._waiting.clear()
            self._stop()

    def shut(self, error: TailraceError) -> None:
        """End the stream with an error, since the client is closed."""
        self.end(error)

    def refuse(self, error: TailraceError) -> None:
        """Signal that there is no stream: first ``on_subscribe``, then the error (rule 1.9)."""
        assert self._subscriber is not None
        self._call(self._subscriber.on_subscribe, self)
        if self._subscriber is not None:
            self._call(self._subscriber.on_error, error)
        self._forget()

    async def run(self) -> None:
        """Run the stream and send its signals until the end; the client owns the task."""
        self._task = asyncio.current_task()
        try:
            await self._signal_captures()
        except asyncio.CancelledError:
            # `_stop` cancels the task to end this subscription alone: that is no error of the client's task
            # group, so it is swallowed. Any other cancellation ends the group and is raised again.
            if not (self.cancelled or self._terminal):
                self._forget()
                raise
        except Exception as error:
            self._terminal = self._terminal or kept(error)
        finally:
            # Break the reference cycle: the task keeps its error, the error its frames, and they this object.
            self._task = None
        # Forget the subscriber before the last signal: if `on_error` calls `cancel`, there is nothing to end.
        subscriber, terminal = self._subscriber, self._terminal
        self._forget()
        if subscriber is not None and terminal is not None:
            self._call(subscriber.on_error, terminal)

    async def _signal_captures(self) -> None:
        subscriber, open_link = self._subscriber, self._open_link
        if subscriber is None or open_link is None:
            return
        # Rule 1.9: `on_subscribe` comes first, even if there is no link to subscribe to. So the error waits.
        refusal = None
        try:
            self._link = open_link()
        except TailraceError as error:
            refusal = error
        self._call(subscriber.on_subscribe, self)
        # This frame lives as long as the stream, and `cancel` must release both objects.
        del subscriber, open_link
        if refusal is not None:
            raise refusal
        if self._link is not None and self._terminal is None:
            await self._link.run(self)

    def _call(self, signal: Callable[..., None], argument: object) -> None:
        """Send a signal. If the subscriber raises, cancel it and call the loop's exception handler."""
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
        """Do nothing: Reactive Streams has no signal for an acknowledgement."""

    def deliver(self, captures: tuple[Capture, ...], nbytes: int) -> None:
        """Queue captures; ``room`` passes them to the subscriber before the link reads the next message."""
        self._waiting.extend(captures)

    def beat(self, heartbeat: Heartbeat | StateComplete) -> None:
        """Do nothing: the link has stored the cursor of the mark."""

    async def room(self) -> None:
        """Pass the queued captures to the subscriber.

        The server never sends more captures than were requested, so all of them can be passed on at once.
        """
        turn = _TURN
        while self._waiting and self._subscriber is not None:
            self._call(self._subscriber.on_next, self._waiting.popleft())
            turn -= 1
            # A large message must not block the other tasks of the event loop.
            if turn == 0:
                turn = _TURN
                await asyncio.sleep(0)


def closed_with_client() -> SubscriptionClosed:
    """Return the error of streams that end because their client was closed."""
    return SubscriptionClosed("the client was closed")
