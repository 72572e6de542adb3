"""The visible part of changes in views, for one subscription or read.

Columns are matched by id, as a column may have other names in other versions. So a view continues when the
source renames a column. If the source drops a column or renames the entity type, the view's changes would
become incomplete. The subscription then ends before it would miss a change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.criteria import Area
from tailrace.errors import InvalidRequest
from tailrace_server.grants.grant import ALL_COLUMNS, Columns
from tailrace_server.grants.shown import Rule, Visibility, changes_shown
from tailrace_server.rows.transitions import is_move
from tailrace_server.wal.record.text_columns import SMALL_LENGTH, int32s

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.segment.reader import BatchHead

_EVERYTHING: Final = (Rule(None, ALL_COLUMNS, True),)


@dataclass(frozen=True, slots=True)
class ShownView:
    """The columns of one requested view, by ids."""

    name: str
    entity_types: frozenset[str]
    """All names that the view's entity type has had; the expanded criteria name them."""
    type_ids: frozenset[int]
    """Ids of all columns of the entity type; another entity type with one of its names has none of them."""
    ids: frozenset[int] | None
    """Ids of the view's columns; None: all columns, also those that are added later."""
    needed: frozenset[int]
    """Ids of the view's columns, and of the columns in its condition and in conditions of grants."""
    untold: frozenset[int] = frozenset()
    """Ids of the columns in conditions of grants; an error must not reveal their names."""

    def columns_in(self, entity_type: str, schema: Schema) -> Columns | None:
        """Return the view's columns by their names in a schema.

        None: the entity type is not the view's, or the view has all of its columns.
        """
        if self.ids is None or entity_type not in self.entity_types:
            return None
        columns = schema.entity_types.get(entity_type, ())
        if not self._has(columns):
            return None
        return Columns(frozenset(each.name for each in columns if each.id in self.ids), listed=True)

    def refuse_changed(self, schema: Schema) -> None:
        """Check that the view still fits a schema.

        Raises:
            InvalidRequest: The entity type has a new name there, or a needed column was dropped.
        """
        for name, columns in schema.entity_types.items():
            if not self._has(columns):
                continue
            if name not in self.entity_types:
                raise InvalidRequest(
                    f"view {self.name}: the source has renamed its entity type to {name}; subscribe again "
                    "after the last cursor, and the view goes on"
                )
            # A dropped column stays in the schema, with a mark.
            gone = [each for each in columns if each.dropped and each.id in self.needed]
            if gone:
                # A column that only a grant's condition needs must not be named.
                what = f"column {gone[0].name!r}, which"
                if gone[0].id in self.untold and gone[0].id not in (self.ids or ()):
                    what = "a column that"
                raise InvalidRequest(
                    f"view {self.name} needs {what} the source has dropped; define the view anew, and "
                    "subscribe again"
                )

    def _has(self, columns: tuple[Column, ...]) -> bool:
        return any(each.id in self.type_ids for each in columns)


def _no_schema(version: int) -> Schema:
    raise AssertionError(f"the schema of version {version} is not known")


