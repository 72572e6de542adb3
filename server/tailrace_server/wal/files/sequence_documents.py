"""The documents of the numbered sequences as typed values: bases, definitions, settings, named subscriptions.

Each object of a sequence is complete, so the newest one is the whole truth. A base is the state of all entity
types as of one version; bases/<n>.json names all bases that are valid from then on, and the files that it names
no longer. When a program changes settings, it keeps those whose names it does not know.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from msgspec import Struct

BASES: Final = "bases"
"""Folder of the numbered objects."""
BASE_ROWS: Final = f"{BASES}/rows"
"""Folder of the files of rows."""


class BaseFileDocument(Struct, frozen=True):
    """A file of rows of one entity type, those of a range of key hashes."""

    path: str
    rows: int
    bytes: int
    prefix: list[tuple[int, int, int]]
    """Offset, length and CRC-32C of the schema message."""
    offset: list[int]
    """Of each record batch, where its message begins, …"""
    length: list[int]
    """… its bytes, …"""
    batch_rows: list[int]
    """… its rows, …"""
    crc32c: list[int]
    """… the checksum of its bytes, …"""
    first_hash: list[int]
    """… and the key hashes of its first row …"""
    last_hash: list[int]
    """… and of its last."""


class BaseTableDocument(Struct, frozen=True):
    """The rows of one entity type."""

    entity_type: str
    """Its name in the schema of the base's version."""
    hashed_as: str
    """The name under which its keys are hashed: the one that it had first."""
    counted: bool
    """True if its rows have no key, and are counted."""
    rows: int
    files: list[BaseFileDocument]
    """In the order of key hashes."""


class BaseDocument(Struct, frozen=True):
    """The state of all entity types as of one version; one that is missing has no rows."""

    version: int
    tables: list[BaseTableDocument]


class BasesDocument(Struct, frozen=True):
    """The bases that a log has."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the object before; 0 for the first."""
    timestamp: int
    bases: list[BaseDocument]
    """By version, rising."""
    removed: list[tuple[str, int]]
    """Files that are named no longer, and since when, µs; they go after ``delete_grace``."""
    superseded: bool = False
    """What it named was dropped after a later one had replaced it; the name stays taken."""
    reserved: list[tuple[int, int]] = []
    """Version of a base, and number of the checkpoint that may rely on it: until that one exists, it stays."""


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


SETTINGS: Final = "settings"
"""Folder of the numbered objects."""

Settings = dict[str, int]
"""Name → value: lengths of time in µs, amounts in bytes."""


class TypeSettingsDocument(Struct, frozen=True):
    """The settings of one entity type."""

    entity_type: str
    """Its name in the schema of ``version``: a rename later on changes nothing."""
    version: int
    settings: Settings


class SettingsDocument(Struct, frozen=True):
    """The settings of a catalog."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the object before; 0 for the first."""
    timestamp: int
    settings: Settings
    """Of the catalog as a whole."""
    entity_types: list[TypeSettingsDocument]


SUBSCRIPTIONS: Final = "subscriptions"
"""Folder of the subscriptions, a folder for each name."""


class CriteriaDocument(Struct, frozen=True, omit_defaults=True):
    """One alternative of what it wants; enums by their names."""

    area: str = ""
    """Empty: every area."""
    entity_type: list[str] = []
    primary_key: list[str] = []
    operation: list[str] = []
    container_type: list[str] = []
    container_name: list[str] = []
    where: str = ""
    """A condition on rows, as text; empty: none."""
    where_tree: dict[str, Any] = {}
    """The condition as a tree, in its JSON form; empty: none."""
    parameters: dict[str, str] = {}
    """Of the condition, by name."""
    where_version: int | None = None
    """The version whose names of columns the condition has; None: unknown, or there is no condition."""


class SubscriptionDocument(Struct, frozen=True):
    """One named subscription."""

    format_version: int
    number: int
    uuid: UUID
    """The log's."""
    id: UUID
    """Its own: one of the same name that was created after it was deleted has another."""
    name: str
    """The name in the log: the given one, and after an ``@`` a digest of the owner, if there is one."""
    created: int
    owner: str
    """The caller that created it, as the server knows callers; empty: a command at the log's folder."""
    criteria: list[CriteriaDocument]
    """The criteria; empty: every record at entity level."""
    hold_us: int
    """How old a version may be that retention keeps for it; 0: it keeps nothing."""
    hold_bytes: int
    """How many bytes of the log retention keeps for it; 0: it keeps nothing."""
    cursor: str
    """Everything up to it is acknowledged."""
    moved: int
    """When the cursor moved last."""
    epoch: int = 0
    """Of its newest reader, whose acknowledgements alone count; 0: it never had one."""
    reader: str = ""
    """The newest reader, for people to read."""
    opened: int = 0
    """When that one came."""
    paused: bool = False
    broken: int = 0
    """When its hold was broken; 0: it was not."""
    deleted: bool = False
    """It is gone; the object stays for a while, so that what comes late finds that."""
