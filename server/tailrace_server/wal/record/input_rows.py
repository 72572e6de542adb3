"""Rows that a program appends, as columns in one form; everything but the images has been checked.

Columns of a record batch, by name; others are refused:

================  ===================  ============================================================
entity_type       string               the table or collection
primary_key       string               canonical key text; null for a truncate (a remove of every key)
operation         string or integer    optional: upsert, remove, expire (or 1, 2, 4); upsert without it
before            binary or string     optional; as the next two a UTF-8 JSON object
after             binary or string     optional
change            binary or string     optional
changed           list<string>         optional
transaction_id    string               optional: consecutive rows with the same id are one transaction;
                                       a row with null is a transaction by itself; without this column
                                       all rows are one transaction
source_timestamp  int64 or timestamp   optional: time of the commit at the source, µs; read from the
                                       first row of each transaction
================  ===================  ============================================================

Strings and binaries may have any of Arrow's layouts: large, dictionary encoded, views.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.wal.record.columns import BODY_COLUMNS, NAME_TYPE
from tailrace_server.wal.record.interleaving import starts_of
from tailrace_server.wal.record.mutation import Mutation, check, count_fault_of
from tailrace_server.wal.record.row_rules import (
    REPEATED_KEY,
    fault_of,
    first_count_fault,
    first_fault,
    first_repeat_in_changed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

_TYPES: Final = {
    "entity_type": NAME_TYPE,
    "primary_key": pa.utf8(),
    "operation": pa.utf8(),
    **dict.fromkeys(BODY_COLUMNS, pa.binary()),
    "changed": pa.list_(pa.utf8()),
    "transaction_id": pa.utf8(),
    "source_timestamp": pa.int64(),
}
_REQUIRED: Final = ("entity_type", "primary_key")
_OPERATIONS: Final = {
    "upsert": Operation.UPSERT,
    "remove": Operation.REMOVE,
    "expire": Operation.EXPIRE,
}
_NO_ID: Final[list[str | None]] = [None]
_SHOWN: Final = 100
"""Maximum length of a value in an error message, in characters."""


@dataclass(frozen=True, slots=True)
class InputRows:
    """Rows of whole transactions, all in area DATA, as columns of length n."""

    entity_types: list[str]
    type_codes: npt.NDArray[np.int64]
    """Each row's place in ``entity_types``, shape (n,)."""
    keys: pa.StringArray
    operations: npt.NDArray[np.uint8]
    changed: pa.ListArray
    """Names of each row's changed columns, as strings."""
    change: pa.BinaryArray
    before: pa.BinaryArray
    after: pa.BinaryArray
    starts: npt.NDArray[np.int64]
    """First row of each transaction, ascending."""
    ids: list[str | None]
    """Id of each transaction; None if it has none."""
    timestamps: list[int | None]
    """Time at which the source committed each transaction, in microseconds; None if unknown."""

    def __len__(self) -> int:
        return len(self.keys)

    def type_of(self, row: int) -> str:
        """Return the entity type of a row."""
        return self.entity_types[int(self.type_codes[row])]

    def split(self) -> list[InputRows]:
        """Return each transaction by itself; memory is shared."""
        bounds = [*self.starts.tolist(), len(self)]
        return [
            InputRows(
                self.entity_types,
                self.type_codes[start:stop],
                self.keys[start:stop],
                self.operations[start:stop],
                self.changed[start:stop],
                self.change[start:stop],
                self.before[start:stop],
                self.after[start:stop],
                np.zeros(1, np.int64),
                [self.ids[place]],
                [self.timestamps[place]],
            )
            for place, (start, stop) in enumerate(pairwise(bounds))
        ]

    def mutations(self) -> list[Mutation]:
        """Return each row as a mutation."""
        columns = [self.change, self.before, self.after]
        change, before, after = (column.to_pylist() for column in columns)
        return [
            Mutation(
                entity_type=self.type_of(row),
                primary_key=self.keys[row].as_py(),
                operation=Operation(int(self.operations[row])),
                before=before[row],
                after=after[row],
                change=change[row],
                changed=None if changed is None else tuple(changed),
            )
            for row, changed in enumerate(self.changed.to_pylist())
        ]

    def name_of(self, row: int) -> str:
        """Return a row's name for error messages."""
        return row_name(row, self.type_of(row), self.keys[row].as_py())


def row_name(row: int, entity_type: str, key: str | None) -> str:
    """Return a row's name for error messages: its number, from 0, its entity type and its key."""
    return f"row {row} ({entity_type}{'' if key is None else f' {key!r:.{_SHOWN}}'})"


