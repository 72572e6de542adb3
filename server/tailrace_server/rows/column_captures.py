"""Captures at column level: the container type of each capture's column, and bodies cut to that column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.text_columns import Texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tailrace.schema import Schema
    from tailrace_server.rows.run import BatchSelection
    from tailrace_server.wal.segment.reader import BatchHead


def roles_of(
    head: BatchHead, selection: BatchSelection, schema_of: Callable[[int], Schema]
) -> NDArray[np.uint8]:
    """Return the container type (role) of each capture's column; 0 for captures at entity level."""
    assert selection.ordinals is not None
    roles = np.zeros(len(selection), np.uint8)
    for place, (row, ordinal) in enumerate(
        zip(selection.rows.tolist(), selection.ordinals.tolist(), strict=True)
    ):
        if ordinal:
            entity_type = head.entity_types[head.type_codes[row]]
            # Ordinals count the columns of the record's own version, from 1.
            columns = schema_of(int(head.versions[row])).entity_types[entity_type]
            roles[place] = columns[ordinal - 1].role
    return roles


def cut_bodies(bodies: dict[str, Texts], names: tuple[str, ...]) -> dict[str, Texts]:
    """Cut each body to a JSON object with the capture's column alone.

    A capture at entity level, whose name is "", keeps its whole body. A body without the column becomes null.
    """
    found = {}
    for body, images in bodies.items():
        pairs = zip(images.array.to_pylist(), names, strict=True)
        found[body] = Texts.of(pa.array([_cut(*pair) for pair in pairs], pa.binary()))
    return found


def _cut(image: bytes | None, name: str) -> bytes | None:
    if image is None or not name:
        return image
    # The value is copied as bytes: parsing and writing it again could change a number.
    value = decode_members(image).get(name)
    if value is None:
        return None
    return b"{%s:%s}" % (msgspec.json.encode(name), bytes(value))
