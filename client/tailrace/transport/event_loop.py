"""Which event loop a connection, and all that uses it, belongs to: the one that entered it.

gRPC answers on the loop that made the channel. Whoever waits for it on another one, or on another thread, would
wait for ever, and no timeout of his loop would end that. So it is refused at once.
"""

from __future__ import annotations

import asyncio

from tailrace.errors import InvalidRequest


class OnOneLoop:
    """A base for objects that are used only on the event loop that entered them."""

    _loop: asyncio.AbstractEventLoop | None = None
    """The loop that entered it; None before that."""

    def _note_loop(self) -> None:
        """Belong to the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def _check_loop(self) -> None:
        """Refuse to be used from elsewhere; before it was entered there is nothing to refuse.

        Raises:
            InvalidRequest: Another event loop runs here than the one that entered it, or none.
        """
        home = self._loop
        if home is None or asyncio._get_running_loop() is home:
            return
        state = "that is closed" if home.is_closed() else "of another thread or run"
        raise InvalidRequest(
            f"this {type(self).__name__.lower()} belongs to the event loop that entered it, one {state}: "
            "make one with `connect` on the loop that uses it"
        )
