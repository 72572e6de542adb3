"""Whether the definitions of a catalog are as they were made: each object, and that it continues the last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.wal.files.definition_documents import DEFINITIONS, DefinitionsDocument
from tailrace_server.wal.files.numbered import check_numbered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tailrace.errors import LogCorrupted
    from tailrace_server.wal.files.object_store import ObjectStore

_MEND: Final = (
    "take the newest object out of the folder, then what the one before says holds; define it again"
)


def check_definitions(store: ObjectStore, uuid: UUID) -> Iterator[LogCorrupted]:
    """Yield the faults in the definitions of a catalog; continue behind each."""
    return check_numbered(store, DEFINITIONS, uuid, DefinitionsDocument, _MEND)
