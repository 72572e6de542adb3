"""Splitting of messages in Avro binary into updates, without decoding the rows.

A message is ``long branch`` and then an array of ``(data, long time, long diff)`` or a progress record.
To find the end of an update's data, the schema is compiled to a *program*, which a loop runs over the bytes::

    LONG | INT | BYTES | TEXT | BOOLEAN          one value
    FLOAT | DOUBLE                               a number that is not minus zero nor NaN
    SKIP n                                       n bytes
    ENUM n                                       a number below n
    UNION n, at 1, …, at n                       reads a branch, continues at its place in the program
    JUMP at                                      continues at that place
    END

The *canonical* bytes of a row are those that `AvroForm` writes: shortest numbers, only one zero and one NaN.
Two rows are equal if and only if their canonical bytes are equal. A program accepts only canonical bytes. Avro
allows several encodings of arrays and maps, so schemas with those, or with recursion, have no program. Messages
with such a schema, and bytes that a program does not accept, go through `AvroForm` one message at a time. It
makes the bytes canonical, or says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.cdcv2 import InvalidStatement, Reader, product
from tailrace.cdcv2 import Progress as Statement
from tailrace_server.cdcv2 import AvroForm, DataMisfit, MessageUnreadable, Tagged
from tailrace_server.machine_code.loader import BYTE, LONG, address, loops
from tailrace_server.machine_code.loops import codes
from tailrace_server.pipeline.cdcv2.updates import updates_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from tailrace.cdcv2 import Statement as AnyStatement
    from tailrace_server.machine_code.loader import Loops

    Longs = npt.NDArray[np.int64]

TIME_MAX: Final = 2**63 - 1
"""The largest time."""

_SIMPLE: Final = {
    "null": (),
    "boolean": (codes.BOOLEAN,),
    "int": (codes.INT,),
    "long": (codes.LONG,),
    "float": (codes.FLOAT,),
    "double": (codes.DOUBLE,),
    "bytes": (codes.BYTES,),
    "string": (codes.TEXT,),
}
_UPDATE_BYTES_MIN: Final = 2


class IntegerProgress(NamedTuple):
    """A progress statement about integer times; each bound is one number."""

    lower: int
    upper: int | None
    """The upper bound, exclusive; None is the end of time."""
    counts: tuple[tuple[int, int], ...]
    """Pairs (time, number of distinct updates), without zeros."""
    message: int
    """The place of the message, as `updates.place_of` encodes it."""


class RefusedMessage(NamedTuple):
    """A message that cannot be used."""

    message: int
    """The place of the message, as `updates.place_of` encodes it."""
    reason: str
    raw: bytes


@dataclass(slots=True)
class CutMessages:
    """The content of some messages, and those that were refused."""

    updates: list[pa.RecordBatch] = field(default_factory=list)
    """Tables of `updates.UPDATES`, in the order of reading."""
    progress: list[IntegerProgress] = field(default_factory=list)
    refused: list[RefusedMessage] = field(default_factory=list)
    products: list[tuple[int, AnyStatement[Any]]] = field(default_factory=list)
    """For streams of product times: pairs (place, statement) with data as canonical bytes. They replace
    ``updates`` and ``progress``.
    """
    messages: int = 0
    """Number of messages, including refused ones."""


class RowCutter:
    """Cuts messages of one schema. Make it once for each schema, as it compiles a program."""

    def __init__(self, form: AvroForm) -> None:
        """Compile the program for a schema, if there is one."""
        self._form = form
        ops: list[int] = []
        programmed = form.arity is None and _assemble(
            form.schema[0]["items"]["fields"][0]["type"], {}, ops
        )
        self._program = np.array([*ops, codes.END], np.int64) if programmed else None

    def cut(
        self, data: bytes, messages: int, places: Sequence[int] | int, out: CutMessages
    ) -> None:
        """Cut consecutive messages.

        Args:
            data: The bytes of the messages.
            messages: The number of messages.
            places: The place of each message, or one place for all.
            out: Receives the content.
        """
        at = done = 0
        machine = None if self._program is None or not data else loops(messages)
        if machine is not None:
            done, at = self._cut_compiled(machine, data, messages, places, out)
        # The program stops at the first message that it does not accept: from there on read the rest one by
        # one.
        self._cut_plain(data, at, done, messages, places, out)

    def _cut_compiled(
        self,
        machine: Loops,
        data: bytes,
        messages: int,
        places: Sequence[int] | int,
        out: CutMessages,
    ) -> tuple[int, int]:
        """Cut the messages that the program accepts.

        Return their number, and the index of the first byte after them.
        """
        assert self._program is not None
        # 1. Cut into arrays that are large enough for any content of these bytes: the loop cannot allocate.
        room = len(data) // _UPDATE_BYTES_MIN + 1
        starts, lengths, times, diffs = (np.empty(room, np.int64) for _ in range(4))
        message_of = np.empty(room, np.int64)
        # A damaged block may announce any number of messages, but each needs at least two bytes.
        progress = np.empty(len(data) + 4 * min(messages, room) + 4, np.int64)
        done = np.zeros(4, np.int64)
        view = np.frombuffer(data, np.uint8)
        machine.cut_messages(
            *(address(view, BYTE), len(data), messages, address(self._program, LONG), room),
            *(address(each, LONG) for each in (starts, lengths, times, diffs, message_of)),
            *(address(progress, LONG), address(done, LONG)),
        )
        updates, numbers, whole, at = done.tolist()
        times, diffs, message_of = times[:updates], diffs[:updates], message_of[:updates]
        # 2. The loop does not check values. If a message has a bad value, cut only the messages before it. The
        #    caller then reads that message with `_cut_plain`, which reports the fault and continues after it.
        if updates and (times.min() < 0 or not diffs.all()):
            bad = int(message_of[np.flatnonzero((times < 0) | (diffs == 0))[0]])
            return self._cut_compiled(machine, data, bad, places, out) if bad else (0, 0)
        # 3. Progress statements. Each is checked alone, without the others.
        for each in _progress_in(progress[:numbers].tolist(), places):
            problem = invalid(each)
            if problem is not None:
                out.refused.append(RefusedMessage(each.message, problem, b""))
            else:
                out.progress.append(_without_zeros(each))
        # 4. Updates as one table: their data is copied out, so that the block's bytes can be freed.
        if updates:
            values = np.empty(int(lengths[:updates].sum()), np.uint8)
            offsets = np.empty(updates + 1, np.int64)
            machine.gather(
                *(address(view, BYTE), updates, address(starts, LONG), address(lengths, LONG)),
                *(address(values, BYTE), address(offsets, LONG)),
            )
            array = pa.Array.from_buffers(
                pa.large_binary(), updates, [None, pa.py_buffer(offsets), pa.py_buffer(values)]
            )
            of = (
                np.full(updates, places, np.int64)
                if isinstance(places, int)
                else np.array(places, np.int64)[message_of]
            )
            out.updates.append(updates_table(array, times.copy(), diffs.copy(), of))
        out.messages += whole
        return whole, at

    def _cut_plain(
        self,
        data: bytes,
        at: int,
        done: int,
        messages: int,
        places: Sequence[int] | int,
        out: CutMessages,
    ) -> None:
        stream = BytesIO(data)
        stream.seek(at)
        rows = UpdateCollector(self._form)
        for number in range(done, messages):
            place = places if isinstance(places, int) else places[number]
            begin = stream.tell()
            out.messages += 1
            try:
                statement = self._form.read(stream)
                self._form.check_numbers(data[begin : stream.tell()], 1)
            except MessageUnreadable as error:
                left = messages - number - 1
                more = f"; the {left} after it in this block are lost too" if left else ""
                out.refused.append(RefusedMessage(place, f"{error.reason}{more}", data[begin:]))
                # The end of a message that cannot be parsed is unknown, so the rest of its block is lost.
                break
            problem = add_statement(statement, place, rows, out)
            if problem is not None:
                out.refused.append(RefusedMessage(place, problem, data[begin : stream.tell()]))
        rows.finish(out)


class UpdateCollector:
    """Collects updates one by one, to build a table of them."""

    def __init__(self, form: AvroForm) -> None:
        """Start without updates."""
        self.form = form
        self._data: list[bytes] = []
        self._times: list[int] = []
        self._diffs: list[int] = []
        self._places: list[int] = []

    def add(self, updates: Iterable[tuple[Any, int, int]], place: int) -> str | None:
        """Add the updates of a message; return the reason if the message cannot be used, else None."""
        # Add all updates or none: a message is used as a whole.
        added = []
        for row, time, diff in updates:
            if not 0 <= time <= TIME_MAX:
                return f"time {time} is below zero"
            if diff == 0:
                return f"time {time}: a diff of zero is not a change; leave it out"
            try:
                added.append((_canonical(self.form, row), time, diff, place))
            except DataMisfit as error:
                return str(error)
        for column, values in zip(
            (self._data, self._times, self._diffs, self._places),
            zip(*added, strict=True),
            strict=False,
        ):
            column.extend(values)  # type: ignore[attr-defined]
        return None

    def finish(self, out: CutMessages) -> None:
        """Append the collected updates to ``out`` as a table."""
        if self._times:
            numbers = (np.array(n, np.int64) for n in (self._times, self._diffs, self._places))
            out.updates.append(updates_table(pa.array(self._data, pa.large_binary()), *numbers))


def add_statement(
    statement: Any, place: int, rows: UpdateCollector, out: CutMessages
) -> str | None:
    """Add one message to ``rows`` or ``out``; return the reason if the message cannot be used, else None."""
    if rows.form.arity is not None:
        return _add_product_statement(statement, place, rows.form, out)
    if not isinstance(statement, Statement):
        return rows.add(statement, place)
    bounds = bounds_of(statement.lower, statement.upper)
    progress = IntegerProgress(*bounds, tuple(statement.counts), place)
    problem = invalid(progress)
    if problem is None:
        out.progress.append(_without_zeros(progress))
    return problem


def _add_product_statement(
    statement: AnyStatement[Any], place: int, form: AvroForm, out: CutMessages
) -> str | None:
    """Add one message with product times, with its data in canonical bytes."""
    assert form.arity is not None
    try:
        if not isinstance(statement, Statement):
            statement = [
                update._replace(data=_canonical(form, update.data)) for update in statement
            ]
        # A new reader knows no other message, so it finds only faults within this one.
        Reader(product(form.arity), on_conflict="first").receive(statement)
    except InvalidStatement as error:
        return error.reason
    except DataMisfit as error:
        return str(error)
    out.products.append((place, statement))
    return None


def invalid(progress: IntegerProgress) -> str | None:
    """Return the fault of a progress statement, regardless of other messages; None if it has no fault."""
    lower, upper = progress.lower, progress.upper
    if lower < 0:
        return f"lower {lower} is below zero"
    if upper is not None and upper < lower:
        return f"upper {upper} is not at or after lower {lower}"
    seen: dict[int, int] = {}
    for time, count in progress.counts:
        if time < lower or (upper is not None and time >= upper):
            bound = "the end of time" if upper is None else upper
            return f"count {count} of time {time} lies outside {lower} to {bound}"
        if count < 0:
            return f"count {count} of time {time} is below zero"
        if seen.setdefault(time, count) != count:
            return f"time {time} has two counts, {seen[time]} and {count}"
    return None


def _without_zeros(progress: IntegerProgress) -> IntegerProgress:
    counts = tuple({pair: None for pair in progress.counts if pair[1]})
    return progress._replace(counts=counts)


def bounds_of(lower: Sequence[int], upper: Sequence[int]) -> tuple[int, int | None]:
    """Return the bounds of an interval from its two antichains."""
    if not lower:
        # No time is at or after an element of an empty antichain: the interval is empty.
        return TIME_MAX, (min(upper) if upper else None)
    return min(lower), (min(upper) if upper else None)


def _progress_in(told: list[int], places: Sequence[int] | int) -> Iterator[IntegerProgress]:
    at = 0
    while at < len(told):
        message = told[at]
        at += 1
        parts = []
        for width in (1, 1, 2):
            size = told[at] * width
            parts.append(told[at + 1 : at + 1 + size])
            at += 1 + size
        lower, upper, counts = parts
        place = places if isinstance(places, int) else places[message]
        pairs = tuple(zip(counts[::2], counts[1::2], strict=True))
        yield IntegerProgress(*bounds_of(lower, upper), pairs, place)


def _canonical(form: AvroForm, row: Any) -> bytes:
    """Return the canonical bytes of a row.

    Raises:
        DataMisfit: The row does not fit the schema.
    """
    data = bytearray()
    form.data.encode(_one_zero(row), data)
    return bytes(data)


def _one_zero(value: Any) -> Any:
    """Return a row with 0.0 for each -0.0: the two are equal, so their bytes must be equal."""
    if type(value) is float:
        return value + 0.0
    if isinstance(value, Tagged):
        return Tagged(value.branch, _one_zero(value.value))
    return tuple(map(_one_zero, value)) if isinstance(value, tuple) else value


def _assemble(schema: Any, named: dict[str, tuple[int, ...]], ops: list[int]) -> bool:
    """Append the program of a canonical schema to ``ops``; return False if the schema has no program."""
    if isinstance(schema, list):
        return _assemble_union(schema, named, ops)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind in _SIMPLE or kind in named:
        ops.extend(_SIMPLE[kind] if kind in _SIMPLE else named[kind])
        return True
    match kind:
        case "record":
            # Records are not added to `named`, so a second use of a record's name, or recursion, ends below.
            return all(_assemble(each["type"], named, ops) for each in schema["fields"])
        case "enum":
            named[schema["name"]] = (codes.ENUM, len(schema["symbols"]))
        case "fixed":
            named[schema["name"]] = (codes.SKIP, schema["size"])
        case _:
            return False
    ops.extend(named[schema["name"]])
    return True


def _assemble_union(
    branches: Sequence[Any], named: dict[str, tuple[int, ...]], ops: list[int]
) -> bool:
    at = len(ops)
    ops.extend((codes.UNION, len(branches), *([0] * len(branches))))
    jumps = []
    for number, branch in enumerate(branches):
        ops[at + 2 + number] = len(ops)
        if not _assemble(branch, named, ops):
            return False
        jumps.append(len(ops) + 1)
        ops.extend((codes.JUMP, 0))
    # Each branch ends with a jump to the end of the union, which is known only now.
    for place in jumps:
        ops[place] = len(ops)
    return True
