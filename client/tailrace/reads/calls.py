"""The client's calls for reads that end: history and state."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from tailrace import wire
from tailrace.arguments import (
    Place,
    Time,
    Wanted,
    content_numbers,
    lower_bound_of,
    message_bytes,
    micros,
    milliseconds,
    not_both,
    sendable,
    several,
    state_request,
    version_of,
    waited_version,
)
from tailrace.criteria import Content
from tailrace.errors import InvalidRequest
from tailrace.event_loop import OnOneLoop
from tailrace.position import Position
from tailrace.reads.history import History
from tailrace.reads.state import State
from tailrace.transport.grpc import MAX_MESSAGE_BYTES
from tailrace.v1.catalog_pb2 import GetSchemaRequest, GetSchemaResponse
from tailrace.v1.change_capture_pb2 import (
    VALUES_DECODED,
    VALUES_UNSPECIFIED,
    ReadChangesRequest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tailrace.conditions import Where
    from tailrace.cursor import Cursor
    from tailrace.reads.state import StateRow
    from tailrace.schema import SchemaSpan
    from tailrace.transport import Stream, Transport


class ReadCalls(OnOneLoop):
    """The client's calls for reads; the client class provides the transport."""

    @abstractmethod
    def _require(self) -> Transport:
        """Return the transport of an open client."""

    @property
    @abstractmethod
    def _patience_s(self) -> float:
        """Maximum wait for the first message of an answer, in seconds."""

    async def schema_span(self, catalog: str, version: int) -> SchemaSpan:
        """Return the schema of a version, and the versions that have the same schema.

        Raises:
            CatalogUnknown: The catalog does not exist.
            TransportError: The server cannot be reached.
        """
        request = GetSchemaRequest(catalog=catalog, version=version).SerializeToString()
        data = await self._require().call("GetSchema", request, self._patience_s)
        return wire.schema_span(GetSchemaResponse.FromString(data))

    def read_changes(
        self,
        catalog: str,
        criteria: Wanted = (),
        *,
        since: Place | None = None,
        after: Cursor | str | None = None,
        from_time: Time | None = None,
        until: Place | None = None,
        before: Cursor | str | None = None,
        to_time: Time | None = None,
        reverse: bool = False,
        limit: int | None = None,
        anchor: int | None = None,
        content: Content = Content.HEADER,
        decoded: bool = False,
        typed: bool = False,
        wait_for: int | None = None,
        wait_s: float = 10.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> History:
        """Return a read of a range of history; it begins when its context is entered.

        Args:
            catalog: Name of the catalog.
            criteria: One criteria, or several that are combined by OR. None = every record at entity level.
            since: Lower bound as a position, inclusive; a number is a version. Without a lower bound the read
                begins at the oldest retained position.
            after: Lower bound as a cursor, exclusive.
            from_time: Lower bound as a commit time, inclusive.
            until: Upper bound as a position, inclusive; a number is a whole version. Without an upper bound the
                read ends at the newest published version.
            before: Upper bound as a cursor, exclusive.
            to_time: Upper bound as a commit time, exclusive.
            reverse: True to read the newest captures first; the bounds do not change their meaning.
            limit: Maximum number of matching records; the captures of a record are never separated.
            anchor: ``header.anchor`` of the first page, for further pages.
            content: Bodies that the captures carry.
            decoded: True to decode the values in bodies by the type and encoding of their column
                (docs/schemas.md). False leaves them as the source wrote them.
            typed: True if ``Capture.row`` shall return Python values, by the schema of each capture's version.
            wait_for: Version to wait for: the read begins once it is published, and covers it. A writer passes
                the version that it has just committed. Not allowed with ``anchor``.
            wait_s: Maximum wait for that version, in seconds; after it ``DeadlineExceeded`` is raised.
            max_message_bytes: Maximum size of a capture. A larger one comes without bodies and with
                ``omitted_bytes``.

        Raises:
            InvalidRequest: There is more than one lower or upper bound, or an argument is invalid.
        """
        not_both(decoded, typed)
        with sendable("read_changes"):
            request = ReadChangesRequest(
                catalog=catalog,
                criteria=wire.criteria_messages(several(criteria)),
                reverse=reverse,
                limit=limit,
                anchor=anchor,
                body=content_numbers(content),
                max_message_bytes=message_bytes(max_message_bytes),
                values=VALUES_DECODED if decoded else VALUES_UNSPECIFIED,
                wait_for_version=waited_version(wait_for),
                wait_ms=None if wait_for is None else milliseconds(wait_s, "wait_s"),
            )
            wire.set_start(request, lower_bound_of(since, after, from_time))
            if sum(bound is not None for bound in (until, before, to_time)) > 1:
                raise InvalidRequest("give at most one of until, before and to_time")
            if isinstance(until, Position):
                request.until_version, request.until_index = until
            elif until is not None:
                request.until_version = version_of("until", until)
            if before is not None:
                request.before = str(before)
            if to_time is not None:
                request.to_time = micros(to_time)

        def open_stream() -> Stream:
            return self._require().read("ReadChanges", request.SerializeToString())

        # The header comes after the wait for a version, so its time limit is extended by that wait.
        ask = partial(self.schema_span, catalog) if typed else None
        return History(open_stream, self._patience_s + (wait_s if wait_for else 0.0), ask)

    def state(
        self,
        catalog: str,
        entity_type: str,
        *,
        keys: Sequence[str] = (),
        at: int | datetime | None = None,
        columns: Sequence[str] = (),
        keys_only: bool = False,
        decoded: bool = False,
        typed: bool = False,
        limit: int | None = None,
        page: str | None = None,
        wait_for: int | None = None,
        wait_s: float = 10.0,
        where: Where | None = None,
        parameters: Mapping[str, object] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> State:
        """Return a read of the rows of a table as of one version; it begins when its context is entered.

        Args:
            catalog: Name of the catalog.
            entity_type: Entity type or view to read.
            keys: Canonical key texts of the rows to read; keys without a row are skipped. Empty = all rows.
            at: Version to read as of, or an aware datetime, which means the last version committed until then.
                None = the newest published.
            columns: Names of the columns in the images. Empty = all columns.
            keys_only: True to read the rows without images.
            decoded: True to decode the values in images by the type and encoding of their column
                (docs/schemas.md). False leaves them as the source wrote them.
            typed: True if ``StateRow.values`` shall return Python values, by the schema of each row's version.
            limit: Maximum number of rows; pass ``end.next_page`` as ``page`` to continue.
            page: ``end.next_page`` of an earlier read with the same arguments; its version is read again.
            wait_for: Version to wait for: the read begins once it is published, and is as of it or a later one.
                A writer passes the version that it has just committed.
            wait_s: Maximum wait for that version, in seconds; after it ``DeadlineExceeded`` is raised.
            where: Condition that the rows must meet: SQL, such as ``"price > :min AND name LIKE 'A%'"``, or a
                dict, such as ``{"column": "price", "gt": 100}``.
            parameters: Values of the condition's parameters by name, without the colon.
            max_message_bytes: Maximum size of a row. A larger one comes without its image and with
                ``omitted_bytes``.

        Raises:
            InvalidRequest: An argument is invalid.
        """
        not_both(decoded, typed)
        with sendable("state"):
            request = state_request(
                *(catalog, entity_type, keys, at, columns, max_message_bytes),
                keys_only=keys_only,
                decoded=decoded,
                limit=limit,
                page=page,
                wait_for=wait_for,
                wait_s=wait_s,
                where=where,
                parameters=parameters or {},
            )

        def open_stream() -> Stream:
            return self._require().read("ReadState", request.SerializeToString())

        # The header comes after the wait for a version, so its time limit is extended by that wait.
        ask = partial(self.schema_span, catalog) if typed else None
        return State(open_stream, self._patience_s + (wait_s if wait_for else 0.0), ask)

    async def get(
        self,
        catalog: str,
        entity_type: str,
        key: str,
        *,
        at: int | datetime | None = None,
        columns: Sequence[str] = (),
        decoded: bool = False,
        typed: bool = False,
        wait_for: int | None = None,
        wait_s: float = 10.0,
    ) -> StateRow | None:
        """Return one row of a table; None if the table has no row with the key as of that version.

        The arguments have the same meaning as for ``state``.

        Raises:
            TailraceError: The server refused the read, or could not be reached.
        """
        state = self.state(
            *(catalog, entity_type),
            keys=(key,),
            at=at,
            columns=columns,
            decoded=decoded,
            typed=typed,
            wait_for=wait_for,
            wait_s=wait_s,
        )
        async with state:
            return await anext(state, None)
