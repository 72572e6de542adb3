"""definitions/<n>.json as typed values: the views and change tables of a catalog.

The newest object of the sequence is the whole truth.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from msgspec import Struct

DEFINITIONS: Final = "definitions"
"""Folder of the numbered objects."""


class ViewDocument(Struct, frozen=True):
    """A view: the rows of an entity type that meet a condition, with some of its columns."""

    name: str
    entity_type: str
    """Its name in the schema of ``version``, as all names here: a rename later on changes nothing."""
    version: int
    columns: list[str]
    """Those that it shows; empty: all, also those that come later."""
    where: str
    """The condition, as a filter's text; empty: every row."""
    created: int


class ChangeTableDocument(Struct, frozen=True):
    """A change table: how the changes of an entity type or a view are shown."""

    name: str
    source: str
    """A view; or an entity type, by its name in the schema of ``version``."""
    of_view: bool
    version: int
    images: list[str]
    """Which images its JSON has: CHANGE, PRE, POST."""
    lookback_us: int
    """How far back it reaches; 0: as far as the log does."""
    created: int
    salt_buckets: int = 1
    """How many threads read the log for a statement."""


class DefinitionsDocument(Struct, frozen=True):
    """All that is defined of a catalog."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the object before; 0 for the first."""
    timestamp: int
    views: list[ViewDocument]
    change_tables: list[ChangeTableDocument]