def check_mutations(mutations: Sequence[Mutation], first_row: int) -> None:
    """Raise InvalidRequest if `check` or `row_rules` refuse a mutation; rows are counted from ``first_row``."""
    seen: set[tuple[str, str]] = set()
    for place, mutation in enumerate(mutations, first_row):
        check(mutation)
        key = mutation.primary_key
        has = (each is not None for each in (key, mutation.before, mutation.after))
        fault = fault_of(mutation.operation, *has)
        if fault is None and key is not None and mutation.area is Area.DATA:
            if (mutation.entity_type, key) in seen:
                fault = "primary_key", REPEATED_KEY
            seen.add((mutation.entity_type, key))
        if fault is None and mutation.change is not None:
            fault = count_fault_of(mutation)
        if fault is not None:
            column, why = fault
            raise InvalidRequest(
                f"column {column} of {row_name(place, mutation.entity_type, key)} {why}"
            )


def rows_of_batch(batch: pa.RecordBatch) -> InputRows:
    """Return the rows of a record batch that has at least one row.

    Raises:
        InvalidRequest: A column is missing, unknown or of a wrong type, or a row breaks a rule. The error names
            column and row, from 0.
    """
    column = _columns(batch)
    rows = batch.num_rows
    types = column["entity_type"]
    if types.null_count:
        _refuse("entity_type", _first(types.is_null()), "is null; name the table or collection")
    names, codes = types.dictionary.to_pylist(), types.indices.to_numpy().astype(np.int64)
    if "" in names and (codes == names.index("")).any():
        row = int(np.argmax(codes == names.index("")))
        _refuse("entity_type", row, "is empty, so no criteria could name it")
    operations = np.full(rows, Operation.UPSERT, np.uint8)
    if "operation" in batch.schema.names:
        operations = _operations(column["operation"])
    changed = column["changed"]
    # A slice shares the values of other rows: only nulls within its own lists count.
    if changed.values.null_count and (flat := pc.list_flatten(changed)).null_count:
        row = pc.list_parent_indices(changed)[_first(flat.is_null())].as_py()
        _refuse("changed", row, "has a null in its list of column names")
    starts, ids = np.zeros(1, np.int64), _NO_ID
    if "transaction_id" in batch.schema.names:
        starts = starts_of(column["transaction_id"])
        ids = column["transaction_id"].take(pa.array(starts)).to_pylist()
    keys, before, after = (column[name] for name in ("primary_key", "before", "after"))
    # Check rows last: the name of a row in an error needs its entity type and key.
    fault = (
        first_fault(operations, keys, before, after)
        or first_repeat_in_changed(changed)
        or first_count_fault(column["change"], changed, before, after)
    )
    if fault is not None:
        place = row_name(fault.row, names[int(codes[fault.row])], keys[fault.row].as_py())
        raise InvalidRequest(f"column {fault.column} of {place} {fault.reason}")
    times = column["source_timestamp"].take(pa.array(starts)).to_pylist()
    bodies = {name: column[name] for name in BODY_COLUMNS}
    return InputRows(
        names, codes, keys, operations, changed, starts=starts, ids=ids, timestamps=times, **bodies
    )


_OPTIONAL_BYTES: Final[set[type]] = {bytes, type(None)}
_FIELDS: Final[Mapping[str, set[type]]] = {
    "entity_type": {str},
    "primary_key": {str, type(None)},
    "operation": {Operation},
    "changed": {tuple, type(None)},
    "change": _OPTIONAL_BYTES,
    "before": _OPTIONAL_BYTES,
    "after": _OPTIONAL_BYTES,
    "area": {Area},
}
"""Field of a mutation → types that its values may have."""


def rows_of_mutations(
    mutations: Sequence[Mutation], transaction_id: str | None, source_timestamp: int | None
) -> InputRows | None:
    """Return mutations as one transaction; None if a fast check cannot prove that all are valid.

    After None the writer checks the mutations one by one, which also finds the error to raise.
    """
    if {*map(type, mutations)} != {Mutation}:
        return None
    # Check types by column: a wrong type is left to the checks by row, which know what to report.
    columns = [[*map(attrgetter(name), mutations)] for name in _FIELDS]
    kinds = zip(columns, _FIELDS.values(), strict=True)
    if any(not {*map(type, values)} <= allowed for values, allowed in kinds):
        return None
    types, keys, operations, changed, change, before, after, areas = columns
    if {*areas} != {Area.DATA} or "" in types or not {*operations} <= {*_OPERATIONS.values()}:
        return None
    whats = np.array(operations, np.uint8)
    try:
        encoded = pa.array(types, pa.utf8()).dictionary_encode()
        texts = pa.array(keys, pa.utf8())
        names = pa.array(changed, pa.list_(pa.utf8()))
        bodies = [pa.array(images, pa.binary()) for images in (change, before, after)]
    except (pa.ArrowException, UnicodeError):
        return None
    if names.values.null_count or not _all_texts(changed):
        return None
    if any(isinstance(each, pa.ChunkedArray) for each in bodies):
        return None  # more bytes than a column of a record batch may have
    codes = encoded.indices.to_numpy().astype(np.int64)
    if (
        first_fault(whats, texts, bodies[1], bodies[2])
        or first_repeat_in_changed(names)
        or first_count_fault(bodies[0], names, bodies[1], bodies[2])
    ):
        return None
    return InputRows(
        encoded.dictionary.to_pylist(),
        codes,
        texts,
        whats,
        names,
        bodies[0],
        bodies[1],
        bodies[2],
        np.zeros(1, np.int64),
        [transaction_id],
        [source_timestamp],
    )


