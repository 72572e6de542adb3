"""The table of numbers in which ``frame_writer.py`` gives compiled loops the places to read and write."""

from __future__ import annotations

from enum import IntEnum, auto


class FrameTable(IntEnum):
    """Places in the table; addresses, if not said otherwise, 0 for what there is none of."""

    COUNT = 0
    """Captures; a number."""
    MESSAGE_BYTES = auto()
    """The largest size of a message; a number."""
    SIZES = auto()
    """Of captures without tag and length: int32 a capture, written by ``measure``."""
    OFFSETS = auto()
    """The begin of each frame among all: int64 a capture and one more, written by ``measure``."""
    STARTS = auto()
    """First captures of messages: int64 a message; ``measure`` writes them, ``write`` needs one more."""
    ORIGINS = auto()
    """The begin of each message's contents, less the bytes of the messages before: int64 a message."""
    MESSAGES = auto()
    """Messages to write; a number."""
    ROWS = auto()
    """The record of each capture: int32."""
    TYPE_CODES = auto()
    """Entity types of records, -1 for leads: int32."""
    TYPE_OFFSETS = auto()
    """Of the entity types as fields, the first of code -1: int32 a type and one more."""
    TYPE_BYTES = auto()
    LISTS_VALID = auto()
    """Bitmap of records that have a list of changed columns; 0 if all have one."""
    LISTS = auto()
    """Offsets of these lists: int32 a record and one more; 0 if no record has one."""
    LIST_NAMES = auto()
    """The items of the lists, codes of names: int32."""
    NAME_OFFSETS = auto()
    """Of the names as fields: int32 a name and one more."""
    NAME_BYTES = auto()
    VERSIONS = auto()
    """Of captures: int64."""
    INDEXES = auto()
    """Of captures: int32."""
    ORDINALS = auto()
    """Of captures: int32; 0 if all are 0."""
    TIMESTAMPS = auto()
    """Of captures: int64."""
    AREAS = auto()
    """Of records: uint8."""
    OPERATIONS = auto()
    """Of records: uint8."""
    TEXTS = auto()
    """Key, change, before and after, four places each: tag, bitmap, offsets, bytes. Tag 0 leaves one out."""


TABLE_LENGTH = FrameTable.TEXTS + 4 * 4
