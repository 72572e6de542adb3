"""Typed rows of a DataFrame: the meaning of its columns, and its rows as *changes*.

A DataFrame has the columns of one or more entity types, and columns that describe the changes:

=====================================  ====================================================================
column                                 meaning
=====================================  ====================================================================
``_change_type``                       ``insert``, ``update_preimage``, ``update_postimage``, ``delete``, in
                                       any case; also ``upsert``, ``update_before``, ``update_after``.
                                       Without the column or for null: ``upsert``
``_commit_version``,                   whole numbers: each is one version of the catalog, in rising order;
``_change_ordinal``                    without the column all rows are one version
``_transaction_id``,                   one text or number for each version, which goes to its lead record
``_commit_snapshot_id``
``_commit_timestamp``                  one timestamp for each version, which goes to its lead record
``_entity_type``                       the row's entity type, without the option ``entityType``
``_position``, ``_metadata``           ignored
=====================================  ====================================================================

So the change feed of Delta, the changelog of Iceberg and Spark's ``changes()`` are written as they are, and so
is what this data source reads. All other columns are columns of the row, also those with an underscore.

A change is one row of `CHANGES`. `runs` sorts changes, and `versions` makes records of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace_server.pipeline.dataframe.table_schema import columns_of, typed_fault
from tailrace_server.pipeline.dataframe.typed_images import images_of, key_texts
from tailrace_server.wal.record.keys import key_hashes, type_seed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

DELETE: Final = 1
PREIMAGE: Final = 2
INSERT: Final = 3
POSTIMAGE: Final = 4
UPSERT: Final = 5
"""The kinds of changes; the old image of a row sorts before its new one."""
KIND_NAMES: Final = ("", "delete", "update_preimage", "insert", "update_postimage", "upsert")
_KINDS: Final = {
    **{name: kind for kind, name in enumerate(KIND_NAMES) if name},
    "update_before": PREIMAGE,
    "update_after": POSTIMAGE,
}

CHANGES: Final = pa.schema(
    [
        pa.field("version", pa.int64(), nullable=False),
        pa.field("type", pa.int32(), nullable=False),
        pa.field("key_hash", pa.uint64(), nullable=False),
        pa.field("primary_key", pa.utf8(), nullable=False),
        pa.field("kind", pa.uint8(), nullable=False),
        pa.field("image", pa.binary(), nullable=False),
    ]
)
"""``version`` is that of the source; ``type`` is a place in the sorted names of the entity types."""

TYPE, CHANGE = "_entity_type", "_change_type"
_VERSIONS: Final = ("_commit_version", "_change_ordinal")
_IDS: Final = ("_transaction_id", "_commit_snapshot_id")
_TIME: Final = "_commit_timestamp"
_IGNORED: Final = ("_position", "_metadata")
DESCRIPTIVE: Final = (TYPE, CHANGE, *_VERSIONS, *_IDS, _TIME, *_IGNORED)
"""The columns that describe changes."""


@dataclass(frozen=True)
class TypedForm:
    """The typed form of a DataFrame. It can be pickled."""

    entity_type: str
    """The entity type of all rows; empty: the column ``_entity_type`` has it."""
    key: tuple[str, ...]
    columns: tuple[str, ...]
    """The columns of the row, in the order of the DataFrame."""
    listing: str
    """These columns with their types (`input.column_listing`)."""
    hashed_as: Mapping[str, str] = field(default_factory=dict)
    """Entity type → the name under which its keys are hashed, if that is another name."""
    is_plain: bool = False
    """True if each row is an upsert of the only version."""
    direct: bool = False
    """True if tasks write the records themselves (`runs`)."""

    @classmethod
    def of(cls, schema: Mapping[str, Any], entity_type: str, key: Sequence[str]) -> TypedForm:
        """Return the form of a DataFrame.

        Args:
            schema: ``df.schema.jsonValue()``.
            entity_type: The option ``entityType``; empty without it.
            key: The columns of the option ``key``.

        Raises:
            InvalidRequest: The columns cannot be written. The error names the column.
        """
        names = [each["name"] for each in schema["fields"]]
        folded: dict[str, str] = {}
        for name in names:
            other = folded.setdefault(name.casefold(), name)
            if other is not name:
                raise InvalidRequest(
                    f"columns {other!r} and {name!r} differ by case only; rename one of them"
                )
        if bool(entity_type) == (TYPE in names):
            raise InvalidRequest(
                f"name the entity type of typed rows by the option entityType or by a column {TYPE}, "
                "and not by both"
            )
        fields = [each for each in schema["fields"] if each["name"] not in DESCRIPTIVE]
        columns = tuple(each["name"] for each in fields)
        if not key:
            raise InvalidRequest("option key is missing; name the columns of the primary key")
        for name in key:
            if name not in columns:
                raise InvalidRequest(f"option key: no column {name!r}{nearest(name, columns)}")
        for each in fields:
            if (fault := typed_fault(each["type"])) is not None:
                raise InvalidRequest(f"column {each['name']} is {fault}; cast it to a string")
        _, listing = columns_of({"fields": fields, "key": [*key]}, typed=True)
        is_plain = not {CHANGE, *_VERSIONS} & {*names}
        return cls(entity_type, tuple(key), columns, listing, is_plain=is_plain)


def changes_of(
    typed: TypedForm, batch: pa.RecordBatch, first_row: int
) -> tuple[pa.Table, list[str]]:
    """Return the rows of a batch as `CHANGES`, with the names of the entity types, sorted.

    The table has also ``transaction_id`` (string) and ``timestamp`` (int64, µs), as far as the batch has them.

    Args:
        typed: The form of the rows.
        batch: The rows, with at least one.
        first_row: Number of the first row in its partition, for errors.

    Raises:
        InvalidRequest: A row cannot be written. The error names entity type, key, column and row.
    """
    rows = _Rows(typed, batch, first_row)
    names, codes = rows.types()
    keys = rows.keys()
    hashed_as = [typed.hashed_as.get(name, name) for name in names]
    seeds = np.array([type_seed(name) for name in hashed_as], np.uint64)
    arrays = {
        "version": rows.versions(),
        "type": pa.array(codes, pa.int32()),
        "key_hash": pa.array(key_hashes(seeds[codes], keys)),
        "primary_key": keys,
        "kind": rows.kinds(),
        "image": rows.images(),
        **rows.leads(),
    }
    return pa.table(arrays), names


class _Rows:
    """The rows of one batch."""

    def __init__(self, typed: TypedForm, batch: pa.RecordBatch, first_row: int) -> None:
        self._typed = typed
        self._batch = batch
        self._first_row = first_row
        self._names = batch.schema.names

    def types(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Return the sorted names of the entity types, and the place of each row's name among them."""
        if self._typed.entity_type:
            return [self._typed.entity_type], np.zeros(self._batch.num_rows, np.int64)
        column = self._text(TYPE)
        self._refuse_null(TYPE, column, "name the row's table or collection")
        encoded = column.dictionary_encode()
        given = encoded.dictionary.to_pylist()
        if "" in given:
            row = pc.index(column, "").as_py()
            raise InvalidRequest(f"column {TYPE} is empty in row {self._first_row + row}")
        names = sorted(given)
        places = np.array([names.index(name) for name in given], np.int64)
        return names, places[encoded.indices.to_numpy()]

    def keys(self) -> pa.StringArray:
        """Return the text of each row's key."""
        columns = [self._batch.column(name) for name in self._typed.key]
        for name, column in zip(self._typed.key, columns, strict=True):
            self._refuse_null(name, column, "a column of the key has a value in every row")
        return self._named(", ".join(self._typed.key), lambda: key_texts(columns))

    def images(self) -> pa.BinaryArray:
        """Return the image of each row."""
        return images_of([(name, self._batch.column(name)) for name in self._typed.columns])

    def kinds(self) -> pa.UInt8Array:
        """Return the kind of each row."""
        if CHANGE not in self._names:
            return pa.repeat(pa.scalar(UPSERT, pa.uint8()), self._batch.num_rows)
        encoded = self._text(CHANGE).dictionary_encode()
        given = encoded.dictionary.to_pylist()
        for name in given:
            if name.lower() not in _KINDS:
                row = pc.index(self._text(CHANGE), name).as_py()
                raise InvalidRequest(
                    f"column {CHANGE} of {self._row(row)} is {name!r}{nearest(name, _KINDS)}"
                )
        kinds = np.array([*(_KINDS[name.lower()] for name in given), UPSERT], np.uint8)
        return pa.array(kinds[encoded.indices.fill_null(len(given)).to_numpy()])

    def versions(self) -> pa.Int64Array:
        """Return the source's version of each row; 0 without one."""
        name = next((name for name in _VERSIONS if name in self._names), None)
        if name is None:
            return pa.repeat(pa.scalar(0, pa.int64()), self._batch.num_rows)
        column = self._batch.column(name)
        if not pa.types.is_integer(column.type):
            raise InvalidRequest(
                f"column {name} is {column.type}; it must be a whole number that rises from version "
                "to version"
            )
        self._refuse_null(name, column, "each row has the number of its version")
        return column.cast(pa.int64())

    def leads(self) -> dict[str, pa.Array]:
        """Return the columns of the lead record that the batch has."""
        found = {}
        name = next((name for name in _IDS if name in self._names), None)
        if name is not None:
            found["transaction_id"] = self._text(name)
        if _TIME in self._names:
            column = self._batch.column(_TIME)
            if not pa.types.is_timestamp(column.type):
                raise InvalidRequest(f"column {_TIME} is {column.type}; it must be a timestamp")
            found["timestamp"] = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
        return found

    def _text(self, name: str) -> pa.StringArray:
        column = self._batch.column(name)
        if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
            try:
                column = column.cast(pa.string())
            except pa.ArrowException as error:
                raise InvalidRequest(f"column {name} is {column.type}; it must be text") from error
        return column.cast(pa.string())

    def _refuse_null(self, name: str, column: pa.Array, advice: str) -> None:
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise InvalidRequest(f"column {name} of {self._row(row)} is null; {advice}")

    def _named(self, name: str, made: Any) -> Any:
        try:
            return made()
        except InvalidRequest as error:
            raise InvalidRequest(f"column {name}: {error}") from None

    def _row(self, row: int) -> str:
        """Return the description of a row for errors."""
        type_name = self._typed.entity_type or self._batch.column(TYPE)[row].as_py()
        key = [self._batch.column(name)[row].as_py() for name in self._typed.key]
        shown = key[0] if len(key) == 1 else key
        return f"row {self._first_row + row} of its partition ({type_name}, key {shown!r})"
