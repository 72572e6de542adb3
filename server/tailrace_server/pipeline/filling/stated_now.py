"""An image from an earlier version, as the columns of a later one state it.

Columns may have been renamed since, altered or dropped. Both images of a record are read by the schema of its
version (docs/adr/0026), so an image from before must be stated in it::

    then    {"id":1,"cost":"AfQ=","old":7}      cost in decimal.bytes(2)
    now     {"id":1,"price":"w1A="}             price in decimal.bytes(4); old is dropped

A value that has no exact form now counts as one that was not sent. All others are the texts that were sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace_server.pipeline.images import hidden, members, renamed
from tailrace_server.wal.schema.restating import conversion_of, read_as, restated_image

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tailrace.schema import Column
    from tailrace_server.pipeline.filling.current_columns import Columns
    from tailrace_server.wal.record.unavailable import Unavailable
    from tailrace_server.wal.schema.restating import Conversions


class KnownImage(NamedTuple):
    """An image, and the columns that its entity type had when it was written."""

    text: bytes
    columns: Columns


EXPIRED: Final = KnownImage(b"", ())
"""Stands for a row that the log has let expire: nothing is known of it, but that it is not there."""


class _Way(NamedTuple):
    """The steps that restate images of one set of columns in another."""

    conversions: Conversions
    names: Mapping[str, str]
    """Columns that are called otherwise now: the name then → the name now."""
    dropped: Collection[str]
    """Names of the columns that have been dropped since."""
    added_again: Collection[str]
    """Those names of ``dropped`` that another column has now: the old value is not the new column's."""


class Restating:
    """States images in later columns; remembers the way from each set of columns to another."""

    def __init__(
        self, stated: Callable[[], Mapping[int, Column]], unavailable: Unavailable
    ) -> None:
        """Begin.

        Args:
            stated: Gives each column of the log, by id, as it was first stated (`restating.first_stated`).
            unavailable: Tells values that the source did not send.
        """
        self._stated = stated
        self._unavailable = unavailable
        self._ways: dict[tuple[int, int], tuple[Columns, Columns, _Way | None]] = {}
        """By the identity of both sets, which are kept with it so that it stays theirs."""

    def now(self, image: KnownImage, columns: Columns, kept: Collection[str]) -> bytes:
        """Return the text of an image in other columns.

        Args:
            image: The image.
            columns: The columns now.
            kept: Columns that are kept even if they are dropped, since rows still come with them.
        """
        if image.columns is columns:
            return image.text
        key = (id(image.columns), id(columns))
        if key not in self._ways:
            way = None if image.columns == columns else self._way(image.columns, columns)
            self._ways[key] = image.columns, columns, way
        way = self._ways[key][2]
        text = image.text
        if way is None:
            return text
        if way.conversions:
            text, inexact = restated_image(text, way.conversions, self._unavailable)
            text = hidden(text, inexact)
        gone = [name for name in way.dropped if name not in kept or name in way.added_again]
        if way.names or any(name in members(text) for name in gone):
            text = renamed(text, way.names, without=gone)
        return text

    def _way(self, then: Columns, now: Columns) -> _Way | None:
        known = {column.id: column for column in now}
        pairs = [(column, known.get(column.id, column)) for column in then]
        # Only what was inferred is read as it was stated later; to know that takes all schemas of the log.
        later = any(column.inferred and not current.inferred for column, current in pairs)
        stated = self._stated() if later else {}
        conversions: Conversions = {}
        names: dict[str, str] = {}
        dropped = []
        for column, current in pairs:
            if current.name != column.name:
                names[column.name] = current.name
            if current.dropped and not column.dropped:
                dropped.append(column.name)
                continue
            first = stated.get(column.id)
            if first is None and not current.inferred:
                first = current  # it is stated in this commit
            read = read_as(column, first)
            conversion = conversion_of(read, (current.sql_type, current.encoding))
            if conversion is not None:
                conversions[column.name] = conversion
        living = {column.name for column in now if not column.dropped}
        again = living.intersection(dropped)
        return _Way(conversions, names, dropped, again) if conversions or names or dropped else None
