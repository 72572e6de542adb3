"""Files of bases that were found damaged, and read around: a fault until no base names them any more."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tailrace.errors import LogError
from tailrace_server.wal.base.bases import bases_path, newest_bases, paths_in

if TYPE_CHECKING:
    from uuid import UUID

    from tailrace.errors import LogCorrupted
    from tailrace_server.wal.files.object_store import ObjectStore


class DamagedBases:
    """Those of one catalog. Any thread may call it."""

    def __init__(self, uuid: UUID, store: ObjectStore) -> None:
        """Begin with none."""
        self._uuid = uuid
        self._store = store
        self._lock = threading.Lock()
        self._found: dict[str, LogCorrupted] = {}
        """By path."""

    def add(self, damaged: LogCorrupted) -> None:
        """Take what was read around."""
        with self._lock:
            self._found[damaged.path] = damaged

    def look(self) -> None:
        """Forget what no base names any more; blocks."""
        if not self._found:
            return
        try:
            known = newest_bases(self._store, self._uuid)
        except LogError:
            return  # nobody can tell
        named = {*paths_in(known.bases), bases_path(known.number)}
        with self._lock:
            for path in self._found.keys() - named:
                del self._found[path]

    def reason(self) -> str | None:
        """Return what is wrong, and what to do; None where nothing is."""
        with self._lock:
            found = next(iter(self._found.values()), None)
            others = len(self._found) - 1
        if found is None:
            return None
        more = f", and {others} more" if others else ""
        return (
            f"{found}{more}; state is read without it, more slowly, from the log: `tailrace log rebase --anew` "
            "makes the bases again"
        )
