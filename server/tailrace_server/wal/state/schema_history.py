"""The schemas of a log in memory, looked up by version.

A log may have thousands of schemas, and most differ from the one before in one entity type only. So each schema
is stored as that difference, and every 32nd also as a whole. A look-up assembles the schema from the last whole
one before it and the differences since.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tailrace.errors import LogCorrupted
from tailrace.schema import Column, Schema
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import SCHEMAS
from tailrace_server.wal.files.schema_documents import difference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.wal.files.object_store import ObjectStore

_EMPTY: Final = Schema()
_WHOLE_EVERY: Final = 32
_PUT_TOGETHER: Final = 64
"""The most assembled schemas that are cached."""


class _Kept(NamedTuple):
    id: int
    differing: dict[str, tuple[Column, ...]]
    """The entity types that differ from the schema before, with their columns."""
    placeholders: tuple[str, ...]


class SchemaHistory:
    """The schemas of a log, oldest first; schemas are only appended.

    Look-ups are safe in any thread while one thread appends.
    """

    def __init__(self) -> None:
        """Create a history without schemas."""
        self._versions: list[int] = []
        self._kept: list[_Kept] = []
        self._whole: dict[int, Schema] = {}
        """The schemas that are stored as a whole, by place; the others are assembled from them."""
        self._asked: dict[int, Schema] = {}
        self._first_with: dict[str, int] = {}
        """Maps the name of each entity type to the place of the first schema that has it."""
        self.newest = _EMPTY
        self.whole_bytes = 0
        """Size of the newest schema file that has a whole schema, in bytes."""
        self.difference_bytes = 0
        """Total size of the schema files after the newest whole one, in bytes."""

    def __len__(self) -> int:
        """Return the number of schemas."""
        return len(self._versions)

    def read(self, store: ObjectStore, first_version: int, id: int) -> None:
        """Read the schema that begins at a version from its file, and append it.

        Raises:
            LogCorrupted: The file is missing or damaged, or does not continue the newest schema.
            LogUnreadable: The file has a newer format version.
        """
        path = f"{SCHEMAS}/{id}.json"
        found = documents.read_schema(store, id)
        if found is None:
            raise LogCorrupted(path, 0, "an entry names this schema, but it is missing")
        document, size = found
        if document.parent not in (0, self.newest.id):
            raise LogCorrupted(
                path,
                0,
                f"its checksum is right, but it continues schema {document.parent}, and the "
                f"previous schema is {self.newest.id}",
            )
        try:
            schema = document.schema(self.newest)
        except KeyError as error:
            raise LogCorrupted(
                path, 0, f"its checksum is right, but {error} is not a role"
            ) from error
        self.append(first_version, schema, size, whole=not document.parent)

    def append(self, first_version: int, schema: Schema, size: int, *, whole: bool) -> None:
        """Append the schema that begins at a version.

        Args:
            first_version: The first version that was written with the schema.
            schema: The whole schema.
            size: Size of the schema's file in bytes.
            whole: True if the file has the whole schema, False if it has a difference.
        """
        # Every 32nd schema is stored whole, so a look-up applies at most 31 differences.
        place = len(self._kept)
        differing = difference(self.newest, schema)
        if differing is None or place % _WHOLE_EVERY == 0:
            self._whole[place] = schema
        self._kept.append(_Kept(schema.id, differing or {}, schema.placeholders))
        for entity_type in schema.entity_types if differing is None else differing:
            self._first_with.setdefault(entity_type, place)
        self.newest = schema
        self.whole_bytes = size if whole else self.whole_bytes
        self.difference_bytes = 0 if whole else self.difference_bytes + size
        # Last, because other threads search this list: what they find must be complete.
        self._versions.append(first_version)

    def at(self, version: int) -> Schema:
        """Return the schema that a version was written with; an empty schema if the log had none yet."""
        place = bisect_right(self._versions, version) - 1
        return self.at_place(place) if place >= 0 else _EMPTY

    def span(self, version: int) -> tuple[int, int | None]:
        """Return the first version of the schema that is valid at a version, and the first of the next schema.

        The second value is None if there is no later schema.
        """
        place = bisect_right(self._versions, version)
        first = max(0, self._versions[place - 1]) if place else 0
        return first, self._versions[place] if place < len(self._versions) else None

    def up_to(self, version: int) -> Iterator[Schema]:
        """Yield the schemas that begin at or before a version, oldest first."""
        schema = _EMPTY
        for place in range(bisect_right(self._versions, version)):
            schema = self._after(schema, place)
            yield schema

    def had_entity_type(self, name: str, version: int) -> bool:
        """Return True if any schema that begins at or before a version has an entity type of a name."""
        return self._first_with.get(name, len(self)) < bisect_right(self._versions, version)

    def at_place(self, place: int) -> Schema:
        """Return the schema at a place; the oldest one is at place 0."""
        # Nearly all look-ups are for the newest schema. It is read only once here: another thread may append.
        newest = self.newest
        if self._kept[place].id == newest.id:
            return newest
        found = self._asked.get(place)
        if found is None:
            # Go back to the last whole schema, and apply the differences after it.
            first = place
            while first not in self._whole:
                first -= 1
            found = self._whole[first]
            for between in range(first + 1, place + 1):
                found = self._after(found, between)
            # Clearing is safe in any thread: the cache only saves work.
            if len(self._asked) >= _PUT_TOGETHER:
                self._asked.clear()
            self._asked[place] = found
        return found

    def _after(self, before: Schema, place: int) -> Schema:
        whole = self._whole.get(place)
        if whole is not None:
            return whole
        id, differing, placeholders = self._kept[place]
        return Schema(id, before.entity_types | differing, placeholders)


class Schemas(Protocol):
    """The schemas of a log, by version: ``SchemaHistory``, or a filter that hides parts of each schema."""

    def at(self, version: int) -> Schema:
        """Return the schema that a version was written with; an empty schema if the log had none yet."""

    def span(self, version: int) -> tuple[int, int | None]:
        """Return the first version of the schema that is valid at a version, and the first of the next schema.

        The second value is None if there is no later schema.
        """

    def up_to(self, version: int) -> Iterator[Schema]:
        """Yield the schemas that begin at or before a version, oldest first."""

    def had_entity_type(self, name: str, version: int) -> bool:
        """Return True if any schema that begins at or before a version has an entity type of a name."""


class HasSchemas(Protocol):
    """A view of a log, or any other object that knows the schema of each version."""

    def schema_of(self, version: int) -> Schema:
        """Return the schema that a version was written with."""


class PublishedSchemas(HasSchemas, Protocol):
    """A view of a log: the schemas of its versions, up to the newest published one."""

    @property
    def published(self) -> int:
        """Highest published version."""
