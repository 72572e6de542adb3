"""settings/<n>.json as typed values: what is set of a catalog and of its entity types.

The newest object of the sequence is the whole truth. Names that a program does not know are kept when it
changes others.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from msgspec import Struct

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
