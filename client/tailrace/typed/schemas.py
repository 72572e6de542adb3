"""Schemas by version, learned from the server, and captures with the reader of their version's rows.

::

    versions   1 ··· 6 | 7 ················ 41 ···▶
    schema        1    |          2
                        ▲                 ▲
                  since_version     until_version: the newest that the server knows of

A read asks once for each schema that its rows need. A subscription has the records of the schema among its
captures, so a schema holds beyond ``until_version`` until such a record comes. While rows come, the
subscription asks for nothing, and no row is read by the types of another version. A schema is requested as
patiently as a subscription waits for its server.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tailrace.clock import SystemClock
from tailrace.criteria import Area, ContainerType, Criteria, Operation
from tailrace.errors import CatalogReplaced, TailraceError, TransportError, Unsupported
from tailrace.retry import Attempts
from tailrace.typed.row_reader import RowReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from uuid import UUID

    from tailrace.capture import Capture
    from tailrace.retry import Retry, Timeouts
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


SCHEMA_CHANGES = Criteria(area=Area.SCHEMA)
"""The criteria that a subscription adds to receive every change of the schema."""


class TypedBatch(tuple["Capture", ...]):
    """Captures of one message that have their readers."""

    passed_over = 0
    """Others of the message: records of the schema that the user's criteria do not match."""


class TypedCaptures:
    """Gives captures their readers."""

    def __init__(self, catalog: str, ask: Ask, *, follows: bool = False) -> None:
        """Know no schema yet.

        Args:
            catalog: Its name.
            ask: Asks for the schema of a version.
            follows: Whether captures come in the order of versions, with all records of the schema.
        """
        self._catalog = catalog
        self._ask = ask
        self._follows = follows
        self._changed = False
        """Following: whether a record of the schema came since a schema was asked for."""
        self._schemas: KnownSchemas | None = None

    async def with_readers(self, captures: Iterable[Capture]) -> list[Capture]:
        """Return the same captures, those of rows with a reader.

        Raises:
            TailraceError: The server refused to tell a schema, or could not be reached.
        """
        found = []
        place: tuple[int, str | None] | None = None
        reader: RowReader | None = None
        for each in captures:
            if each.area is Area.DATA:
                # Captures of one version and entity type follow one another.
                if place != (each.version, each.entity_type):
                    reader = await self._reader(each)
                    place = each.version, each.entity_type
                found.append(each._replace(reader=reader))
                continue
            self._changed |= each.area is Area.SCHEMA
            found.append(each)
        return found

    async def _reader(self, capture: Capture) -> RowReader:
        if self._schemas is None:
            self._schemas = KnownSchemas(self._catalog, capture.catalog_uuid, self._ask)
        if not self._schemas.knows(capture.version):
            if self._follows and not self._changed:
                self._schemas.holds_until(capture.version)
            reader = await self._schemas.reader(capture.version, capture.entity_type or "")
            # Only now: a call that is cancelled asks again.
            self._changed = False
            return reader
        return await self._schemas.reader(capture.version, capture.entity_type or "")


class TypedSubscription(TypedCaptures):
    """The same for a subscription: passes over records of the schema that its user did not ask for."""

    def __init__(self, catalog: str, ask: Ask, criteria: Sequence[Criteria]) -> None:
        """Keep what the user asked for."""
        super().__init__(catalog, ask, follows=True)
        self._criteria = criteria

    async def typed(self, captures: Sequence[Capture]) -> TypedBatch:
        """Return the captures that the user's own criteria match, those of rows with a reader.

        A call that is cancelled or fails may be repeated with the same captures.
        """
        found = await self.with_readers(captures)
        batch = TypedBatch(
            each for each in found if each.area is not Area.SCHEMA or self._takes(each)
        )
        batch.passed_over = len(captures) - len(batch)
        return batch

    def _takes(self, record: Capture) -> bool:
        return not self._criteria or any(_matches(each, record) for each in self._criteria)


def _matches(criteria: Criteria, record: Capture) -> bool:
    """Return whether criteria match a record of the schema, by the rules of docs/protocol.md."""
    kinds = criteria.container_type
    return (
        criteria.area in (None, Area.SCHEMA)
        and not criteria.primary_key
        and (not criteria.operation or Operation.UPSERT in criteria.operation)
        and (not criteria.entity_type or record.entity_type in criteria.entity_type)
        and (ContainerType.CATALOG in kinds if kinds or criteria.container_name else True)
    )


def patient(ask: Ask, retry: Retry, timeouts: Timeouts) -> Ask:
    """Return what asks again for as long as a retry may help and ``retry`` allows it."""

    async def asked(version: int) -> SchemaSpan:
        clock = SystemClock()
        attempts = Attempts(retry, timeouts, clock)
        attempts.acknowledged = True
        while True:
            try:
                return await ask(version)
            except TailraceError as error:
                wait_s = attempts.wait_after(error)
            await clock.sleep(wait_s)

    return asked
