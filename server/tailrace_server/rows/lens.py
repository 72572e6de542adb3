"""The lens: the changes and the rows of one table that a caller may see and has asked for.

It is compiled once, from the rights to rows (keys and conditions of grants) and the conditions of a view and
of a request. Then it answers two questions, and every read of a table asks them here::

    changes(batch)    for each record: a change of a row that is visible, as it is to the caller
    rows(state)       for each row of a state: visible or not, and whether that is certain

A change is evaluated by its row before and after: the row enters what is visible, stays in it or leaves it
(``transitions``). A row of a state is evaluated as it is. Columns are followed by their ids, whatever each
version calls them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import structlog

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

_log = structlog.get_logger("tailrace.granting")


class SeenChanges(NamedTuple):
    """A batch as it is to the caller."""

    head: BatchHead
    """A row that enters is an insert there, and a row that leaves is a removal."""
    bodies: Mapping[str, pa.BinaryArray]
    """Without the images that are not visible."""
    rows: NDArray[np.int64]
    """The records that are visible."""


class SeenRows(NamedTuple):
    """The rows of a state that are visible, or may be."""

    rows: StateRows
    is_sure: NDArray[np.bool_]
    """True if a row certainly meets what is asked for; False if that depends on a value that is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class ChangeLens:
    """The changes of one table that a caller may see and has asked for. Any thread may use it."""

    view: LogView
    names: EntityNames
    """The table's, version by version."""
    parts: tuple[tuple[Right | None, RowCondition | None], ...]
    """The caller's rights, and for each the condition of right and request together; None: every row."""
    columns: frozenset[int] | None
    """Ids of the columns that are asked for: a change of others alone is none. None: every change is one."""
    asked_as: str | None = None
    """The name of the view that is asked for: a change whose place in it is unknown is refused by that name."""

    @property
    def evaluates(self) -> bool:
        """True if the visibility of a change depends on the values of its row, so that images are needed."""
        return any(condition is not None for _, condition in self.parts)

    def changes(
        self, head: BatchHead, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> SeenChanges:
        """Return a batch as some of its records are to the caller.

        Args:
            head: The batch's head.
            rows: Records of the table, rising.
            bodies: The batch's bodies, at least ``before`` and ``after`` if the lens ``evaluates``.

        Raises:
            ChangeNotJudged: It is unknown whether the row of one of them was granted.
            InvalidRequest: It is unknown whether the row of one of them is in the view.
        """
        # 1. A truncate concerns every row. A right without a condition gives its rows as they are.
        is_whole = np.zeros(len(head.versions), np.bool_)
        is_whole[rows[head.key_hashes[rows] == 0]] = True
        keyed = rows[head.key_hashes[rows] != 0].astype(np.int32)
        asked: list[Candidates] = []
        for right, condition in self.parts:
            mine = (
                keyed if right is None or right.keys is None else keyed[_takes(right, head, keyed)]
            )
            if condition is None:
                is_whole[mine] = True
            else:
                asked += (Candidates(condition, each) for each in _by_type(head, mine))
        # 2. The others are evaluated by the row before and after.
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
        # 3. As the caller has it: without images outside, and what enters is an insert.
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
        """Return the records without those that changed columns alone that are hidden or not asked for.

        A row that enters or leaves by such a change is visible by that; but not by a column that is hidden,
        unless the condition of a grant moves it.
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
            if not names or veiled[row]:
                keep.append(True)
                continue
            if rights:
                key = _key_of(head, row)
                mine = [each.columns for each in rights if each.takes(key)]
                names = [name for name in names if any(each.shows(name) for each in mine)]
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
        """Refuse the first record of which it is unknown whether its row is in the view, and was."""
        unsure = (codes & TRANSITION_BITS != NONE) & ((codes & UNSURE != 0) | is_unknown(codes))
        if unsure.any():
            row = int(np.flatnonzero(unsure)[0])
            (condition, *_) = [each.condition for each in asked if row in each.rows]
            raise InvalidRequest(
                f"view {self.asked_as}, {head.versions[row]}:{head.indexes[row]}: "
                f"{_why_unsure(head, images, row, condition)}"
            )


class ViewAsked(NamedTuple):
    """A view that is asked for, in terms of the columns of its table."""

    name: str
    """The view's name, for errors."""
    condition: Condition | None
    """The rows that it has; None: all."""
    names: Mapping[str, int]
    """Name in the condition → id of the column."""
    columns: Mapping[int, str]
    """Id of each column that it shows → the name there; empty: all."""

    @classmethod
    def of(cls, document: ViewDocument, view: LogView) -> ViewAsked:
        """Return a view as it is defined."""
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
    """Return the lens for the changes of a table; None: every change is visible as it is.

    Conditions are bound to the newest columns, or to those of a version if the table is not there any more.

    Args:
        view: The log.
        names: The table's names.
        entity_type: Its name at the version.
        version: The last one that is read.
        rights: The caller's; None: all.
        asked: The view whose changes they are; None: none.
        gives_other_columns: True if an update of columns that the view does not show is a change of it.

    Raises:
        NotPermitted: A grant's condition does not fit the columns. The error has no details; the log has them.
        InvalidRequest: The view's condition does not.
    """
    if rights is None and asked is None:
        return None
    kinds = columns_named(view, entity_type, version)
    parts = tuple((each, _condition(each, asked, kinds, entity_type)) for each in rights or (None,))
    columns = None
    if asked is not None and asked.columns and not gives_other_columns:
        columns = frozenset(asked.columns)
    # Without a condition of its own a view has every row: grants alone decide.
    own_name = None if asked is None or asked.condition is None else asked.name
    return ChangeLens(view, names, parts, columns, own_name)


def row_lens(
    values: TableValues, view: LogView, rights: Sequence[Right] | None, asked: Sequence[RowFilter]
) -> RowLens:
    """Return the lens for the rows of a table as of a version.

    Args:
        values: Reads the table as of the version.
        view: The log.
        rights: The caller's; None: all.
        asked: The conditions that are asked for, bound to the columns of the version.

    Raises:
        NotPermitted: As of ``change_lens``.
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
    """Return the columns that a grant's condition may name of a table, and the version that they are of."""
    table = TableValues(view, entity_type, version)
    newest = view.schema_of(view.published).entity_types.get(entity_type, ())
    found: list[tuple[Sequence[Column], int]] = [(table.columns, version)]
    if newest and table.shares(newest):  # else another entity type has the name now, or none
        found.insert(0, (newest, view.published))
    return found


def _condition(
    right: Right | None,
    asked: ViewAsked | None,
    kinds: Sequence[tuple[Sequence[Column], int]],
    entity_type: str,
) -> RowCondition | None:
    """Return the conditions of a right and of a view as one, bound to the first columns that they fit."""
    granted = (
        () if right is None or right.rows is None else (ConditionText(right.rows, is_granted=True),)
    )
    own = None if asked is None else asked.condition
    if not granted and own is None:
        return None
    for columns, since in kinds:
        texts = granted
        if asked is not None and own is not None:
            now = {each.id: each.name for each in columns}
            meant = {name: now[id] for name, id in asked.names.items() if id in now}
            texts = (*granted, ConditionText(renamed(own, meant)))
        with suppress(ConditionRefused):
            return RowCondition(texts, columns, since)
    # None fits: say whose it is that does not.
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


def unfit(entity_type: str, why: str) -> NotPermitted:
    """Return the error of a grant's condition that does not fit a table; the log says why."""
    # Its text has names of columns, and values of claims, that the caller need not know.
    _log.warning("grant does not fit its entity type", entity_type=entity_type, reason=why)
    return NotPermitted(
        f"a condition of the grants of {entity_type!r} does not fit it as it is; the server's log says why"
    )


def _why_unsure(head: BatchHead, images: BatchImages, row: int, condition: RowCondition) -> str:
    """Return why it is unknown whether a changed row is in a view, and what to do."""
    table = head.entity_types[head.type_codes.item(row)]
    unknown = TypedImages(head, images, table, np.array([row], np.int32)).unknown_value(condition)
    if unknown is not None and unknown.exists:
        return (
            f"the type that {unknown.column!r} has now cannot hold its value in the row {unknown.image}, so "
            "nobody knows whether the row was in; read later changes, or define the view without the column"
        )
    what = "the row before"
    if unknown is not None:
        what = f"{unknown.column!r} of the row {unknown.image}"
        what = "the whole row before" if unknown.is_key_only else what
    return (
        f"its source did not send {what}, so nobody knows whether the row was in; ingest with --images full, "
        "which keeps it"
    )


@dataclass(frozen=True, slots=True, eq=False)
class RowLens:
    """The rows of one table as of one version that a caller may see and has asked for; threads may share it."""

    values: TableValues
    rights: tuple[tuple[Right, RowFilter | None], ...] | None
    """The caller's rights, and the conditions of grants; None: every row is granted."""
    asked: tuple[RowFilter, ...] = ()
    """The conditions of the view and of the request; a row has to meet all of them."""

    @property
    def has_conditions(self) -> bool:
        """True if rights have conditions, so that rows are granted by their values."""
        return any(held is not None for _, held in self.rights or ())

    def granted(self, rows: StateRows) -> StateRows:
        """Return the rows that are granted.

        A row is granted by a right to its key whose condition it certainly meets.
        """
        if self.rights is None or not len(rows):
            return rows
        if any(right.keys is None and held is None for right, held in self.rights):
            return rows
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
        """Return the rows that are granted and meet what is asked for, or may do so."""
        rows = self.granted(rows)
        is_true = may_be = np.ones(len(rows), np.bool_)
        for each in self.asked if len(rows) else ():
            values = self.values.of(rows, each.columns)
            truth = truth_of(each.mask, values.batch, values.unknown)
            # A row that hides a column of the condition is out: the result would reveal the value.
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


def _takes(right: Right, head: BatchHead, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
    keys = head.keys.values(rows.tolist())
    return np.array([right.takes(None if key is None else key.decode()) for key in keys], np.bool_)


def _key_of(head: BatchHead, row: int) -> str | None:
    (key,) = head.keys.values((row,))
    return None if key is None else key.decode()


def _by_type(head: BatchHead, rows: NDArray[np.int32]) -> Iterator[NDArray[np.int32]]:
    """Yield rows by the name that their table has there; none is empty."""
    codes = head.type_codes[rows]
    for code in np.unique(codes):
        yield rows[codes == code]
