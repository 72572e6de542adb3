"""Heads of batches that no log holds, for tests of what only reads heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace_server.wal.record.text_columns import NameLists, Texts
from tailrace_server.wal.segment.reader import BatchHead
from tests.support.runs import batch_ref

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES = pa.list_(pa.dictionary(pa.int32(), pa.utf8()))


def head_of(records: Sequence[tuple[int, int, int]], entity_types: tuple[str, ...]) -> BatchHead:
    """Return a head of records with (area, operation, type code), each a version of its own."""
    count = len(records)
    return BatchHead(
        ref=batch_ref(0, count),
        versions=np.arange(1, count + 1),
        indexes=np.ones(count, np.int32),
        areas=np.array([area for area, _, _ in records], np.uint8),
        operations=np.array([operation for _, operation, _ in records], np.uint8),
        type_codes=np.array([code for _, _, code in records], np.int32),
        entity_types=entity_types,
        key_hashes=np.zeros(count, np.uint64),
        keys=Texts.of(pa.nulls(count, pa.string())),
        names=NameLists.of(pa.nulls(count, _NAMES)),
        nbytes=100,
    )
