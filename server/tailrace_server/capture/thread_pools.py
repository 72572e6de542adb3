"""The end of a pool of threads, if one thread may hang in a storage that does not answer."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


async def shut_down(threads: ThreadPoolExecutor) -> None:
    """Wait until threads have ended, off the loop: a second signal must get through while one of them hangs."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        threads.shutdown(wait=True)
        loop.call_soon_threadsafe(ended.set)

    waiting = threading.Thread(target=wait, name="tailrace-shutdown", daemon=True)
    waiting.start()
    await ended.wait()
    waiting.join()
