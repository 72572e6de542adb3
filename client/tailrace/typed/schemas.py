"""The cache of a catalog's schemas by version, and the typing of captures by the schema of their version.

::

    versions   1 ··· 6 | 7 ················ 41 ···▶
    schema        1    |          2
                        ▲                 ▲
                  since_version     until_version: the newest that the server knows of

A read requests each schema that its rows need once. A subscription also receives schema changes among its
captures. So its schema is valid beyond ``until_version`` until such a change comes. As long as only rows come,
the subscription requests nothing, and it never reads a row by the types of another version. Requests for a
schema are retried by the same policy as the subscription.
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
    """Function that requests the schema of a version from the server."""

_WHOLE_KEPT: Final = 16
"""Maximum number of cached schemas of all entity types. Few suffice: captures come in rising or falling order
of versions."""
_PARTS_KEPT: Final = 4_096
"""Maximum number of cached schemas of one entity type; the rows of a table come in any order of versions."""


@dataclass(slots=True)
class _Known:
    """A schema, and the versions that are known to have it, inclusive."""

    schema: Schema
    since: int
    until: int
    readers: dict[str, RowReader] = field(default_factory=dict)
    """Readers by entity type, as far as they were needed."""


class KnownSchemas:
    """A cache of the schemas of a catalog by version; missing ones are requested from the server."""

    def __init__(
        self,
        catalog: str,
        catalog_uuid: UUID,
        ask: Ask,
        *,
        part_of: Callable[[Schema], Schema] | None = None,
    ) -> None:
        """Begin with an empty cache.

        Args:
            catalog: Name of the catalog.
            catalog_uuid: Identity of its log; a schema of another log is refused.
            ask: Function that requests the schema of a version.
            part_of: Function that reduces a schema to the needed part, so that more schemas can be cached.
        """
        self._catalog = catalog
        self._catalog_uuid = catalog_uuid
        self._ask = ask
        self._part_of = part_of
        self._known: list[_Known] = []
        """Cached schemas, sorted by ``since``, without overlaps."""

    async def reader(self, version: int, entity_type: str) -> RowReader:
        """Return the reader for the images of an entity type in a version.

        Raises:
            TailraceError: The server refused the request for the schema, or could not be reached.
        """
        known = self._found(version) or await self._asked(version)
        reader = known.readers.get(entity_type)
        if reader is None:
            columns = known.schema.entity_types.get(entity_type, ())
            reader = RowReader(entity_type, columns, known.schema.placeholders)
            known.readers[entity_type] = reader
        return reader

    async def schema(self, version: int) -> Schema:
        """Return the schema of a version; raise the same errors as ``reader``."""
        return (self._found(version) or await self._asked(version)).schema

    def holds_until(self, version: int) -> None:
        """Note that the newest cached schema is also valid for a later version, and all versions between."""
        if self._known:
            self._known[-1].until = max(self._known[-1].until, version)

    def knows(self, version: int) -> bool:
        """Return True if the schema of a version is cached."""
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
                "the server does not report for which versions a schema is valid; use a newer "
                "server",
            )
        if not found.since <= version <= found.until:
            raise TransportError(
                f"the server was asked for the schema of version {version}, but has read the log "
                f"only up to version {found.until}"
            )
        schema = found.schema if self._part_of is None else self._part_of(found.schema)
        # The same schema may come again with a later end, since versions were published meanwhile: replace it.
        known = _Known(schema, found.since, found.until)
        self._known = [each for each in self._known if each.since != known.since]
        self._known.append(known)
        self._known.sort(key=lambda each: each.since)
        if len(self._known) > (_WHOLE_KEPT if self._part_of is None else _PARTS_KEPT):
            # Remove the schema that is farthest from the requested version: the next versions are near it.
            ends = (self._known[0], self._known[-1])
            self._known.remove(max(ends, key=lambda each: abs(each.since - version)))
        return known


SCHEMA_CHANGES = Criteria(area=Area.SCHEMA)
"""The criteria that a typed subscription adds, so that it receives every change of the schema."""


class TypedBatch(tuple["Capture", ...]):
    """The captures of one message, each row with its reader."""

    passed_over = 0
    """Number of schema changes in the message that were removed, since the user's criteria do not match
    them."""


class TypedCaptures:
    """Sets the reader in captures of rows, by the schema of their version."""

    def __init__(self, catalog: str, ask: Ask, *, follows: bool = False) -> None:
        """Begin without schemas.

        Args:
            catalog: Name of the catalog.
            ask: Function that requests the schema of a version.
            follows: True if captures come in the order of versions and include all changes of the schema. A
                schema is then valid until the next change comes.
        """
        self._catalog = catalog
        self._ask = ask
        self._follows = follows
        self._changed = False
        """True if a schema change came since the last request for a schema."""
        self._schemas: KnownSchemas | None = None

    async def with_readers(self, captures: Iterable[Capture]) -> list[Capture]:
        """Return the same captures, with the reader set in captures of rows.

        Raises:
            TailraceError: The server refused the request for a schema, or could not be reached.
        """
        found = []
        place: tuple[int, str | None] | None = None
        reader: RowReader | None = None
        for each in captures:
            if each.area is Area.DATA:
                # Captures of one version and entity type are mostly adjacent: look the reader up once for them.
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
            # All schema changes come in order: without one the newest schema is also that of this version.
            if self._follows and not self._changed:
                self._schemas.holds_until(capture.version)
            reader = await self._schemas.reader(capture.version, capture.entity_type or "")
            # Reset the flag only after the request: a cancelled call must request the schema again.
            self._changed = False
            return reader
        return await self._schemas.reader(capture.version, capture.entity_type or "")


class TypedSubscription(TypedCaptures):
    """Typing of a subscription's captures; it removes schema changes that the user did not request."""

    def __init__(self, catalog: str, ask: Ask, criteria: Sequence[Criteria]) -> None:
        """Store the criteria of the user, without `SCHEMA_CHANGES`."""
        super().__init__(catalog, ask, follows=True)
        self._criteria = criteria

    async def typed(self, captures: Sequence[Capture]) -> TypedBatch:
        """Return the captures that the user's criteria match, with the reader set in captures of rows.

        A call that was cancelled or failed may be repeated with the same captures.
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
    """Return True if criteria match a schema change, by the rules of docs/protocol.md."""
    kinds = criteria.container_type
    return (
        criteria.area in (None, Area.SCHEMA)
        and not criteria.primary_key
        and (not criteria.operation or Operation.UPSERT in criteria.operation)
        and (not criteria.entity_type or record.entity_type in criteria.entity_type)
        and (ContainerType.CATALOG in kinds if kinds or criteria.container_name else True)
    )


def patient(ask: Ask, retry: Retry, timeouts: Timeouts) -> Ask:
    """Return a function that calls ``ask`` and retries, as long as a retry may help and ``retry`` allows it."""

    async def asked(version: int) -> SchemaSpan:
        clock = SystemClock()
        attempts = Attempts(retry, timeouts, clock)
        # The subscription is open: limit the number of attempts, and not the time until the first answer.
        attempts.acknowledged = True
        while True:
            try:
                return await ask(version)
            except TailraceError as error:
                wait_s = attempts.wait_after(error)
            await clock.sleep(wait_s)

    return asked
