"""The cost of evaluating conditions, by publisher.

The cost of one condition alone counts for its publisher. Images are read, columns decoded and the index asked
once for all conditions of an entity type; that is split evenly among their publishers::

    part += cost of a batch / publishers of then        for each entity type
    a publisher's = part now - part when it came        so a batch costs the same for 1 and for 10,000
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class SharedCost:
    """The cost that the publishers of one entity type share evenly."""

    __slots__ = ("cpu_ns", "image_bytes", "publishers")

    def __init__(self) -> None:
        """Begin with no publisher."""
        self.publishers = 0
        self.cpu_ns = 0.0
        """The part of a publisher that has been there from the beginning."""
        self.image_bytes = 0.0
        """The same, of the images that were read."""

    def add(self, cpu_ns: int, image_bytes: int) -> None:
        """Split what a batch has cost."""
        if self.publishers:
            self.cpu_ns += cpu_ns / self.publishers
            self.image_bytes += image_bytes / self.publishers


class EvaluationCost:
    """The cost of one publisher's conditions since the publisher began; it only rises."""

    __slots__ = ("_since", "own_ns")

    def __init__(self, shared: Iterable[SharedCost] = ()) -> None:
        """Begin now, with a part in what is done for some entity types; none: it has no condition."""
        self.own_ns = 0
        """CPU time of its own conditions, ns."""
        self._since = [(each, each.cpu_ns, each.image_bytes) for each in shared]
        for each, _, _ in self._since:
            each.publishers += 1

    def __bool__(self) -> bool:
        """Return whether there is a condition."""
        return bool(self._since)

    def end(self) -> None:
        """Take no part in what comes."""
        for shared, _, _ in self._since:
            shared.publishers -= 1

    @property
    def cpu_s(self) -> float:
        """CPU time, s, with its part of what is shared."""
        return (self.own_ns + sum(each.cpu_ns - then for each, then, _ in self._since)) / 1e9

    @property
    def image_bytes(self) -> int:
        """Bytes of the images that were read, its part of them."""
        return round(sum(each.image_bytes - then for each, _, then in self._since))
