"""The reader as an iterator over what becomes final."""

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
    """Pull messages and yield what becomes final, until the stream is closed or the messages end.

    No message is pulled once the stream is closed. To tell the two ends apart, pass a reader and ask it
    for `Reader.closed` and `Reader.why_waiting`.

    Args:
        messages: The messages, in any order.
        lattice: The kind of time.
        on_conflict: As of `Reader`.
        start: As of `Reader`.
        reader: A reader to continue with; the other arguments are then ignored.

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
