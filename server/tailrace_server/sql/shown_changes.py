"""How a change table shows changes: its columns, and which images its JSON has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tailrace_server.wal.files.definition_documents import ViewDocument

ROW_TIMESTAMP: Final = "PHOENIX_ROW_TIMESTAMP()"
"""Name of its first column: when the change was committed."""
SHOWN: Final = "tailrace.shown_changes"
"""Under this key the place in a statement that reads changes carries how a change table shows them."""
CDC_JSON: Final = "CDC JSON"
"""Name of its last column."""


@dataclass(frozen=True, slots=True)
class ShownChanges:
    """What a scan of changes gives for a change table, beside place and time."""

    table: str
    """Its name, for errors."""
    keys: tuple[str, ...]
    """Names of the key's columns; empty where they are not known: then the key is a text."""
    images: tuple[str, ...]
    """Of its JSON, some of ``ddl.IMAGES``."""
    names: frozenset[str]
    """Columns that are read, in lower case."""
    view: ViewDocument | None = None
    """The view that it is on; None: an entity type."""
    oldest_us: int = 0
    """Time, µs, before which it has no changes; 0: it has all that the log keeps."""
    lookback_us: int = 0
    """What was defined of that."""
    salt_buckets: int = 1
    """How many threads read the log for it."""

    @property
    def has_json(self) -> bool:
        """Whether the JSON is read."""
        return CDC_JSON.lower() in self.names
