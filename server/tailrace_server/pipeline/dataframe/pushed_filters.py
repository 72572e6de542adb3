"""Filters of Spark that let a read skip parts of the log.

=========  =================================================  =========================================
shape      filter                                             effect
=========  =================================================  =========================================
all but    ``_commit_version``, ``_commit_timestamp`` (of     only this part of the log is read
state      captures ``version``, ``timestamp``): ``=`` ``<``
           ``<=`` ``>`` ``>=``
changes    ``_change_type``: ``=``, ``IN``                    images of other changes are not read
state      the only column of the key: ``=``, ``IN``          only these keys are looked up
=========  =================================================  =========================================

Spark evaluates every filter again, so a pushed filter may let too many rows through, but never too few.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tailrace.position import END, MAX_VERSION, Position
from tailrace_server.log_read.bounds import RecordRange, following
from tailrace_server.log_read.request import CHANGE_TYPES, Deduplication, ReadRequest, Shape
from tailrace_server.log_read.row_columns import names_of
from tailrace_server.sql.pushdown import key_text
from tailrace_server.sql.version_bounds import micros

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.datasource import Filter

    from tailrace_server.log_read.part import ReadPart
    from tailrace_server.wal.state.view import LogView

_VERSIONS: Final = ("_commit_version", "version")
_TIMES: Final = ("_commit_timestamp", "timestamp")


def are_used() -> bool:
    """Return True if Spark pushes filters, so that a reader may take them.

    Spark refuses a reader that takes filters while ``spark.sql.python.filterPushdown.enabled`` is false, the
    default. A source cannot read settings, but with this one Spark starts Python with another module.
    """
    return "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules


@dataclass
class PushedFilters:
    """The filters of a read that were pushed down."""

    first: int = 0
    """The first version that is read."""
    last: int = MAX_VERSION
    since: int | None = None
    """The earliest commit time that is read, in µs; None: any."""
    until: int | None = None
    change_types: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    knows_times: bool = True
    """False for a read through a server, whose commit times are known only with its records."""

    @classmethod
    def of(cls, request: ReadRequest, filters: Iterable[Filter], view: LogView) -> PushedFilters:
        """Return the filters that a read can use.

        Args:
            request: The read.
            filters: Filters that all hold for the wanted rows.
            view: The log.
        """
        pushed = cls(knows_times=request.server is None)
        is_range = request.shape is not Shape.STATE and request.deduplication is Deduplication.NONE
        key = _key_column(request, view) if request.shape is Shape.STATE else None
        for each in filters:
            match each:
                case EqualTo(attribute=(name,), value=value) | In(attribute=(name,), value=value):
                    values = value if isinstance(each, In) else (value,)
                case (
                    LessThan(attribute=(name,), value=value)
                    | LessThanOrEqual(attribute=(name,), value=value)
                    | GreaterThan(attribute=(name,), value=value)
                    | GreaterThanOrEqual(attribute=(name,), value=value)
                ):
                    values = (value,)
                case _:
                    continue
            names = _own_names(request)
            if name in names and is_range:
                pushed._limit(name, each, values)
            elif name == "_change_type" and isinstance(each, EqualTo | In):
                types = frozenset(values) & {*CHANGE_TYPES}
                pushed.change_types = (
                    types if pushed.change_types is None else types & pushed.change_types
                )
            elif key is not None and name == key[0] and isinstance(each, EqualTo | In):
                pushed._look_up(key[1], values)
        return pushed

    def _limit(self, name: str, by: Filter, values: Sequence[Any]) -> None:
        """Narrow the range by a filter on versions or on times."""
        is_low = isinstance(by, EqualTo | In | GreaterThan | GreaterThanOrEqual)
        is_high = isinstance(by, EqualTo | In | LessThan | LessThanOrEqual)
        # Versions, and times in µs, are whole numbers.
        step = int(isinstance(by, GreaterThan | LessThan))
        if name in _VERSIONS and values and all(type(each) is int for each in values):
            if is_low:
                self.first = max(self.first, min(values) + step)
            if is_high:
                self.last = min(self.last, max(values) - step)
        # A view of a server does not know commit times.
        if (
            name in _TIMES
            and self.knows_times
            and values
            and all(_is_moment(each) for each in values)
        ):
            moments = [micros(each) for each in values]
            if is_low:
                self.since = max(self.since or 0, min(moments) + step)
            if is_high:
                latest = max(moments) - step
                self.until = latest if self.until is None else min(self.until, latest)

    def _look_up(self, kind: str, values: Sequence[Any]) -> None:
        texts = [key_text(kind, each) for each in values]
        known = frozenset(each for each in texts if each is not None)
        if len(known) == len({*values}):
            self.keys = known if self.keys is None else known & self.keys

    def of_request(self, request: ReadRequest) -> ReadRequest:
        """Return the request with only the keys and change types that the filters let through."""
        if self.keys is not None:
            request = replace(request, keys=tuple(sorted(self.keys)))
        return (
            request
            if self.change_types is None
            else replace(request, change_types=self.change_types)
        )

    def of_parts(self, parts: Iterable[ReadPart], view: LogView) -> list[ReadPart]:
        """Return the parts of a range that have wanted versions, cut to these versions."""
        first, last = self.first, self.last
        if self.since is not None:
            first = max(first, view.version_at(self.since))
        if self.until is not None:
            last = min(last, view.version_at(self.until + 1) - 1)
        if (first, last) == (0, MAX_VERSION):
            return [*parts]
        found = []
        for part in parts:
            begin = max(part.span.begin, Position(first - 1, END))
            end = min(part.span.end, Position(last + 1, 0))
            if following(begin) < end:
                found.append(replace(part, span=RecordRange(begin, end)))
        return found


def _own_names(request: ReadRequest) -> tuple[str, ...]:
    """Return the names of the columns of versions and of times."""
    place = 0 if request.shape is Shape.CHANGES else 1
    return _VERSIONS[place], _TIMES[place]


def _is_moment(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _key_column(request: ReadRequest, view: LogView) -> tuple[str, str] | None:
    """Return the name and the SQL type, without its parameters, of the only column of the key."""
    at = view.published if request.schema_version is None else request.schema_version
    names = names_of(view, request.entity_type or "", at)
    key = [each for each in names.columns_in(view.schema_of(at)) if each.key]
    return (
        (key[0].name, (key[0].sql_type or "").partition("(")[0].upper()) if len(key) == 1 else None
    )
