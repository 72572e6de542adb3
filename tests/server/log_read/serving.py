"""A server on an event loop of its own, as reads that wait for it need it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tailrace_server.api.grpc import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextmanager
def serving(
    root: Path, options: Callable[[Engine], dict[str, Any]] | None = None, **settings: Any
) -> Iterator[str]:
    """Serve a log root, and give the address.

    Args:
        root: The log root.
        options: Returns further arguments of the server, such as its door.
        settings: Settings of the engine.
    """
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with Engine(root, EngineSettings(**settings)) as engine:
            server = GrpcServer(engine, **({} if options is None else options(engine)))
            port = await server.start("127.0.0.1:0")
            ready.set_result((asyncio.get_running_loop(), stop, port))
            await stop.wait()
            await server.stop(0.5)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    loop, stop, port = ready.result(20)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
