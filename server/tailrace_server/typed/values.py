"""Reading of one column's values to an Arrow array, from the JSON texts of a member in images.

Compiled loops locate the members and read most values. Python reads the values that a loop leaves, and all
values if there are no compiled loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.machine_code.loader import BYTE, INT, LONG, address
from tailrace_server.machine_code.loops.codes import (
    MEMBERS_AT_ONCE,
    SCRATCH,
    Notation,
    Note,
    Program,
    ValueState,
)
from tailrace_server.typed.forms import Misfit
from tailrace_server.wal.record.columns import decode_members
from tailrace_server.wal.record.text_columns import Texts, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tailrace_server.machine_code.loader import Loops
    from tailrace_server.typed.forms import Form
    from tailrace_server.wal.record.unavailable import Unavailable

ABSENT: Final = b""
"""Text for a member that an image does not have."""


class Located(NamedTuple):
    """The places of some members in a column of JSON objects."""

    starts: NDArray[np.int32]
    """Offset of the value of each name in each row from the first byte, shape (names, rows)."""
    lengths: NDArray[np.int32]
    """Length of each value; 0 if the object does not have the member."""
    notes: NDArray[np.uint8]
    """The `Note` of each row. The places in a DOUBTFUL object are invalid."""


def locate(
    texts: Texts,
    count: int,
    names: Sequence[str],
    loops: Loops | None,
    outputs: Sequence[Output] = (),
) -> Located:
    """Find members in JSON objects by compiled code, and read the values of some.

    Args:
        texts: The objects.
        count: Number of the objects.
        names: Names of the members.
        loops: The compiled loops; None: all objects are DOUBTFUL, and no value is read.
        outputs: The columns whose values the loops read meanwhile; none without loops.
    """
    shape = len(names), count
    starts, lengths = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    if loops is None or not count:
        return Located(starts, lengths, np.full(count, Note.DOUBTFUL, np.uint8))
    # The loop gets addresses only: the locals keep the memory alive until it returns.
    notes = np.full(count, Note.FOUND, np.uint8)
    name_offsets, name_bytes = packed([*map(_encoded, names)])
    seen = np.full(3 * (MEMBERS_AT_ONCE + 1), -1, np.int64)
    programs = np.array([each.program for each in outputs], np.int64)
    loops.read_members(
        *(*texts.addresses, count, len(names)),
        *(address(name_offsets, INT), address(name_bytes, BYTE)),
        *(address(starts, INT), address(lengths, INT)),
        *(address(notes, BYTE), address(seen, LONG), len(outputs), address(programs, LONG)),
    )
    for each, program in zip(outputs, programs, strict=True):
        each.others = int(program[Program.OTHERS])
    return Located(starts, lengths, notes)


class Members:
    """The JSON texts of some members of some images. If an image has a name twice, the last member is used."""

    def __init__(
        self,
        images: pa.BinaryArray,
        names: Sequence[str],
        loops: Loops | None,
        outputs: Sequence[Output] = (),
    ) -> None:
        """Locate the members.

        Args:
            images: JSON objects, or null.
            names: Names of the members, without duplicates.
            loops: The compiled loops; None if there are none.
            outputs: The columns whose values the loops read meanwhile; none without loops.

        Raises:
            ValueError: An image is not a JSON object.
        """
        self._texts = Texts.of(images)
        self._names = names
        found = locate(self._texts, len(images), names, loops, outputs)
        self.starts: NDArray[np.int32] = found.starts
        """Offset in the images' bytes of the value of each name in each row, shape (names, rows)."""
        self.lengths: NDArray[np.int32] = found.lengths
        """Length of each value; 0 if the image does not have the member, or is in ``parsed``."""
        notes = found.notes
        self._more: list[int] = np.flatnonzero(notes == Note.MORE).tolist()
        self.parsed: dict[int, dict[str, msgspec.Raw]] = {}
        """Row → all members, for the images that compiled code was not sure about and Python parsed."""
        self._parse(np.flatnonzero(notes == Note.DOUBTFUL))

    def _parse(self, rows: NDArray[np.int64]) -> None:
        """Parse the images of some rows in Python."""
        for row, image in zip(rows.tolist(), self._texts.values(rows.tolist()), strict=True):
            if image is None:
                continue
            try:
                self.parsed[row] = decode_members(image)
            except (msgspec.DecodeError, RecursionError) as error:
                raise ValueError(f"image {row} is not a JSON object: {error}") from None

    def text(self, place: int, row: int) -> bytes:
        """Return the JSON text of a member in a row; ``ABSENT`` if the image does not have the member.

        ``place`` is the index of the member's name.
        """
        if (members := self.parsed.get(row)) is not None:
            return bytes(members.get(self._names[place], ABSENT))
        if not (length := int(self.lengths[place, row])):
            return ABSENT
        start = int(self.starts[place, row])
        return bytes(self._texts.bytes_between(start, start + length))

    def has(self, place: int, rows: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the indexes, rising, of those rows of a mask whose image has a member, with any value."""
        found = rows & (self.lengths[place] > 0)
        for row, members in self.parsed.items():
            found[row] = rows[row] and self._names[place] in members
        return np.flatnonzero(found)

    def others(self) -> pa.StringArray:
        """Return the members of each image that are not in ``names``, as a JSON object; null if none is."""
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


_NULL: Final = b"null"
_WIDTH: Final = 64
# Numbers as wide as the states, so that NumPy compares bytes with bytes.
_ABSENT: Final = np.uint8(ValueState.ABSENT)
_VALUE: Final = np.uint8(ValueState.VALUE)
_DOUBTFUL: Final = np.uint8(ValueState.DOUBTFUL)
_NO_ROWS: Final = np.zeros(0, np.intp)


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """The values of a column in some images."""

    array: pa.Array
    """The values, in the form's type; null if an image has no value, or one that does not fit."""
    present: pa.BooleanArray
    """Mask of the images that have a value, null included, and not a placeholder."""
    misfits: Sequence[tuple[int, str]]
    """Row and reason of each misfit, in the order of rows."""
    unsent: NDArray[np.intp]
    """The rows, rising, that have a placeholder instead of the value."""


class Output:
    """The memory to which compiled code writes the values of a column."""

    def __init__(self, program: list[int], count: int, texts: NDArray[np.uint8] | None) -> None:
        """Allocate the memory.

        Args:
            program: The numbers of ``Program`` up to the addresses of the outputs.
            count: Number of rows.
            texts: Memory for all texts, until ``array`` is called; None for a column of numbers.
        """
        size = count * program[Program.WIDTH] + SCRATCH
        self.states = np.empty(count, np.uint8)
        """The ``ValueState`` of each row."""
        self.values = np.empty(size, np.uint8) if texts is None else texts
        """A number for each row, or the bytes of all texts."""
        self.offsets = np.zeros(1 if texts is None else count + 1, np.int32)
        """For texts, the offset of each row, and the end."""
        arrays = ((self.states, BYTE), (self.values, BYTE), (self.offsets, INT))
        self.program = [*program, *(address(*each) for each in arrays), 0]
        """The numbers of ``Program``."""
        self.others = 0
        """Number of rows whose state is not ``VALUE``."""

    def array(self, form: Form) -> pa.Array:
        """Return the values; null in each row whose state is not ``VALUE``."""
        count = len(self.states)
        bitmap = None
        if self.others:
            bitmap = pa.py_buffer(np.packbits(self.states == _VALUE, bitorder="little"))
        if form.notation < Notation.RAW:
            values = self.values
            if pa.types.is_boolean(form.type):
                values = np.packbits(values[:count].view(np.bool_), bitorder="little")
            return pa.Array.from_buffers(form.type, count, [bitmap, pa.py_buffer(values)])
        data = pa.py_buffer(self.values[: int(self.offsets[-1])].tobytes())
        kind = pa.string() if form.notation is Notation.NUMBER else form.type
        array = pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(self.offsets), data])
        if not pa.types.is_floating(form.type):
            return array
        # Let Arrow parse floats. It makes numbers out of range infinite: leave these to Python, for the error.
        floats = array.cast(form.type)
        infinite = np.isinf(floats.to_numpy(zero_copy_only=False))
        if infinite.any():
            infinite &= self.states == _VALUE
            self.states[infinite] = _DOUBTFUL
            self.others += int(np.count_nonzero(infinite))
        return floats


