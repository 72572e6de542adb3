"""The demo's processes, including the server; none of them outlives the demo.

Three measures ensure this; each covers processes that the previous one misses:

1. Leaving the context kills the process group of each child's session, including the JVM.
2. The kernel kills the children if this process is killed (``end_with_parent.py``).
3. This process adopts its orphaned descendants. A process that left its group, like Spark's Python daemon,
   becomes a child of this process when its parent dies, and is killed by its process id.
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
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

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
"""Number of consecutive empty lists of children after which the system is assumed not to list children."""


class Processes:
    """Starts child processes; leaving the context ends all of them and their descendants."""

    def __init__(self) -> None:
        """Begin without children."""
        self._children: list[Process] = []

    async def __aenter__(self) -> Self:
        """Make this process the reaper of all its descendants."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill all remaining children and descendants."""
        # Signal all groups first, then wait: so they end at the same time.
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for child in self._children:
            await child.wait()
        _kill_adopted()

    async def start(self, *arguments: object) -> Process:
        """Start ``tailrace`` with the given arguments, in a session of its own, with its output in pipes.

        In a session of its own, the child does not get the terminal's Ctrl-C. So the demo decides in which
        order its processes end.
        """
        return await self.start_module("tailrace_server", *arguments)

    async def start_module(self, module: str, *arguments: object) -> Process:
        """Start a Python module as a program, in the same way as `start`."""
        return await self._started(
            *(sys.executable, "-I", str(_BOUND), str(os.getpid())),
            # -P: do not import files of the current folder, which may have names of our modules.
            *(sys.executable, "-P", "-m", module, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_MAX,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    async def start_program(self, *command: object, **options: Any) -> Process:
        """Start a program without output, in a session of its own; the kernel does not end it with this one.

        Args:
            command: The program and its arguments.
            options: Options of ``subprocess.Popen``, such as its user.
        """
        nothing = asyncio.subprocess.DEVNULL
        return await self._started(*command, stdout=nothing, stderr=nothing, **options)

    async def _started(self, *command: object, **options: Any) -> Process:
        child = await asyncio.create_subprocess_exec(
            *map(str, command),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )
        self._children.append(child)
        return child


async def stop(child: Process, number: int) -> int:
    """Send a child a signal to end it, and return its exit status; kill it if it does not end in time."""
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
    """Kill the descendants that have become children of this process, until there are none."""
    # A killed process may leave children of its own, which then become ours: so repeat until none is left.
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
    """A part of the demo did not behave as expected; the message names it."""

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
    """A listening server. The caller must read its stderr from now on, or the server blocks on a full pipe."""

    process: Process
    grpc: str
    """Address of the gRPC listener, ``host:port``."""
    http: str
    """Address of the HTTP listener, ``host:port``."""

    def places(self) -> list[tuple[str, str]]:
        """Return pages to open in a browser, each with its title and address."""
        return [(what, f"http://{self.http}{path}") for what, path in _PLACES]


async def start_server(processes: Processes, log: Path, *flags: object) -> DemoServer:
    """Start ``tailrace serve`` and wait until it listens.

    Raises:
        DemoFailed: The server ended before it listened; the message has its last line.
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
