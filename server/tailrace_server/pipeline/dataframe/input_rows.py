"""Conversion and checks of the rows of a DataFrame that is written; an error names the first wrong row.

Input columns, by name; others are refused:

================  ==================  =============================================================
transaction_id    string              rows of one transaction are adjacent, in one partition; null
                                      makes a row a transaction of its own
operation         string or int       upsert, remove, expire, transaction (or 1, 2, 4, 3)
entity_type       string              null on a lead
primary_key       string              null for a truncate (a remove of every key) and on a lead
changed           array<string>       optional; computed from the images if the column is absent
change            binary or string    optional; a UTF-8 JSON object
before            binary or string    optional; a UTF-8 JSON object
after             binary or string    optional; a UTF-8 JSON object
_metadata         struct              optional; of Spark's file source: orders the rows by their files
================  ==================  =============================================================

A wrong row would stay in the log, and every subscriber would receive it. So everything that readers rely on is
checked before rows are written:

* bodies are UTF-8 JSON objects without repeated members, and texts are UTF-8;
* rows of data have an entity type, and a key and images that suit their operation (`wal.record.row_rules`);
* a transaction has each key at most once;
* values and keys fit the catalog's columns (`wal.schema.value_rules`);
* ``changed`` names each column at most once, and has no null;
* a lead that the DataFrame has itself, a *given* lead, has only ``after``, which counts the rows of its
  transaction.

Checks work on whole columns, except for given leads and for entity types whose columns have declared types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn
from zlib import crc32

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.machine_code.loader import loops
from tailrace_server.wal.record.columns import BODY_COLUMNS, decode_members
from tailrace_server.wal.record.image_shapes import first_repeated_member
from tailrace_server.wal.record.json_check import first_non_object
from tailrace_server.wal.record.row_rules import (
    REPEATED_KEY,
    first_count_fault,
    first_fault,
    first_repeated_key,
    first_repeated_name,
)
from tailrace_server.wal.source_batches import BatchContent

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from tailrace_server.wal.schema.value_rules import ValueRules

REQUIRED: Final = ("transaction_id", "operation", "entity_type", "primary_key")
OPTIONAL: Final = ("changed", *BODY_COLUMNS)

_BETWEEN: Final = "\x1f"
_NULL: Final = b"\x00"
"""JSON has neither byte, so different rows are joined to different texts, except for unusual keys and ids."""
_OPERATIONS: Final = {
    "upsert": Operation.UPSERT,
    "remove": Operation.REMOVE,
    "expire": Operation.EXPIRE,
    "transaction": Operation.TRANSACTION,
}
_INPUT_TYPES: Final = {
    "transaction_id": pa.string(),
    "entity_type": pa.string(),
    "primary_key": pa.string(),
    "changed": pa.list_(pa.string()),
    **dict.fromkeys(BODY_COLUMNS, pa.binary()),
}


def input_table(batch: pa.RecordBatch) -> pa.Table:
    """Return the columns of a batch in one form: operations as codes, missing bodies as null.

    Raises:
        InvalidRequest: A column is missing, unknown or of a wrong type, or an operation is unknown.
    """
    names = batch.schema.names
    for name in REQUIRED:
        if name not in names:
            raise InvalidRequest(
                f"the DataFrame has no column {name!r}; records need {', '.join(REQUIRED)}; to write "
                "the columns of a table, give the options entityType and key"
            )
    arrays = {"operation": _operations(batch.column("operation"))}
    for name in names:
        if name == "operation":
            continue
        if name not in _INPUT_TYPES:
            known = ", ".join((*REQUIRED, *OPTIONAL))
            raise InvalidRequest(f"the DataFrame has a column {name!r}; known are {known}")
        arrays[name] = _cast(name, batch.column(name), _INPUT_TYPES[name])
    for name in BODY_COLUMNS:
        if name not in arrays:
            arrays[name] = pa.nulls(batch.num_rows, pa.binary())
    return pa.table(arrays)


def content_of(rows: pa.Table) -> BatchContent:
    """Return the fingerprint of rows of `input_table`, which are in one chunk.

    The order of the rows does not matter: Spark may divide a repeated batch into other partitions.
    """
    texts = []
    for name in sorted(rows.schema.names):
        column = rows.column(name).chunk(0)
        if pa.types.is_list(column.type):
            # A null name is refused later. Here it must not turn the whole list into null.
            ends = pa.array(column.offsets.to_numpy() - column.offsets[0].as_py(), pa.int32())
            names = pc.fill_null(column.flatten(), "")
            nulls = column.is_null()
            column = pc.binary_join(pa.ListArray.from_arrays(ends, names), _BETWEEN)
            column = pc.if_else(nulls, pa.scalar(None, pa.string()), column)
        elif pa.types.is_integer(column.type):
            column = column.cast(pa.string())
        texts.append(column.cast(pa.binary()))
    joined = pc.binary_join_element_wise(
        *texts, _BETWEEN.encode(), null_handling="replace", null_replacement=_NULL
    )
    # A sum of checksums does not depend on the order of rows.
    return BatchContent(rows.num_rows, sum(map(crc32, joined.to_pylist())) % (1 << 64))


def _operations(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        codes = column.cast(pa.int64())
    else:
        # Translate each distinct name only once.
        encoded = pc.dictionary_encode(_cast("operation", column, pa.string()))
        values = [
            _OPERATIONS.get((name or "").lower(), 0) for name in encoded.dictionary.to_pylist()
        ]
        codes = pa.array(values, pa.int64()).take(encoded.indices)
    if codes.null_count or not pc.all(pc.is_in(codes, pa.array([1, 2, 3, 4], pa.int64()))).as_py():
        raise InvalidRequest(
            f"column operation holds a value other than {', '.join(_OPERATIONS)} (1, 2, 4, 3)"
        )
    return codes


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        found = column.cast(kind)
    except pa.ArrowException as error:
        raise InvalidRequest(f"column {name} is {column.type}; it must be {kind}") from error
    if kind != pa.binary():  # Spark accepts any bytes as a string
        try:
            found.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidRequest(f"column {name} holds text that is not UTF-8: {error}") from error
    return found


_LISTS: Final = pa.list_(pa.int32())
_SHOWN: Final = 100
"""The most characters of a value in an error."""


class NamedColumns(NamedTuple):
    """The names in ``changed``, of all rows together."""

    rows: npt.NDArray[np.int64]
    """The row of each name, in order."""
    codes: npt.NDArray[np.int64]
    """The index of each name in ``names``."""
    names: list[str]
    lists: pa.ListArray
    """For each row, the indexes of its names."""


def check_bodies(rows: pa.Table) -> None:
    """Check that bodies are UTF-8 JSON objects without repeated members, and that counts have 64 bits.

    Args:
        rows: Rows of `input_table`: columns in one chunk, bodies as binary.

    Raises:
        InvalidRequest: A body is wrong.
    """
    for name in BODY_COLUMNS:
        found = first_non_object(rows.column(name).chunk(0))
        if found is not None:
            raise InvalidRequest(
                f"column {name} of {_row(rows, found.row)} {found.reason}; give an object, for instance by "
                "to_json(struct(…)), or null"
            )
    # Search for repeated members only now: the search expects valid objects.
    machine = loops(rows.num_rows)
    for name in BODY_COLUMNS:
        repeated = first_repeated_member(machine, rows.column(name).chunk(0))
        if repeated is not None:
            row, member = repeated
            raise InvalidRequest(
                f"column {name} of {_row(rows, row)} has member {member!r} twice; give each member once"
            )
    changed = pa.nulls(rows.num_rows)
    if "changed" in rows.schema.names:
        changed = rows.column("changed").chunk(0)
    change, before, after = (rows.column(name).chunk(0) for name in BODY_COLUMNS)
    fault = first_count_fault(change, changed, before, after)
    if fault is not None:
        raise InvalidRequest(f"column {fault.column} of {_row(rows, fault.row)} {fault.reason}")


def check_identities(rows: pa.Table) -> None:
    """Check that rows have an entity type, and a key and images that suit the operation; leads have neither.

    Raises:
        InvalidRequest: A row or a lead is wrong.
    """
    column = {name: rows.column(name).chunk(0) for name in rows.schema.names}
    operations = column["operation"].to_numpy()
    lead = operations == Operation.TRANSACTION
    types, keys = column["entity_type"], column["primary_key"]
    if types.null_count:
        untyped = np.flatnonzero(_is_null(types) & ~lead)
        if len(untyped):
            raise InvalidRequest(
                f"column entity_type is null in a row of {_row(rows, untyped[0])}: only a lead "
                "(operation transaction) may have null; give the table or collection"
            )
    if pc.any(pc.equal(types, "")).as_py():
        raise InvalidRequest("column entity_type is empty in a row, so no criteria could name it")
    fault = first_fault(operations, keys, column["before"], column["after"])
    if fault is not None:
        raise InvalidRequest(f"column {fault.column} of {_row(rows, fault.row)} {fault.reason}")
    if lead.any():
        _check_leads_bare(column, rows, np.flatnonzero(lead))


def check_keys(
    rows: pa.Table, type_codes: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
) -> None:
    """Check that no transaction has a key twice.

    Args:
        rows: The rows of whole transactions.
        type_codes: The number of each row's entity type.
        starts: The first row of each transaction, rising.

    Raises:
        InvalidRequest: A transaction has a key twice.
    """
    row = first_repeated_key(type_codes, rows.column("primary_key").chunk(0), starts)
    if row is not None:
        raise InvalidRequest(f"column primary_key of {_row(rows, row)} {REPEATED_KEY}")


def check_values(
    rows: pa.Table,
    entity_types: list[str],
    type_codes: npt.NDArray[np.int64],
    rules: ValueRules,
) -> None:
    """Check that values and keys fit the columns of the catalog.

    Args:
        rows: Rows whose bodies have been checked.
        entity_types: The names of the entity types.
        type_codes: The index of each row's entity type in ``entity_types``; ``len(entity_types)`` for a lead.
        rules: The rules of the catalog.

    Raises:
        InvalidRequest: A row breaks a rule.
    """
    # Only rows of entity types that have rules are parsed, one by one.
    ruled = np.array([*map(rules.concern, entity_types), False])[type_codes]
    keys, before, after, change = (
        rows.column(name).chunk(0) for name in ("primary_key", "before", "after", "change")
    )
    for row in np.flatnonzero(ruled).tolist():
        images = (each[row].as_py() for each in (before, after))
        members = ({} if image is None else decode_members(image) for image in images)
        key, counts = keys[row].as_py(), change[row].as_py()
        fault = rules.fault_of(entity_types[type_codes[row]], key, *members, change=counts)
        if fault is not None:
            column, why = fault
            raise InvalidRequest(f"column {column} of {_row(rows, row)}: {why}")


def check_lead(
    rows: pa.Table, lead: int, codes: npt.NDArray[np.int64], entity_types: list[str]
) -> None:
    """Check that a given lead counts the rows of its transaction.

    Args:
        rows: Whole transactions whose bodies have been checked.
        lead: The row of the lead.
        codes: For each row of the transaction, the index of its entity type.
        entity_types: The entity types.

    Raises:
        InvalidRequest: The lead has wrong counts.
    """
    found = np.bincount(codes, minlength=len(entity_types)).tolist()
    counts = {name: count for name, count in zip(entity_types, found, strict=True) if count}
    document: dict[str, Any] = orjson.loads(rows.column("after")[lead].as_py())
    claimed, total = document.get("counts"), document.get("mutation_count")
    # A count of zero is equal to no count.
    if isinstance(claimed, dict):
        claimed = {name: count for name, count in claimed.items() if count != 0}
    if claimed != counts or type(total) is not int or total != len(codes):
        raise InvalidRequest(
            f"column after of the lead of {_row(rows, lead)} has counts {claimed} and "
            f"mutation_count {total}, but the rows after it are {counts}, {len(codes)} in total; "
            "correct the lead, or leave it out: it is then made automatically"
        )


def columns_named(rows: pa.Table, changed: pa.Array) -> NamedColumns:
    """Return the names in ``changed``, after a check that no row has a null or a repeated name.

    Raises:
        InvalidRequest: A name is null or repeated.
    """
    names = pc.list_flatten(changed)
    if not len(names):
        none = np.empty(0, np.int64)
        lists = changed.cast(_LISTS)  # of nothing, or null
        return NamedColumns(none, none, [], lists)
    parents = pc.list_parent_indices(changed).to_numpy()
    if names.null_count:
        _refuse_names(rows, changed, parents[np.flatnonzero(_is_null(names))[0]], "a null")
    encoded = pc.dictionary_encode(names)
    codes = encoded.indices.to_numpy().astype(np.int64)
    if (repeating := first_repeated_name(parents, codes, len(encoded.dictionary))) is not None:
        _refuse_names(rows, changed, np.int64(repeating), "a column twice")
    offsets = np.zeros(len(changed) + 1, np.int32)
    np.cumsum(np.bincount(parents, minlength=len(changed)), out=offsets[1:])
    lists = pa.ListArray.from_arrays(offsets, encoded.indices, mask=changed.is_null())
    return NamedColumns(parents, codes, encoded.dictionary.to_pylist(), lists)


def _check_leads_bare(
    column: Mapping[str, pa.Array], rows: pa.Table, leads: npt.NDArray[np.int64]
) -> None:
    """Check that leads have a body ``after``, and nothing else."""
    for name in ("entity_type", "primary_key", "changed", "change", "before"):
        if name in column:
            given = leads[~_is_null(column[name])[leads]]
            if len(given):
                value = column[name][int(given[0])].as_py()
                raise InvalidRequest(
                    f"column {name} of the lead of {_row(rows, given[0])} is {value!r:.{_SHOWN}}: "
                    "a lead (operation transaction) may have only after; make the column null"
                )
    without = leads[_is_null(column["after"])[leads]]
    if len(without):
        raise InvalidRequest(
            f"column after of the lead of {_row(rows, without[0])} is null; give a JSON object "
            "with mutation_count and counts, or leave the lead out: it is then made automatically"
        )


def _refuse_names(rows: pa.Table, changed: pa.Array, row: np.int64, what: str) -> NoReturn:
    raise InvalidRequest(
        f"column changed of {_row(rows, row)} has {what}: {changed[int(row)].as_py()!r:.{_SHOWN}}; "
        "name each column that changed once, for instance by array_distinct(array_compact(…))"
    )


def _row(rows: pa.Table, row: int | np.integer[Any]) -> str:
    """Return the description of a row for errors."""
    id, entity_type, key = (
        rows.column(name)[int(row)].as_py()
        for name in ("transaction_id", "entity_type", "primary_key")
    )
    parts = [f"transaction {id!r}" if id is not None else "a row without transaction_id"]
    parts += [entity_type] if entity_type is not None else []
    parts += [f"key {key!r}"] if key is not None else []
    return ", ".join(parts)


def _is_null(column: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return found
