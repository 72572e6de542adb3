"""The ``tailrace`` command as real processes: a server that can be killed, a command whose output is read."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import httpx

from tests.support.held_port import HeldPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PATIENCE_S = 30.0
"""How long a test waits for something that must happen; a passing one waits for none of it."""


def environment() -> dict[str, str]:
    """Return this process's environment without settings of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}


PERMISSIONS_BIND = (
    "-c",
    """
import ctypes, os, sys
if os.geteuid() == 0:  # whom no permission binds as long as he may have CAP_DAC_OVERRIDE and _READ_SEARCH
    for capability in (1, 2):
        if ctypes.CDLL(None).prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP, until the next exec
            sys.exit("cannot give up the rights of root")
os.execv(sys.executable, [sys.executable, "-m", "tailrace_server", *sys.argv[1:]])
""",
)
"""How Python runs ``tailrace`` so that the permissions of files hold for it, whoever runs the tests."""


class Command:
    """One run of ``tailrace``, under ``async with``; its stderr is read as it comes, its stdout when asked.

    What still runs at the end of the context is killed.
    """

    process: asyncio.subprocess.Process

    def __init__(
        self, *arguments: object, python: tuple[str, ...] = ("-m", "tailrace_server")
    ) -> None:
        self._python = python
        self._arguments = [str(each) for each in arguments]
        self.notes: list[str] = []
        """Lines of stderr."""
        self._news = asyncio.Event()
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, *self._python, *self._arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
            limit=1 << 24,
        )
        await self._tasks.__aenter__()
        self._tasks.create_task(self._collect_notes())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.rest()
        await self.process.wait()
        await self._tasks.__aexit__(None, None, None)

    async def _collect_notes(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.notes.append(line.decode(errors="backslashreplace").rstrip("\n"))
            self._news.set()
        await self.process.wait()
        self._news.set()

    async def note(self, *parts: str) -> str:
        """Return the first line of stderr that has all the parts, once it is there."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for line in self.notes:
                    if all(part in line for part in parts):
                        return line
                assert self.process.returncode is None, (self.process.returncode, self.notes)
                self._news.clear()
                await self._news.wait()

    async def line(self) -> bytes:
        """Return the next line of stdout."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.stdout.readline()

    async def rest(self) -> bytes:
        """Return what is left of stdout once the command has ended."""
        assert self.process.stdout is not None
        return await self.process.stdout.read()

    async def captures(self, count: int) -> list[dict[str, Any]]:
        """Return the next ``count`` objects of stdout."""
        return [json.loads(await self.line()) for _ in range(count)]

    def send(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def end(self) -> int:
        """Return the exit status, once it has ended by itself."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()


async def outcome(
    *arguments: object, python: tuple[str, ...] = ("-m", "tailrace_server")
) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of a command that ends by itself."""
    async with Command(*arguments, python=python) as command, asyncio.timeout(PATIENCE_S):
        text = (await command.rest()).decode()
        status = await command.process.wait()
    return status, text, "\n".join(command.notes)


@dataclass(slots=True)
class ServerProcess:
    """A server over one log root that can go down and come back on its ports."""

    root: Path
    options: tuple[str, ...] = ()
    ports: tuple[HeldPort, HeldPort] = field(default_factory=lambda: (HeldPort(), HeldPort()))
    """Of gRPC and HTTP."""

    @property
    def grpc(self) -> str:
        return self.ports[0].address

    @property
    def http(self) -> str:
        return self.ports[1].address

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Command]:
        """Run the server for the time of the block, ready at its beginning."""
        arguments = ("serve", "--log", self.root, "--grpc", self.grpc, "--http", self.http)
        async with Command(*arguments, *self.options) as command:
            await command.note('"event": "serving"')
            yield command

    async def get(self, path: str, accept: str = "*/*") -> httpx.Response:
        """Ask the HTTP face."""
        async with httpx.AsyncClient(base_url=f"http://{self.http}", trust_env=False) as client:
            return await client.get(path, headers={"accept": accept})


INTERRUPT = signal.SIGINT
TERMINATE = signal.SIGTERM
KILL = signal.SIGKILL
