"""The saved state of a reader: one JSON document, UTF-8.

::

    {"format": 1, "lattice": "integers", "on_conflict": "error",
     "finished": [4],                                     the frontier
     "intervals": [[[3], [10], 2]],                       lower, upper, message
     "times": [[5, [2, 2], [["[7,null]", 1, 9]]]],        time, [count, message] or null, updates of it:
                                                          data as text, diff, message
     "figures": {"messages": 9, …}}

It is valid if and only if all of this holds: the times are of the lattice and not finished, the intervals
cover the times that have a count, and no (data, time) occurs twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tailrace.cdcv2.errors import InvalidStatement, StateUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tailrace.cdcv2.errors import Origin, Side
    from tailrace.cdcv2.lattice import Lattice
    from tailrace.cdcv2.timeline import Interval

T = TypeVar("T")

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class ReaderState(Generic[T]):
    """The state of a reader. `Reader` describes the fields."""

    on_conflict: str
    finished: tuple[T, ...]
    intervals: list[Interval[T]]
    held: dict[T, dict[Hashable, Side]]
    counts: dict[T, Side]
    figures: dict[str, int]


def encode_state(
    state: ReaderState[T], lattice: Lattice[T], encode: Callable[[Hashable], str]
) -> bytes:
    """Return a state as a JSON document.

    Args:
        state: The state.
        lattice: Its kind of time.
        encode: Function that converts the data of an update to text.
    """
    write = lattice.to_json
    times = [
        [
            write(time),
            state.counts.get(time),
            [[encode(data), diff, message] for data, (diff, message) in at.items()],
        ]
        for time, at in state.held.items()
    ]
    intervals = [
        [[write(time) for time in lower], [write(time) for time in upper], message]
        for lower, upper, message in state.intervals
    ]
    document = {
        "format": FORMAT,
        "lattice": lattice.name,
        "on_conflict": state.on_conflict,
        "finished": [write(time) for time in state.finished],
        "intervals": intervals,
        "times": times,
        "figures": state.figures,
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def decode_state(
    saved: bytes, lattice: Lattice[T], decode: Callable[[str], Hashable]
) -> ReaderState[T]:
    """Return the state in a JSON document.

    Raises:
        StateUnreadable: The bytes are not such a document, or it has another format or another kind of time.
    """
    try:
        document: dict[str, Any] = json.loads(saved)
        if document["format"] != FORMAT:
            raise StateUnreadable(f"saved state has format {document['format']}, not {FORMAT}")
        if document["lattice"] != lattice.name:
            raise StateUnreadable(f"saved state is of {document['lattice']}, not of {lattice.name}")
        return _state(document, lattice, decode)
    # A document of another form fails somewhere below with one of these, so no other check of its form is
    # needed.
    except (ValueError, KeyError, TypeError, AttributeError, InvalidStatement) as error:
        raise StateUnreadable(f"not the saved state of a reader: {error!r}") from error


def _state(
    document: dict[str, Any], lattice: Lattice[T], decode: Callable[[str], Hashable]
) -> ReaderState[T]:
    read = lattice.from_json
    held: dict[T, dict[Hashable, Side]] = {}
    counts: dict[T, Side] = {}
    for value, count, updates in document["times"]:
        time = read(value)
        held[time] = {decode(text): (diff, message) for text, diff, message in updates}
        if count is not None:
            counts[time] = (count[0], count[1])
    intervals: list[tuple[tuple[T, ...], tuple[T, ...], Origin]] = [
        (tuple(map(read, lower)), tuple(map(read, upper)), message)
        for lower, upper, message in document["intervals"]
    ]
    return ReaderState(
        on_conflict=document["on_conflict"],
        finished=tuple(map(read, document["finished"])),
        intervals=intervals,
        held=held,
        counts=counts,
        figures={name: int(value) for name, value in document["figures"].items()},
    )


def data_to_text(data: Hashable) -> str:
    """Return data as JSON text; it must consist of JSON scalars and tuples of them.

    Raises:
        TypeError: The data holds something else. Pass your own functions to `Reader.save` and `restore` then.
    """
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def data_of_text(text: str) -> Hashable:
    """Return the data in a text that `data_to_text` wrote.

    Raises:
        ValueError: The text is not JSON.
    """
    return _hashable(json.loads(text))


def _hashable(value: Any) -> Hashable:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        raise TypeError(f"data {value} holds an object")
    found: Hashable = value
    return found
