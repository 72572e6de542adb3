"""The places of members in images: the JSON text of each requested value.

Compiled code finds them where it is loaded, and a parser where it is not, or is in doubt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from tailrace_server.typed.value_table import MEMBERS_AT_ONCE, LocatorTable, Note
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.text_columns import Texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace_server.typed.loops import Loops

ABSENT: Final = b""
"""Stands for the text of a member that an image does not have."""


class Members:
    """The texts of some members of some images; of a name that comes twice in an image the last."""

    def __init__(self, images: pa.BinaryArray, names: Sequence[str], loops: Loops | None) -> None:
        """Find them.

        Args:
            images: JSON objects, or null.
            names: Of the members, each once.
            loops: The compiled code; None where it is not loaded.

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
        table = np.zeros(len(LocatorTable), np.int64)
        table[LocatorTable.ROWS] = count
        table[LocatorTable.VALIDITY : LocatorTable.NAMES] = self._texts.addresses
        table[LocatorTable.NAMES] = len(self._names)
        table[LocatorTable.NAME_OFFSETS] = address(name_offsets)
        table[LocatorTable.NAME_BYTES] = address(name_bytes)
        table[LocatorTable.STARTS] = address(self.starts)
        table[LocatorTable.LENGTHS] = address(self.lengths)
        table[LocatorTable.NOTES] = address(notes)
        table[LocatorTable.SEEN] = address(seen)
        return loops.locate(address(table))

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


def packed(texts: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return texts one behind the other: where each begins and the last ends, and their bytes."""
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([*map(len, texts)], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(texts) or b"\0", np.uint8)


def address(array: NDArray[Any]) -> int:
    """Return where an array's memory begins."""
    return int(pa.py_buffer(array).address)


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
