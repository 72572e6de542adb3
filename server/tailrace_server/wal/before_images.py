"""The images before that a program leaves out: its writer fills in the newest image of each row.

The newest image of a row is the one that the program buffered last, or else the one in the log (`last_images`).
It is converted to the columns of the version that is written. A new row, and a change of a table that counts
its rows, stay as they were given.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.wal.last_images import KnownImage, LastImages
from tailrace_server.wal.record.columns import multiplicity_of
from tailrace_server.wal.record.images import members
from tailrace_server.wal.schema.builder import SchemaBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tailrace.schema import Column, Schema
    from tailrace_server.wal.catalog_writer import CatalogWriter
    from tailrace_server.wal.last_images import RowName
    from tailrace_server.wal.record.input_rows import InputRows
    from tailrace_server.wal.record.mutation import Mutation
    from tailrace_server.wal.schema.mapping import SchemaMapping
    from tailrace_server.wal.schema.shown_columns import ShownColumns

    _GivenRow = tuple[str, str | None, int, bytes | None, bytes | None, bool]
    """A change of a row, as a program gives it: entity type, key (None: every row, a truncate), operation,
    before, after. Last: True if the row stays as it is, since it has no newest image or its type is not
    filled."""


class BeforeImages:
    """Fills in the images before for one writer.

    Rows are *staged* until their append succeeds, then *buffered* until the log has them.
    """

    def __init__(self, writer: CatalogWriter, mapping: SchemaMapping | None, *, full: bool) -> None:
        """Begin without rows.

        Args:
            writer: The writer of the catalog.
            mapping: The declared columns; it may say for each entity type if its images are filled.
            full: True to fill the images of the entity types for which the mapping says nothing.
        """
        self._mapping = mapping
        self._full = full
        self._images = LastImages(writer, mapping)
        self._restating = self._images.restating()
        self._staged: dict[RowName, KnownImage | None] = {}
        self._unsettled: dict[RowName, bytes | None] = {}
        """Images of staged rows whose columns are not known yet."""
        self._buffered: dict[RowName, KnownImage | None] = {}
        self._truncated: tuple[set[str], set[str]] = set(), set()
        """Entity types with a truncate that is staged, and those with a buffered one."""
        self._builder: tuple[Schema, SchemaBuilder] | None = None
        self._noted: set[tuple[str, tuple[str, ...]]] = set()
        """Entity types and names of images that the builder has."""

    @contextmanager
    def staging(self, shown: ShownColumns) -> Iterator[None]:
        """Stage rows in the block; buffer them at its end, or forget them if it raises."""
        try:
            yield
            self.settle(shown.schema)
        except BaseException:
            self._staged.clear()
            self._unsettled.clear()
            self._truncated[0].clear()
            self._builder = None
            raise
        self._accept()

    def mutations(self, mutations: Sequence[Mutation], schema: Schema) -> list[Mutation]:
        """Return checked mutations of one transaction with their images before, and stage them.

        Args:
            mutations: The mutations.
            schema: The schema before the transaction.

        Raises:
            LogCorrupted: A part of the log that is read is damaged.
        """
        rows: list[_GivenRow] = [
            (
                *(each.entity_type, each.primary_key, each.operation, each.before, each.after),
                each.area is not Area.DATA
                or not self._fills(each.entity_type)
                or (each.change is not None and multiplicity_of(each.change) is not None),
            )
            for each in mutations
        ]
        found = zip(mutations, self._befores(rows, schema), strict=True)
        return [
            each if before is each.before else replace(each, before=before)
            for each, before in found
        ]

    def rows(self, rows: InputRows, schema: Schema) -> InputRows:
        """Return rows of transactions that rename nothing with their images before, and stage them.

        Arguments and errors are those of `mutations`.
        """
        fills = [*map(self._fills, rows.entity_types)]
        if not any(fills):
            return rows
        types = [rows.entity_types[code] for code in rows.type_codes.tolist()]
        stays = [not fills[code] for code in rows.type_codes.tolist()]
        if rows.change.null_count < len(rows):
            stays = [
                stay or (change is not None and multiplicity_of(change) is not None)
                for stay, change in zip(stays, rows.change.to_pylist(), strict=True)
            ]
        columns = (each.to_pylist() for each in (rows.keys, rows.before, rows.after))
        keys, before, after = columns
        given = [*zip(types, keys, rows.operations.tolist(), before, after, stays, strict=True)]
        return replace(rows, before=pa.array(self._befores(given, schema), pa.binary()))

    def passing(self, rows: InputRows, schema: Schema) -> InputRows:
        """Return rows with their images before; forget the rows, which are committed before any others.

        Arguments and errors are those of `mutations`. No row may be buffered.
        """
        assert not self._buffered
        found = self.rows(rows, schema)
        for name in self._unsettled:
            self._images.drop(name)
        self._unsettled.clear()
        return found

    def _fills(self, entity_type: str) -> bool:
        declared = None if self._mapping is None else self._mapping.entity_types.get(entity_type)
        if declared is None or declared.whole_images is None:
            return self._full
        return declared.whole_images

    def _befores(self, rows: Sequence[_GivenRow], schema: Schema) -> list[bytes | None]:
        """Return the image before of each row, and stage the rows."""
        found = self._found(rows)
        befores: list[bytes | None] = []
        unsettled = self._unsettled
        # Without declared renames, the columns of an image that needs no conversion are those of the schema.
        current = schema.entity_types if self._mapping is None else {}
        for entity_type, key, operation, before, after, stays in rows:
            if stays:
                befores.append(before)
                continue
            if key is None:
                self._truncate(entity_type)
                unsettled = self._unsettled
                befores.append(None)
                continue
            name = (entity_type, key)
            if before is None and (known := self._last(name, found)) is not None:
                before = known.text
                if known.columns is not current.get(entity_type):
                    names = () if after is None else _names(after)
                    columns = self._columns(schema, entity_type, names)
                    before = self._restating.now(known, columns, names)
            befores.append(before)
            unsettled[name] = after if operation == Operation.UPSERT else None
        return befores

    def newest(self, entity_type: str, keys: Iterable[str], schema: Schema) -> dict[str, bytes]:
        """Return key → newest image of the rows that exist, buffered rows included.

        Args:
            entity_type: Name of the entity type.
            keys: Keys of rows.
            schema: The schema to which the images are converted.

        Raises:
            LogCorrupted: A part of the log that is read is damaged.
        """
        names = [(entity_type, key) for key in keys]
        found = self._found([(*name, 0, None, None, False) for name in names])
        # The program that asks will change these rows: remember them for that.
        self._images.keep(found.items())
        columns = self._columns(schema, entity_type, ())
        images = {}
        for name in names:
            if (known := self._last(name, found)) is not None:
                images[name[1]] = self._restating.now(known, columns, ())
        return images

    def expect_new(self, entity_type: str, keys: Iterable[str]) -> None:
        """Note rows that do not exist yet, so that they are not looked up."""
        for key in keys:
            self._buffered.setdefault((entity_type, key), None)

    def settle(self, schema: Schema) -> None:
        """Give the staged rows of a transaction their columns: those of the schema after it."""
        types = schema.entity_types
        for name, text in self._unsettled.items():
            self._staged[name] = None if text is None else KnownImage(text, types[name[0]])
        self._unsettled.clear()

    def committed(self) -> None:
        """Note that the log has all buffered rows."""
        self._images.drop_types(self._truncated[1])
        self._images.keep(self._buffered.items())
        self._buffered.clear()
        self._truncated[1].clear()

    def _accept(self) -> None:
        """Note that the staged rows are buffered."""
        staged, buffered = self._truncated
        if staged:
            self._buffered = {
                name: known for name, known in self._buffered.items() if name[0] not in staged
            }
            buffered |= staged
            staged.clear()
        self._buffered.update(self._staged)
        self._staged.clear()

    def _found(self, rows: Sequence[_GivenRow]) -> dict[RowName, KnownImage | None]:
        """Look up in the log, all at once, the rows that are neither buffered nor cached."""
        wanted: dict[str, set[str]] = {}
        kept = self._images.rows
        for entity_type, key, _, before, _, stays in rows:
            if key is not None and before is None and not stays:
                name = (entity_type, key)
                if name not in self._buffered and name not in kept:
                    wanted.setdefault(entity_type, set()).add(key)
        found: dict[RowName, KnownImage | None] = {}
        for entity_type, keys in wanted.items():
            if not any(entity_type in each for each in self._truncated):
                found.update(self._images.find(entity_type, keys))
        return found

    def _last(self, name: RowName, found: dict[RowName, KnownImage | None]) -> KnownImage | None:
        if name in self._unsettled:
            text = self._unsettled[name]
            return None if text is None else KnownImage(text, ())
        if name in self._staged or name[0] in self._truncated[0]:
            return self._staged.get(name)
        if name in self._buffered or name[0] in self._truncated[1]:
            return self._buffered.get(name)
        return self._images.rows[name] if name in self._images.rows else found.get(name)

    def _truncate(self, entity_type: str) -> None:
        self._unsettled = {
            name: text for name, text in self._unsettled.items() if name[0] != entity_type
        }
        self._staged = {
            name: known for name, known in self._staged.items() if name[0] != entity_type
        }
        self._truncated[0].add(entity_type)

    def _columns(
        self, schema: Schema, entity_type: str, names: tuple[str, ...]
    ) -> tuple[Column, ...]:
        """Return the columns of an entity type in the version that has an image with some names.

        The first use of a new name does a declared rename.
        """
        if self._builder is None or self._builder[0] is not schema:
            self._builder = schema, SchemaBuilder(schema, self._mapping)
            self._noted.clear()
            self._restating = self._images.restating()
        builder = self._builder[1]
        if (entity_type, names) not in self._noted:
            self._noted.add((entity_type, names))
            builder.see(entity_type, [(name, None) for name in names])
        return builder.schema().entity_types[entity_type]


def check_options(mapping: SchemaMapping | None, images: str) -> None:
    """Refuse a mapping with features that only an ingest supports, and an unknown value of ``images``.

    Raises:
        InvalidRequest: The mapping lets rows expire, or ``images`` is neither as-sent nor full.
    """
    if images not in ("as-sent", "full"):
        raise InvalidRequest(f"images must be as-sent or full, not {images!r}")
    for name, declared in () if mapping is None else mapping.entity_types.items():
        assert mapping is not None
        if declared.time_to_live is not None:
            raise InvalidRequest(
                f"{mapping.where(name)}.ttl: only tailrace ingest debezium lets rows expire; "
                "leave ttl out, and append mutations of Operation.EXPIRE"
            )


def _names(image: bytes) -> tuple[str, ...]:
    """Return the names of an image's members; none if the image will be refused."""
    try:
        return tuple(members(image))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
