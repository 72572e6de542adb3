"""Places of a log that were found damaged: each is a fault until it can be read again or nothing names it.

Every read of the server reports here: of records, bases, settings, definitions and named subscriptions.
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
"""Places that are remembered; each is read again every few seconds. Later ones are found again after these."""
_T = TypeVar("_T")


class _Damaged(NamedTuple):
    """One damaged place."""

    error: LogCorrupted
    again: Again | None
    """Repeats the read and raises if the place is still damaged; None: only its removal helps."""


class Damage:
    """The damaged places of one catalog. Any thread may call it."""

    def __init__(self, uuid: UUID, store: ObjectStore) -> None:
        """Begin with none."""
        self._uuid = uuid
        self._store = store
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int], _Damaged] = {}
        """By path and offset."""

    def __len__(self) -> int:
        """Return the number of places."""
        return len(self._found)

    def add(self, error: LogCorrupted, again: Again | None = None) -> None:
        """Remember what a read has found."""
        key = (error.path, error.offset)
        with self._lock:
            if key in self._found or len(self._found) < _PLACES_MAX:
                self._found[key] = _Damaged(copy(error), again)  # without its frames

    def noted(self, read: Callable[[], _T]) -> _T:
        """Return what a read returns, and remember the damage that it raises.

        Raises:
            LogCorrupted: As the read.
        """
        try:
            return read()
        except LogCorrupted as error:
            self.add(error, read)
            raise

    def look(self, view: LogView | None) -> None:
        """Forget what can be read again, and what nothing names any more; blocks.

        Args:
            view: The newest view of the log; None while there is none.
        """
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
        """Return what is wrong and what to do, by the kind of the fault."""
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
                f"{_first_of(others)}; readers that need it get LOG_CORRUPTED, others continue. `tailrace log "
                "verify` names every place; restore the file from a copy of the log"
            )
        return reasons

    def _is_left(self, place: _Damaged, view: LogView | None, named: dict[str, set[str]]) -> bool:
        """Return True unless a place is known to be mended or not needed any more.

        Args:
            place: The place.
            view: The newest view.
            named: Paths that the log names, by folder; filled when they are first needed.
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
            if folder in named and path not in named[folder]:
                return False
            if again is None:
                return True
            again()
        except LogCorrupted as error:
            self.add(error, again)
            return error.path == path  # else the next place of the same documents is damaged, too
        except LogError:
            return True
        return False


def _first_of(found: list[LogCorrupted]) -> str:
    """Return the first error, and how many there are besides."""
    return f"{found[0]}" + (f", and {len(found) - 1} more places" if len(found) > 1 else "")
