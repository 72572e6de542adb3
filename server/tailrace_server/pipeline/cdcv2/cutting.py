"""Messages in Avro binary, cut apart without decoding their rows.

A message is ``long branch`` and then an array of ``(data, long time, long diff)`` or a progress record.
To find where the data of an update ends, its schema is made a *program* that a loop runs over the bytes::

    LONG | INT | BYTES | TEXT | BOOLEAN          one value
    SKIP n                                       n bytes: float, double, fixed
    ENUM n                                       a number below n
    UNION n, at 1, …, at n                       goes on where the branch begins
    JUMP at                                      goes on elsewhere
    END

Only schemas in which equal rows have equal bytes have a program: no arrays, maps or recursion, which Avro
lets a writer lay out as it likes. The others, and bytes that a program does not accept, go through
`cdcv2_values`, a message at a time, which makes their form canonical or says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace_server.pipeline.cdcv2.updates import updates_table
from tailrace_server.pipeline.sources.cdcv2_values import (
    BadDatum,
    Form,
    form_of,
    full_name,
    varint,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    Longs = npt.NDArray[np.int64]

TIME_MAX: Final = 2**63 - 1
"""The largest time; as an upper bound, what lies above all."""

_END, _LONG, _INT, _SKIP, _BYTES, _TEXT, _BOOLEAN, _ENUM, _UNION, _JUMP = range(10)
_SIMPLE: Final = {
    "null": (),
    "boolean": (_BOOLEAN,),
    "int": (_INT,),
    "long": (_LONG,),
    "float": (_SKIP, 4),
    "double": (_SKIP, 8),
    "bytes": (_BYTES,),
    "string": (_TEXT,),
}
_COMPILED_BYTES: Final = 1 << 20
"""From so many bytes on the compiled loop is worth loading."""
_UPDATE_BYTES_MIN: Final = 2


class Progress(NamedTuple):
    """A progress statement; integers, so that both bounds are one number."""

    lower: int
    upper: int | None
    """None is the end of time."""
    counts: tuple[tuple[int, int], ...]
    """(time, distinct updates), without those of zero."""
    message: int
    """Its place."""


class Refused(NamedTuple):
    """A message that cannot be used."""

    message: int
    """Its place."""
    reason: str
    raw: bytes


@dataclass(slots=True)
class Messages:
    """What was read of some messages."""

    updates: list[pa.RecordBatch] = field(default_factory=list)
    """Of `updates.UPDATES`, in the order of reading."""
    progress: list[Progress] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    messages: int = 0
    """Read, refused ones included."""


class RowCutter:
    """Cuts messages of one schema; made once, used by one task after the other."""

    def __init__(self, data_schema: Any) -> None:
        """Take the schema of ``data``, as parsed JSON."""
        self.form: Form = form_of(data_schema)
        ops: list[int] = []
        programmed = _assemble(data_schema, "", {}, ops)
        self._program = np.array([*ops, _END], np.int64) if programmed else None

    def cut(self, data: bytes, messages: int, places: Sequence[int] | int, out: Messages) -> None:
        """Cut messages that stand one behind the other.

        Args:
            data: Their bytes.
            messages: How many there are.
            places: Of each of them, or one for all.
            out: Gets what is found.
        """
        at = done = 0
        if self._program is not None and len(data) >= _COMPILED_BYTES // 16:
            done, at = self._cut_compiled(data, messages, places, out)
        self._cut_plain(data, at, done, messages, places, out)

    def _cut_compiled(
        self, data: bytes, messages: int, places: Sequence[int] | int, out: Messages
    ) -> tuple[int, int]:
        """Cut what the program accepts; return how many messages that is, and where it ends."""
        from tailrace_server.pipeline.cdcv2 import machine

        room = len(data) // _UPDATE_BYTES_MIN + 1
        starts, lengths, times, diffs = (np.empty(room, np.int64) for _ in range(4))
        which = np.empty(room, np.int64)
        told = np.empty(len(data) + 4 * messages + 4, np.int64)
        done = np.zeros(4, np.int64)
        view = np.frombuffer(data, np.uint8)
        machine.cut(
            view, 0, messages, self._program, starts, lengths, times, diffs, which, told, done
        )
        updates, numbers, whole, at = done.tolist()
        times, diffs, which = times[:updates], diffs[:updates], which[:updates]
        if updates and (times.min() < 0 or not diffs.all()):
            bad = int(which[np.flatnonzero((times < 0) | (diffs == 0))[0]])
            # The plain way says what is wrong with it, and goes on behind it.
            return self._cut_up_to(data, bad, places, out)
        for each in _progress_in(told[:numbers].tolist(), places):
            problem = invalid(each)
            if problem is not None:
                out.refused.append(Refused(each.message, problem, b""))
            else:
                out.progress.append(_without_zeros(each))
        if updates:
            values = np.empty(int(lengths[:updates].sum()), np.uint8)
            offsets = np.empty(updates + 1, np.int64)
            machine.gather(view, starts[:updates], lengths[:updates], values, offsets)
            array = pa.Array.from_buffers(
                pa.large_binary(), updates, [None, pa.py_buffer(offsets), pa.py_buffer(values)]
            )
            of = (
                np.full(updates, places, np.int64)
                if isinstance(places, int)
                else np.array(places, np.int64)[which]
            )
            out.updates.append(updates_table(array, times.copy(), diffs.copy(), of))
        out.messages += whole
        return whole, at

    def _cut_up_to(
        self, data: bytes, messages: int, places: Sequence[int] | int, out: Messages
    ) -> tuple[int, int]:
        return self._cut_compiled(data, messages, places, out) if messages else (0, 0)

    def _cut_plain(
        self,
        data: bytes,
        at: int,
        done: int,
        messages: int,
        places: Sequence[int] | int,
        out: Messages,
    ) -> None:
        rows = _Rows()
        for number in range(done, messages):
            place = places if isinstance(places, int) else places[number]
            out.messages += 1
            begin, mark = at, len(rows.times)
            try:
                at, told = self._message(data, at, place, rows)
                if told is not None:
                    problem = invalid(told)
                    if problem is not None:
                        out.refused.append(Refused(place, problem, data[begin:at]))
                    else:
                        out.progress.append(_without_zeros(told))
                elif (bad := rows.invalid_since(mark)) is not None:
                    rows.cut(mark)
                    out.refused.append(Refused(place, bad, data[begin:at]))
            except BadDatum as error:
                rows.cut(mark)
                left = messages - number
                more = "" if left == 1 else f"; the {left - 1} behind it in this block are lost too"
                out.refused.append(Refused(place, f"{error}{more}", data[begin:]))
                break
        if rows.times:
            out.updates.append(rows.table())

    def _message(
        self, data: bytes, at: int, place: int, rows: _Rows
    ) -> tuple[int, Progress | None]:
        branch, at = varint(data, at)
        if branch == 0:
            return self._updates(data, at, place, rows), None
        if branch != 1:
            raise BadDatum(f"branch {branch} of a message, which has two")
        parts: list[list[int]] = []
        for width in (1, 1, 2):
            numbers: list[int] = []
            at = _numbers(data, at, width, numbers)
            parts.append(numbers)
        lower, upper, counts = parts
        pairs = tuple(zip(counts[::2], counts[1::2], strict=True))
        return at, Progress(*bounds_of(lower, upper), pairs, place)

    def _updates(self, data: bytes, at: int, place: int, rows: _Rows) -> int:
        while True:
            items, at = _block(data, at)
            if not items:
                return at
            for _ in range(items):
                row = bytearray()
                at = self.form.copy(data, at, row)
                time, at = varint(data, at)
                diff, at = varint(data, at)
                rows.add(bytes(row), time, diff, place)


class _Rows:
    """Updates on their way into a table."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.times: list[int] = []
        self.diffs: list[int] = []
        self.places: list[int] = []

    def add(self, data: bytes, time: int, diff: int, place: int) -> None:
        self.data.append(data)
        self.times.append(time)
        self.diffs.append(diff)
        self.places.append(place)

    def cut(self, mark: int) -> None:
        for column in (self.data, self.times, self.diffs, self.places):
            del column[mark:]

    def invalid_since(self, mark: int) -> str | None:
        for time, diff in zip(self.times[mark:], self.diffs[mark:], strict=True):
            if time < 0:
                return f"time {time} is below zero"
            if diff == 0:
                return f"time {time}: a diff of zero is not a change; leave it out"
        return None

    def table(self) -> pa.RecordBatch:
        numbers = (np.array(each, np.int64) for each in (self.times, self.diffs, self.places))
        return updates_table(pa.array(self.data, pa.large_binary()), *numbers)


