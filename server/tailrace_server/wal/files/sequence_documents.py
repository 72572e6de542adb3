"""The documents of numbered sequences as typed values: bases, definitions, settings, named subscriptions.

Each object of a sequence is complete, so only the newest one is valid. A base is the state of all entity types
as of one version. bases/<n>.json names all valid bases, and the files that no base names any more. A program
that changes settings retains those whose names it does not know.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from msgspec import Struct

BASES: Final = "bases"
"""Folder of the numbered objects that list bases."""
BASE_ROWS: Final = f"{BASES}/rows"
"""Folder of the files with the rows of bases."""


class BaseFileDocument(Struct, frozen=True):
    """A file with rows of one entity type, for a range of key hashes; lists have one item per batch."""

    path: str
    rows: int
    bytes: int
    prefix: list[tuple[int, int, int]]
    """Offset, length and CRC-32C of the schema message."""
    offset: list[int]
    """Byte at which the batch's message begins."""
    length: list[int]
    """Length of the batch's message in bytes."""
    batch_rows: list[int]
    """Number of rows of the batch."""
    crc32c: list[int]
    """CRC-32C of the batch's message."""
    first_hash: list[int]
    """Key hash of the batch's first row."""
    last_hash: list[int]
    """Key hash of the batch's last row."""


class BaseTableDocument(Struct, frozen=True):
    """The rows of one entity type in a base."""

    entity_type: str
    """Name of the entity type in the schema of the base's version."""
    hashed_as: str
    """The entity type's first name, which is used to hash its keys."""
    counted: bool
    """True if the rows have no key; equal rows are then stored once with their count."""
    rows: int
    files: list[BaseFileDocument]
    """Files in the order of their key hashes."""


class BaseDocument(Struct, frozen=True):
    """A base: the state of all entity types as of one version. A missing entity type has no rows."""

    version: int
    tables: list[BaseTableDocument]


class BasesDocument(Struct, frozen=True):
    """A list of the bases of a log."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the previous object; 0 in the first."""
    timestamp: int
    bases: list[BaseDocument]
    """The bases, by ascending version."""
    removed: list[tuple[str, int]]
    """Files that no base names any more, with the time of removal in microseconds; deleted after
    ``delete_grace``."""
    superseded: bool = False
    """True if a later list has replaced this one, whose content was deleted; the object remains so that its
    number stays taken."""
    reserved: list[tuple[int, int]] = []
    """Pairs of a base's version and the number of a future checkpoint that may rely on the base; the base is
    retained until that checkpoint exists."""


DEFINITIONS: Final = "definitions"
"""Folder of the numbered objects with definitions."""


class ViewDocument(Struct, frozen=True):
    """A view: the rows of an entity type that meet a condition, with some of the columns."""

    name: str
    entity_type: str
    """The entity type's name in the schema of ``version``. All names here are those of that schema, so a later
    rename has no effect on the view."""
    version: int
    columns: list[str]
    """The visible columns; empty: all, including columns that are added later."""
    where: str
    """The condition as the text of a filter; empty: every row."""
    created: int


class ChangeTableDocument(Struct, frozen=True):
    """A change table: a name and a form for the changes of an entity type or a view."""

    name: str
    source: str
    """Name of a view; or of an entity type, in the schema of ``version``."""
    of_view: bool
    version: int
    images: list[str]
    """Images in the table's JSON: CHANGE, PRE, POST."""
    lookback_us: int
    """Age of the oldest change in the table, in microseconds; 0: as old as the log allows."""
    created: int
    salt_buckets: int = 1
    """Number of threads that read the log for a statement."""


class DefinitionsDocument(Struct, frozen=True):
    """All definitions of a catalog."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the previous object; 0 in the first."""
    timestamp: int
    views: list[ViewDocument]
    change_tables: list[ChangeTableDocument]


SETTINGS: Final = "settings"
"""Folder of the numbered objects with catalog settings."""

Settings = dict[str, int]
"""Setting → value: durations in microseconds, sizes in bytes."""


class TypeSettingsDocument(Struct, frozen=True):
    """The settings of one entity type."""

    entity_type: str
    """The entity type's name in the schema of ``version``, so that a later rename has no effect."""
    version: int
    settings: Settings


class SettingsDocument(Struct, frozen=True):
    """The settings of a catalog."""

    format_version: int
    number: int
    uuid: UUID
    previous_crc32c: int
    """CRC-32C of the previous object; 0 in the first."""
    timestamp: int
    settings: Settings
    """The settings of the catalog as a whole."""
    entity_types: list[TypeSettingsDocument]


SUBSCRIPTIONS: Final = "subscriptions"
"""Folder of the named subscriptions, with a folder for each name."""


class CriteriaDocument(Struct, frozen=True, omit_defaults=True):
    """One alternative of a subscription's criteria; enums are stored by name."""

    area: str = ""
    """Area of the records; empty: every area."""
    entity_type: list[str] = []
    primary_key: list[str] = []
    operation: list[str] = []
    container_type: list[str] = []
    container_name: list[str] = []
    where: str = ""
    """The condition on rows, as text; empty: none."""
    where_tree: dict[str, Any] = {}
    """The condition as a tree, in its JSON form; empty: none."""
    parameters: dict[str, str] = {}
    """Parameter of the condition → value."""
    where_version: int | None = None
    """Version whose column names the condition uses; None: unknown, or there is no condition."""


class SubscriptionDocument(Struct, frozen=True):
    """One named subscription."""

    format_version: int
    number: int
    uuid: UUID
    """Uuid of the log."""
    id: UUID
    """Uuid of the subscription. A subscription created under the same name after a deletion has another one."""
    name: str
    """Name in the log: the given name, followed by ``@`` and a digest of the owner if there is an owner."""
    created: int
    owner: str
    """Principal that created the subscription; empty: a command with access to the log's folder."""
    criteria: list[CriteriaDocument]
    """The criteria; empty: every record at entity level."""
    hold_us: int
    """Age up to which retention keeps versions for the subscription, in microseconds; 0: no hold."""
    hold_bytes: int
    """Bytes of the log that retention keeps for the subscription at most; 0: no hold."""
    cursor: str
    """Cursor of the last acknowledged capture."""
    moved: int
    """Time of the cursor's last move, in microseconds."""
    epoch: int = 0
    """Epoch of the newest reader, the only one that may acknowledge; 0: there was no reader yet."""
    reader: str = ""
    """Description of the newest reader, for people."""
    opened: int = 0
    """Time at which the newest reader opened the subscription, in microseconds."""
    paused: bool = False
    broken: int = 0
    """Time at which the hold was broken, in microseconds; 0: it was not."""
    deleted: bool = False
    """True if the subscription was deleted. The object remains for a while, so that late readers learn this."""
