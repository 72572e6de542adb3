"""Values that their column's type cannot hold: what becomes of them, and how they are told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class OnMisfit(Enum):
    """What becomes of a value that its column cannot hold."""

    RAISE = "raise"
    """`ValueMisfit`."""
    NULL = "null"
    """It is null, and told in `TypedColumns.misfits`."""


class ValueMisfit(ValueError):
    """A value does not fit its column; says which, in which row, and why. Reading it as null helps.

    Whoever knows the positions of the rows says this one's in an error of its own.
    """

    def __init__(self, misfit: ColumnMisfit) -> None:
        """Keep what does not fit."""
        super().__init__(misfit)
        self.misfit = misfit

    def __str__(self) -> str:
        return str(self.misfit)


@dataclass(frozen=True, slots=True)
class ColumnMisfit:
    """The first value of a column that does not fit."""

    column: str
    row: int
    """Place of its image in the array, from 0."""
    value: str
    """The beginning of its JSON text."""
    label: str
    """Type, and encoding, of the column."""
    reason: str
    count: int = 1
    """How many there are."""

    def __str__(self) -> str:
        return f"column {self.column!r}, row {self.row}: {self.value} is no {self.label}: {self.reason}"
