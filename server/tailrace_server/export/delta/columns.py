"""The columns of a Delta table: those of the entity type, and before them the row's identity.

============================  =======================  ============================================
column                        Delta                    what it is
============================  =======================  ============================================
``_tailrace_key``             string, not null         the row's key, as everywhere in tailrace
``_tailrace_version``         long                     version of the change that the row stands for
``_tailrace_count``           long                     of tables without a key: how often it exists
the columns of the schema     by `typed`               without dropped ones, nullable
============================  =======================  ============================================

What Delta has no type for is a string: times, also those of MySQL below 0 and beyond a day, timestamps in
nanoseconds, decimals beyond 38 digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.export.delta.errors import LakeColumnUnfit
from tailrace_server.typed.forms import UNITS_IN_SECOND, span_form_of
from tailrace_server.typed.reader import ColumnReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.schema import Column
    from tailrace_server.typed.misfits import OnMisfit

_RESERVED: Final = "_tailrace_"
KEY: Final = f"{_RESERVED}key"
VERSION: Final = f"{_RESERVED}version"
COUNT: Final = f"{_RESERVED}count"
LIVE: Final = f"{_RESERVED}live"
"""Of a merge's source only: whether the row is to be there."""


@dataclass(frozen=True, slots=True)
class LakeColumns:
    """The columns of one entity type in a Delta table."""

    reader: ColumnReader
    """Reads them out of images."""
    counted: bool
    """Whether rows have no key, and are counted."""
    schema: pa.Schema
    """Of the table."""

    @classmethod
    def of(
        cls,
        entity_type: str,
        columns: Sequence[Column],
        *,
        counted: bool,
        stated: Mapping[int, Column],
        placeholders: tuple[str, ...],
        on_misfit: OnMisfit,
    ) -> LakeColumns:
        """Return the columns of an entity type as a version has them.

        Raises:
            LakeColumnUnfit: A name cannot be that of a Delta column.
        """
        shown = [column for column in columns if not column.dropped]
        _refuse_names(entity_type, [column.name for column in shown])
        reader = ColumnReader(
            shown,
            stated=stated,
            placeholders=placeholders,
            on_misfit=on_misfit,
            form_of=span_form_of,
        )
        own = [pa.field(KEY, pa.string(), nullable=False), pa.field(VERSION, pa.int64())]
        own += [pa.field(COUNT, pa.int64())] if counted else []
        fields = [pa.field(each.name, lake_type(each.type)) for each in reader.schema]
        return cls(reader, counted, pa.schema([*own, *fields]))

    @property
    def source_schema(self) -> pa.Schema:
        """Of the source of a merge."""
        return self.schema.append(pa.field(LIVE, pa.bool_(), nullable=False))

    def columns_of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return what was read of images as the table has it."""
        return [_as_lake(column) for column in batch.columns]


def lake_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column of a type has in a Delta table."""
    if pa.types.is_timestamp(kind):
        return pa.string() if kind.unit == "ns" else pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) or pa.types.is_decimal256(kind):
        return pa.string()
    return kind


def _as_lake(column: pa.Array) -> pa.Array:
    if pa.types.is_duration(column.type):
        return _clocks(column)
    wanted = lake_type(column.type)
    return column if wanted == column.type else column.cast(wanted)


def _clocks(column: pa.Array) -> pa.Array:
    """Return durations as Arrow writes times of day, with more hours and a sign where there is one."""
    unit = column.type.unit
    in_second = UNITS_IN_SECOND[unit]
    # 1. Arrow writes those that are times of a day.
    counts = column.cast(pa.int64())
    of_day = pc.and_(pc.greater_equal(counts, 0), pc.less(counts, 86_400 * in_second))
    times = pc.if_else(of_day, counts, pa.scalar(None, pa.int64()))
    whole, kind = (pa.int32(), pa.time32) if unit == "ms" else (pa.int64(), pa.time64)
    texts = times.cast(whole).cast(kind(unit)).cast(pa.string())
    # 2. The others, mostly none, are written one by one.
    others = pc.fill_null(pc.invert(of_day), False)
    written = [_clock(each, in_second) for each in counts.filter(others).to_pylist()]
    return pc.replace_with_mask(texts, others, pa.array(written, pa.string())) if written else texts


def _clock(count: int, in_second: int) -> str:
    seconds, fraction = divmod(abs(count), in_second)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    digits = len(str(in_second)) - 1
    return f"{'-' if count < 0 else ''}{hours:02}:{minute:02}:{second:02}.{fraction:0{digits}}"


def _refuse_names(entity_type: str, names: Sequence[str]) -> None:
    """Raise LakeColumnUnfit where a name cannot be that of a column."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower().startswith(_RESERVED):
            raise LakeColumnUnfit(
                entity_type, f"column {name!r} begins with {_RESERVED}, as columns of the export do"
            )
        if not name or "`" in name:
            raise LakeColumnUnfit(entity_type, f"column {name!r} cannot be named in Delta's SQL")
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise LakeColumnUnfit(
                entity_type,
                f"columns {other!r} and {name!r} differ in case alone, which Delta does not tell apart",
            )
