"""Reads of a view's state: the view is resolved to its entity type as of the version that is read.

A view has the rows of an entity type that meet a condition, with some of the columns. So its state is that of
the entity type, filtered by the condition and with cut images. The names in a view are those of its definition,
even if its columns have other names at the version.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace_server.codecs.column_cut import column_codec
from tailrace_server.grants.asked_views import views_named
from tailrace_server.grants.grant import Action
from tailrace_server.grants.principal import allowances_of
from tailrace_server.grants.view_grants import known_view
from tailrace_server.reads.state_request import version_asked
from tailrace_server.rows.state_filter import StateCondition
from tailrace_server.wal.state.entity_names import columns_under

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.schema import Column
    from tailrace_server.codecs import Codec
    from tailrace_server.grants.grant import Allowance
    from tailrace_server.grants.principal import Principal
    from tailrace_server.grants.view_grants import ViewGrant
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.reads.state_request import StateRequest
    from tailrace_server.wal.files.sequence_documents import ViewDocument
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True)
class ViewRows:
    """A view as of one version, for one caller."""

    name: str
    identity: bytes
    """Key of the view's definition; equal definitions have equal keys."""
    version: int
    entity_type: str
    """The name of the entity type at the version."""
    condition: StateCondition | None
    """The condition that rows of the view meet; None: all rows."""
    request: tuple[Column, ...]
    """The columns that the condition may name: in their form at the version, under the condition's names."""
    shown: tuple[Column, ...]
    """The columns of the view: in their form at the version, under the view's names."""
    written: dict[str, str]
    """Name of each column in the view → its name at the version."""
    shows_all: bool
    """True if the view has all columns of its entity type, so that it does not cut images."""
    by_view: ViewGrant | None
    """The rights from grants that name the view; None: the grants of its entity type apply."""

    def codec(self, codec: Codec, columns: Sequence[str]) -> Codec:
        """Return a codec that cuts images to some columns, given by names at the version; empty: no cut."""
        ids = frozenset(each.id for each in self.shown if self.written[each.name] in columns)
        return column_codec(codec, ids) if ids else codec

    def pinned(self, request: StateRequest) -> StateRequest:
        """Return the request in terms of the entity type, as of this version.

        Raises:
            InvalidRequest: The request names a column that the view does not have.
        """
        for name in request.columns:
            if name not in self.written:
                raise InvalidRequest(
                    f"view {self.name} has no column {name!r}{nearest(name, self.written)}"
                )
        chosen = request.columns or (
            () if self.shows_all or request.keys_only else (*self.written,)
        )
        return replace(
            request,
            entity_type=self.entity_type,
            columns=tuple(self.written[name] for name in chosen),
            at_version=self.version if request.page is None else None,
            at_time=None,
            wait_for_version=None,
        )


async def view_rows(log: FollowedLog, caller: Principal, request: StateRequest) -> ViewRows | None:
    """Return the view that a read of state names; None if the caller may see no view of that name.

    Raises:
        InvalidRequest: An entity type has the view's name too, or the view needs a column that does not exist.
        TailraceError: ``version_asked`` raises it.
    """
    name = request.entity_type
    document = (await views_named(log, (name,))).get(name)
    if document is None:
        return None
    view = log.view
    allowances = allowances_of(caller, view.name, Action.HISTORY)
    known = partial(known_view, document, allowances)
    # Check the rights before anything else in the request: other errors would reveal that a hidden view exists.
    if await asyncio.to_thread(known, view) is None:
        return None
    version = await version_asked(log, request)
    return await asyncio.to_thread(_rows_of, document, allowances, log.view, version)


def _rows_of(
    document: ViewDocument, allowances: Sequence[Allowance], view: LogView, version: int
) -> ViewRows | None:
    from tailrace_server.filters.parsing import parse

    known = known_view(document, allowances, view)
    if known is None:
        return None
    document, names = known.document, known.names
    found = names.columns_of(document, version)
    entity_type = found.entity_type or names.entity_type_of(document)
    columns = view.schema_of(version).columns(entity_type)
    return ViewRows(
        document.name,
        msgspec.json.encode(document),
        version,
        entity_type,
        StateCondition(parse(document.where), ()) if document.where else None,
        columns_under(columns, found.asked),
        columns_under(columns, found.shown),
        found.shown,
        shows_all=not document.columns,
        by_view=known.by_view,
    )
