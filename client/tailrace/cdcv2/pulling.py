"""The reader as an iterator that pulls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from tailrace.cdcv2.lattice import INTEGERS
from tailrace.cdcv2.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.cdcv2.lattice import Lattice
    from tailrace.cdcv2.reader import OnConflict
    from tailrace.cdcv2.statements import Finished, Statement

T = TypeVar("T")


def read(
    messages: Iterable[Statement[T]],
    lattice: Lattice[T] = cast("Lattice[Any]", INTEGERS),  # noqa: B008 - a constant
    *,
    on_conflict: OnConflict = "error",
    start: Iterable[T] | None = None,
    reader: Reader[T] | None = None,
) -> Iterator[Finished[T]]:
    """Yield what becomes final while messages are pulled, until the stream or the messages end.

    Nothing more is pulled once the stream is closed. If the messages end before, so does this; give a
    reader and ask it for `Reader.closed` and `Reader.why_waiting` to tell the two apart.

    Args:
        messages: The messages, in any order.
        lattice: The kind of time.
        on_conflict: As of `Reader`.
        start: As of `Reader`.
        reader: Goes on with this one instead of a new one; then the other arguments have no meaning.

    Raises:
        CdcError: As `Reader.receive`.
    """
    if reader is None:
        reader = Reader(lattice, on_conflict=on_conflict, start=start)
    source = iter(messages)
    while not reader.closed:
        message = next(source, None)
        if message is None:
            return
        yield from reader.receive(message)
