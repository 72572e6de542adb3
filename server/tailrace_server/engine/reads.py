"""Opens finite reads (of history, of state, in SQL), and lists the open ones.

::

    admit ─▶ look up the catalog ─▶ narrow to what is granted ─▶ charge memory ─▶ begin
        an error on the way is recorded by the audit, and all resources are released
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4
from weakref import WeakSet

from tailrace.criteria import COLUMN_TYPES, Area, ContainerType, Content, Criteria
from tailrace_server.codecs.column_cut import codec_of
from tailrace_server.grants.conditions import tell_unknown_grants, use_in
from tailrace_server.grants.grant import Action
from tailrace_server.grants.principal import allowances_of, may
from tailrace_server.grants.tables import granted_tables
from tailrace_server.grants.use import use_of
from tailrace_server.reads.history import HistoryBounds, HistoryRead
from tailrace_server.reads.log_read import ReadTerms
from tailrace_server.reads.sql_statements import Statements
from tailrace_server.reads.state import StateRead
from tailrace_server.reads.view_rows import view_rows
from tailrace_server.rows.predicate import compiled
from tailrace_server.rows.state_filter import read_condition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace_server.catalogs.catalogs import Catalogs
    from tailrace_server.catalogs.observer import Observer
    from tailrace_server.codecs import Codec
    from tailrace_server.grants.principal import Peer, Principal
    from tailrace_server.grants.use import GrantUse
    from tailrace_server.grants.view_grants import ViewGrant
    from tailrace_server.log_cache.batch_cache import OpenScans
    from tailrace_server.reads.log_read import LogRead
    from tailrace_server.reads.sql_read import SqlRead
    from tailrace_server.reads.sql_request import SqlRequest
    from tailrace_server.reads.state_request import StateRequest
    from tailrace_server.resources.admission import Admission, Admissions
    from tailrace_server.resources.memory import LargeMessages, MemoryCharge
    from tailrace_server.resources.settings import EngineSettings

_Read = TypeVar("_Read", bound="LogRead")


class Reads:
    """The reads of one engine."""

    def __init__(
        self,
        settings: EngineSettings,
        admissions: Admissions,
        large: LargeMessages,
        catalogs: Catalogs,
    ) -> None:
        """Begin without reads."""
        self._settings = settings
        self._admissions = admissions
        self._large = large
        self._catalogs = catalogs
        self.statements = Statements(settings)
        """The running SQL statements."""
        self.open: WeakSet[LogRead] = WeakSet()
        """The open reads; a read that has ended stays in the set until it is garbage-collected."""

    def relieve(self, now: float, scans: OpenScans) -> None:
        """Drop the blocks and scans of stalled readers; ``now`` is the event loop's time in seconds."""
        scans.relieve(now)
        for read in tuple(self.open):
            read.let_go_of_block(now)

    async def history(
        self,
        caller: Principal,
        peer: Peer,
        catalog: str,
        criteria: Sequence[Criteria],
        *,
        bounds: HistoryBounds | None,
        reverse: bool,
        content: Content,
        codec: Codec,
        limit: int | None,
        max_message_bytes: int | None,
    ) -> HistoryRead:
        """Open a read of a closed range; see ``Engine.history``."""
        with self._admissions.history(caller, peer, catalog, criteria, content) as admission:
            observer = await self._catalogs.observer(caller, catalog)
            bounds = bounds or HistoryBounds()
            if (first := bounds.anchor) is not None:
                # Bind conditions at the anchor: names must mean the same columns on every page as on the first.
                criteria = [each.named_at(first) for each in criteria]
            given = (observer.log, caller, Action.HISTORY, criteria, content, bounds)
            use = await use_in(*given, bounds.behind)
            alternatives, shown, _ = use.narrowed
            with self._charged(observer, use, admission) as kept:
                if bounds.wait is not None:
                    await observer.log.reach(*bounds.wait)
                history = HistoryRead(
                    observer.log,
                    await compiled(alternatives, shown),
                    bounds,
                    self._terms(kept, use, admission, max_message_bytes),
                    reverse=reverse,
                    content=content,
                    codec=codec_of(codec, use.narrowed.shown),
                    limit=limit,
                    keeps=self._keeps_block,
                )
                await history.begin()
                admission.began(uuid4().hex)
        return self._opened(history, caller)

    async def state(
        self,
        caller: Principal,
        peer: Peer,
        catalog: str,
        request: StateRequest,
        *,
        codec: Codec,
        max_message_bytes: int | None,
    ) -> StateRead:
        """Open a read of state; see ``Engine.state``."""
        criteria = (_criteria_of(request),)
        content = Content.HEADER if request.keys_only else Content.AFTER
        with self._admissions.history(caller, peer, catalog, criteria, content) as admission:
            observer = await self._catalogs.observer(caller, catalog)
            await tell_unknown_grants(observer.log, caller)
            of_view = await view_rows(observer.log, caller, request)
            if of_view is not None:
                request = of_view.pinned(request)
            by_view = None if of_view is None else of_view.by_view
            use = _state_use(caller, catalog, request, content, by_view)
            condition = None
            if request.where is not None:
                condition = await read_condition(request.where, request.where_parameters)
            if condition is not None and of_view is None:
                # The columns in the condition must be granted like requested columns, as the result reveals
                # their values. The condition on a view can only name the view's columns, which are granted.
                named = replace(request, columns=condition.columns, keys_only=False)
                columns = (_criteria_of(named),)
                use_of(*(caller, catalog, Action.HISTORY, columns, Content.AFTER), judges_rows=True)
            with self._charged(observer, use, admission) as kept:
                codec = codec_of(codec, use.narrowed.shown)
                if of_view is not None:
                    codec = of_view.codec(codec, request.columns)
                read = StateRead(
                    observer.log,
                    request,
                    self._terms(kept, use, admission, max_message_bytes),
                    codec=codec,
                    condition=condition,
                    of_view=of_view,
                )
                await read.begin()
                admission.began(uuid4().hex, f"state at version {read.version}")
        return self._opened(read, caller)

    async def sql(
        self,
        caller: Principal,
        peer: Peer,
        catalog: str,
        request: SqlRequest,
        *,
        max_message_bytes: int | None = None,
    ) -> SqlRead:
        """Open an SQL statement. Use it as a context manager.

        The action HISTORY must be granted. A principal who may operate the catalog and see all of it may also
        define views and change tables.

        Raises:
            CatalogUnknown, ServerFull, NotPermitted, DeadlineExceeded: See ``Engine.subscribe``.
            ServerStopping: The server is stopping.
            InvalidRequest: The statement is invalid; the error has the place. Tables and columns that are not
                granted count as unknown.
            PositionCompacted: The statement reads versions that the log no longer has.
            CatalogReplaced, CursorAhead, HistoryReplaced: A poll continues after a place that is not in this
                log.
        """
        criteria = (Criteria(area=Area.DATA),)
        with self._admissions.history(caller, peer, catalog, criteria, Content.AFTER) as admission:
            observer = await self._catalogs.observer(caller, catalog)
            await tell_unknown_grants(observer.log, caller)
            use = use_of(caller, catalog, Action.HISTORY, criteria, Content.AFTER, judges_rows=True)
            shown = granted_tables(allowances_of(caller, catalog, Action.HISTORY))
            may_define = shown is None and may(caller, Action.OPERATE, catalog)
            with self._charged(observer, use, admission) as kept:
                if request.wait_for_version is not None:
                    await observer.log.reach(request.wait_for_version, request.wait_s)
                # The client's last poll may have been answered by another server that has read more of the log:
                # catch up to the version that the client has read.
                await observer.log.view_with(request.read_version)
                terms = self._terms(kept, use, admission, max_message_bytes)
                bytes_max = max_message_bytes or self._settings.max_message_bytes
                read = await self.statements.begun(
                    *(observer.log, request, terms, shown, bytes_max),
                    may_define=may_define,
                    readers_of=observer.views.used_by,
                )
                try:
                    admission.began(
                        uuid4().hex, f"SQL at version {read.version}: {request.statement}"
                    )
                except BaseException:
                    read.close()
                    raise
        return self._opened(read, caller)

    @contextmanager
    def _charged(
        self, observer: Observer, use: GrantUse, admission: Admission
    ) -> Iterator[MemoryCharge]:
        """Charge criteria to the caller's quotas and to the server's memory; free the memory after an error."""
        admission.take(use.narrowed.criteria)
        kept = observer.charge_criteria(use.narrowed.criteria)
        try:
            yield kept
        except BaseException:
            kept.release()
            raise

    def _opened(self, read: _Read, caller: Principal) -> _Read:
        read.caller = caller
        # The policy may have changed while the read was opened: a change ends only reads in `open`.
        read.end_if_refused()
        self.open.add(read)
        return read

    def _terms(
        self, kept: MemoryCharge, use: GrantUse, admission: Admission, message_bytes: int | None
    ) -> ReadTerms:
        bytes_max = self._settings.message_bytes
        return ReadTerms(
            message_bytes=min(bytes_max, message_bytes or bytes_max),
            large=self._large,
            patience_s=self._settings.send_deadline_s,
            kept=kept,
            use=use,
            admission=admission,
        )

    def _keeps_block(self, nbytes: int) -> bool:
        """Return True if a read of history may hold a block: all reads together may hold ``frames_bytes``."""
        return nbytes * len(self.open) <= self._settings.frames_bytes


def _state_use(
    caller: Principal,
    catalog: str,
    request: StateRequest,
    content: Content,
    by_view: ViewGrant | None,
) -> GrantUse:
    """Return the granted part of a request for a state.

    Requested columns that are not granted are ignored here. ``StateRead`` raises for them, with the same error
    as for columns that do not exist at the version.
    """
    whole = replace(request, columns=())
    use = use_of(
        *(caller, catalog, Action.HISTORY, (_criteria_of(whole),), content),
        judges_rows=True,
        by_view=by_view,
    )
    granted = use.columns_of(request.entity_type)
    columns = tuple(filter(granted.shows, request.columns))
    if not columns:
        return use
    criteria = (_criteria_of(replace(request, columns=columns)),)
    return use_of(
        *(caller, catalog, Action.HISTORY, criteria, content), judges_rows=True, by_view=by_view
    )


def _criteria_of(request: StateRequest) -> Criteria:
    """Return criteria for history that request the same rows and columns, so that the same grants apply."""
    return Criteria(
        area=Area.DATA,
        entity_type=(request.entity_type,),
        primary_key=request.primary_keys,
        container_type=(ContainerType.ENTITY, *COLUMN_TYPES) if request.columns else (),
        container_name=request.columns,
    )
