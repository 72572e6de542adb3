"""The columns of a DataFrame that is written, brought into one form.

Input columns, by name; others are refused:

================  ==================  =============================================================
transaction_id    string              rows of one transaction stand together, in one partition; null
                                      makes a row a transaction of its own
operation         string or int       upsert, remove, expire, transaction (or 1, 2, 4, 3)
entity_type       string              null on a lead
primary_key       string              null for a truncate (a remove of every key) and on a lead
changed           array<string>       optional; where the column is absent it is told from the images
change            binary or string    optional; as the next two a UTF-8 JSON object
before            binary or string    optional
after             binary or string    optional
_metadata         struct              optional; Spark's of a file source: orders the rows by their files
================  ==================  =============================================================
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace.errors import InvalidRequest
from tailrace_server.wal.record.columns import BODY_COLUMNS
from tailrace_server.wal.source_batches import BatchContent

REQUIRED: Final = ("transaction_id", "operation", "entity_type", "primary_key")
OPTIONAL: Final = ("changed", *BODY_COLUMNS)

_BETWEEN: Final = "\x1f"
_NULL: Final = b"\x00"
"""Neither is found in JSON, so rows that differ are joined to texts that differ, but for odd keys and ids."""
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
        InvalidRequest: A column is missing, unknown or of another type, or an operation is unknown.
    """
    names = batch.schema.names
    for name in REQUIRED:
        if name not in names:
            raise InvalidRequest(
                f"the DataFrame has no column {name!r}; it needs {', '.join(REQUIRED)}"
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
    """Return the content of rows of `input_table`, in one chunk.

    The order of rows does not count: Spark may cut a repeated batch into other partitions.
    """
    texts = []
    for name in sorted(rows.schema.names):
        column = rows.column(name).chunk(0)
        if pa.types.is_list(column.type):
            # A null name is refused later; here it must not make the whole list null.
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
    return BatchContent(rows.num_rows, sum(map(crc32, joined.to_pylist())) % (1 << 64))


def _operations(column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type):
        codes = column.cast(pa.int64())
    else:
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
    if kind != pa.binary():  # Spark takes any bytes for a string
        try:
            found.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidRequest(f"column {name} holds text that is not UTF-8: {error}") from error
    return found
