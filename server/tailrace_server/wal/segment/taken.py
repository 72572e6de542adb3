"""Some records, taken out of their batches: what a few of many batches are looked at in, all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tailrace.position import Position


class RecordColumns(Protocol):
    """The columns that a batch's head and taken records share; columns of equal length."""

    @property
    def versions(self) -> NDArray[np.int64]:
        """Not falling."""

    @property
    def indexes(self) -> NDArray[np.int32]:
        """Places in the versions."""

    @property
    def operations(self) -> NDArray[np.uint8]:
        """Numbers of ``Operation``."""

    @property
    def primary_keys(self) -> pa.StringArray:
        """Null where there is none."""

    @property
    def changed(self) -> pa.Array:
        """Null if the changed columns are unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class TakenRecords:
    """Some records with bodies."""

    versions: NDArray[np.int64]
    indexes: NDArray[np.int32]
    operations: NDArray[np.uint8]
    primary_keys: pa.StringArray
    changed: pa.BooleanArray
    """True or null: the names stay behind, as each segment has other codes for them."""
    bodies: Mapping[str, pa.BinaryArray]

    def __len__(self) -> int:
        return len(self.versions)

    @property
    def nbytes(self) -> int:
        """Bytes of the bodies."""
        return sum(body.nbytes for body in self.bodies.values())

    @classmethod
    def of(
        cls, columns: RecordColumns, rows: NDArray[np.int64], bodies: Mapping[str, pa.BinaryArray]
    ) -> TakenRecords:
        """Take some records out of a batch, with the bodies that were read of it."""
        places = pa.array(rows)
        unsaid = columns.changed.take(places).is_null().to_numpy(zero_copy_only=False)
        return cls(
            columns.versions[rows],
            columns.indexes[rows],
            columns.operations[rows],
            columns.primary_keys.take(places),
            pa.array(np.ones(len(rows), np.bool_), mask=unsaid),
            {name: body.take(places) for name, body in bodies.items()},
        )

    @classmethod
    def joined(cls, parts: Sequence[TakenRecords]) -> TakenRecords:
        """Return those of several, at least one, in their order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([each.versions for each in parts]),
            np.concatenate([each.indexes for each in parts]),
            np.concatenate([each.operations for each in parts]),
            pa.concat_arrays([each.primary_keys for each in parts]),
            pa.concat_arrays([each.changed for each in parts]),
            {
                name: pa.concat_arrays([each.bodies[name] for each in parts])
                for name in parts[0].bodies
            },
        )


def are_between(
    versions: NDArray[np.int64], indexes: NDArray[np.int32], done: Position, end: Position
) -> NDArray[np.bool_]:
    """Return which records lie between two positions, both exclusive."""
    rows: NDArray[np.bool_]
    rows = (versions > done.version) | ((versions == done.version) & (indexes > done.index))
    rows &= (versions < end.version) | ((versions == end.version) & (indexes < end.index))
    return rows
