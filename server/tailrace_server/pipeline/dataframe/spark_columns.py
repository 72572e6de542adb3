"""The columns of a read in Spark's types.

=============================  =====================================================================
Arrow                          Spark
=============================  =====================================================================
time32, time64 of µs           ``time(6)``
timestamp of s, ms, µs         ``timestamp_ntz``; with a zone, ``timestamp``
timestamp and time64 of ns     ``bigint``: the number of nanoseconds, since Spark has microseconds only
all others                     as in Spark's own conversion
=============================  =====================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CURSOR: Final = "cursor"
"""Key of a field's metadata: the cursor that continues after the read."""


def spark_schema(schema: pa.Schema, cursor: str | None = None) -> StructType:
    """Return the Spark schema of a read.

    Args:
        schema: The Arrow schema of the read.
        cursor: The cursor that continues after the read, which the column of versions gets as metadata.
    """
    fields = []
    for each in schema:
        marked = cursor is not None and each.name in ("_commit_version", "version")
        metadata = {CURSOR: cursor} if marked else None
        kind = from_arrow_type(_carried(each.type))
        fields.append(StructField(each.name, kind, nullable=True, metadata=metadata))
    return StructType(fields)


def refuse_other_columns(expected: StructType, given: StructType) -> None:
    """Check that the columns of a DataFrame are those of its read.

    Raises:
        InvalidRequest: The caller gave a schema with other columns.
    """
    known = [(each.name, each.dataType) for each in expected]
    for each in given:
        if (each.name, each.dataType) not in known:
            raise InvalidRequest(
                f"the given schema has the column {each.name} {each.dataType.simpleString()}, and the log "
                "has none of this name and type; leave the schema out, and choose columns by the option "
                "columns"
            )
    if len(given) != len(known):
        raise InvalidRequest(
            "the given schema lacks columns of the read; leave the schema out, and choose columns by the "
            "option columns"
        )


def carried_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches with the types in which Spark takes them; the values are the same."""
    schema: pa.Schema | None = None
    for batch in batches:
        if schema is None:
            schema = pa.schema([(each.name, _carried(each.type)) for each in batch.schema])
        arrays = [
            array if array.type == field.type else _cast(array, field.type)
            for array, field in zip(batch.columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _carried(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Spark takes a column."""
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        if kind.unit == "ns":
            return pa.int64()
        return pa.time64("ns") if pa.types.is_time(kind) else pa.timestamp("us", kind.tz)
    return kind


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array.view(kind) if kind == pa.int64() else array.cast(kind)
