"""The columns that rows of a DataFrame show for the first time.

A log's schema lists the columns of an entity type. The commit adds those that the rows show and the
schema does not have; so each task reports the first row that shows one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.criteria import Operation
from tailrace_server.pipeline.columns import Sighting
from tailrace_server.pipeline.dataframe.known_names import KnownNames, rows_with_unknown_names
from tailrace_server.pipeline.images import members
from tailrace_server.wal.record.columns import multiplicity_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import msgspec
    import numpy.typing as npt

    from tailrace_server.pipeline.dataframe.row_checks import NamedColumns
    from tailrace_server.pipeline.dataframe.whole_transactions import Transactions


class NewColumns:
    """Finds the columns that are new in the rows of one partition."""

    def __init__(self, known: Mapping[str, Iterable[str]], declared: Collection[str]) -> None:
        """Take the known columns by entity type, and the entity types whose images are not inspected."""
        self.sightings: list[Sighting] = []
        """The columns found, by version from the beginning of the partition."""
        self._declared = frozenset(declared)
        self._known = {entity_type: set(names) for entity_type, names in known.items()}
        self._names = KnownNames()
        self._groups: dict[str, int] = {}
        """Entity type → its group in ``_names``, for the types seen so far."""

    def observe(
        self,
        column: dict[str, pa.Array],
        operations: npt.NDArray[np.int64],
        transactions: Transactions,
        named: NamedColumns,
        first_version: int,
    ) -> None:
        """Note the columns that are new in rows of whole transactions.

        Args:
            column: The columns of the rows, by name.
            operations: Operation of each row.
            transactions: The transactions of the rows.
            named: The names in ``changed``.
            first_version: Version of the first transaction, from the beginning of the partition.
        """
        # 1. Which rows count: those of data whose entity type is not declared; of ``change`` only upserts.
        types, codes = transactions.types
        is_open = np.array([*(name not in self._declared for name in types), False])
        inspected = is_open[codes] & ~transactions.is_lead
        upserts = inspected & (operations == Operation.UPSERT)
        images = _where(inspected, column["after"], column["before"])
        changes = _where(upserts, column["change"])
        sightings: list[Sighting] = []

        def inspect(row: int) -> None:
            start, stop = np.searchsorted(named.rows, (row, row + 1))
            names = [named.names[code] for code in named.codes[start:stop]]
            change = changes[row].as_py()
            # A change that tells a multiplicity, and not columns, names none.
            if change is not None and not names and multiplicity_of(change) is not None:
                change = None
            shown = (*_members(images[row].as_py()), *_members(change), *names)
            version = int(transactions.of_row[row]) + first_version
            sightings.extend(self._new_among(version, types[codes[row]], shown))

        # 2. The first row of each new type, by itself: most other rows of the type have the same columns, and
        #    would all be suspects below if its names were not known by then.
        for place, name in enumerate(types):
            if is_open[place] and name not in self._groups:
                group = self._groups[name] = len(self._groups)
                for column_name in self._known.get(name, ()):
                    self._names.add(group, _as_written(column_name))
                rows = np.flatnonzero(inspected & (codes == place))
                if len(rows):
                    inspect(int(rows[0]))
        # 3. All rows at once: those that may show an unknown name. Arrow may keep bytes behind a null, so a
        #    row that does not count may be among them.
        groups = np.array([self._groups.get(name, 0) for name in (*types, "")], np.int64)[codes]
        suspects = {
            row
            for texts, counts in ((images, inspected), (changes, upserts))
            if texts.null_count < len(texts)
            for row in rows_with_unknown_names(texts, groups, self._names).tolist()
            if counts[row]
        }
        suspects.update(self._rows_that_name_unknown(named, codes, types))
        # 4. Suspects are parsed, in the order of rows: a column begins with the first version that shows it.
        for row in sorted(suspects):
            inspect(row)
        self.sightings += sorted(sightings, key=lambda sighting: sighting.version)

    def _rows_that_name_unknown(
        self, named: NamedColumns, codes: npt.NDArray[np.int64], types: list[str]
    ) -> Iterator[int]:
        """Yield the first row of each column in ``changed`` that its entity type does not have."""
        width = len(named.names)
        pairs = codes[named.rows] * width + named.codes
        for pair in pc.unique(pa.array(pairs)).to_pylist():
            if named.names[pair % width] not in self._known.get(types[pair // width], ()):
                yield int(named.rows[np.argmax(pairs == pair)])

    def _new_among(
        self, version: int, entity_type: str, shown: Iterable[str]
    ) -> Iterator[Sighting]:
        """Yield the new ones of the columns that a row shows."""
        known = self._known.get(entity_type)
        if known is None:
            known = self._known[entity_type] = set()
            yield Sighting(version, entity_type, None)
        for name in shown:
            if name not in known:
                known.add(name)
                if entity_type in self._groups:
                    self._names.add(self._groups[entity_type], _as_written(name))
                yield Sighting(version, entity_type, name)


def _where(counts: npt.NDArray[np.bool_], *texts: pa.Array) -> pa.Array:
    """Return the first text of each row that is not null; null where the row does not count."""
    if not counts.any() or all(each.null_count == len(each) for each in texts):
        return pa.nulls(len(counts), pa.binary())
    if counts.all() and not texts[0].null_count:
        return texts[0]
    return pc.if_else(pa.array(counts), pc.coalesce(*texts), pa.scalar(None, pa.binary()))


def _members(image: bytes | None) -> dict[str, msgspec.Raw]:
    return {} if image is None else members(image)


def _as_written(name: str) -> str:
    return orjson.dumps(name).decode()[1:-1]
