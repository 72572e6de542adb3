"""Where the members of images lie: the JSON text of each value that is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from tailrace_server.wal.record.columns import decode_members

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ABSENT: Final = b""
"""Stands for the text of a member that an image does not have."""


@dataclass(frozen=True, slots=True)
class Members:
    """The texts of members, by image."""

    rows: list[list[bytes]]
    """A list for each name that was asked for."""
    others: pa.StringArray | None

    def texts(self, place: int) -> Iterator[bytes]:
        """Yield the text of one name's value in each image; `ABSENT` where it has none."""
        return iter(self.rows[place])


def members_of(images: pa.BinaryArray, names: Sequence[str | None], *, others: bool) -> Members:
    """Return the texts of members; of a name that comes twice in an image the last.

    Args:
        images: JSON objects, or null.
        names: Of the members; None for one that no image has.
        others: Whether to return what else images have.

    Raises:
        ValueError: A row is no JSON object.
    """
    rows: list[list[bytes]] = [[] for _ in names]
    left: list[str | None] = []
    for row, image in enumerate(images.to_pylist()):
        members = {} if image is None else parsed(row, image)
        for place, name in enumerate(names):
            rows[place].append(ABSENT if name is None else bytes(members.get(name, ABSENT)))
        if others:
            rest = {name: raw for name, raw in members.items() if name not in names}
            left.append(msgspec.json.encode(rest).decode() if rest else None)
    return Members(rows, pa.array(left, pa.string()) if others else None)


def parsed(row: int, image: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of one image.

    Raises:
        ValueError: It is no JSON object.
    """
    try:
        return decode_members(image)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"image {row} is no JSON object: {error}") from None