class ValueReader:
    """Reader of the values of columns with one form; for one read at a time."""

    def __init__(self, form: Form, unavailable: Unavailable) -> None:
        """Create a reader.

        Args:
            form: The form of the values.
            unavailable: Detector of values that the source did not send.
        """
        self._form = form
        self._unavailable = unavailable
        self._room = np.empty(0, np.uint8)
        """Memory for texts, used again for each read."""
        forms = sorted(unavailable.forms)
        self._placeholders = packed(forms)
        self._count = len(forms)
        # A bit set of the placeholders' lengths (modulo 64): the loop compares only values of these lengths.
        bits = 0
        for each in forms:
            bits |= 1 << len(each) % _WIDTH
        self._lengths = int(np.array([bits], np.uint64).view(np.int64)[0])

    def output(self, images: pa.BinaryArray, place: int) -> Output | None:
        """Return memory for the values of a column; None if compiled code does not read the form's notation.

        Args:
            images: The images.
            place: Index of the column's member.
        """
        form = self._form
        if form.notation is Notation.LEFT or not len(images):
            return None
        room, width = None, 0
        if form.notation >= Notation.RAW:
            if len(self._room) <= images.nbytes:
                self._room = np.empty(images.nbytes + 1, np.uint8)
            room = self._room
        else:
            width = (form.type.bit_width + 7) // 8
        offsets, texts = self._placeholders
        program = [place, int(form.notation), form.scale, form.least, form.greatest, width]
        program += [self._count, self._lengths, address(offsets, INT), address(texts, BYTE)]
        return Output(program, len(images), room)

    def read(
        self,
        members: Members,
        place: int,
        output: Output | None,
        restate: Callable[[bytes], bytes] | None = None,
    ) -> ColumnValues:
        """Return the values of a column.

        Args:
            members: The members of some images.
            place: Index of the column's member.
            output: The values that compiled code has read; None if it has read none.
            restate: Function that converts a JSON text from the written to the requested type and raises
                ``Misfit``; None: the types are equal.
        """
        if output is None:
            return self._one_by_one(members, place, restate)
        array, states = output.array(self._form), output.states
        if not output.others and not members.parsed:
            return ColumnValues(array, pa.repeat(True, len(array)), (), _NO_ROWS)
        # Compiled code has not seen the members of parsed images.
        states[[*members.parsed]] = _DOUBTFUL
        present = states != _ABSENT
        if (states >= _DOUBTFUL).any():
            return self._completed(array, states, present, members, place)
        return ColumnValues(array, pa.array(present), (), members.has(place, ~present))

    def _one_by_one(
        self, members: Members, place: int, restate: Callable[[bytes], bytes] | None
    ) -> ColumnValues:
        values: list[Any] = []
        present: list[bool] = []
        misfits: list[tuple[int, str]] = []
        for row in range(members.lengths.shape[1]):
            raw = members.text(place, row)
            value, sent = None, self._is_sent(raw)
            if sent and raw != _NULL:
                try:
                    value = self._form.decode(raw if restate is None else restate(raw))
                except Misfit as error:
                    misfits.append((row, str(error)))
            values.append(value)
            present.append(sent)
        is_present = np.array(present, np.bool_)
        return ColumnValues(
            pa.array(values, self._form.type),
            pa.array(is_present),
            misfits,
            members.has(place, ~is_present),
        )

    def _completed(
        self,
        array: pa.Array,
        states: NDArray[np.uint8],
        present: NDArray[np.bool_],
        members: Members,
        place: int,
    ) -> ColumnValues:
        """Read the values that compiled code has left to Python, and insert them into its array."""
        values: list[Any] = []
        misfits: list[tuple[int, str]] = []
        mask = states >= _DOUBTFUL
        left = np.flatnonzero(mask)
        rows = left.tolist()
        raws = [members.text(place, row) for row in rows]
        escaped = states[left] == ValueState.ESCAPED
        # There may be many texts with escapes, so parse all of them in one call.
        whole = b"[%b]" % b",".join(
            raw for raw, is_text in zip(raws, escaped, strict=True) if is_text
        )
        parsed = iter(orjson.loads(whole))
        for row, raw, is_text in zip(rows, raws, escaped.tolist(), strict=True):
            value = None
            if is_text:
                value = next(parsed)
            elif not self._is_sent(raw):
                present[row] = False
            elif raw != _NULL:
                try:
                    value = self._form.decode(raw)
                except Misfit as error:
                    misfits.append((row, str(error)))
            values.append(value)
        array = _replaced(array, mask, pa.array(values, self._form.type))
        unsent = members.has(place, ~present)
        return ColumnValues(array, pa.array(present), misfits, unsent)

    def _is_sent(self, raw: bytes) -> bool:
        return raw is not ABSENT and not self._unavailable.is_one(raw)


def _replaced(array: pa.Array, mask: NDArray[np.bool_], values: pa.Array) -> pa.Array:
    """Return an array with the masked elements replaced by ``values``, in order."""
    kind = array.type
    if not pa.types.is_duration(kind):
        return pc.replace_with_mask(array, pa.array(mask), values)
    # Arrow's function does not support durations, so replace them as integers.
    whole = pa.int64()
    found = pc.replace_with_mask(array.view(whole), pa.array(mask), values.view(whole))
    return found.view(kind)
