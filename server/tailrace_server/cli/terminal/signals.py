"""Running of a command's coroutine: the first Ctrl-C or SIGTERM cancels it, a second one kills the process."""

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

    Returns: The coroutine's result; 128 + the number of the signal that ended it; or 0 if the reader of our
    output has closed the pipe.
    """
    return asyncio.run(_supervised(main))


async def _supervised(main: Coroutine[None, None, int | None]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def stop(number: int) -> None:
        if received:
            # A second signal means that the user does not want to wait: die by the signal's default action.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.append(number)
        task.cancel()

    # Handlers of the loop, not of `signal`: cancelling a task is safe only between two turns of the loop.
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        return await main or 0
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]
    except BrokenPipeError:
        # The reader has closed the pipe (``| head``). At exit the interpreter flushes stdout, which would fail:
        # let it flush into the null device.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, _STDOUT)
        os.close(nothing)
        return 0
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


_Result = TypeVar("_Result")


async def in_thread(step: Callable[[], _Result], stop: Callable[[], None]) -> _Result:
    """Run a step in a thread. If the caller is cancelled, ask the step to end, and wait for its end.

    Until then the step uses files that a cancelled caller would close.

    Args:
        step: Function to run.
        stop: Function that asks the step to end; called in the event loop's thread.
    """
    return await waited_out(asyncio.get_running_loop().run_in_executor(None, step), stop)
