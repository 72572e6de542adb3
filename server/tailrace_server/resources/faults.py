"""The faults of the server, as one list for /health, /metrics and the log; each has a subject and a remedy.

A fault lasts as long as its cause, and ends by itself::

    log_unreadable       damaged, lost, of a newer format, or without permission; the log cannot be served
    log_polled           the kernel's limits for inotify are used up; the log is read at intervals
    log_not_read         its storage does not answer, or its reader is stuck
    log_damaged          a place of records, settings, definitions or named subscriptions cannot be read
    base_damaged         state is read around a damaged file of a base, more slowly
    clock_ahead          the newest commit is in the future: ages and retention by age are wrong
    unpublished          versions are durable, but their writer or gate does not publish them
    too_large            more than max_bytes stays: promised, held, or never trimmed (wal/upkeep/keeping.py)
    disk_full            the file system has little room left for writers: bytes, or files (inodes)
    read_only            its file system was writable, and is not any more
    audit_not_written    its file cannot be written to (access/audit.py)
    face_not_accepting   a listener does not answer (api/face_watch.py)
    policy               the policy file is invalid, and the previous policy is in force (access/policy_file.py)
    issuer_away          its keys cannot be fetched, and the last ones are in force (access/key_sets.py)
    certificate          invalid files of TLS, or a certificate that expires (api/transport_security)
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import structlog

from tailrace_server.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from tailrace_server.wal.state.tail_pool import Followed
    from tailrace_server.wal.upkeep.keeping import Excess

FaultKind = Literal[
    "log_unreadable",
    "log_not_read",
    "log_polled",
    "log_damaged",
    "base_damaged",
    "clock_ahead",
    "unpublished",
    "too_large",
    "disk_full",
    "read_only",
    "audit_not_written",
    "face_not_accepting",
    "certificate",
    "policy",
    "issuer_away",
]
UNPUBLISHED_S: Final = 60.0
"""Time after which unpublished versions are a fault, in seconds; publication normally follows the commit at
once."""
_UNTRIMMED_S: Final = 900.0
"""Time after which a due trim is a fault, in seconds; a trim first makes a base of all tables."""
_FREE_FILES_MIN: Final = 1_000
"""Number of free inodes below which there is a fault: a busy writer creates that many files in less than a
minute."""
_EVERY_S: Final = 1.0
_CATALOGS_PER_S: Final = 250
"""Number of catalogs checked per second: of a thousand catalogs, each is checked every 4 s. /health checks on
each request."""
_log = structlog.get_logger("tailrace.faults")


@dataclass(frozen=True, slots=True)
class ServerFault:
    """One present fault."""

    kind: FaultKind
    subject: str
    """Catalog, folder or face that has the fault."""
    reason: str
    """The fault and its remedy."""


class CanBeFaulty(Protocol):
    """A catalog that reports the faults of its log."""

    def faults(self) -> list[ServerFault]:
        """Return the present faults."""

    def look(self) -> None:
        """Check in the files whether known faults are fixed; blocks."""

    def versions(self) -> CatalogVersions | None:
        """Return the published and committed versions; None while the log cannot be read."""

    def excess(self) -> Excess | None:
        """Return by how much the log exceeds its settings; None if it does not."""


class CatalogVersions(NamedTuple):
    """The newest published and committed versions of a log."""

    published: int
    committed: int
    gate: str = ""
    """Description of the gate that publication waits for; empty if there is none."""


class FaultLog:
    """Logs a line when a fault begins, and one when it ends."""

    def __init__(self) -> None:
        """Begin without faults."""
        self._told: set[tuple[str, str]] = set()

    def tell(self, faults: Iterable[ServerFault]) -> None:
        """Log the differences between the present faults and those of the last call."""
        found = {(each.kind, each.subject): each for each in faults}
        for place, fault in found.items():
            # The engine has already logged faults of this kind, with the place of the damage.
            if place not in self._told and fault.kind != "log_unreadable":
                _log.error("fault", kind=fault.kind, subject=fault.subject, reason=fault.reason)
        for kind, subject in self._told - found.keys():
            _log.info("fault fixed", kind=kind, subject=subject)
        self._told = set(found)


class FaultWatch:
    """The faults of the logs under one log root. Lives on the event loop; its tasks are the engine's."""

    def __init__(
        self,
        root: Path,
        room_bytes: int,
        catalogs: Mapping[str, CanBeFaulty],
        others: Callable[[], tuple[ServerFault, ...]] = tuple,
        polled: Mapping[Followed, str] | None = None,
    ) -> None:
        """Bind to the objects to watch.

        Args:
            root: The log root.
            room_bytes: Free space on a file system below which there is a fault, in bytes.
            catalogs: Catalogs by name; the caller may change the mapping.
            others: Returns the faults that do not concern logs.
            polled: Logs that are read at intervals → the kernel limit that is used up, or ""; the caller may
                change the mapping.
        """
        self._polled = {} if polled is None else polled
        self._others = others
        self._root = root
        self._room_bytes = room_bytes
        self._catalogs = catalogs
        self._unpublished: list[ServerFault] = []
        self._too_large: list[ServerFault] = []
        self._rooms: dict[str, Room] = {}
        """Folder → present room on its file system."""
        self._first_rooms: dict[str, Room] = {}
        """Folder → room on its file system when it was first seen."""

    def found(self, may_read: Callable[[str], bool] = lambda name: True) -> tuple[ServerFault, ...]:
        """Return the present faults, except those of catalogs that the caller may not read."""
        catalogs = (each for name, each in sorted(self._catalogs.items()) if may_read(name))
        logs = [fault for each in catalogs for fault in each.faults()]
        seen = (*self._unpublished, *self._too_large)
        unkept = [each for each in seen if may_read(each.subject)]
        full = room_faults(self._rooms, self._first_rooms, self._room_bytes)
        polled = polled_faults(self._root, [*filter(None, self._polled.values())])
        return (*logs, *unkept, *polled, *full, *self._others())

    async def run(self) -> None:
        """Check for faults at intervals until cancelled, and log when they begin and end."""
        told, unpublished, too_large = FaultLog(), UnpublishedVersions(), TooLargeLogs()
        while True:
            await asyncio.sleep(self._every_s)
            now = time.monotonic()
            versions = {name: each.versions() for name, each in self._catalogs.items()}
            self._unpublished = unpublished.see(versions, now)
            excesses = {name: each.excess() for name, each in self._catalogs.items()}
            self._too_large = too_large.see(excesses, now)
            told.tell(self.found())

    async def look_at_files(self, threads: Executor) -> None:
        """Check file systems and damaged files at intervals until cancelled; slow checks run in ``threads``."""
        loop = asyncio.get_running_loop()
        while True:
            found = await loop.run_in_executor(threads, rooms, self._root, tuple(self._catalogs))
            # Entries seen before win: a file system counts by its state when it was first seen.
            self._first_rooms = found | self._first_rooms
            self._rooms = found
            await loop.run_in_executor(threads, _look_at, tuple(self._catalogs.values()))
            await asyncio.sleep(self._every_s)

    @property
    def _every_s(self) -> float:
        return max(_EVERY_S, len(self._catalogs) / _CATALOGS_PER_S)


