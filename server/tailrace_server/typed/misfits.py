"""Values that their column's type cannot hold, and the choice between an error and null."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tailrace.errors import InvalidRequest


class OnMisfit(Enum):
    """The treatment of values that their column cannot hold."""

    RAISE = "refuse"
    """Raise `ValueMisfit`."""
    NULL = "null"
    """Read them as null, and list them in `TypedColumns.misfits`."""

    @classmethod
    def named(cls, choice: str) -> OnMisfit:
        """Return the treatment that ``--misfits`` names.

        Raises:
            InvalidRequest: It is neither ``refuse`` nor ``null``.
        """
        try:
            return cls(choice)
        except ValueError:
            raise InvalidRequest(f"--misfits {choice!r}: it is refuse or null") from None


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
