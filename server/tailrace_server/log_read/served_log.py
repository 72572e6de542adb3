"""The log of a catalog behind a server, divided into parts as `OpenLog` divides a folder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.position import Position
from tailrace_server.log_read.bounds import RecordRange, following
from tailrace_server.log_read.request import Deduplication, Shape
from tailrace_server.log_read.served_catalog import ServedCatalog
from tailrace_server.log_read.served_scans import (
    ServedCaptureScan,
    ServedChangeScan,
    ServedNetChangeScan,
    ServedStateScan,
)

if TYPE_CHECKING:
    from tailrace_server.log_read.captures import CaptureScan
    from tailrace_server.log_read.part import ReadPart
    from tailrace_server.sql.scans import StatementScan


class ServedLog(ServedCatalog):
    """A catalog behind a server, with the interface of `OpenLog`."""

    def scan(self, part: ReadPart) -> StatementScan | CaptureScan:
        """Return the scan of a part; nothing is read yet."""
        request, given = part.request, (self, part.request, part.version)
        if request.shape is Shape.CAPTURES:
            return ServedCaptureScan(*given, part.span)
        if request.shape is Shape.STATE:
            return ServedStateScan(*given, part.span.end.preceding().version)
        if request.deduplication is Deduplication.NET_CHANGES:
            return ServedNetChangeScan(*given, part.span)
        return ServedChangeScan(*given, part.span)

    def parts(self, whole: ReadPart, *, by_key: bool) -> tuple[ReadPart, ...]:
        """Return the parts of a read. The server does not report where its records are.

        So a part has at most as many versions as it should have records.
        """
        begin, end = whole.span
        if following(begin) >= end:
            return ()
        first, last = following(begin).version, end.preceding().version
        step = last - first + 1 if by_key else whole.request.rows_per_part
        ends = [Position(each, 0) for each in range(first + step, last + 1, step)]
        bounds = [begin, *(each.preceding() for each in ends)]
        spans = zip(bounds, [*ends, end], strict=True)
        return tuple(replace(whole, span=RecordRange(*each)) for each in spans)
