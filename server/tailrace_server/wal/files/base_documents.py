"""bases/<n>.json as typed values: which bases a log has, and where their rows lie.

A base is the state of all entity types as of one version. Each object of the sequence names all bases that
stand from then on, so the newest one is the whole truth. It also lists the files that it names no longer.
"""

from __future__ import annotations

from typing import Final
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
    """Whether its rows have no key, and are counted."""
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
