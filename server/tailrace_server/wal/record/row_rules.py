"""The rules for rows that a program may write; the same for every way into the log.

=========  ===========  ========  ========  ==============================================
operation  primary_key  before    after     meaning
=========  ===========  ========  ========  ==============================================
upsert     a key        optional  an image  an insert; an update if it has ``before``
remove     a key        optional  none      a removal
expire     a key        optional  none      a removal by time
remove     none         none      none      a truncate, which removes every row
=========  ===========  ========  ========  ==============================================

Any other combination is a fault. Further rules: a transaction has each key once, ``changed`` names each column
once, an image has each member once, and a count is a 64-bit integer. `schema.value_rules` has the rules that
need a schema.

Whole columns are checked by vectorised operations. Logs that were written before these rules stay readable.
"""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace_server.wal.record.columns import count_fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    import msgspec
    import numpy.typing as npt

_CHANGES: Final = (Operation.UPSERT, Operation.REMOVE, Operation.EXPIRE)
_BITS: Final = 56
"""Maximum number of codes that `first_repeated_name` represents as bits: the sum of as many bits fits into 64
bits."""
_COUNTED: Final = '{"diff":'
"""Beginning of every ``change`` that counts rows."""


REPEATED_KEY: Final = (
    "equals that of an earlier row of its transaction: a transaction may have each key once; "
    "write the first image before and the last image after, or write two transactions"
)


class RowFault(NamedTuple):
    """A rule that a row breaks, with the column."""

    row: int
    column: str
    reason: str
    """The fault as a predicate for the column: ``is null, …``."""


def _fault(
    operation: Operation, *, has_key: bool, has_before: bool, has_after: bool
) -> tuple[str, str] | None:
    """Return the column that contradicts the operation, and the reason; None if no column does."""
    given = f"and its operation is {operation.name}"
    if not has_key and operation is not Operation.REMOVE:
        return (
            "primary_key",
            f"is null, {given}: only a truncate, which is a REMOVE of all keys, has no primary key",
        )
    if operation is Operation.UPSERT and not has_after:
        return "after", f"is null, {given}: give the row's image; write a removed row as a REMOVE"
    if operation is not Operation.UPSERT and has_after:
        return "after", f"is given, {given}: a removed row has no image after; leave it out"
    if not has_key and has_before:
        return "before", "is given, and primary_key is null: a truncate has no images; leave it out"
    return None


def _case(operation: Any, has_key: Any, has_before: Any, has_after: Any) -> Any:
    """Return the number of a case; of arrays, the number of each row's case."""
    return 8 * operation + 4 * has_key + 2 * has_before + has_after


_FAULTS: Final = {
    _case(int(operation), *has): found
    for operation, *has in product(_CHANGES, *((False, True),) * 3)
    if (found := _fault(operation, has_key=has[0], has_before=has[1], has_after=has[2])) is not None
}
"""The table of invalid cases: case → column and reason."""
_FAULTY: Final = np.isin(np.arange(8 * (max(_CHANGES) + 1)), [*_FAULTS])


def fault_of(
    operation: Operation, has_key: bool, has_before: bool, has_after: bool
) -> tuple[str, str] | None:
    """Return the column of a row that contradicts its operation, and the reason; None if no column does."""
    return _FAULTS.get(_case(operation, has_key, has_before, has_after))


def first_fault(
    operations: npt.NDArray[Any], keys: pa.Array, before: pa.Array, after: pa.Array
) -> RowFault | None:
    """Return the fault of the first row that `fault_of` refuses; rows with other operations are accepted."""
    cases = _case(np.asarray(operations, np.uint8), *map(_present, (keys, before, after)))
    faulty = _FAULTY[cases]
    if not faulty.any():
        return None
    row = int(np.argmax(faulty))
    return RowFault(row, *_FAULTS[int(cases[row])])


def first_repeat_in_changed(changed: pa.ListArray) -> RowFault | None:
    """Return the fault of the first row with a repeated name; None if there is none. No name may be null."""
    if changed.null_count == len(changed):
        return None
    encoded = pc.list_flatten(changed).dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    parents = pc.list_parent_indices(changed).to_numpy()
    row = first_repeated_name(parents, codes, len(encoded.dictionary))
    if row is None:
        return None
    return RowFault(row, "changed", "has a column twice; name each column that changed once")


def first_count_fault(
    changes: pa.BinaryArray, changed: pa.Array, before: pa.Array, after: pa.Array
) -> RowFault | None:
    """Return the fault of the first row with a count beyond 64 bits in ``change``; None if there is none.

    A ``change`` is a count only if ``changed`` is null and at most one of the two images is given.
    """
    if changes.null_count == len(changes):
        return None
    counts = pc.and_(pc.starts_with(changes, _COUNTED), pc.is_null(changed))
    counts = pc.and_(counts, pc.or_(pc.is_null(before), pc.is_null(after)))
    for row in np.flatnonzero(pc.fill_null(counts, False).to_numpy(zero_copy_only=False)).tolist():
        if (reason := count_fault(changes[row].as_py())) is not None:
            return RowFault(row, "change", reason)
    return None


