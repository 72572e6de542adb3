"""Programs that print a line for each thing that they see, as processes whose output is awaited."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PATIENCE_S = 30.0
"""How long a test waits for what must happen; a passing one waits for none of it."""


def found(name: str) -> str:
    """Return where a program of the system is.

    Raises:
        FileNotFoundError: It is not installed; says how to.
    """
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(
            f"no {name} here: the slow tests need chromium and Node, "
            "`apt-get install chromium nodejs npm` brings them"
        )
    return path


class Program:
    """One run, under ``async with``; its lines are kept as they come, and it is killed at the end."""

    process: asyncio.subprocess.Process

    def __init__(
        self, *command: object, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = [str(each) for each in command]
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self.lines: list[str] = []
        """Of stdout."""
        self.notes: list[str] = []
        """Of stderr."""
        self._open = 2
        """Streams of it that may still bring something."""
        self._news = asyncio.Condition()
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=self._folder,
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        await self._tasks.__aenter__()
        self._tasks.create_task(self._collect(self.process.stdout, self.lines))
        self._tasks.create_task(self._collect(self.process.stderr, self.notes))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        self.end_input()
        await self.process.wait()
        await self._tasks.__aexit__(None, None, None)

    def end_input(self) -> None:
        """Close its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def _collect(self, stream: asyncio.StreamReader | None, lines: list[str]) -> None:
        assert stream is not None
        async for line in stream:
            async with self._news:
                lines.append(line.decode().rstrip("\n"))
                self._news.notify_all()
        async with self._news:
            self._open -= 1
            self._news.notify_all()

    async def printed(self, count: int) -> list[str]:
        """Return all lines of stdout once there are so many."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            while len(self.lines) < count:
                assert self._open, f"{self._command}: {self.notes}"
                await self._news.wait()
        return list(self.lines)

    async def noted(self, part: str) -> str:
        """Return the first line of stderr that has a text in it."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            while True:
                for line in self.notes:
                    if part in line:
                        return line
                assert self._open, f"{self._command}: {self.notes}"
                await self._news.wait()