@dataclass(frozen=True)
class ViewedRows(Visibility):
    """A visibility that is also narrowed to the columns of views."""

    granted: Visibility | None = None
    """The visibility by grants alone; None: everything is granted."""
    views: tuple[ShownView, ...] = ()
    """The views, at least one. All views on one entity type show the same columns."""
    schema_of: Callable[[int], Schema] = field(default=_no_schema, compare=False, repr=False)
    """Function that returns the schema of a published version; any thread may call it."""

    @cached_property
    def identity(self) -> bytes:
        """Digest of the value, for cache keys; equal values have equal digests."""
        granted = b"" if self.granted is None else self.granted.identity
        return blake2b(granted + self.cut_identity, digest_size=16).digest()

    @cached_property
    def cut_identity(self) -> bytes:
        """Digest of the columns that the views show; empty if each view shows all columns."""
        cut = [
            (sorted(each.entity_types), sorted(each.type_ids), sorted(each.ids))
            for each in self.views
            if each.ids is not None
        ]
        return blake2b(repr(cut).encode(), digest_size=16).digest() if cut else b""

    @property
    def follows_schema(self) -> bool:
        """Always True: columns are matched by id, and the schema of a record has their names."""
        return True

    def columns_in(self, entity_type: str, schema: Schema) -> Columns | None:
        """Return the views' columns of an entity type, by their names in a schema; None: all columns."""
        for each in self.views:
            if (found := each.columns_in(entity_type, schema)) is not None:
                return found
        return None

    def refuse_changed(self, schema: Schema) -> None:
        """Check that all views still fit a schema; raises like ``ShownView.refuse_changed``."""
        for each in self.views:
            each.refuse_changed(schema)

    def check(self, head: BatchHead) -> None:
        """Check that all views still fit the newest schema of a batch; raises InvalidRequest."""
        if len(head.versions):
            self.refuse_changed(self.schema_of(int(head.versions.max())))

    def kept(self, head: BatchHead, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the visible ones of some rows of a batch."""
        if not len(rows):
            return rows
        # 1. Check rows one by one if they are few, or if grants hide some records.
        granted = self.granted
        if len(rows) <= SMALL_LENGTH or (
            granted is not None and any(map(granted.filters, head.entity_types))
        ):
            kept = [row for row in rows.tolist() if self.shows_row(head, row)]
            return rows if len(kept) == len(rows) else int32s(kept)
        # 2. Otherwise check whole entity types, once for each schema that the batch was written with.
        keep = np.ones(len(head.versions), np.bool_)
        schemas = _spans(head, self.schema_of)
        for code, name in enumerate(head.entity_types):
            for schema, of_schema in schemas:
                columns = self.columns_in(name, schema)
                if columns is None:
                    continue
                mine = of_schema & (head.type_codes == code) & (head.areas == Area.DATA)
                keep[mine] = changes_shown(head, columns)[mine]
        return rows[keep[rows]]

    def moves_shown(
        self, head: BatchHead, rows: NDArray[np.int32], codes: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """Return a mask of the rows that are visible because they enter or leave, whatever columns changed.

        A change of columns outside of the view can move a row by the view's condition. By grants the row has to
        be visible even then, unless a grant's condition moves it.
        """
        moved = is_move(codes)
        if self.granted is not None:
            # A move by the view's own condition is visible only if the grants show the record anyway.
            moved[moved] = np.isin(rows[moved], self.granted.kept(head, np.unique(rows[moved])))
            moved |= self.granted.moves_shown(head, rows, codes)
        return moved

    def shows_row(self, head: BatchHead, row: int) -> bool:
        """Return True if a record of a batch is visible."""
        columns = self._columns_at(head, row)
        if columns is None:
            return self.granted is None or self.granted.shows_row(head, row)
        # A record without changed columns is an insert or a removal, which no column can hide.
        (changed,) = head.names.values((row,))
        if changed:
            changed = [*filter(columns.shows, changed)]
            if not changed:
                return False
        name = head.entity_types[head.type_codes.item(row)]
        return self.granted is None or self.granted.shows(name, head.key_of(row), changed)

    def shows_column(self, head: BatchHead, row: int, column: str) -> bool:
        """Return True if a column of a record of a batch is visible."""
        columns = self._columns_at(head, row)
        if columns is not None and not columns.shows(column):
            return False
        return self.granted is None or self.granted.shows_column(head, row, column)

    def _columns_at(self, head: BatchHead, row: int) -> Columns | None:
        code = head.type_codes.item(row)
        if code < 0 or head.areas.item(row) != Area.DATA:
            return None
        schema = self.schema_of(head.versions.item(row))
        return self.columns_in(head.entity_types[code], schema)


def viewed(
    granted: Visibility | None,
    views: tuple[ShownView, ...],
    schema_of: Callable[[int], Schema] = _no_schema,
) -> ViewedRows:
    """Return a visibility narrowed to the columns of views; ``granted`` is None if everything is granted."""
    rules = ((), _EVERYTHING) if granted is None else (granted.by_type, granted.others)
    counted = None if granted is None else granted.counted
    counted_are_all = granted is None or granted.counted_are_all
    return ViewedRows(*rules, counted, counted_are_all, granted, views, schema_of)


def _spans(
    head: BatchHead, schema_of: Callable[[int], Schema]
) -> list[tuple[Schema, NDArray[np.bool_]]]:
    """Return the schemas that a batch was written with, each with a mask of its records."""
    versions = head.versions
    first, last = (schema_of(int(each)) for each in (versions.min(), versions.max()))
    if first is last:
        return [(last, np.ones(len(versions), np.bool_))]
    # A batch over a change of the schema is rare: look up the schema of each version.
    distinct = np.unique(versions)
    found: dict[int, tuple[Schema, list[int]]] = {}
    for version in distinct.tolist():
        schema = schema_of(version)
        found.setdefault(schema.id, (schema, []))[1].append(version)
    return [(schema, np.isin(versions, mine)) for schema, mine in found.values()]
