"""Whether what is set of a catalog is what was set: each object, and that it continues the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.errors import LogCorrupted
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.sealed import object_numbers
from tailrace_server.wal.files.settings_documents import SETTINGS, SettingsDocument
from tailrace_server.wal.settings.kept import settings_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tailrace_server.wal.files.object_store import ObjectStore

_MEND: Final = (
    "take the newest object out of the folder, then what the one before says holds; set it again"
)


def check_settings(store: ObjectStore, uuid: UUID) -> Iterator[LogCorrupted]:
    """Yield what is wrong with the settings of a catalog; go on behind each fault."""
    before: int | None = 0
    for number in range(1, max(object_numbers(store.names(SETTINGS)), default=0) + 1):
        path = settings_path(number)
        try:
            found = documents.read(store, path, SettingsDocument)
            if found is None:
                raise LogCorrupted(path, 0, "the settings are missing")
        except LogCorrupted as error:
            yield LogCorrupted(path, error.offset, f"{error.reason}; {_MEND}")
            before = None  # nothing is known of what it would be continued with
            continue
        document, crc = found
        if (document.number, document.uuid) != (number, uuid):
            yield LogCorrupted(
                path, 0, f"it is number {document.number} of {document.uuid}; {_MEND}"
            )
        elif before is not None and document.previous_crc32c != before:
            yield LogCorrupted(path, 0, f"it does not continue the settings before it; {_MEND}")
        before = crc