def rows_table(rows: Sequence[tuple[bytes, int, int, int]]) -> pa.RecordBatch:
    """Return (data, time, diff, place) as a table of `updates.UPDATES`."""
    made = _Rows()
    for row in rows:
        made.add(*row)
    return made.table()


def invalid(progress: Progress) -> str | None:
    """Return what is wrong with a progress statement by itself; None where nothing is."""
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
            return f"counts {seen[time]} and {count} of one time {time}"
    return None


def _without_zeros(progress: Progress) -> Progress:
    counts = tuple({pair: None for pair in progress.counts if pair[1]})
    return progress._replace(counts=counts)


def bounds_of(lower: Sequence[int], upper: Sequence[int]) -> tuple[int, int | None]:
    if not lower:
        # No time is at or after an element of nothing: an interval without any.
        return TIME_MAX, (min(upper) if upper else None)
    return min(lower), (min(upper) if upper else None)


def _progress_in(told: list[int], places: Sequence[int] | int) -> Iterator[Progress]:
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
        yield Progress(*bounds_of(lower, upper), pairs, place)


def _numbers(data: bytes, at: int, width: int, out: list[int]) -> int:
    while True:
        items, at = _block(data, at)
        if not items:
            return at
        for _ in range(items * width):
            value, at = varint(data, at)
            out.append(value)


