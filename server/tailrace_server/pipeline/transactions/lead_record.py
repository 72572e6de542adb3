"""The lead record of a version: record 0, whose ``after`` says what the transaction was.

Members, in this order; those in brackets only where they apply:

=====================  ================================================================================
transaction_id         as the source writes it; null for a line alone and for snapshot rows
mutation_count         records that follow, after consolidation
counts                 entity type → records of it
source_count           rows that came from the source
source                 connector and its name
source_timestamp       the latest of its rows, µs; null where the source gives none
[source_log,           log of the source that the position counts in, and the highest position of the
source_position]       transaction's rows in it, in hex (`ordering.source_logs`, `changes`)
[late, of]             true, and the version that its earlier rows became
[snapshot]             true
[expected_count]       rows that the source announced, where other than ``source_count``
[without_end]          true: its BEGIN came, and no END with a count by when it was closed
[quarantined]          rows that could not be read
[incomplete_images]    records with an image that should be whole, and that nothing could fill
=====================  ================================================================================

A reader that has ``mutation_count`` records of a version has all of them (promise 8). The transaction is known
to be incomplete if there is ``expected_count``, ``without_end`` or ``quarantined``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tailrace_server.wal.record.columns import lead_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.pipeline.transactions.consolidate import Effect
    from tailrace_server.pipeline.transactions.grouping import Released


def lead(released: Released, effects: Iterable[Effect], incomplete_images: int = 0) -> bytes:
    """Return the ``after`` of a version's lead record."""
    tally = released.tally
    late = released.late_of is not None
    without_end = not late and tally.mark is not None and tally.expected is None
    incomplete = not late and tally.expected is not None and tally.expected != tally.rows
    return lead_text(
        transaction_id=tally.transaction_id,
        counts=Counter(effect.entity_type for effect in effects),
        source_count=tally.rows,
        source=tally.source,
        source_timestamp=tally.timestamp,
        source_log=tally.log,
        source_position=tally.highest.hex() if tally.log is not None else None,
        late=True if late else None,
        of=released.late_of,
        snapshot=True if released.snapshot else None,
        expected_count=tally.expected if incomplete else None,
        without_end=True if without_end else None,
        quarantined=tally.quarantined or None,
        incomplete_images=incomplete_images or None,
    )