def _present(column: pa.Array) -> Any:
    """Return 1 for each value that is not null, else 0; a single number if all values are alike."""
    if column.null_count in (0, len(column)):
        return np.uint8(not column.null_count)
    return column.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)


def first_repeated_key(
    type_codes: npt.NDArray[np.int64],
    keys: pa.StringArray,
    starts: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64] | None = None,
) -> int | None:
    """Return the first row that repeats a key of its transaction and entity type; None if there is none.

    Args:
        type_codes: Number of each row's entity type.
        keys: Key of each row; null keys are ignored.
        starts: First row of each transaction, ascending.
        hashes: Hash of each row's entity type and key (`key_hash`), if known. They usually prove quickly that
            no key repeats.
    """
    rows = len(keys)
    if len(starts) == rows or (hashes is not None and not _may_repeat(hashes)):
        return None  # every row is a transaction by itself, or no key repeats at all
    encoded = keys.dictionary_encode()
    distinct = len(encoded.dictionary)
    if distinct == rows - keys.null_count:
        return None  # no key repeats at all
    codes = encoded.indices.fill_null(distinct).to_numpy().astype(np.int64)
    transactions = np.repeat(np.arange(len(starts)), np.diff(starts, append=rows))
    types = int(type_codes.max()) + 1
    triples = (transactions * types + type_codes) * (distinct + 1) + codes
    at = np.flatnonzero(codes < distinct)
    triples = triples[at]
    if pc.count_distinct(pa.array(triples)).as_py() == len(at):
        return None
    # A stable sort keeps equal triples in the order of rows, so each repeat follows the row that it repeats.
    order = np.argsort(triples, kind="stable")
    ordered = triples[order]
    return int(at[order[1:][ordered[1:] == ordered[:-1]].min()])


def _may_repeat(hashes: npt.NDArray[np.uint64]) -> bool:
    """Return True if two hashes are equal; this takes a third of the time of a sort."""
    # Write each row into the slot of its hash; later rows overwrite earlier ones. Equal hashes share a slot, so
    # only rows that were overwritten can have an equal: compare these with the winner and with each other.
    rows = np.arange(len(hashes), dtype=np.int32)
    slots = (hashes & np.uint64((1 << (len(hashes).bit_length() + 4)) - 1)).astype(np.int64)
    last = np.empty(1 << (len(hashes).bit_length() + 4), np.int32)
    last[slots] = rows
    behind = np.flatnonzero(last[slots] != rows)  # rows overwritten by a later one
    if (hashes[behind] == hashes[last[slots[behind]]]).any():
        return True
    return len(np.unique(hashes[behind])) < len(behind)


def first_repeated_name(
    parents: npt.NDArray[np.int64], codes: npt.NDArray[np.int64], width: int
) -> int | None:
    """Return the first row that has a name twice; None if there is none.

    Args:
        parents: Row of each name, ascending.
        codes: Code of each name, below ``width``.
        width: Number of codes.
    """
    if not len(codes):
        return None
    if width <= _BITS:  # a bit for each: their sum is their union if none repeats
        starts = np.flatnonzero(np.diff(parents, prepend=-1))
        bits = np.left_shift(np.int64(1), codes)
        repeats = np.add.reduceat(bits, starts) != np.bitwise_or.reduceat(bits, starts)
        repeats |= np.diff(starts, append=len(codes)) > width  # so many bits could overflow the sum
        found = parents[starts[repeats]]
    else:
        ordered = np.sort(parents * width + codes)
        found = ordered[1:][ordered[1:] == ordered[:-1]] // width
    return int(found[0]) if len(found) else None


def repeated_member(image: bytes, members: Mapping[str, msgspec.Raw]) -> str | None:
    """Return the first member that an image has twice; None if each occurs once.

    Args:
        image: Text of a JSON object.
        members: The decoded object, which has the last value of a repeated member.
    """
    # Each member of the text has a colon after its name; further colons are in names and values. If the colons
    # of the decoded members account for all colons, no member was dropped. Usually this decides at once.
    further = image.count(b":") - len(members)
    if not further or further == sum(bytes(value).count(b":") for value in members.values()):
        return None
    seen = set()
    pairs = json.loads(image, object_pairs_hook=list, parse_int=str, parse_float=str)
    for name, _ in pairs:
        if name in seen:
            return str(name)
        seen.add(name)
    return None
