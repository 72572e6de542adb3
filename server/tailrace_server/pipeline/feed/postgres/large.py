"""A transaction that is larger than memory: its rows are written to a file, and then read in parts.

While the rows are written, a digest of each key is noted, 25 bytes a row in all. The net effect follows from
these: the rows that are the last of their key. Only those are read again. The digest is BLAKE2 of 128 bits: no
collision is known.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace_server.pipeline.feed.postgres.batches import net_effect
from tailrace_server.wal.large_transaction import LargeTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from tailrace_server.pipeline.feed.postgres.batches import TransactionBatches
    from tailrace_server.pipeline.feed.postgres.streamed import Held

_PART_MESSAGES: Final = 20_000
_PART_BYTES: Final = 8 << 20
"""Number and bytes of the messages in a part; a larger message is a part by itself."""


def large_transaction(
    held: Held, batches: TransactionBatches, file: IO[bytes]
) -> LargeTransaction | None:
    """Return the net effect of a transaction; None if it has a message that the loops do not read.

    Args:
        held: The transaction.
        batches: Reads its messages.
        file: A temporary file; it must stay open while the parts are read.
    """
    assert held.committed is not None
    messages = iter(held.messages())
    begin, end = next(messages), held.commit_message()
    names: dict[str, int] = {}
    noted: list[tuple[npt.NDArray[Any], ...]] = []
    writer: pa.ipc.RecordBatchStreamWriter | None = None
    for part in _parts(messages):
        rows = batches.read([begin, *part, end])
        if rows is None:
            return None
        codes = np.array([names.setdefault(each, len(names)) for each in rows.names], np.int64)
        noted.append((*_digests(rows.keys), rows.letters, codes[rows.codes]))
        batch = rows.batch(np.arange(len(rows.codes)))
        writer = writer or pa.ipc.new_stream(file, batch.schema)
        writer.write_batch(batch)
    if writer is None:
        return None
    writer.close()
    high, low, letters, kinds = (np.concatenate(each) for each in zip(*noted, strict=True))
    del noted
    one = np.zeros(len(letters), np.uint8)  # all rows are of one transaction
    keep, first, _ = net_effect([high, low, kinds], one, letters)
    counts = Counter(dict(enumerate(np.bincount(kinds[keep]).tolist())))
    return LargeTransaction(
        _kept(file, keep, first),
        {name: counts[code] for name, code in names.items() if counts[code]},
        str(held.committed.xid),
        held.committed.timestamp,
    )


def _digests(keys: pa.StringArray) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the two halves of the digest of each key."""
    digests = b"".join(
        blake2b(key, digest_size=16).digest() for key in keys.cast(pa.binary()).to_pylist()
    )
    halves = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    return halves[:, 0], halves[:, 1]


def _parts(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the messages of a transaction without its first and last, in parts."""
    part: list[bytes] = []
    size = 0
    for each in messages:
        if each[:1] == b"C":
            break
        part.append(each)
        size += len(each)
        if len(part) >= _PART_MESSAGES or size >= _PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _kept(
    file: IO[bytes], keep: npt.NDArray[np.bool_], first: npt.NDArray[np.int64]
) -> Iterator[pa.RecordBatch]:
    file.seek(0)
    at = 0
    for batch in pa.ipc.open_stream(file):
        stop = at + batch.num_rows
        # The image before of a repeated key is that of an earlier row; the log has it too.
        repeated = pa.array(first[at:stop] != np.arange(at, stop))
        place = batch.schema.get_field_index("before")
        befores = pc.if_else(repeated, pa.scalar(None, pa.utf8()), batch["before"])
        batch = batch.set_column(place, "before", befores).filter(pa.array(keep[at:stop]))
        at = stop
        if batch.num_rows:
            yield batch


__all__ = ["large_transaction"]
