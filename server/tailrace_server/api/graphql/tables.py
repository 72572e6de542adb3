"""Rows of a table for one field, as edges; the cursor of an edge resumes behind its row."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from tailrace import wire
from tailrace.errors import InvalidRequest
from tailrace.v1.capture_fields_pb2 import ReadStateResponseParts
from tailrace.v1.change_capture_pb2 import ReadStateRequest
from tailrace_server.api import requests
from tailrace_server.api.graphql import types
from tailrace_server.api.graphql.connection import COPIES, without_bodies
from tailrace_server.api.json_requests import from_json, in_json_names
from tailrace_server.codecs import PROTOBUF

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.api.graphql.where.values import TypedCondition
    from tailrace_server.api.settings import HttpSettings
    from tailrace_server.engine.engine import Engine
    from tailrace_server.grants.principal import Peer, Principal
    from tailrace_server.reads.state import StateRead
    from tailrace_server.resources.memory import MemoryCharge


async def read_table(
    engine: Engine,
    caller: Principal,
    peer: Peer,
    settings: HttpSettings,
    catalog: str,
    entity_type: str,
    arguments: Mapping[str, Any],
    condition: TypedCondition | None,
    *,
    with_images: bool,
    bytes_max: int,
    pages: MemoryCharge,
) -> types.TablePage:
    """Read rows; it ends behind the row that takes it above ``bytes_max``, and is charged to ``pages``.

    Raises:
        InvalidRequest: Arguments without meaning.
        TailraceError: The table cannot be read.
        ServerFull: There is no room for it.
    """
    most = settings.page_records
    count = arguments.get("limit", most)
    if not 1 <= count <= most:
        raise InvalidRequest(f"first {count}: it must lie in 1 to {most}, the largest page")
    fields = {**arguments, "limit": count, "entityType": entity_type, "keysOnly": not with_images}
    if condition is not None:
        del fields["where"]
        fields["whereTree"] = condition.tree
    message = from_json(ReadStateRequest, fields, criteria_max=engine.settings.criteria)
    try:
        with nullcontext() if condition is None else condition.told():
            read = await engine.state(
                caller, catalog, requests.state(message), codec=PROTOBUF, peer=peer
            )
    except InvalidRequest as error:
        if type(error) is InvalidRequest:  # the others have names of the caller's in their texts
            in_json_names(error)
        raise
    view = await engine.view(caller, catalog)
    with read:
        edges, more, size = await _edges_of(
            read, bytes_max, engine.settings.max_message_bytes, pages
        )
    return types.TablePage(
        edges,
        types.PageInfo(
            has_next_page=more,
            has_previous_page="page" in arguments,
            start_cursor=edges[0].cursor if edges else None,
            end_cursor=edges[-1].cursor if edges else None,
        ),
        version=read.version,
        commit_timestamp=read.commit_timestamp,
        resume_cursor=str(read.cursor),
        nbytes=size,
        schema_of=view.schema_of,
    )


async def _edges_of(
    read: StateRead, bytes_max: int, row_bytes_max: int, pages: MemoryCharge
) -> tuple[list[types.Edge], bool, int]:
    """Return edges, whether there are more rows, and their bytes; a row too large comes as its header."""
    edges: list[types.Edge] = []
    size = 0
    async for frames in read:
        if size > bytes_max:
            return edges, True, size
        found = wire.captures(
            ReadStateResponseParts.FromString(frames.data).rows, read.catalog_uuid
        )
        if len(found) == 1 and len(frames.data) > row_bytes_max:
            found = (without_bodies(found[0]),)
        else:
            pages.add(len(frames.data) * COPIES)
            size += len(frames.data)
        edges += [types.Edge(str(read.page_behind(each.primary_key or "")), each) for each in found]
    return edges, read.has_next, size
