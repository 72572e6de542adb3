"""The definitions of one catalog, as its log's folder has them at the moment that somebody asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tailrace.errors import LogCorrupted, LogError, LogUnreadable, again, kept
from tailrace_server.wal.sequences.definitions import Definitions, newest_definitions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from uuid import UUID

    from tailrace.errors import TailraceError
    from tailrace.schema import Schema
    from tailrace_server.wal.files.object_store import ObjectStore

_NOTHING: Final = Definitions()


class KnownDefinitions:
    """Looks into the folder for everybody who asks. Lives on the event loop; looks in a thread.

    Each caller gets what a look finds that began after it had asked. Those who ask while one is under way share
    the next: ten thousand who come at once cost a few. A request that names only entity types known at the last
    look needs no new look: no view can have been defined with such a name since.
    """

    def __init__(self, store: ObjectStore, uuid: UUID) -> None:
        """Bind to a catalog; nothing is read before somebody asks."""
        self._store, self._uuid = store, uuid
        self._known = Definitions()
        self._entity_types: Collection[str] = ()
        """Those that there were when the last look began that found something."""
        self.had_views = asyncio.Event()
        """Set once a look has found a view: until then no caller can have requested one."""
        self.told: set[str] = set()
        """Names in grants that mean nothing here, and that were logged."""
        self._turn = asyncio.Lock()
        self._looks = 0
        """How many looks have begun."""
        self._found: tuple[int, Definitions | TailraceError] = 0, self._known
        """The number of the look that ended last, and what it found."""

    async def of(self, names: Iterable[str], schema: Schema) -> Definitions:
        """Return what is defined now, as far as it concerns names.

        Args:
            names: Of entity types and views.
            schema: The newest one.

        Raises:
            LogError: As ``newest``, unless all of the names are entity types: a damaged view does not block
            them.
        """
        wanted = [*names]
        views = self._known.views
        if all(name in self._entity_types and name not in views for name in wanted):
            return self._known
        try:
            return await self.look(schema)
        except (LogCorrupted, LogUnreadable):
            if all(name in schema.entity_types for name in wanted):
                return _NOTHING
            raise

    async def look(self, schema: Schema) -> Definitions:
        """Return what is defined now, and know from then on that no view has the name of an entity type.

        Raises as ``newest``; the schema is the newest one as this is called.
        """
        found = await self.newest()
        self._entity_types = schema.entity_types
        return found

    async def newest(self) -> Definitions:
        """Return what is defined now.

        Raises:
            CatalogReplaced: The definitions are of another log.
            LogCorrupted: The newest object is damaged.
            LogUnreadable: It has a newer format version.
        """
        asked = self._looks
        async with self._turn:
            if self._found[0] <= asked:
                self._looks += 1
                self._found = self._looks, await self._look()
            found = self._found[1]
        if isinstance(found, Definitions):
            return found
        raise again(found)

    async def _look(self) -> Definitions | TailraceError:
        try:
            self._known = await asyncio.to_thread(
                newest_definitions, self._store, self._uuid, self._known
            )
        except LogError as error:
            return kept(error)
        if self._known.views:
            self.had_views.set()
        return self._known
