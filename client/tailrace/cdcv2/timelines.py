"""Which timeline serves which kind of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from tailrace.cdcv2.integers import IntegerTimeline
from tailrace.cdcv2.lattice import Integers
from tailrace.cdcv2.timeline import LatticeTimeline

if TYPE_CHECKING:
    from tailrace.cdcv2.lattice import Lattice
    from tailrace.cdcv2.timeline import Timeline

T = TypeVar("T")


def timeline_of(lattice: Lattice[T], start: tuple[T, ...]) -> Timeline[T]:
    """Return the timeline for a kind of time, with nothing known."""
    kind: object = lattice
    if isinstance(kind, Integers):
        return cast("Timeline[T]", IntegerTimeline(cast("tuple[int, ...]", start)))
    return LatticeTimeline(lattice, start)
