"""Reads of a log through the Spark data source: batch and stream.

A batch read is pinned when the DataFrame is made: its range and its columns stay the same, so every action on
the DataFrame sees the same rows, or fails if they were trimmed meanwhile. `DataSource.schema` pins it.

A stream has the columns of the moment at which it starts, and a range that grows. Its offsets are::

    {"version": 1207, "cursor": "1.<uuid of the log>.1207.2147483647.2147483647.<commit time>"}

The cursor identifies the log and its history. So a checkpoint of another catalog is refused, and also one of
a log that was restored from an older copy. A batch ends only where a version ends; the first one may begin
inside a version, after the cursor that the reader was given.

Spark calls ``partitions()`` and the methods for offsets in a Python process beside the driver, and ``read()``
in tasks, which open the log themselves.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest, TailraceError
from tailrace.position import END, Position
from tailrace_server.failpoints import reach
from tailrace_server.log_read.bounds import following
from tailrace_server.log_read.plan import open_log, plan, read_part, versions_within
from tailrace_server.log_read.request import ReadRequest, Shape
from tailrace_server.pipeline.dataframe.pushed_filters import PushedFilters, are_used
from tailrace_server.pipeline.dataframe.spark_columns import (
    carried_batches,
    refuse_other_columns,
    spark_schema,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from tailrace_server.log_read.plan import AnyLog, ReadPlan

_LIMITS: Final = ("maxRowsPerBatch", "maxVersionsPerBatch")
_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True)
class StreamLimits:
    """The most that a batch of a stream has; a single version may have more."""

    max_rows: int | None = None
    """The most records, of all entity types."""
    max_versions: int | None = None


def read_options(given: Mapping[str, str]) -> tuple[ReadRequest, StreamLimits]:
    """Parse the options of a read.

    Raises:
        InvalidRequest: An option is missing, unknown or malformed.
    """
    request = ReadRequest.of(given, _LIMITS)
    by_name = {name.lower(): text for name, text in given.items()}
    limits = []
    for name in _LIMITS:
        text = by_name.get(name.lower())
        if text is not None and not (text.isascii() and text.isdigit() and int(text)):
            raise InvalidRequest(f"option {name}: {text!r} is not a whole number above zero")
        limits.append(None if text is None else int(text))
    return request, StreamLimits(*limits)


@dataclass(frozen=True)
class ReadSource:
    """A read with the columns and, for a batch, the range of the moment at which its DataFrame was made."""

    request: ReadRequest
    """The read, with the version whose schema gives the columns."""
    limits: StreamLimits
    columns: StructType
    fixed: ReadRequest | None
    """The read of a batch, with a fixed range; None: the log does not have the range, as an error will say."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ReadSource:
        """Read options, and pin what they describe.

        Raises:
            TailraceError: The options are wrong, or the log does not have what they name.
        """
        request, limits = read_options(given)
        with open_log(request) as log:
            if request.shape is Shape.STATE:
                planned = plan(request, log)
                fixed = replace(request, at=planned.last)
                return cls(request, limits, spark_schema(planned.schema, planned.cursor), fixed)
            # An empty range gives the columns. The range of the options may be gone, which a stream that
            # continues at its checkpoint does not need.
            nothing = replace(request, starting=log.view.published + 1, ending=None)
            planned = plan(nothing, log)
            version = (
                log.view.published if request.schema_version is None else request.schema_version
            )
            request = replace(request, schema_version=version)
            try:
                fixed, cursor = _fixed(request, log)
            except TailraceError:
                return cls(request, limits, spark_schema(planned.schema), None)
            return cls(request, limits, spark_schema(planned.schema, cursor), fixed)

    def batch(self, schema: StructType) -> RangeReader:
        """Return a reader of the fixed range.

        Raises:
            InvalidRequest: The options are those of a stream, or the given schema has other columns.
            TailraceError: The log does not have the range.
        """
        for name, limit in zip(_LIMITS, astuple(self.limits), strict=True):
            if limit is not None:
                raise InvalidRequest(
                    f"option {name} is for streams: use spark.readStream, or leave it out"
                )
        refuse_other_columns(self.columns, schema)
        reader = FilteringReader if are_used() else RangeReader
        return reader(self.fixed or self.request)

    def stream(self, schema: StructType) -> StreamReader:
        """Return a reader of the range that grows.

        Raises:
            InvalidRequest: The request is for a state or has an end, or the given schema has other columns.
        """
        if self.request.shape is Shape.STATE:
            raise InvalidRequest(
                "a stream has the shape changes or captures: read the state by spark.read, and start the "
                "stream at its cursor"
            )
        if self.request.ending is not None:
            raise InvalidRequest("a stream has no end: leave the ending out, or use spark.read")
        refuse_other_columns(self.columns, schema)
        return StreamReader(self.request, self.limits)


