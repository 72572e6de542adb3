"""A TCP proxy between client and server that cuts, stalls and refuses when told to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from tests.support.held_port import HeldPort

if TYPE_CHECKING:
    from types import TracebackType

_PIECE_BYTES = 16_384


class FaultyProxy:
    """Passes bytes on, on a port of its own, until a test decides otherwise."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._budget: int | None = None
        self._politely = False
        self._was_cut = asyncio.Event()
        self._held = HeldPort()
        self.cuts = 0
        """Connections that were cut."""
        self.port = self._held.number

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._flowing.set()
        await self._stop_listening()
        self._abort()
        await self._server.wait_closed()
        self._held.close()

    def cut(self) -> None:
        """Cut every connection, now, in the middle of whatever it carries."""
        self.cuts += len(self._writers) > 0
        self._abort()
        self._was_cut.set()

    def cut_after(self, size: int, *, politely: bool = False) -> None:
        """Cut every connection once so many bytes more have come from the server.

        Politely: the client is given them all, and then an end in good order, as by a proxy that stops.
        """
        self._budget, self._politely = size, politely
        self._was_cut.clear()

    async def was_cut(self) -> None:
        """Wait until the bytes of ``cut_after`` have come."""
        await self._was_cut.wait()

    async def refuse(self) -> None:
        """Cut every connection, and refuse new ones."""
        await self._stop_listening()
        self.cut()
        await self._server.wait_closed()

    async def accept(self) -> None:
        """Take connections, again on the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def stall(self) -> None:
        """Carry nothing, and keep the connections open."""
        self._flowing.clear()

    def flow(self) -> None:
        """Carry again."""
        self._flowing.set()

    async def _stop_listening(self) -> None:
        """Close the listener; asyncio leaves a connection open that was accepted just before that."""
        loop = asyncio.get_running_loop()
        for listener in self._server.sockets:
            loop.remove_reader(listener.fileno())
        await asyncio.sleep(0)  # what was accepted is the server's now
        self._server.close()

    def _abort(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(
        self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter
    ) -> None:
        pair = {client_writer}
        self._writers |= pair
        try:
            opening = asyncio.open_connection("127.0.0.1", self._server_port)
            server_reader, server_writer = await opening
            pair.add(server_writer)
            self._writers |= pair
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(client_reader, server_writer, counted=False))
                group.create_task(self._carry(server_reader, client_writer, counted=True))
        finally:
            self._writers -= pair
            for writer in pair:
                writer.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool
    ) -> None:
        try:
            while piece := await reader.read(_PIECE_BYTES):
                await self._flowing.wait()
                if counted and self._budget is not None:
                    piece = piece[: self._budget]
                    self._budget -= len(piece)
                writer.write(piece)
                await writer.drain()
                if counted and self._budget == 0:
                    self._budget = None
                    if self._politely:
                        writer.close()
                        await writer.wait_closed()
                    self.cut()
        except OSError:
            pass
        writer.transport.abort()