def _block(data: bytes, at: int) -> tuple[int, int]:
    items, at = varint(data, at)
    if items < 0:
        items = -items
        _, at = varint(data, at)
    return items, at


def _assemble(
    schema: Any, namespace: str, named: dict[str, tuple[int, ...] | None], ops: list[int]
) -> bool:
    """Append the program of a schema; return whether it has one."""
    if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
        schema = schema["type"]
    if isinstance(schema, list):
        return _assemble_union(schema, namespace, named, ops)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind in _SIMPLE:
        ops.extend(_SIMPLE[kind])
        return True
    if isinstance(schema, str):
        known = named.get(full_name(schema, namespace))
        if known is None:
            return False
        ops.extend(known)
        return True
    if kind in ("array", "map"):
        return False
    name = full_name(schema["name"], schema.get("namespace", namespace))
    if kind == "record":
        # Named types are put in where they are used; a record with a union in it is placed once only.
        inner = name.rpartition(".")[0]
        return all(_assemble(each["type"], inner, named, ops) for each in schema["fields"])
    if kind not in ("enum", "fixed"):
        return False
    named[name] = (_ENUM, len(schema["symbols"])) if kind == "enum" else (_SKIP, schema["size"])
    ops.extend(named[name] or ())
    return True


def _assemble_union(
    branches: Sequence[Any],
    namespace: str,
    named: dict[str, tuple[int, ...] | None],
    ops: list[int],
) -> bool:
    at = len(ops)
    ops.extend((_UNION, len(branches), *([0] * len(branches))))
    jumps = []
    for number, branch in enumerate(branches):
        ops[at + 2 + number] = len(ops)
        if not _assemble(branch, namespace, named, ops):
            return False
        jumps.append(len(ops) + 1)
        ops.extend((_JUMP, 0))
    for place in jumps:
        ops[place] = len(ops)
    return True
