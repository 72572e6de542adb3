"""Position, lag and rate of one source of an ingest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class SourceFigures:
    """The progress of one source."""

    unit: str
    """Unit of positions and lags: bytes, messages, or versions of a table."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """Partition, empty if the source has none → number behind which the log has nothing."""
    lags: Mapping[str, int] = field(default_factory=dict)
    """Partition → what the source has and the log does not, in the unit; none if unknown."""
    rows: int = 0
    """Number of committed row changes."""
    newest_us: int | None = None
    """Latest source timestamp of a committed row, in microseconds; None if rows have no timestamps."""
