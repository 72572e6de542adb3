"""The definitions (views and change tables) of one catalog, read from its folder on request."""

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
    """Reads the definitions for all callers of one catalog. Lives on the event loop; reads in a thread.

    Each caller gets the result of a read that began after its request. Callers that come while a read is
    running share the next one, so ten thousand simultaneous requests cost a few reads. A request that names
    only entity types known at the last read needs no new one: no view can have been defined with such a name
    since.
    """

    def __init__(self, store: ObjectStore, uuid: UUID) -> None:
        """Bind to a catalog; nothing is read before the first request."""
        self._store, self._uuid = store, uuid
        self._known = Definitions()
        self._entity_types: Collection[str] = ()
        """The entity types that the catalog had when the last successful read began."""
        self.had_views = asyncio.Event()
        """Set once a read has found a view: until then no caller can have requested one."""
        self.told: set[str] = set()
        """Names in grants that this catalog does not have and that were logged already."""
        self._turn = asyncio.Lock()
        self._looks = 0
        """Number of reads that have begun."""
        self._found: tuple[int, Definitions | TailraceError] = 0, self._known
        """The number of the read that ended last, and its result."""

    async def of(self, names: Iterable[str], schema: Schema) -> Definitions:
        """Return the current definitions, as far as they concern some names.

        Args:
            names: Names of entity types and views.
            schema: The newest schema.

        Raises:
            LogError: An error of ``newest``. If all names are entity types, damaged or unreadable definitions
                raise no error, because the request does not need them.
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
        """Return the current definitions, and note the entity types: no view can get one of their names later.

        Raises the same errors as ``newest``.

        Args:
            schema: The newest schema at the time of the call.
        """
        found = await self.newest()
        self._entity_types = schema.entity_types
        return found

    async def newest(self) -> Definitions:
        """Return the current definitions.

        Raises:
            CatalogReplaced: The definitions belong to another log.
            LogCorrupted: The newest object is damaged.
            LogUnreadable: The newest object has a newer format version.
        """
        # A read with a number above ``asked`` began after this request. If none has ended when this caller gets
        # its turn, it reads; the callers behind it in the queue then find that result.
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