def _all_texts(changed: Sequence[tuple[str, ...] | None]) -> bool:
    """Return True if all names are strings; Arrow would accept bytes too."""
    return all(type(name) is str for names in changed if names for name in names)


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return all known columns in one form; missing optional columns are null."""
    names = batch.schema.names
    known = ", ".join(_TYPES)
    for name in names:
        if name not in _TYPES:
            raise InvalidRequest(f"the batch has a column {name!r}; known are {known}")
        if names.count(name) > 1:
            raise InvalidRequest(f"the batch has column {name} {names.count(name)} times")
    for name in _REQUIRED:
        if name not in names:
            raise InvalidRequest(f"the batch has no column {name}; known are {known}")
    return {
        name: _in_form(name, batch.column(name), kind)
        if name in names
        else pa.nulls(batch.num_rows, kind)
        for name, kind in _TYPES.items()
    }


def _in_form(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as another type, with its buffers validated, as compiled code reads them by address."""
    found = column
    try:
        if pa.types.is_dictionary(found.type) and kind != NAME_TYPE:
            found = found.dictionary_decode()
        if name == "operation" and pa.types.is_integer(found.type):
            kind = pa.int64()
        elif not _fits(found.type, kind):
            raise pa.ArrowInvalid("another kind of value")
        if pa.types.is_timestamp(found.type):
            found = found.cast(pa.timestamp("us"))
        if kind == NAME_TYPE and found.type != kind:
            found = found.cast(pa.utf8()).dictionary_encode()
        elif found.type != kind:
            found = found.cast(kind)
    except pa.ArrowException as error:
        wanted = {NAME_TYPE: "string", pa.int64(): "int64 or timestamp"}.get(kind, str(kind))
        raise InvalidRequest(
            f"column {name} is {column.type}; it must be {wanted}: {error}"
        ) from error
    try:
        # A full validation also checks offsets and UTF-8. Wrong offsets would let compiled code read other
        # memory.
        found.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidRequest(
            f"column {name} is damaged, or holds text that is not UTF-8: {error}"
        ) from error
    return found


def _fits(given: pa.DataType, kind: pa.DataType) -> bool:
    """Return True if a type may be cast to a column's type; a number is not a text, for example."""
    if pa.types.is_null(given):
        return True
    if kind == pa.int64():
        return bool(pa.types.is_integer(given) or pa.types.is_timestamp(given))
    if pa.types.is_list(kind):
        lists = (pa.types.is_list, pa.types.is_large_list)
        return any(is_kind(given) for is_kind in lists) and _fits(given.value_type, pa.utf8())
    if pa.types.is_dictionary(given):
        given = given.value_type
    texts = [pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view]
    if kind == pa.binary():
        texts += [pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view]
    return any(is_kind(given) for is_kind in texts)


def _operations(column: pa.Array) -> npt.NDArray[np.uint8]:
    if pa.types.is_integer(column.type):
        numbers = (column.fill_null(0) if column.null_count else column).to_numpy()
    else:
        encoded = column.dictionary_encode()
        values = [_OPERATIONS.get(name.lower(), 0) for name in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(len(values)).to_numpy()
        # The last item is for nulls. 0 is no operation, so the check below refuses it.
        numbers = np.array([*values, 0], np.int64)[codes]
    wrong = (numbers != Operation.UPSERT) & (numbers != Operation.REMOVE)
    wrong &= numbers != Operation.EXPIRE
    if wrong.any():
        row = int(np.argmax(wrong))
        what = f"{column[row].as_py()!r:.{_SHOWN}}"
        _refuse("operation", row, f"is {what}; it must be upsert, remove or expire (1, 2, 4)")
    return np.asarray(numbers, np.uint8)


def flags_of(marks: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Return a boolean array without nulls as a numpy array, shape (n,)."""
    found: npt.NDArray[np.bool_] = marks.to_numpy(zero_copy_only=False)
    return found


def _first(marks: pa.BooleanArray) -> int:
    return int(np.argmax(flags_of(marks)))


def _refuse(column: str, row: int, why: str) -> NoReturn:
    raise InvalidRequest(f"column {column} of row {row} {why}")
