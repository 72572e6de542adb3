"""Damaged places in a log. Each is a fault until it can be read again, or the log no longer names it.

All reads of the server report damage here: reads of records, bases, settings, definitions and named
subscriptions.
"""

from __future__ import annotations

import threading
from copy import copy
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from tailrace.errors import LogCorrupted, LogError
from tailrace_server.wal.base.bases import bases_path, newest_bases, paths_in
from tailrace_server.wal.files.documents import ENTRIES, SEGMENTS
from tailrace_server.wal.files.sequence_documents import BASES

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tailrace_server.wal.files.object_store import ObjectStore
    from tailrace_server.wal.state.view import LogView

    Again = Callable[[], object]

_PLACES_MAX: Final = 256
"""The most places that are remembered; each is read again every few seconds. Further ones are reported again
later."""
_T = TypeVar("_T")


class _Damaged(NamedTuple):
    """One damaged place in a log."""

    error: LogCorrupted
    again: Again | None
    """Repeats the read; raises an error if the place is still damaged. None: the fault ends when the log no
    longer names the file."""


class Damage:
    """The damaged places of one catalog. Thread-safe."""

    def __init__(self, uuid: UUID, store: ObjectStore) -> None:
        """Create an empty list for a catalog."""
        self._uuid = uuid
        self._store = store
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int], _Damaged] = {}
        """The damaged places, by path and offset."""

    def __len__(self) -> int:
        """Return the number of damaged places."""
        return len(self._found)

    def add(self, error: LogCorrupted, again: Again | None = None) -> None:
        """Remember a damaged place.

        Args:
            error: The error that a read raised.
            again: Repeats the read, and raises an error if the place is still damaged.
        """
        key = (error.path, error.offset)
        with self._lock:
            if key in self._found or len(self._found) < _PLACES_MAX:
                self._found[key] = _Damaged(copy(error), again)  # a copy has no traceback

    def noted(self, read: Callable[[], _T]) -> _T:
        """Call a function that reads, and return its result; remember the damage that it finds.

        Raises:
            LogCorrupted: The error of the read.
        """
        try:
            return read()
        except LogCorrupted as error:
            self.add(error, read)
            raise

    def look(self, view: LogView | None) -> None:
        """Check all places again; forget those that can be read or that the log no longer names. Blocks.

        Args:
            view: The newest view of the log; None if there is none yet.
        """
        # Read a copy without the lock: reads block, and other threads may add places meanwhile.
        with self._lock:
            found = dict(self._found)
        if not found:
            return
        named: dict[str, set[str]] = {}
        for key, place in found.items():
            if self._is_left(place, view, named):
                continue
            with self._lock:
                self._found.pop(key, None)

    def reasons(self) -> dict[Literal["log_damaged", "base_damaged"], str]:
        """Return, for each kind of fault that exists, a text on the damage and what an operator can do."""
        with self._lock:
            found = [place.error for place in self._found.values()]
        bases = [each for each in found if each.path.startswith(f"{BASES}/")]
        others = [each for each in found if not each.path.startswith(f"{BASES}/")]
        reasons: dict[Literal["log_damaged", "base_damaged"], str] = {}
        if bases:
            reasons["base_damaged"] = (
                f"{_first_of(bases)}; state is read without it, more slowly, from the log: `tailrace log "
                "rebase --anew` makes the bases again"
            )
        if others:
            reasons["log_damaged"] = (
                f"{_first_of(others)}; readers of this place get LOG_CORRUPTED, others continue. "
                "`tailrace log verify` lists every place; restore the file from a copy of the log"
            )
        return reasons

    def _is_left(self, place: _Damaged, view: LogView | None, named: dict[str, set[str]]) -> bool:
        """Return True if a place is still damaged and needed, or if that is unknown.

        Args:
            place: The place.
            view: The newest view of the log.
            named: A cache of the paths that the log names, by folder; this call fills it.
        """
        path, again = place.error.path, place.again
        folder = path.partition("/")[0]
        try:
            if folder == BASES:
                if folder not in named:
                    known = newest_bases(self._store, self._uuid)
                    named[folder] = {*paths_in(known.bases), bases_path(known.number)}
            elif folder in (SEGMENTS, ENTRIES) and folder not in named and view is not None:
                named[SEGMENTS] = named[ENTRIES] = set(view.segment_paths())
            # A file that the log does not name any more is not needed. Otherwise try to read the place again.
            if folder in named and path not in named[folder]:
                return False
            if again is None:
                return True
            again()
        except LogCorrupted as error:
            self.add(error, again)
            # Another path: this place can be read, but another one that is read together with it is damaged.
            return error.path == path
        except LogError:
            return True
        return False


def _first_of(found: list[LogCorrupted]) -> str:
    """Return the text of the first error, and the number of further ones."""
    return f"{found[0]}" + (f", and {len(found) - 1} more places" if len(found) > 1 else "")
