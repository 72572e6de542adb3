"""The partitions of some topics, read by one consumer from offsets that the caller knows.

The consumer has its partitions assigned: it joins no group, so no other consumer disturbs it, and commits no
offsets. It reads what is committed: the last offset of a partition is that of its last stable message.

A partition that a topic gets later may have newer messages of a key than the older partitions. So it is held
until the older ones are read up to where they ended when it was found.
"""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.errors import InvalidRequest
from tailrace.errors.requests import nearest
from tailrace_server.pipeline.feed.source import SourceLost
from tailrace_server.pipeline.kafka.errors import (
    SourceCompacted,
    is_refusal,
    settings_error,
    source_error,
)
from tailrace_server.pipeline.kafka.formats import line_maker
from tailrace_server.pipeline.run.source_figures import SourceFigures
from tailrace_server.wal.source_offsets import OffsetRange, topics_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from tailrace.errors import TailraceError
    from tailrace_server.pipeline.kafka.options import KafkaOptions
    from tailrace_server.pipeline.run.progress import IngestCounters

NAME: Final = "kafka"
"""Name of the source, and of the writer of transactions in the log."""
_ANSWER_S: Final = 10.0
"""Time limit for an answer of the brokers, in seconds."""
_LISTING_S: Final = 10.0
"""Time between two listings of the topics, in seconds."""
AT_ONCE: Final = 500
"""Number of messages that are taken from the consumer's queue at a time; the queue holds at most 64 MB."""
_FIRST, _END = -2, -1
"""Times in a request for offsets that mean the oldest offset, and the offset behind the last message."""


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


Offsets = dict[Partition, int]


def consumer(options: KafkaOptions, **more: object) -> Consumer:
    """Return a consumer.

    Raises:
        InvalidRequest: librdkafka does not know a setting, or does not take its value.
    """
    try:
        return Consumer({**options.settings(), **more})
    except KafkaException as error:
        raise settings_error(error.args[0], options.client) from None


