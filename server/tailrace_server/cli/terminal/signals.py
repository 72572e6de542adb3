"""Runs a command's coroutine: Ctrl-C and SIGTERM cancel it once, in good order; a second one does not wait."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Final, TypeVar

from tailrace.event_loop import waited_out

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_STDOUT: Final = 1
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def run(main: Coroutine[None, None, int | None]) -> int:
    """Run a coroutine to its end and return the exit status.

    Returns: The coroutine's result, or 128 + the signal's number if one ended it; 0 if the reader of our output
    has gone.
    """
    return asyncio.run(_supervised(main))


async def _supervised(main: Coroutine[None, None, int | None]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def stop(number: int) -> None:
        if received:
            # Whoever asks twice does not want to wait: die as if nobody had caught the first.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.append(number)
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        return await main or 0
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]
    except BrokenPipeError:
        # Whoever read our output has seen enough (``| head``). Let the interpreter flush into nothing at exit.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, _STDOUT)
        os.close(nothing)
        return 0
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


_Result = TypeVar("_Result")


async def in_thread(step: Callable[[], _Result], stop: Callable[[], None]) -> _Result:
    """Run a step in a thread; cancelled, have it end behind what it writes, and wait for that.

    Until then it uses files that a cancelled caller would close.

    Args:
        step: What to run.
        stop: Has it end; called in the event loop's thread.
    """
    return await waited_out(asyncio.get_running_loop().run_in_executor(None, step), stop)