def polled_faults(root: Path, shortages: Sequence[str]) -> list[ServerFault]:
    """Return one fault for all logs that are polled because kernel limits are used up; else none."""
    if not shortages:
        return []
    reason = (
        f"each of {len(shortages)} logs {shortages[0]}; the server detects a change within seconds"
    )
    return [ServerFault("log_polled", str(root), reason)]


def _look_at(catalogs: Iterable[CanBeFaulty]) -> None:
    for each in catalogs:
        each.look()


class UnpublishedVersions:
    """Detects catalogs whose committed versions wait too long for their publication."""

    def __init__(self) -> None:
        """Begin without waiting versions."""
        self._waiting: dict[str, tuple[int, float]] = {}
        """Catalog → its published version, and the time since when that version has not risen although more is
        committed."""

    def see(self, catalogs: Mapping[str, CatalogVersions | None], now: float) -> list[ServerFault]:
        """Note the versions at a time of the monotonic clock; return a fault for each that waited too long."""
        before, self._waiting = self._waiting, {}
        faults = []
        for name, versions in catalogs.items():
            if versions is None or versions.committed <= versions.published:
                continue
            published, committed, gate = versions
            # The time restarts when something was published: only a standstill is a fault, not a backlog.
            published_before, since = before.get(name, (published, now))
            if published_before != published:
                since = now
            self._waiting[name] = (published, since)
            if now - since >= UNPUBLISHED_S:
                why = (
                    f"they wait for the gate {gate}, whose export has ended or hangs; start it again, or "
                    f"remove the gate with tailrace catalog gate {name} --remove"
                    if gate
                    else "their writer has ended or hangs; start it again, and it publishes them first"
                )
                reason = (
                    f"versions {published + 1} to {committed} are durable, but not published for "
                    f"{now - since:.0f} s: {why}"
                )
                faults.append(ServerFault("unpublished", name, reason))
        return faults


