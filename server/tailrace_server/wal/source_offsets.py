"""Offsets of a source's partitions, such as those of Kafka: the log stores how far it has read each of them.

A commit writes them as source positions, together with the rows::

    offset:TOPIC/PARTITION    NEXT:STREAM    the first offset that the log lacks, and the stream that reached it

So a stream that begins again, because its checkpoint is new, skips what the log has. Offsets must continue at
NEXT: a gap means that the source has deleted lines which the log lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OFFSET: Final = "offset:"


class OffsetRange(NamedTuple):
    """The offsets of one partition in a batch."""

    topic: str
    partition: int
    first: int
    last: int
    """The last offset, inclusive. Offsets between the first and the last may be missing."""

    @property
    def place(self) -> str:
        """The name of the source position."""
        return f"{_OFFSET}{self.topic}/{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    def next_in(self, positions: Mapping[str, int | str]) -> int | None:
        """Return the first offset that the log lacks; None if the log has nothing of this partition."""
        noted = positions.get(self.place)
        return None if noted is None else int(str(noted).partition(":")[0])


def topics_in(positions: Mapping[str, int | str]) -> set[str]:
    """Return the topics that have offsets in the log."""
    places = (key.removeprefix(_OFFSET) for key in positions if key.startswith(_OFFSET))
    return {each.rpartition("/")[0] for each in places}


def offsets_after(
    ranges: Iterable[OffsetRange], positions: Mapping[str, int | str], stream: str
) -> dict[str, int | str]:
    """Return the source positions that a batch of a stream changes."""
    return {
        each.place: f"{each.last + 1}:{stream}"
        for each in ranges
        if each.last >= (each.next_in(positions) or 0)
    }


def gaps(ranges: Iterable[OffsetRange], positions: Mapping[str, int | str]) -> list[str]:
    """Return a text for each partition whose offsets do not continue those of the log."""
    return [
        f"{known} to {each.first - 1} of {each}"
        for each in ranges
        if (known := each.next_in(positions)) is not None and each.first > known
    ]


def refuse_offsets(
    ranges: Iterable[OffsetRange],
    positions: Mapping[str, int | str],
    stream: str,
    *,
    accept_gaps: bool,
) -> None:
    """Refuse a batch whose offsets do not continue those of the log.

    Raises:
        InvalidRequest: There is a gap, and ``accept_gaps`` is not set. Or the stream returns lower offsets
            than it has returned before.
    """
    ranges = tuple(ranges)
    missing = [] if accept_gaps else gaps(ranges, positions)
    if missing:
        raise InvalidRequest(
            f"offsets are missing between the log and the stream: {_some(missing)}. The source has "
            "deleted them, or a filter or a compacted topic leaves them out. Nothing was written; "
            "accept_gaps continues without them"
        )
    for each in ranges:
        known, _, reached_by = str(positions.get(each.place, "")).partition(":")
        if stream and reached_by == stream and each.first < int(known):
            raise InvalidRequest(
                f"the stream returns offset {each.first} of {each} after offset {int(known) - 1}: the "
                "topic was probably created again. Nothing was written; read it under a new topic "
                "name, or into a new catalog"
            )


def _some(texts: list[str], limit: int = 5) -> str:
    more = f" and of {len(texts) - limit} more partitions" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more
