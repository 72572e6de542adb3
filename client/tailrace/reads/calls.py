"""The calls of a client that read and then end: history, and state."""

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
    """A client's calls; the client says over which transport."""

    @abstractmethod
    def _require(self) -> Transport:
        """Return the transport of an open client."""

    @property
    @abstractmethod
    def _patience_s(self) -> float:
        """How long to wait for an answer, seconds."""

    async def _schema_span(self, catalog: str, version: int) -> SchemaSpan:
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
        """Return a read of a closed range; it begins when its context is entered.

        Args:
            catalog: Its name.
            criteria: As ``subscribe``.
            since: Lower bound, inclusive; none of the three = the oldest retained.
            after: Lower bound, exclusive.
            from_time: Lower bound, inclusive.
            until: Upper bound, inclusive; a number is a whole version. None of the three = the newest
                published.
            before: Upper bound, exclusive.
            to_time: Upper bound, exclusive.
            reverse: Newest first; the bounds stay what they are.
            limit: Matching records at most, whole ones.
            anchor: That of the first page.
            content: Bodies that the captures carry.
            decoded: Whether values in them are decoded by their column's type and encoding (docs/schemas.md).
                They come as the source wrote them otherwise.
            typed: As ``subscribe``.
            wait_for: Wait until this version is published, and read up to it or later: the writer of V reads
            its own rows. Not with ``anchor``, whose version is past.
            wait_s: For so long at most; then ``DeadlineExceeded``.
            max_message_bytes: A larger capture comes without bodies and with ``omitted_bytes``.

        Raises:
            InvalidRequest: More than one lower or upper bound, or one that has no meaning.
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
                request.until_version = until
            if before is not None:
                request.before = str(before)
            if to_time is not None:
                request.to_time = micros(to_time)

        def open_stream() -> Stream:
            return self._require().read("ReadChanges", request.SerializeToString())

        ask = partial(self._schema_span, catalog) if typed else None
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
        """Return a read of a table: its rows as of one version. It begins when its context is entered.

        Args:
            catalog: Its name.
            entity_type: The table.
            keys: Canonical key texts: only these rows, of those that there are; none = every row.
            at: The version, or an aware datetime: the last version committed until then. None = the newest
                published.
            columns: Of the images; none = all of them.
            keys_only: Whether rows come without images.
            decoded: As ``subscribe``.
            typed: Whether ``StateRow.values`` gives Python's values, by the schema of each row's version.
            limit: Rows at most; ``end.next_page`` continues.
            page: ``end.next_page`` of an earlier read of the same, at whose version this one is.
            wait_for: Wait until this version is published, and read it or a later one: the writer of V reads
            its own rows.
            wait_s: For so long at most; then ``DeadlineExceeded``.
            where: Only rows that meet this condition: SQL, as ``"price > :min AND name LIKE 'A%'"``, or a dict,
                as ``{"column": "price", "gt": 100}``.
            parameters: Values of the condition's parameters by name, without the colon.
            max_message_bytes: A larger row comes without its image and with ``omitted_bytes``.

        Raises:
            InvalidRequest: An argument has no meaning.
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

        ask = partial(self._schema_span, catalog) if typed else None
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
        """Return one row of a table; None: no row has the key as of that version. Arguments as ``state``.

        Raises:
            TailraceError: The server refused, or could not be reached.
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
