"""Misfits, values that their column's type cannot hold, and their treatment: an error or null."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tailrace.errors import InvalidRequest


class OnMisfit(Enum):
    """The treatment of values that their column's type cannot hold."""

    RAISE = "refuse"
    """Raise ``ValueMisfit``."""
    NULL = "null"
    """Read such values as null, and report them in ``TypedColumns.misfits``."""

    @classmethod
    def named(cls, choice: str) -> OnMisfit:
        """Return the treatment for a value of ``--misfits``.

        Raises:
            InvalidRequest: The value is neither ``refuse`` nor ``null``.
        """
        try:
            return cls(choice)
        except ValueError:
            raise InvalidRequest(f"--misfits {choice!r}: write refuse or null") from None


class ValueMisfit(ValueError):
    """A value does not fit its column. The error has column, row and reason; ``OnMisfit.NULL`` avoids it.

    The row is an index into the images. A caller that knows the positions of the rows raises an error of its
    own, with the position.
    """

    def __init__(self, misfit: ColumnMisfit) -> None:
        """Create the error for a misfit."""
        super().__init__(misfit)
        self.misfit = misfit

    def __str__(self) -> str:
        return str(self.misfit)


@dataclass(frozen=True, slots=True)
class ColumnMisfit:
    """The first misfit of a column."""

    column: str
    row: int
    """Index of the value's image in the array of images."""
    value: str
    """The beginning of the value's JSON text."""
    label: str
    """Type and encoding of the column, in words."""
    reason: str
    count: int = 1
    """Number of misfits of the column."""

    def __str__(self) -> str:
        return f"column {self.column!r}, row {self.row}: {self.value} is no {self.label}: {self.reason}"
