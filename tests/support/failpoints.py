"""Kill, stop or fail a process at a named place: what `tailrace_server.failpoints` is armed with.

A test arms its own process by ``arm``. It arms a process that it starts by ``environment``, together with
all Python processes below that one, Spark's workers included. What is armed is a text::

    entry.after_link=kill,segment.before_rename=enospc@3

Each item is ``name=action`` or ``name=action@n``, which acts the n-th time the place is reached only. Actions:

    kill              SIGKILL to this process
    kill:VICTIM       SIGKILL to others of the same Spark, see `_victims`: ``driver``, ``jvm`` or ``tasks``
    enospc            raise OSError(ENOSPC), as a full disk would
    error             raise OSError(EIO)
    pause:PATH        create PATH.paused, then wait until PATH exists

A Python process imports ``sitecustomize`` as it starts. ``environment`` puts the folder ``armed``, whose
``sitecustomize`` calls ``arm``, first on the path.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace_server import failpoints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VARIABLE: Final = "FAILPOINTS"
"""Environment variable with the text to arm a process with."""

_PAUSE_POLL_S: Final = 0.005
_JVM: Final = "org.apache.spark.deploy.SparkSubmit"
"""A word of the command line of Spark's JVM; that of a JVM which runs the tests has none such."""


class _Failpoint:
    """One armed place."""

    def __init__(self, name: str, action: str) -> None:
        self._name = name
        self._action, _, at = action.partition("@")
        self._at = int(at or 0)
        self._reached = 0
        self._lock = threading.Lock()

    def reach(self) -> None:
        with self._lock:
            self._reached += 1
            if self._at not in (0, self._reached):
                return
        match self._action.partition(":"):
            case ("kill", "", _):
                os.kill(os.getpid(), signal.SIGKILL)
            case ("kill", _, victim):
                _kill(_victims(victim))
            case ("enospc", _, _):
                raise OSError(errno.ENOSPC, f"failpoint {self._name}")
            case ("error", _, _):
                raise OSError(errno.EIO, f"failpoint {self._name}")
            case ("pause", _, path):
                Path(f"{path}.paused").touch()
                while not Path(path).exists():
                    time.sleep(_PAUSE_POLL_S)
            case _:
                raise ValueError(f"{VARIABLE}: no action {self._action!r} for {self._name}")


class _Process(NamedTuple):
    name: str
    parent: int


def _victims(which: str) -> list[int]:
    """Return processes of the Spark that this process belongs to.

    ::

        driver ─ jvm ─┬─ daemon ─ worker …                 tasks
                      └─ writer and commit of a sink

    This process may be any of them: the JVM is looked for below, then above.

    Args:
        which: ``driver``, ``jvm``, or ``tasks``: all that is below the JVM, but for this process.

    Raises:
        ValueError: There is no such process, so that the place cannot be tested this way.
    """
    processes = dict(_processes())
    own = os.getpid()
    family = [*_below(own, processes), *_above(own, processes)]
    jvm = next((pid for pid in family if _is_jvm(pid, processes[pid])), None)
    if jvm is not None:
        found = {
            "driver": [processes[jvm].parent],
            "jvm": [jvm],
            "tasks": [pid for pid in _below(jvm, processes) if pid != own],
        }
        if found.get(which):
            return found[which]
    raise ValueError(f"{VARIABLE}: process {own} has no {which!r} to kill")


def _kill(pids: Iterable[int]) -> None:
    """Kill processes; return when they have ended."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [])
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)


def _processes() -> Iterator[tuple[int, _Process]]:
    """Yield every process that the system tells of, by pid."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            head, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield int(folder.name), _Process(head.partition("(")[2], int(rest.split()[1]))


def _below(pid: int, processes: Mapping[int, _Process]) -> list[int]:
    found = [pid]
    for each in found:
        found.extend(child for child, process in processes.items() if process.parent == each)
    return found[1:]


def _above(pid: int, processes: Mapping[int, _Process]) -> Iterator[int]:
    while (pid := processes[pid].parent) in processes:
        yield pid


def _is_jvm(pid: int, process: _Process) -> bool:
    # Spark's scripts have the class in their command line, too.
    if process.name != "java":
        return False
    return _JVM.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def arm(text: str) -> None:
    """Replace what is armed in this process; an empty text disarms."""
    items = [item.strip().partition("=") for item in text.split(",") if item.strip()]
    failpoints.armed.clear()
    failpoints.armed.update({name: _Failpoint(name, action).reach for name, _, action in items})


def environment(text: str) -> dict[str, str]:
    """Return this process's environment for a child, in which a text is armed; an empty one arms nothing."""
    if not text:
        return {**os.environ}
    folder = Path(__file__).parent
    path = [folder / "armed", folder.parents[1], *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, VARIABLE: text, "PYTHONPATH": os.pathsep.join(map(str, path))}