def _fixed(request: ReadRequest, log: AnyLog) -> tuple[ReadRequest, str]:
    """Return a request whose range has two ends, and the cursor that continues after it."""
    begin, end = log.span(request)
    cursor = log.cursor(max(begin, end.preceding()))
    return replace(
        request, starting=request.starting or following(begin).version, ending=cursor
    ), str(cursor)


class RangeReader(DataSourceReader):
    """Reads a fixed range of a log."""

    def __init__(self, request: ReadRequest) -> None:
        """Bind to a pinned request."""
        self._request = request

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the plan."""
        return _partitions(plan(self._request))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part; runs in a task."""
        return _read(partition)


class FilteringReader(RangeReader):
    """Reads the parts of a fixed range that Spark's filters leave."""

    def __init__(self, request: ReadRequest) -> None:
        """Bind to a request with a fixed range."""
        super().__init__(request)
        self._filters = PushedFilters()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use filters to read less, and return all of them, since Spark evaluates them again."""
        with open_log(self._request) as log:
            self._filters = PushedFilters.of(self._request, filters, log.view)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the plan that the filters leave."""
        request = self._filters.of_request(self._request)
        with open_log(request) as log:
            planned = plan(request, log)
            parts = self._filters.of_parts(planned.parts, log.view)
        return [InputPartition(each) for each in parts]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log from a start on, in batches of whole versions."""

    def __init__(self, request: ReadRequest, limits: StreamLimits) -> None:
        """Bind to a request with a pinned schema; nothing is opened yet."""
        self._request = request
        self._limits = limits
        self._log: AnyLog | None = None
        self._target: int | None = None
        """The last version that Trigger.AvailableNow reads; None for other triggers."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open log behind: tasks get the reader pickled."""
        return {**self.__dict__, "_log": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which the options let the stream start."""
        log = self._refreshed()
        return _offset(log, log.span(self._request).begin)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limits of the options; as a number of rows, since Spark has no limit of versions."""
        if self._limits == StreamLimits():
            return ReadAllAvailable()
        return ReadMaxRows(self._limits.max_rows or _NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch.

        Raises:
            PositionCompacted: The versions after the start were trimmed.
            CatalogReplaced, HistoryReplaced, CursorAhead: The checkpoint is of another log or history.
        """
        reach("pipeline.read_offset")
        log = self._refreshed()
        begin = _cursor(start)
        log.span(replace(self._request, starting=begin))
        whole = begin.index == END
        after = begin.version if whole else begin.version - 1
        target = log.view.published if self._target is None else self._target
        if after >= target:
            return start
        last = target
        if not isinstance(limit, ReadAllAvailable):
            last = versions_within(
                log,
                after,
                limit.max_rows if isinstance(limit, ReadMaxRows) else None,
                self._limits.max_versions,
                self._request.entity_type,
            )
        return _offset(log, Position(min(last, target), END))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the newest offset, for the progress of the query."""
        log = self._refreshed()
        return _offset(log, Position(log.view.published, END))

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the stream end with the newest version of this moment."""
        self._target = self._refreshed().view.published

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of a batch."""
        if start == end:
            return []
        request = replace(self._request, starting=_cursor(start), ending=_cursor(end))
        return _partitions(plan(request, self._refreshed()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part; runs in a task."""
        return _read(partition)

    def stop(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _refreshed(self) -> AnyLog:
        if self._log is None:
            self._log = open_log(self._request)
        self._log.refreshed()
        return self._log


def _partitions(planned: ReadPlan) -> list[InputPartition]:
    return [InputPartition(each) for each in planned.parts]


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark makes one partition without a value if there are none.
    if partition.value is not None:
        for batch in carried_batches(read_part(partition.value)):
            reach("pipeline.read_batch")
            yield batch


def _offset(log: AnyLog, position: Position) -> dict[str, Any]:
    return {"version": position.version, "cursor": str(log.cursor(position))}


def _cursor(offset: Mapping[str, Any]) -> Cursor:
    """Return the cursor of an offset.

    Raises:
        InvalidRequest: The checkpoint belongs to another data source.
        CursorInvalid: The offset was changed.
    """
    text = offset.get("cursor")
    if not isinstance(text, str):
        raise InvalidRequest(
            "the checkpoint has no cursor of a log, so it is not of a stream that reads tailrace; use another "
            "checkpointLocation"
        )
    return Cursor.parse(text)
