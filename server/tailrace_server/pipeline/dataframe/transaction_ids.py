"""Which transactions a partition holds, by hash, so that none becomes two versions.

Rows of a transaction are adjacent, in one partition. A transaction that comes back later, in this partition
or another one, would become a second version. A task keeps the hash of each id, 8 bytes a transaction, and
sends them with its result; the commit compares those of all tasks.

Hashes are those of keys (`wal.record.key_hash`). Two ids may share a hash (3 % chance among a billion ids). The
commit distinguishes them by the ids in the leads; a task takes them for one transaction and refuses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvalidRequest
from tailrace_server.wal.record.keys import key_hash, key_hashes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Hashes = npt.NDArray[np.uint64]

_SEED: Final = 0
_ADVICE: Final = (
    "rows of one transaction stand together: write df.repartitionByRange(n, key)"
    ".sortWithinPartitions(key, …) with a key that they share"
)


class SeenTransactions:
    """The transactions of a partition. Each takes 8 bytes, and 16 for a moment while arrays are merged."""

    def __init__(self) -> None:
        """Begin with no transactions."""
        self._parts: list[Hashes] = []
        """Sorted arrays, each more than four times as long as the next: few arrays, rarely merged."""

    def add(self, ids: pa.StringArray) -> None:
        """Add transactions; those without an id do not count.

        Raises:
            InvalidRequest: A transaction was added before.
        """
        ids = ids.drop_null()
        if not len(ids):
            return
        hashes = key_hashes(np.full(len(ids), _SEED, np.uint64), ids)
        ordered = np.sort(hashes)
        again = [ordered[1:][ordered[1:] == ordered[:-1]]]
        again += [ordered[_contains(part, ordered)] for part in self._parts]
        for found in again:
            if len(found):
                id = ids[int(np.flatnonzero(hashes == found[0])[-1])].as_py()
                raise InvalidRequest(
                    f"transaction {id!r} comes back in its partition, behind others; {_ADVICE}"
                )
        self._parts.append(ordered)
        while len(self._parts) > 1 and len(self._parts[-2]) <= 4 * len(self._parts[-1]):
            two = np.concatenate([self._parts.pop(), self._parts.pop()])
            self._parts.append(np.sort(two, kind="stable"))  # which finds the runs, and merges them

    def hashes(self) -> Hashes:
        """Return the hashes of all, sorted."""
        return np.sort(np.concatenate([np.empty(0, np.uint64), *self._parts]), kind="stable")


def refuse_split(partitions: Sequence[tuple[Hashes, Sequence[Path]]]) -> None:
    """Make sure that no transaction lies in two partitions.

    Args:
        partitions: For each partition its hashes, sorted, and its segments.

    Raises:
        InvalidRequest: A transaction lies in two.
    """
    if not partitions:
        return
    ordered = np.sort(np.concatenate([hashes for hashes, _ in partitions]))
    for twice in np.unique(ordered[1:][ordered[1:] == ordered[:-1]]):
        holding = [paths for hashes, paths in partitions if _contains(hashes, twice[None])[0]]
        ids = [_id_in(paths, int(twice)) for paths in holding]
        if None in ids or len(set(ids)) < len(ids):
            id = next((id for id in ids if id is not None), None)
            named = "a transaction" if id is None else f"transaction {id!r}"
            raise InvalidRequest(f"{named} lies in two partitions; {_ADVICE}")


def _contains(part: Hashes, hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Return for each hash whether a sorted array has it."""
    at = np.minimum(np.searchsorted(part, hashes), len(part) - 1)
    found: npt.NDArray[np.bool_] = part[at] == hashes if len(part) else np.zeros(len(at), np.bool_)
    return found


def _id_in(segments: Iterable[Path], hashed: int) -> str | None:
    """Return the id of a hash from the leads of segments; None if a given lead does not tell it."""
    for segment in segments:
        with pa.OSFile(str(segment)) as file, pa.ipc.open_file(file) as reader:
            for place in range(reader.num_record_batches):
                batch = reader.get_batch(place)
                leads = batch.column("after").filter(pc.equal(batch.column("index"), 0))
                for lead in leads.to_pylist():
                    id = orjson.loads(lead).get("transaction_id")
                    if isinstance(id, str) and key_hash(_SEED, id) == hashed:
                        return id
    return None
