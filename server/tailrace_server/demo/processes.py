"""The demo's processes, its server among them, each owned: none of them outlives the demo.

Three measures, each for processes that the one before misses:

1. Leaving the context stops each child, then kills its session's process group, JVM included.
2. Children are bound to this process by the kernel (``end_with_parent.py``): they die even if it is killed.
3. This process adopts its orphaned descendants. One that left its group, as Spark's Python daemon does, becomes
   our child when its parent dies, and is killed by its process id.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tailrace.errors import TailraceError
from tailrace_server import end_with_parent
from tailrace_server.child_processes import children_of, has_children

if TYPE_CHECKING:
    from asyncio.subprocess import Process

_PR_SET_CHILD_SUBREAPER: Final = 36
_LINE_MAX: Final = 1 << 24
_BOUND: Final = Path(end_with_parent.__file__)
_PATIENCE_S: Final = 10.0
_LOOKS_MAX: Final = 100
"""The number of empty looks in a row after which the system is taken to list no children at all."""


class Processes:
    """Starts children and ends all of them, their descendants too, when its context is left."""

    def __init__(self) -> None:
        """Own nothing yet."""
        self._children: list[Process] = []

    async def __aenter__(self) -> Self:
        """Become the reaper of all descendants."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill what is left; nothing of it matters any more."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for child in self._children:
            await child.wait()
        _kill_adopted()

    async def start(self, *arguments: object) -> Process:
        """Start ``tailrace`` with some arguments, in a session of its own, its output in pipes.

        A session of its own keeps the terminal's Ctrl-C from it: the order of ending is ours.
        """
        return await self.start_module("tailrace_server", *arguments)

    async def start_module(self, module: str, *arguments: object) -> Process:
        """Start a Python module as a program; as ``start``."""
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(_BOUND), str(os.getpid())),
            # -P: a file of the current folder is no module of ours, whatever its name is.
            *(sys.executable, "-P", "-m", module, *map(str, arguments)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LINE_MAX,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._children.append(child)
        return child


async def stop(child: Process, number: int) -> int:
    """Ask a child to end by a signal and return its exit status; kill one that does not."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await child.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return await child.wait()


def _kill_adopted() -> None:
    """Kill the descendants that became our children, until there are none."""
    looks = 0
    while has_children() and looks < _LOOKS_MAX:
        children = children_of(os.getpid())
        looks = 0 if children else looks + 1
        for number in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(number, 0)


class DemoFailed(TailraceError):
    """Something did not do what the demo shows; says what."""

    code = "DEMO_FAILED"


CATALOG: Final = "shop"
_PLACES: Final = (
    ("what the server does", "/"),
    ("GraphiQL", f"/v1/catalogs/{CATALOG}/graphql"),
    ("the REST API", "/v1/docs"),
    ("changes as they come", f"/v1/catalogs/{CATALOG}/changes/live?sinceVersion=0&body=after"),
    ("history", f"/v1/catalogs/{CATALOG}/changes?reverse=true&limit=10&body=after"),
    ("figures", "/metrics"),
)


class DemoServer(NamedTuple):
    """A server that listens. Whoever started it reads its stderr from here on."""

    process: Process
    grpc: str
    """``host:port``."""
    http: str

    def places(self) -> list[tuple[str, str]]:
        """Return what to open in a browser: what it is, and its address."""
        return [(what, f"http://{self.http}{path}") for what, path in _PLACES]


async def start_server(processes: Processes, log: Path, *flags: object) -> DemoServer:
    """Start ``tailrace serve`` and wait until it listens.

    Raises:
        DemoFailed: It ended before; says with which words.
    """
    process = await processes.start("serve", "--log", log, "--log-format", "json", *flags)
    assert process.stderr is not None
    last = b""
    async for line in process.stderr:
        if b'"event": "serving"' in line:
            serving = json.loads(line)
            return DemoServer(process, serving["grpc"], serving["http"])
        last = line
    raise DemoFailed(f"the server did not start: {last.decode().strip()}")
