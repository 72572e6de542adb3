"""Captures with what reads their rows: each by the schema of its version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.criteria import Area, ContainerType, Criteria, Operation
from tailrace.typed.schemas import KnownSchemas

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tailrace.capture import Capture
    from tailrace.typed.row_reader import RowReader
    from tailrace.typed.schemas import Ask

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
