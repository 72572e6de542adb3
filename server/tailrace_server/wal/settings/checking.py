"""Whether what is set of a catalog is what was set: each object, and that it continues the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.wal.files.numbered import check_numbered
from tailrace_server.wal.files.settings_documents import SETTINGS, SettingsDocument

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tailrace.errors import LogCorrupted
    from tailrace_server.wal.files.object_store import ObjectStore

_MEND: Final = (
    "take the newest object out of the folder, then what the one before says holds; set it again"
)


def check_settings(store: ObjectStore, uuid: UUID) -> Iterator[LogCorrupted]:
    """Yield the faults in the settings of a catalog; continue behind each."""
    return check_numbered(store, SETTINGS, uuid, SettingsDocument, _MEND)
