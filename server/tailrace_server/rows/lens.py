"""The lens: a compiled filter for the changes and rows of one table that a caller may see and has requested.

A lens is compiled once, from the caller's rights to rows (keys and conditions of grants) and from the
conditions of a view and of the request. Every read of a table then uses one of its two sides::

    changes(batch)    for each record: a change of a row that is visible, as it is to the caller
    rows(state)       for each row of a state: visible or not, and whether that is certain

A change is evaluated on its images before and after: its row enters the visible rows, stays among them or
leaves them (``transitions``). A row of a state has only one image to evaluate. Columns are matched by id,
because a column may have other names in other versions.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tailrace.errors import InvalidRequest, NotPermitted
from tailrace_server.filters.binding import bind
from tailrace_server.filters.evaluation import truth_of
from tailrace_server.filters.tree import ConditionRefused, renamed
from tailrace_server.rows.batch_images import BatchImages
from tailrace_server.rows.judging import Candidates, judged, not_judged, shows_columns
from tailrace_server.rows.row_condition import ConditionText, RowCondition
from tailrace_server.rows.transitions import (
    NONE,
    TRANSITION_BITS,
    UNSURE,
    batch_without_hidden,
    hidden_before,
    is_move,
    is_unknown,
    is_veiled_move,
)
from tailrace_server.rows.typed_images import TypedImages
from tailrace_server.typed.table_values import TableValues

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from tailrace.schema import Column
    from tailrace_server.filters.evaluation import RowFilter
    from tailrace_server.filters.tree import Condition
    from tailrace_server.rows.judging import Right
    from tailrace_server.wal.base.state_rows import StateRows
    from tailrace_server.wal.files.sequence_documents import ViewDocument
    from tailrace_server.wal.segment.reader import BatchHead
    from tailrace_server.wal.state.entity_names import EntityNames
    from tailrace_server.wal.state.view import LogView


class SeenChanges(NamedTuple):
    """A batch as the caller sees it."""

    head: BatchHead
    """The head, in which a row that enters is an insert, and a row that leaves is a removal."""
    bodies: Mapping[str, pa.BinaryArray]
    """The bodies, with null in place of the images that are not visible."""
    rows: NDArray[np.int64]
    """Offsets of the visible records."""


class SeenRows(NamedTuple):
    """The rows of a state that meet the requested conditions, or may meet them."""

    rows: StateRows
    is_sure: NDArray[np.bool_]
    """For each row, True if it certainly meets the conditions; False if that depends on an unknown value."""


@dataclass(frozen=True, slots=True, eq=False)
class ChangeLens:
    """Filter for the changes of one table that a caller may see and has requested. Any thread may use it."""

    view: LogView
    names: EntityNames
    """The table's names, version by version."""
    parts: tuple[tuple[Right | None, RowCondition | None], ...]
    """Pairs of a right and a condition, which joins those of the right and of the request.

    A right of None grants all rows. A condition of None is met by every row.
    """
    columns: frozenset[int] | None
    """Ids of the requested columns: a change of other columns only is left out. None: no such filter."""
    asked_as: str | None = None
    """Name of the requested view, for the error of a change that may be in the view or not.

    None: no view, or a view without a condition; such changes are no error then.
    """

    @property
    def evaluates(self) -> bool:
        """True if ``changes`` needs images, because visibility depends on the values of rows."""
        return any(condition is not None for _, condition in self.parts)

    def changes(
        self, head: BatchHead, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> SeenChanges:
        """Filter records of a batch, and return the batch as the caller sees it.

        Args:
            head: The batch's head.
            rows: Offsets of records of the table, rising.
            bodies: The batch's bodies, at least ``before`` and ``after`` if the lens ``evaluates``.

        Raises:
            ChangeNotJudged: It is unknown whether the row of one of the records was granted.
            InvalidRequest: It is unknown whether the row of one of the records is in the view.
        """
        # 1. Take what needs no evaluation: truncates (key hash 0), which concern every row, and rows of a right
        #    without a condition.
        is_whole = np.zeros(len(head.versions), np.bool_)
        is_whole[rows[head.key_hashes[rows] == 0]] = True
        keyed = rows[head.key_hashes[rows] != 0].astype(np.int32)
        asked: list[Candidates] = []
        for right, condition in self.parts:
            mine = keyed
            if right is not None and right.keys is not None:
                keys = head.keys.strings(keyed.tolist())
                mine = keyed[np.array([*map(right.takes, keys)], np.bool_)]
            if condition is None:
                is_whole[mine] = True
            else:
                asked += (Candidates(condition, each) for each in _by_type(head, mine))
        # 2. Evaluate the other records on their images before and after. A record from step 1 is visible whole,
        #    so it gets no code, even if a condition matches it too.
        codes = np.zeros(len(head.versions), np.uint8)
        if asked:
            images = BatchImages(bodies.__getitem__, self.view)
            found = judged(head, images, asked, self._rights_of)
            open_rows = found.open[~is_whole[found.open]]
            if len(open_rows):
                raise not_judged(head, int(open_rows.min()))
            codes = np.where(is_whole, NONE, found.codes).astype(np.uint8)
            if self.asked_as is not None:
                self._refuse_unsure(head, images, codes, asked)
        chosen = rows[is_whole[rows] | (codes[rows] != NONE)]
        chosen = self._that_concern(head, chosen, codes)
        # 3. Hide the images that do not meet the conditions. A row that enters becomes an insert: its changed
        #    columns are relative to an image that the caller never saw.
        if not codes.any():
            return SeenChanges(head, bodies, chosen)
        head, bodies = batch_without_hidden(head, bodies, codes)
        enters = hidden_before(codes) & (codes != NONE)
        return SeenChanges(replace(head, names=head.names.without(enters)), bodies, chosen)

    @property
    def _rights(self) -> Sequence[Right]:
        return [each for each, _ in self.parts if each is not None]

    def _rights_of(self, entity_type: str) -> Sequence[Right]:
        return self._rights

    def _that_concern(
        self, head: BatchHead, rows: NDArray[np.int64], codes: NDArray[np.uint8]
    ) -> NDArray[np.int64]:
        """Return the records without those that changed only columns that are hidden or not requested.

        A record is also visible if its row enters or leaves, provided that it changed a column that is not
        hidden. If the condition of a grant is the reason for the move, the record is visible in any case.
        """
        rights = self._rights
        if not rights and self.columns is None:
            return rows
        veiled, moved = is_veiled_move(codes), is_move(codes)
        changed = head.names.values(tuple(rows.tolist()))
        schemas, which = self.view.schemas_of(head.versions[rows])
        ids = [{each.name: each.id for each in self.names.columns_in(one)} for one in schemas]
        keep = []
        for row, names, place in zip(rows.tolist(), changed, which.tolist(), strict=True):
            # Inserts and removals name no columns. A veiled move
            # is visible whatever changed, as it shows no names.
            if not names or veiled[row]:
                keep.append(True)
                continue
            # Drop the names of columns that are hidden in this row.
            if rights:
                key = head.key_of(row)
                mine = [each.columns for each in rights if each.takes(key)]
                names = [name for name in names if any(each.shows(name) for each in mine)]
            # The requested columns are ids, since the view may have other names for them.
            is_asked = self.columns is None or any(
                ids[place].get(name) in self.columns for name in names
            )
            keep.append(bool(names) and (is_asked or bool(moved[row])))
        return rows[np.array(keep, np.bool_)]

    def _refuse_unsure(
        self,
        head: BatchHead,
        images: BatchImages,
        codes: NDArray[np.uint8],
        asked: Sequence[Candidates],
    ) -> None:
        """Raise InvalidRequest for the first record whose row may be or may have been in the view or not."""
        unsure = (codes & TRANSITION_BITS != NONE) & ((codes & UNSURE != 0) | is_unknown(codes))
        if unsure.any():
            row = int(np.flatnonzero(unsure)[0])
            (condition, *_) = [each.condition for each in asked if row in each.rows]
            raise InvalidRequest(
                f"view {self.asked_as}, {head.versions[row]}:{head.indexes[row]}: "
                f"{_why_unsure(head, images, row, condition)}"
            )


class ViewAsked(NamedTuple):
    """A requested view, in terms of the columns of its table."""

    name: str
    """The view's name, for errors."""
    condition: Condition | None
    """The condition that rows of the view meet; None: all rows of the table are in the view."""
    names: Mapping[str, int]
    """Name of each of the table's columns, as the condition names it → id of the column."""
    columns: Mapping[int, str]
    """Id of each column of the view → its name in the view; empty: all columns of the table."""

    @classmethod
    def of(cls, document: ViewDocument, view: LogView) -> ViewAsked:
        """Create the value from a view's definition; names are those of the version of the definition."""
        from tailrace_server.filters.parsing import parse  # large, and most statements have no view

        columns = view.schema_of(document.version).columns(document.entity_type)
        return cls(
            document.name,
            parse(document.where) if document.where else None,
            {each.name: each.id for each in columns},
            {each.id: each.name for each in columns if each.name in document.columns},
        )


def change_lens(
    view: LogView,
    names: EntityNames,
    entity_type: str,
    version: int,
    rights: Sequence[Right] | None,
    asked: ViewAsked | None,
    *,
    gives_other_columns: bool = False,
) -> ChangeLens | None:
    """Compile the lens for the changes of a table; None: every change is visible as it is.

    Conditions are bound to the newest columns. If the table no longer exists, or a condition does not fit
    these, they are bound to the columns of ``version``.

    Args:
        view: The log.
        names: The table's names, version by version.
        entity_type: The table's name at ``version``.
        version: The last version that is read.
        rights: The caller's rights; None: everything is granted.
        asked: The view whose changes are requested; None: the table's own changes.
        gives_other_columns: True if updates that change only columns outside of the view are included.

    Raises:
        NotPermitted: A grant's condition does not fit the columns. The error has no details; the server's log
            has them.
        InvalidRequest: The view's condition does not fit the columns.
    """
    if rights is None and asked is None:
        return None
    kinds = columns_named(view, entity_type, version)
    parts = tuple((each, _condition(each, asked, kinds, entity_type)) for each in rights or (None,))
    columns = None
    if asked is not None and asked.columns and not gives_other_columns:
        columns = frozenset(asked.columns)
    # A view without a condition has every row, so its membership is never unknown: only grants decide.
    own_name = None if asked is None or asked.condition is None else asked.name
    return ChangeLens(view, names, parts, columns, own_name)


def row_lens(
    values: TableValues, view: LogView, rights: Sequence[Right] | None, asked: Sequence[RowFilter]
) -> RowLens:
    """Compile the lens for the rows of a table as of a version.

    Args:
        values: Reader of the table's values as of the version.
        view: The log.
        rights: The caller's rights; None: everything is granted.
        asked: The requested conditions, bound to the columns of the version.

    Raises:
        NotPermitted: A grant's condition does not fit the columns. The error has no details; the server's log
            has them.
    """
    held = None
    if rights is not None:
        kinds = columns_named(view, values.entity_type, values.version)
        conditions = (_condition(each, None, kinds, values.entity_type) for each in rights)
        filters = (None if each is None else each.row_filter for each in conditions)
        held = tuple(zip(rights, filters, strict=True))
    return RowLens(values, held, tuple(asked))


def columns_named(
    view: LogView, entity_type: str, version: int
) -> list[tuple[Sequence[Column], int]]:
    """Return the sets of columns of a table that a grant's condition may be bound to, preferred set first.

    Each set comes with its version: the newest columns, if the name still belongs to the same table, then the
    columns of ``version``.
    """
    table = TableValues(view, entity_type, version)
    newest = view.schema_of(view.published).entity_types.get(entity_type, ())
    found: list[tuple[Sequence[Column], int]] = [(table.columns, version)]
    # Otherwise the name is free, or belongs to another entity type now.
    if newest and table.shares(newest):
        found.insert(0, (newest, view.published))
    return found


def _condition(
    right: Right | None,
    asked: ViewAsked | None,
    kinds: Sequence[tuple[Sequence[Column], int]],
    entity_type: str,
) -> RowCondition | None:
    """Join the conditions of a right and of a view, bound to the first set of columns that they fit."""
    granted = (
        () if right is None or right.rows is None else (ConditionText(right.rows, is_granted=True),)
    )
    own = None if asked is None else asked.condition
    if not granted and own is None:
        return None
    # Try the newest columns first: subscriptions and history use these.
    for columns, since in kinds:
        texts = granted
        if asked is not None and own is not None:
            # The view has the names of its definition: replace them by the names of this version.
            now = {each.id: each.name for each in columns}
            meant = {name: now[id] for name, id in asked.names.items() if id in now}
            texts = (*granted, ConditionText(renamed(own, meant)))
        with suppress(ConditionRefused):
            return RowCondition(texts, columns, since)
    # No set fits. Find out whether the grant or the view is the reason: only the view's error may have details.
    columns, _ = kinds[0]
    try:
        for each in granted:
            bind(each.tree, columns, {})
    except ConditionRefused as error:
        raise unfit(entity_type, str(error)) from None
    if own is None or asked is None:
        raise unfit(entity_type, "a column has been dropped")
    try:
        RowCondition(texts[-1:], columns, 0)
    except ConditionRefused as error:
        raise InvalidRequest(f"view {asked.name}: {error}") from None
    raise unfit(entity_type, "a column has been dropped")


def unfit(name: str, why: str) -> NotPermitted:
    """Return the error for a grant's condition that does not fit an entity type or a view; log the reason."""
    import structlog  # only a server has grants, and only a server's installation has structlog

    # The reason has names of columns and values of claims, which must not be revealed to the caller.
    structlog.get_logger("tailrace.granting").warning(
        "grant does not fit what it names", name=name, reason=why
    )
    return NotPermitted(
        f"a condition of the grants of {name!r} does not fit it as it is; the server's log says why"
    )


def _why_unsure(head: BatchHead, images: BatchImages, row: int, condition: RowCondition) -> str:
    """Explain why it is unknown whether a changed row is in a view, and what the user can do about it."""
    table = head.entity_types[head.type_codes.item(row)]
    unknown = TypedImages(head, images, table, np.array([row], np.int32)).unknown_value(condition)
    if unknown is not None and unknown.exists:
        return (
            f"the type that {unknown.column!r} has now cannot hold its value in the row {unknown.image}, so "
            "it is unknown whether the view had the row; read later changes, or define the view without the "
            "column"
        )
    what = "the row before"
    if unknown is not None:
        what = f"{unknown.column!r} of the row {unknown.image}"
        what = "the whole row before" if unknown.is_key_only else what
    return (
        f"its source did not send {what}, so it is unknown whether the view had the row; ingest with "
        "--images full, which keeps it"
    )


@dataclass(frozen=True, slots=True, eq=False)
class RowLens:
    """Filter for the rows of one table as of one version that a caller may see and has requested.

    Threads may share it.
    """

    values: TableValues
    rights: tuple[tuple[Right, RowFilter | None], ...] | None
    """The caller's rights, each with the condition of its grant, if any; None: every row is granted."""
    asked: tuple[RowFilter, ...] = ()
    """The conditions of the view and of the request; a row has to meet all of them."""

    @property
    def has_conditions(self) -> bool:
        """True if a right has a condition, so that the values of a row decide whether it is granted."""
        return any(held is not None for _, held in self.rights or ())

    def granted(self, rows: StateRows) -> StateRows:
        """Return the rows that are granted.

        A row is granted if a right covers its key and the row certainly meets the condition of this right.
        """
        if self.rights is None or not len(rows):
            return rows
        if any(right.keys is None and held is None for right, held in self.rights):
            return rows
        # Decode the columns of all conditions together.
        columns = {
            each: None for _, held in self.rights if held is not None for each in held.columns
        }
        values = self.values.of(rows, (*columns,)) if columns else None
        keys = None
        keep = np.zeros(len(rows), np.bool_)
        for right, held in self.rights:
            mine = np.ones(len(rows), np.bool_)
            if held is not None:
                assert values is not None
                mine = truth_of(held.mask, values.batch, values.unknown).is_true
            if right.keys is not None:
                keys = rows.primary_keys.to_pylist() if keys is None else keys
                mine &= np.array([right.takes(key) for key in keys], np.bool_)
            keep |= mine
        return rows if keep.all() else rows.taken(np.flatnonzero(keep))

    def rows(self, rows: StateRows) -> SeenRows:
        """Return the granted rows that meet the requested conditions, or may meet them."""
        rows = self.granted(rows)
        is_true = may_be = np.ones(len(rows), np.bool_)
        for each in self.asked if len(rows) else ():
            values = self.values.of(rows, each.columns)
            truth = truth_of(each.mask, values.batch, values.unknown)
            # A row that hides a column of the condition never matches: the result would reveal the value.
            shows = self._shows(rows, each.columns, values.written, values.which)
            is_true = is_true & truth.is_true & shows
            may_be = may_be & (truth.is_true | truth.is_undecided) & shows
        if not may_be.all():
            rows, is_true = rows.taken(np.flatnonzero(may_be)), is_true[may_be]
        return SeenRows(rows, is_true)

    def _shows(
        self,
        rows: StateRows,
        columns: Iterable[Column],
        written: Sequence[Sequence[Column]],
        which: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        if self.rights is None:
            return np.ones(len(rows), np.bool_)
        rights = [each for each, _ in self.rights]
        return shows_columns(rights, rows.primary_keys.to_pylist, columns, written, which)


def _by_type(head: BatchHead, rows: NDArray[np.int32]) -> Iterator[NDArray[np.int32]]:
    """Yield the rows in groups of one entity type; a table that was renamed has several in one batch."""
    codes = head.type_codes[rows]
    for code in np.unique(codes):
        yield rows[codes == code]
