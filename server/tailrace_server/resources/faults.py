"""The faults, as one list for /health, /metrics and the log: each with its subject and its remedy.

A fault lasts as long as its cause, and ends by itself::

    log_unreadable       damaged, lost, of a newer format, or without permission; the log cannot be served
    log_polled           the kernel's limits for inotify are used up; the log is read at intervals
    log_not_read         its storage does not answer, or its reader stands still
    log_damaged          a place of records, settings, definitions or named subscriptions cannot be read
    base_damaged         state is read around a file that keeps rows of tables, more slowly
    clock_ahead          the newest commit is of the future: ages and retention by age are wrong
    unpublished          versions are durable, and whoever is to publish them does not
    too_large            more than max_bytes stays: promised, held, or never trimmed (wal/upkeep/keeping.py)
    disk_full            the file system has little room left for writers: bytes, or files (inodes)
    read_only            its file system was writable, and is not any more
    audit_not_written    its file takes nothing (access/audit.py)
    face_not_accepting   a listener answers nobody (api/face_watch.py)
    policy               the policy file cannot be used, and the one before is in force (access/policy_file.py)
    issuer_away          its keys cannot be had, and the last ones are in force (access/key_sets.py)
    certificate          files of TLS that cannot be used, or a certificate that ends (api/transport_security)
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
"""How long versions may wait for their publication: it follows the commit at once."""
_UNTRIMMED_S: Final = 900.0
"""How long a trim that is due may be awaited: it makes a base of all tables first."""
_FREE_FILES_MIN: Final = 1_000
"""The fewest free inodes that are no fault: a busy writer makes that many files in less than a minute."""
_EVERY_S: Final = 1.0
_CATALOGS_PER_S: Final = 250
"""Catalogs that are looked at: of a thousand, each every 4 s. /health looks when it is requested."""
_log = structlog.get_logger("tailrace.faults")


@dataclass(frozen=True, slots=True)
class ServerFault:
    """One thing that is wrong now."""

    kind: FaultKind
    subject: str
    """The catalog, folder or face."""
    reason: str
    """The fault and its remedy."""


class CanBeFaulty(Protocol):
    """A catalog that knows what is wrong with its log."""

    def faults(self) -> list[ServerFault]:
        """Return all that is wrong with it."""

    def look(self) -> None:
        """Look at its files whether a fault is mended; blocks."""

    def versions(self) -> CatalogVersions | None:
        """Return how far the log is published and durable; None while it cannot be read."""

    def excess(self) -> Excess | None:
        """Return by how much the log is larger than its settings want, or None."""


class CatalogVersions(NamedTuple):
    """How far a log is published and durable."""

    published: int
    committed: int
    gate: str = ""
    """The condition that publication waits for, if a gate is closed."""


class FaultLog:
    """Writes a line when a fault comes, and one when it is mended."""

    def __init__(self) -> None:
        """Begin with none."""
        self._told: set[tuple[str, str]] = set()

    def tell(self, faults: Iterable[ServerFault]) -> None:
        """Compare with those of the last time."""
        found = {(each.kind, each.subject): each for each in faults}
        for place, fault in found.items():
            # Of these the engine has told at once, with the place of the damage.
            if place not in self._told and fault.kind != "log_unreadable":
                _log.error("fault", kind=fault.kind, subject=fault.subject, reason=fault.reason)
        for kind, subject in self._told - found.keys():
            _log.info("fault mended", kind=kind, subject=subject)
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
        """Bind to what is watched.

        Args:
            root: The log root.
            room_bytes: Less free room than this on a file system is a fault.
            catalogs: By name; others change it.
            others: Returns what is wrong beside the logs.
            polled: Logs that are read at intervals, each with the used-up limit or ""; others change it.
        """
        self._polled = {} if polled is None else polled
        self._others = others
        self._root = root
        self._room_bytes = room_bytes
        self._catalogs = catalogs
        self._unpublished: list[ServerFault] = []
        self._too_large: list[ServerFault] = []
        self._rooms: dict[str, Room] = {}
        """The file systems of the logs, as they are."""
        self._first_rooms: dict[str, Room] = {}
        """As each was when it was first seen."""

    def found(self, may_read: Callable[[str], bool] = lambda name: True) -> tuple[ServerFault, ...]:
        """Return what is wrong now; of the catalogs, only with those that may be read."""
        catalogs = (each for name, each in sorted(self._catalogs.items()) if may_read(name))
        logs = [fault for each in catalogs for fault in each.faults()]
        seen = (*self._unpublished, *self._too_large)
        unkept = [each for each in seen if may_read(each.subject)]
        full = room_faults(self._rooms, self._first_rooms, self._room_bytes)
        polled = polled_faults(self._root, [*filter(None, self._polled.values())])
        return (*logs, *unkept, *polled, *full, *self._others())

    async def run(self) -> None:
        """Look again and again until cancelled, and write to the log what comes and goes."""
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
        """Look at file systems and at damaged files again and again until cancelled; wait for slow ones."""
        loop = asyncio.get_running_loop()
        while True:
            found = await loop.run_in_executor(threads, rooms, self._root, tuple(self._catalogs))
            self._first_rooms = found | self._first_rooms
            self._rooms = found
            await loop.run_in_executor(threads, _look_at, tuple(self._catalogs.values()))
            await asyncio.sleep(self._every_s)

    @property
    def _every_s(self) -> float:
        return max(_EVERY_S, len(self._catalogs) / _CATALOGS_PER_S)


def polled_faults(root: Path, shortages: Sequence[str]) -> list[ServerFault]:
    """Return the fault of logs that are read at intervals, as limits of the kernel are used up; one for all."""
    if not shortages:
        return []
    reason = f"each of {len(shortages)} logs {shortages[0]}; the server notices that within seconds"
    return [ServerFault("log_polled", str(root), reason)]


def _look_at(catalogs: Iterable[CanBeFaulty]) -> None:
    for each in catalogs:
        each.look()


class UnpublishedVersions:
    """Since when each catalog has versions that wait for their publication."""

    def __init__(self) -> None:
        """Begin with none."""
        self._waiting: dict[str, tuple[int, float]] = {}
        """The published version, and the time since when more is committed, by catalog."""

    def see(self, catalogs: Mapping[str, CatalogVersions | None], now: float) -> list[ServerFault]:
        """Take the versions of a moment of the monotonic clock; return what has waited for too long."""
        before, self._waiting = self._waiting, {}
        faults = []
        for name, versions in catalogs.items():
            if versions is None or versions.committed <= versions.published:
                continue
            published, committed, gate = versions
            published_before, since = before.get(name, (published, now))
            if published_before != published:
                since = now
            self._waiting[name] = (published, since)
            if now - since >= UNPUBLISHED_S:
                why = (
                    f"they wait for the gate {gate}, whose export has ended or stands still; start it again, "
                    f"or take it away with tailrace catalog gate {name} --remove"
                    if gate
                    else "their writer has ended or stands still; start it again, it publishes first"
                )
                reason = (
                    f"versions {published + 1} to {committed} are durable and not published for "
                    f"{now - since:.0f} s: {why}"
                )
                faults.append(ServerFault("unpublished", name, reason))
        return faults


class TooLargeLogs:
    """Since when each catalog has been larger than its settings want, although a trim is due."""

    def __init__(self) -> None:
        """Begin with none."""
        self._due_since: dict[str, float] = {}

    def see(self, catalogs: Mapping[str, Excess | None], now: float) -> list[ServerFault]:
        """Take the excesses of a moment of the monotonic clock; return those that stay, or do for too long."""
        before, self._due_since = self._due_since, {}
        faults = []
        for name, excess in catalogs.items():
            if excess is None:
                continue
            if excess.is_due:
                since = self._due_since[name] = before.get(name, now)
                if now - since < _UNTRIMMED_S:
                    continue
            faults.append(ServerFault("too_large", name, str(excess)))
        return faults


@dataclass(frozen=True, slots=True)
class Room:
    """The room of one file system for the writers of a log."""

    free_bytes: int
    read_only: bool
    free_files: int | None = None
    """Files that can still be created (inodes); None where the file system has no such bound."""


def rooms(root: Path, catalogs: Iterable[str]) -> dict[str, Room]:
    """Return the file systems on which a log root and its catalogs lie, each by the first folder on it."""
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
            continue  # it has gone, or cannot be looked at: that its log cannot be read is told
    return found


def room_faults(
    found: Mapping[str, Room], first: Mapping[str, Room], free_bytes_min: int
) -> list[ServerFault]:
    """Return the faults of file systems: read-only, or with little room for bytes or for files.

    Args:
        found: As they are now, by folder.
        first: As each was when first seen. One that was read-only then is a copy to be served.
        free_bytes_min: The fewest free bytes that are no fault.
    """
    faults = []
    for folder, room in found.items():
        if room.read_only:
            if not first[folder].read_only:
                reason = (
                    "its file system has become read-only, as it does after errors of the device: writers "
                    "fail, readers go on; see the kernel's messages, then mount it for writing again"
                )
                faults.append(ServerFault("read_only", folder, reason))
        elif room.free_bytes < free_bytes_min:
            reason = (
                f"{format_bytes(room.free_bytes)} are free on its file system, less than "
                f"{format_bytes(free_bytes_min)}: writers end with LOG_FULL, readers go on; free some, or trim "
                "the log (Room on the disk, docs/operations.md)"
            )
            faults.append(ServerFault("disk_full", folder, reason))
        elif room.free_files is not None and room.free_files < _FREE_FILES_MIN:
            reason = (
                f"its file system can take {room.free_files} files more (inodes), fewer than "
                f"{_FREE_FILES_MIN}: writers end with LOG_FULL, readers continue; delete files, or move the "
                "log to a file system with more inodes (Room on the disk, docs/operations.md)"
            )
            faults.append(ServerFault("disk_full", folder, reason))
    return faults
