"""Protobuf fields of ``tailrace.v1.Capture`` for the encoders; a test compares them with proto/tailrace/v1.

A frame is the tag 0x0A, a length and a capture. The numbers of a capture have fixed widths and are always
written, so they are at fixed offsets after the length:

    09 version:8   15 index:4   1D ordinal:4   21 timestamp:8   28 area:1   30 operation:1        28 + 4 bytes
    3A entity type   80 01 kind   88 01 transition   42 primary key   4A changed   50 container type   5A name
    62 6A 72 bodies

Kind and transition follow the entity type, and are omitted if they are 0. So a table of encoded entity types
can include them, and the loops that copy from such a table need not know them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.criteria import CaptureKind, Transition
from tailrace_server.rows.transitions import TRANSITION_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

CAPTURE: Final = 0x0A
VERSION: Final = 0x09
INDEX: Final = 0x15
ORDINAL: Final = 0x1D
TIMESTAMP: Final = 0x21
AREA: Final = 0x28
OPERATION: Final = 0x30
ENTITY_TYPE: Final = 0x3A
PRIMARY_KEY: Final = 0x42
CHANGED: Final = 0x4A
CHANGED_NAME: Final = 0x0A
CONTAINER_TYPE: Final = 0x50
CONTAINER_NAME: Final = 0x5A
BODIES: Final = {"change": 0x62, "before": 0x6A, "after": 0x72}
OMITTED_BYTES: Final = 0x78
KIND: Final = b"\x80\x01"
TRANSITION: Final = b"\x88\x01"

NUMBERS: Final = np.dtype(
    [
        ("version_tag", "u1"),
        ("version", "<i8"),
        ("index_tag", "u1"),
        ("index", "<i4"),
        ("ordinal_tag", "u1"),
        ("ordinal", "<i4"),
        ("timestamp_tag", "u1"),
        ("timestamp", "<i8"),
        ("area_tag", "u1"),
        ("area", "u1"),
        ("operation_tag", "u1"),
        ("operation", "u1"),
    ]
)
BLANK: Final = np.zeros(1, NUMBERS)
"""The numbers of a capture with their tags, all numbers 0; shape (1,)."""
for _name, _tag in (
    ("version", VERSION),
    ("index", INDEX),
    ("ordinal", ORDINAL),
    ("timestamp", TIMESTAMP),
    ("area", AREA),
    ("operation", OPERATION),
):
    BLANK[f"{_name}_tag"] = _tag


def field(tag: int, value: bytes) -> bytes:
    """Return a length-delimited field."""
    return bytes([tag]) + varint(len(value)) + value


def varint(number: int) -> bytes:
    """Return a number, which must not be negative, as a varint."""
    out = bytearray()
    while number >= 0x80:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def entity_type(name: str) -> bytes:
    """Return the ``entity_type`` field."""
    return field(ENTITY_TYPE, name.encode())


def entity_types(names: Iterable[str], kind: CaptureKind) -> list[bytes]:
    """Return the ``entity_type`` field of each name, followed by ``kind``; the first item is for no name."""
    behind = b"" if kind is CaptureKind.CHANGE else KIND + varint(kind)
    return [behind, *(entity_type(name) + behind for name in names)]


def judged_entity_types(names: Iterable[str], kind: CaptureKind) -> list[bytes]:
    """Return the items of ``entity_types`` for no transition, then again for each transition with its field.

    With n names there are n + 1 items for each transition; ``judged_codes`` computes their codes.
    """
    plain = entity_types(names, kind)
    return [*plain, *(each + TRANSITION + varint(code) for code in Transition for each in plain)]


def judged_codes(
    type_codes: NDArray[np.int32], transitions: NDArray[np.uint8], names: int
) -> NDArray[np.int32]:
    """Return each capture's code, its index in ``judged_entity_types`` minus 1."""
    return type_codes + (transitions & TRANSITION_BITS).astype(np.int32) * np.int32(names + 1)


def changed_name(name: str) -> bytes:
    """Return one element of the ``changed`` field."""
    return field(CHANGED_NAME, name.encode())
