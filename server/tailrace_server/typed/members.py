"""The places of members in images: the JSON text of each requested value.

A compiled loop finds them, and a parser where there is no loop, or the loop is in doubt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from tailrace_server.machine_code.codes import MEMBERS_AT_ONCE, Note
from tailrace_server.machine_code.loader import BYTE, INT, LONG, address
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.text_columns import Texts, packed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace_server.machine_code.loader import Loops

ABSENT: Final = b""
"""The text of a member that an image does not have."""


class Members:
    """The texts of some members of some images; of a name that comes twice in an image the last."""

    def __init__(self, images: pa.BinaryArray, names: Sequence[str], loops: Loops | None) -> None:
        """Find them.

        Args:
            images: JSON objects, or null.
            names: Of the members, each once.
            loops: The compiled loops; None where there are none.

        Raises:
            ValueError: A row is no JSON object.
        """
        self._texts = Texts.of(images)
        self._names = names
        count = len(images)
        self.starts: NDArray[np.int32] = np.zeros((len(names), count), np.int32)
        """For each name and row where the value begins, counted from `base`."""
        self.lengths: NDArray[np.int32] = np.zeros((len(names), count), np.int32)
        """The same of its length; 0 where the image has none, and where the parser read it."""
        notes = np.full(count, Note.DOUBTFUL, np.uint8)
        noted = count
        if loops is not None and count:
            notes[:] = Note.FOUND
            noted = self._locate(loops, count, notes)
        self._more: list[int] = np.flatnonzero(notes == Note.MORE).tolist() if noted else []
        self.parsed: dict[int, dict[str, msgspec.Raw]] = {}
        """The result of a parser, by row."""
        if noted:
            self._parse(np.flatnonzero(notes == Note.DOUBTFUL))

    @property
    def base(self) -> int:
        """Address of the images' first byte."""
        return self._texts.addresses.values

    def _locate(self, loops: Loops, count: int, notes: NDArray[np.uint8]) -> int:
        """Find members by compiled code; return how many rows are noted."""
        # The locals keep the memory alive while the loop has its addresses.
        name_offsets, name_bytes = packed([*map(_encoded, self._names)])
        seen = np.full(3 * MEMBERS_AT_ONCE, -1, np.int64)
        return loops.locate_members(
            *(*self._texts.addresses, count, len(self._names)),
            *(address(name_offsets, INT), address(name_bytes, BYTE)),
            *(address(self.starts, INT), address(self.lengths, INT)),
            *(address(notes, BYTE), address(seen, LONG)),
        )

    def _parse(self, rows: NDArray[np.int64]) -> None:
        """Read rows by a parser."""
        if not len(rows):
            return
        self.lengths[:, rows] = 0
        for row, image in zip(rows.tolist(), self._texts.values(rows.tolist()), strict=True):
            if image is None:
                continue
            try:
                self.parsed[row] = decode_members(image)
            except (msgspec.DecodeError, RecursionError) as error:
                raise ValueError(f"image {row} is no JSON object: {error}") from None

    def text(self, place: int, row: int) -> bytes:
        """Return the JSON text of a value; `ABSENT` where the image has none."""
        if (members := self.parsed.get(row)) is not None:
            return bytes(members.get(self._names[place], ABSENT))
        if not (length := int(self.lengths[place, row])):
            return ABSENT
        start = int(self.starts[place, row])
        return bytes(self._texts.bytes_between(start, start + length))

    def has(self, place: int, rows: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return those of some rows, rising, whose image has a member, whatever its value."""
        found = rows & (self.lengths[place] > 0)
        for row, members in self.parsed.items():
            found[row] = rows[row] and self._names[place] in members
        return np.flatnonzero(found)

    def others(self) -> pa.StringArray:
        """Return what else the images have, each as a JSON object; null where that is nothing."""
        found: list[str | None] = [None] * self.lengths.shape[1]
        images = zip(self._more, self._texts.values(self._more), strict=True)
        rows: Iterator[tuple[int, Any]] = (
            (row, decode_members(image)) for row, image in images if image is not None
        )
        for row, members in (*rows, *self.parsed.items()):
            rest = {name: raw for name, raw in members.items() if name not in self._names}
            if rest:
                found[row] = msgspec.json.encode(rest).decode()
        return pa.array(found, pa.string())


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
