"""The cost of evaluating conditions, by publisher.

The cost of one condition alone is its publisher's. Reading images, decoding columns and looking up the index is
done once for all conditions of an entity type; this cost is split evenly among their publishers::

    share += cost of a batch / number of publishers          for each entity type
    cost of a publisher = share now - share when it began    so a batch costs the same for 1 and for 10,000
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class SharedCost:
    """The cost that the publishers of one entity type share evenly."""

    __slots__ = ("cpu_ns", "image_bytes", "publishers")

    def __init__(self) -> None:
        """Begin without a publisher."""
        self.publishers = 0
        self.cpu_ns = 0.0
        """CPU time in ns that a publisher would have to bear if it had shared the cost from the beginning."""
        self.image_bytes = 0.0
        """Bytes of images that such a publisher would have to bear."""

    def add(self, cpu_ns: int, image_bytes: int) -> None:
        """Split the cost of a batch among the publishers."""
        if self.publishers:
            self.cpu_ns += cpu_ns / self.publishers
            self.image_bytes += image_bytes / self.publishers


class EvaluationCost:
    """The cost of one publisher's conditions since the publisher began; the cost only rises."""

    __slots__ = ("_since", "own_ns")

    def __init__(self, shared: Iterable[SharedCost] = ()) -> None:
        """Begin now to share the cost of some entity types; none for a publisher without conditions."""
        self.own_ns = 0
        """CPU time of evaluating this publisher's conditions alone, in ns."""
        self._since = [(each, each.cpu_ns, each.image_bytes) for each in shared]
        for each, _, _ in self._since:
            each.publishers += 1

    def __bool__(self) -> bool:
        """Return True if the publisher has a condition."""
        return bool(self._since)

    def end(self) -> None:
        """Stop sharing the cost of further batches."""
        for shared, _, _ in self._since:
            shared.publishers -= 1

    @property
    def cpu_s(self) -> float:
        """CPU time in seconds: that of the publisher alone, and its share of the common cost."""
        return (self.own_ns + sum(each.cpu_ns - then for each, then, _ in self._since)) / 1e9

    @property
    def image_bytes(self) -> int:
        """The publisher's share of the bytes of images that were read."""
        return round(sum(each.image_bytes - then for each, _, then in self._since))
