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
    """A value does not fit its column. The error names column, row and reason; `OnMisfit.NULL` avoids it.

    A caller that knows the positions of the rows raises an error of its own with the position.
    """

    def __init__(self, misfit: ColumnMisfit) -> None:
        """Store the misfit."""
        super().__init__(misfit)
        self.misfit = misfit

    def __str__(self) -> str:
        return str(self.misfit)


@dataclass(frozen=True, slots=True)
class ColumnMisfit:
    """The first value of a column that does not fit."""

    column: str
    row: int
    """Place of the value's image in the array, from 0."""
    value: str
    """The beginning of its JSON text."""
    label: str
    """Type, and encoding, of the column."""
    reason: str
    count: int = 1
    """Number of values of the column that do not fit."""

    def __str__(self) -> str:
        return f"column {self.column!r}, row {self.row}: {self.value} is no {self.label}: {self.reason}"
