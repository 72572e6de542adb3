"""Which schema a version was written with: learned from the server, each for the versions that it holds for.

::

    versions   1 ··· 6 | 7 ················ 41 ···▶
    schema        1    |          2
                        ▲                 ▲
                  since_version     until_version: the newest that the server knows of

A read asks once for each schema that its rows need. A subscription has the records of the schema among its
captures. So it knows that a schema holds on beyond ``until_version`` until such a record comes: while rows come
it asks for nothing, and no row is read by the types of another version.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tailrace.errors import CatalogReplaced, TransportError, Unsupported
from tailrace.typed.row_reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from tailrace.schema import Schema, SchemaSpan

    Ask = Callable[[int], Awaitable[SchemaSpan]]
    """Version → its schema, as the server answers."""

_WHOLE_KEPT: Final = 16
"""KnownSchemas of all entity types that are kept; captures come in the order of versions, or against it."""
_PARTS_KEPT: Final = 4_096
"""Of one entity type; the rows of a table come in no order of versions."""


@dataclass(slots=True)
class _Known:
    """A schema, and the versions that it is known to hold for, inclusive."""

    schema: Schema
    since: int
    until: int
    readers: dict[str, RowReader] = field(default_factory=dict)
    """By entity type, those that were needed."""


class KnownSchemas:
    """The schemas of a catalog's versions, as far as they were needed."""

    def __init__(
        self,
        catalog: str,
        catalog_uuid: UUID,
        ask: Ask,
        *,
        part_of: Callable[[Schema], Schema] | None = None,
    ) -> None:
        """Know none yet; ``part_of`` takes what is needed from a schema, so that more of them are kept."""
        self._catalog = catalog
        self._catalog_uuid = catalog_uuid
        self._ask = ask
        self._part_of = part_of
        self._known: list[_Known] = []
        """By version, none twice."""

    async def reader(self, version: int, entity_type: str) -> RowReader:
        """Return what reads the images of an entity type in a version.

        Raises:
            TailraceError: The server refused, or could not be reached.
        """
        known = self._found(version) or await self._asked(version)
        reader = known.readers.get(entity_type)
        if reader is None:
            columns = known.schema.entity_types.get(entity_type, ())
            reader = RowReader(entity_type, columns, known.schema.placeholders)
            known.readers[entity_type] = reader
        return reader

    async def schema(self, version: int) -> Schema:
        """Return the schema of a version; raises as ``reader``."""
        return (self._found(version) or await self._asked(version)).schema

    def holds_until(self, version: int) -> None:
        """Note that the newest schema that is known holds for a version, and all between."""
        if self._known:
            self._known[-1].until = max(self._known[-1].until, version)

    def knows(self, version: int) -> bool:
        """Return whether the schema of a version is known."""
        return self._found(version) is not None

    def _found(self, version: int) -> _Known | None:
        place = bisect_right(self._known, version, key=lambda known: known.since) - 1
        if place >= 0 and version <= self._known[place].until:
            return self._known[place]
        return None

    async def _asked(self, version: int) -> _Known:
        found = await self._ask(version)
        if found.catalog_uuid != self._catalog_uuid:
            raise CatalogReplaced(self._catalog, self._catalog_uuid, found.catalog_uuid)
        if found.until == 0:
            raise Unsupported(
                "typed",
                "the server does not say for which versions a schema holds; ask a newer server",
            )
        if not found.since <= version <= found.until:
            raise TransportError(
                f"the server asked for the schema of version {version} has read the log up to version "
                f"{found.until} only"
            )
        schema = found.schema if self._part_of is None else self._part_of(found.schema)
        known = _Known(schema, found.since, found.until)
        self._known = [each for each in self._known if each.since != known.since]
        self._known.append(known)
        self._known.sort(key=lambda each: each.since)
        if len(self._known) > (_WHOLE_KEPT if self._part_of is None else _PARTS_KEPT):
            # The farthest from what was asked for: versions that follow lie near it.
            ends = (self._known[0], self._known[-1])
            self._known.remove(max(ends, key=lambda each: abs(each.since - version)))
        return known