class TooLargeLogs:
    """Detects catalogs that stay larger than their settings permit."""

    def __init__(self) -> None:
        """Begin without catalogs."""
        self._due_since: dict[str, float] = {}

    def see(self, catalogs: Mapping[str, Excess | None], now: float) -> list[ServerFault]:
        """Note the excesses at a time of the monotonic clock; return the faults.

        An excess that a trim can remove is a fault only if the trim is overdue; any other is a fault at once.
        """
        before, self._due_since = self._due_since, {}
        faults = []
        for name, excess in catalogs.items():
            if excess is None:
                continue
            # A due trim removes the excess soon; report it only if the trim does not come.
            if excess.is_due:
                since = self._due_since[name] = before.get(name, now)
                if now - since < _UNTRIMMED_S:
                    continue
            faults.append(ServerFault("too_large", name, str(excess)))
        return faults


@dataclass(frozen=True, slots=True)
class Room:
    """The room that one file system has for the writers of a log."""

    free_bytes: int
    read_only: bool
    free_files: int | None = None
    """Number of files that can still be created (inodes); None if the file system has no such limit."""


def rooms(root: Path, catalogs: Iterable[str]) -> dict[str, Room]:
    """Return the rooms on the file systems of a log root and its catalogs, by the first folder on each."""
    found: dict[str, Room] = {}
    devices = set()
    for folder in (str(root), *(f"{root}/{name}" for name in catalogs)):
        try:
            device = os.stat(folder).st_dev
            if device not in devices:
                devices.add(device)
                status = os.statvfs(folder)
                free = status.f_bavail * status.f_frsize
                files = status.f_favail if status.f_files else None
                found[folder] = Room(free, bool(status.f_flag & os.ST_RDONLY), files)
        except OSError:
            continue  # gone or not accessible: its log has a fault of its own
    return found


def room_faults(
    found: Mapping[str, Room], first: Mapping[str, Room], free_bytes_min: int
) -> list[ServerFault]:
    """Return the faults of file systems: read-only, or with little room for bytes or files.

    Args:
        found: Folder → present room.
        first: Folder → room when first seen. A file system that was read-only then is not a fault: it is a copy
            that is only served.
        free_bytes_min: Free space below which there is a fault, in bytes.
    """
    faults = []
    for folder, room in found.items():
        if room.read_only:
            if not first[folder].read_only:
                reason = (
                    "its file system has become read-only, probably after errors of the device: writers "
                    "fail, readers continue; see the kernel's messages, then mount it for writing again"
                )
                faults.append(ServerFault("read_only", folder, reason))
        elif room.free_bytes < free_bytes_min:
            reason = (
                f"its file system has only {format_bytes(room.free_bytes)} free, less than "
                f"{format_bytes(free_bytes_min)}: writers end with LOG_FULL, readers continue; free some "
                "space, or trim the log (Room on the disk, docs/operations.md)"
            )
            faults.append(ServerFault("disk_full", folder, reason))
        elif room.free_files is not None and room.free_files < _FREE_FILES_MIN:
            reason = (
                f"its file system can hold only {room.free_files} more files (inodes), fewer than "
                f"{_FREE_FILES_MIN}: writers end with LOG_FULL, readers continue; delete files, or move "
                "the log to a file system with more inodes (Room on the disk, docs/operations.md)"
            )
            faults.append(ServerFault("disk_full", folder, reason))
    return faults
