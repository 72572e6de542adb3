"""Programs on Spark as processes of their own that a test may kill, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

import psutil

from tests.support.failpoints import environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


INPUT = "Eingänge"
"""The folder that commands read, by a name that is not ASCII."""


class Killable:
    """A Python module, run as often as it takes."""

    def __init__(self, folder: Path, module: str, *arguments: object) -> None:
        self._said = folder / f"said-{uuid4().hex[:8]}"
        self._command = [sys.executable, "-m", module, *map(str, arguments)]

    def start(self, failpoints: str = "") -> subprocess.Popen[bytes]:
        with self._said.open("wb") as said:
            return subprocess.Popen(
                self._command,
                # In this locale Java alone would read no file whose name has a letter beyond ASCII.
                env=environment(failpoints) | {"LC_ALL": "C"},
                stderr=said,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def run(self, failpoints: str = "") -> int:
        """Run to the end; return the exit status."""
        process = self.start(failpoints)
        try:
            return process.wait(timeout=300)
        finally:
            end(process)

    def said(self) -> str:
        """Return what the last one wrote to standard error."""
        return self._said.read_text()


class Command(Killable):
    """The command; it reads ``input`` and writes ``catalog``."""

    def __init__(self, source: str, folder: Path, log_root: Path, *options: str) -> None:
        self.input = folder / INPUT
        self.catalog = log_root / "shop"
        given = ("--input", self.input, "--log", log_root, "--catalog", "shop", *options)
        super().__init__(folder, "tailrace_server", "ingest", source, *given)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process and of those it started."""
    left = [each for each in psutil.process_iter() if _session(each) == process.pid]
    for each in left:
        unless_gone(each.kill)
    process.wait()
    psutil.wait_procs(left, timeout=30)


def unless_gone(call: Callable[[], object]) -> None:
    """Call what acts on a process that may be gone."""
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        call()


def _session(process: psutil.Process) -> int:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return -1