class Partitions:
    """The partitions and their next offsets. Close it."""

    def __init__(self, options: KafkaOptions, warn: Callable[[str], None]) -> None:
        """Connect to the brokers when the first method needs it.

        Args:
            options: The topics and the connection.
            warn: Receives a line about each accepted gap.

        Raises:
            InvalidRequest: A setting is refused, or the format needs a registry and none is given.
            SourceUnreachable, SourceRefused: The registry of the format cannot be read.
        """
        self._options = options
        self._warn = warn
        self._said: KafkaError | None = None
        """The last error that librdkafka reported by itself; None if the brokers have answered since."""
        self._line = line_maker(options)
        self._consumer = consumer(options, error_cb=self._note)
        self.next: Offsets = {}
        """The offset to read next, of each partition."""
        self.committed: Offsets = {}
        """The offset that follows what the caller has committed, of each partition; the caller moves it."""
        self._held: dict[Partition, Offsets] = {}
        """Partitions that are not read yet, with the offsets up to which others have to be read first."""
        self._is_assigned = False
        self._listed_at = 0.0

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    # What there is.

    def find(self, positions: Mapping[str, int | str]) -> list[Partition]:
        """Add the partitions that are new since the last call; return them.

        Args:
            positions: The source positions of the log.

        Raises:
            InvalidRequest: There is no such topic.
            SourceCompacted: Messages that follow the log's offset are deleted.
            SourceLost: A topic was deleted, or was created again.
            SourceUnreachable, SourceRefused: The brokers cannot be read.
        """
        self._listed_at = time.monotonic()
        listed = self._listed(topics_in(positions))
        new = [each for each in listed if each not in self.next]
        if not new:
            return []
        first, end = self._offsets(new, _FIRST), self._offsets(new, _END)
        old = [each for each in listed if _stored(each, positions) is not None]
        ends = self._offsets(old, _END)
        for each in new:
            stored = _stored(each, positions)
            start = self._start(each, stored, first[each], end[each])
            self.next[each] = self.committed[each] = start
            older = {other: ends[other] for other in old if other.topic == each.topic}
            if stored is None and older:
                self._held[each] = older
        self._is_assigned = False
        return new

    @property
    def is_listing_old(self) -> bool:
        """True if it is time for another call of `find`."""
        return time.monotonic() - self._listed_at >= _LISTING_S

    def ends(self) -> Offsets:
        """Return the offset behind the last message of each partition.

        Raises:
            SourceLost: A topic was created again: it ends before the next offset.
            SourceUnreachable, SourceRefused: The brokers cannot be read.
        """
        found = self._offsets(self.next, _END)
        for each, end in found.items():
            if end < self.next[each]:
                raise _created_again(each, self.next[each], end)
        return found

    def has(self, ends: Offsets) -> bool:
        """Return True if all messages before some offsets were taken."""
        return all(self.next[each] >= end for each, end in ends.items())

    # What is read.

    def take(self, rows: int, nbytes: int, wait_s: float) -> dict[Partition, list[bytes]]:
        """Take the messages that have arrived, as lines; move `next` behind them.

        Args:
            rows: Maximum number of messages.
            nbytes: Size from which no more messages are taken.
            wait_s: Time to wait for a first message, in seconds.

        Raises:
            SourceCompacted, SourceLost, SourceUnreachable, SourceRefused: A partition cannot be read further.
        """
        self._assign()
        lines: dict[Partition, list[bytes]] = {}
        first = self._consumer.poll(wait_s)
        if self._said is not None and is_refusal(self._said):
            raise source_error(self._said, self._options.bootstrap)
        messages = [] if first is None else [first]
        count = size = 0
        while messages:
            for each in messages:
                place = Partition(str(each.topic()), each.partition() or 0)
                offset = each.offset() or 0
                error = each.error()
                if error is None:
                    if offset < self.next[place]:
                        continue  # sent before the last assignment
                    line = self._line(each)
                    lines.setdefault(place, []).append(line)
                    self.next[place] = offset + 1
                    count, size = count + 1, size + len(line)
                elif error.code() == KafkaError._PARTITION_EOF:
                    # Marks of transactions and deleted messages at the end have offsets, too.
                    self.next[place] = max(self.next[place], offset)
                else:
                    raise self._failure(error, place)
            if count >= rows or size >= nbytes:
                break
            messages = self._consumer.consume(min(AT_ONCE, rows - count), 0)
        return lines

    def share(self, ends: Offsets, rows: int) -> Offsets:
        """Return offsets up to which a batch of so many messages reads.

        Each partition gives the same share of its waiting messages, so that the rows of a transaction in
        several topics come in near batches.
        """
        waiting = {each: ends[each] - self.next[each] for each in self._read()}
        part = min(1.0, rows / max(1, sum(waiting.values())))
        return {each: self.next[each] + math.ceil(part * left) for each, left in waiting.items()}

    def waiting(self, ends: Offsets) -> int:
        """Return the number of messages before some offsets that can be read now and were not taken."""
        return sum(max(0, ends[each] - self.next[each]) for each in self._read())

    def moved(self) -> tuple[OffsetRange, ...]:
        """Return the offsets that are not committed, of each partition that has some."""
        return tuple(
            OffsetRange(*each, self.committed[each], offset - 1)
            for each, offset in self.next.items()
            if offset > self.committed[each]
        )

    def figures(self, ends: Offsets, counters: IngestCounters) -> SourceFigures:
        """Return the committed offset of each partition, and how many messages wait behind it."""
        positions = {str(each): offset for each, offset in self.committed.items()}
        lags = {
            str(each): max(0, ends.get(each, offset) - offset)
            for each, offset in self.committed.items()
        }
        return SourceFigures("messages", positions, lags, counters.rows, counters.newest_us)

    def skip_to(self, offsets: Offsets) -> None:
        """Continue at other offsets: somebody else has read the messages before them."""
        self.next |= offsets
        self._is_assigned = False

    def check(self) -> None:
        """Check that the messages behind the committed ones exist, and that their schemas can be read.

        Raises:
            SourceCompacted, SourceLost, SourceUnreachable, SourceRefused: They do not, or cannot be read.
        """
        line_maker(self._options)
        first, end = self._offsets(self.next, _FIRST), self._offsets(self.next, _END)
        for each, offset in self.committed.items():
            self._start(each, offset, first[each], end[each], gaps=False)

    def _read(self) -> list[Partition]:
        return [each for each in self.next if each not in self._held]

    def _assign(self) -> None:
        free = [each for each, older in self._held.items() if self.has(older)]
        for each in free:
            del self._held[each]
        if free or not self._is_assigned:
            self._consumer.assign([TopicPartition(*each, self.next[each]) for each in self._read()])
            self._is_assigned = True

    def _start(
        self, each: Partition, stored: int | None, first: int, end: int, *, gaps: bool | None = None
    ) -> int:
        """Return the offset at which a partition is read."""
        if stored is None:
            return first
        if stored > end:
            raise _created_again(each, stored, end)
        if stored >= first:
            return stored
        if not (self._options.accept_gaps if gaps is None else gaps):
            raise SourceCompacted(str(each), stored, first)
        self._warn(f"continued without the missing offsets {stored} to {first - 1} of {each}")
        return first

    def _listed(self, known: Collection[str] = ()) -> list[Partition]:
        """Return the partitions of the topics; the log has offsets of ``known`` topics."""
        try:
            topics = self._consumer.list_topics(timeout=_ANSWER_S).topics
        except KafkaException as error:
            raise self._unanswered(error) from None
        self._said = None
        found: set[str] = set()
        for name in self._options.topics:
            matching = [each for each in topics if _matches(name, each)]
            if not matching and (gone := [each for each in known if _matches(name, each)]):
                raise SourceLost(
                    f"topic {gone[0]} was deleted, and the catalog has offsets of it. Leave it out of "
                    "--topic, or use another catalog"
                )
            if not matching and not self.next:
                raise InvalidRequest(
                    f"--topic {name}: there is no such topic{nearest(name, topics)}"
                )
            found.update(matching)
        for name in found:
            if (fault := topics[name].error) is not None:
                raise source_error(fault, f"topic {name}")
        listed = [Partition(name, n) for name in found for n in topics[name].partitions]
        for each, offset in self.next.items():
            if each not in listed:
                raise SourceLost(
                    f"topic {each.topic} was deleted, or has fewer partitions; the catalog has "
                    f"partition {each.number} up to offset {offset}. Leave the topic out of --topic"
                )
        return sorted(listed)

    def _offsets(self, partitions: Iterable[Partition], at: int) -> Offsets:
        asked = [TopicPartition(*each, at) for each in partitions]
        if not asked:
            return {}
        try:
            answered = self._consumer.offsets_for_times(asked, timeout=_ANSWER_S)
        except KafkaException as error:
            raise self._unanswered(error) from None
        for each in answered:
            if each.error is not None:
                raise self._failure(each.error, Partition(each.topic, each.partition))
        self._said = None
        return {Partition(each.topic, each.partition): each.offset for each in answered}

    def _failure(self, error: KafkaError, place: Partition) -> TailraceError:
        match error.code():
            case KafkaError._AUTO_OFFSET_RESET | KafkaError.OFFSET_OUT_OF_RANGE:
                self.check()  # raises the error, with figures
            case (
                KafkaError.UNKNOWN_TOPIC_OR_PART
                | KafkaError._UNKNOWN_TOPIC
                | KafkaError._UNKNOWN_PARTITION
            ):
                self._listed()  # raises if the topic is gone; else a retry helps
        return source_error(error, str(place))

    def _unanswered(self, error: KafkaException) -> TailraceError:
        self._consumer.poll(0)  # calls `_note` with the cause
        return source_error(error.args[0], self._options.bootstrap, self._said)

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # the error before it has the cause
            self._said = error


def _stored(each: Partition, positions: Mapping[str, int | str]) -> int | None:
    return OffsetRange(*each, 0, 0).next_in(positions)


def _matches(name: str, topic: str) -> bool:
    return re.match(name, topic) is not None if name.startswith("^") else name == topic


def _created_again(each: Partition, wanted: int, end: int) -> SourceLost:
    return SourceLost(
        f"{each} ends at offset {end}, but the catalog has it up to offset {wanted}: the topic was "
        "created again, or restored from a copy. Read it into a new catalog"
    )
