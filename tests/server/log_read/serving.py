"""A server on an event loop of its own, as reads that wait for it need it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tailrace_server.api.grpc import GrpcServer
from tailrace_server.engine.engine import Engine
from tailrace_server.resources.settings import EngineSettings
from tests.support.inprocess import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace_server.access.configured import Access
    from tailrace_server.api.transport_security.files import TlsFiles


@contextmanager
def serving(
    root: Path,
    access: Access | None = None,
    tls: TlsFiles | None = None,
    address: str = "127.0.0.1:0",
) -> Iterator[str]:
    """Serve a log root, and give the address.

    Args:
        root: The log root.
        access: Who may read what; None: everybody everything.
        tls: Certificate and key; None: plain text.
        address: Where to listen.
    """
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with Engine(root, EngineSettings(message_bytes=1)) as engine:
            door = None if access is None else access.door
            watch = None if access is None else asyncio.create_task(access.run(engine))
            server = GrpcServer(engine, door=door, tls=tls)
            ready.set_result((asyncio.get_running_loop(), stop, await server.start(address)))
            await stop.wait()
            await server.stop(0.5)
            if watch is not None:
                watch.cancel()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    loop, stop, port = ready.result(PATIENCE_S)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
