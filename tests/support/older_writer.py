"""A writer as older releases had it: it takes rows that `wal.record.row_rules` refuses by now.

Logs have such rows, and readers go on reading them: keys that come twice in a transaction, upserts without
``after``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tailrace_server.wal import columnar, transaction_writer
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record import input_rows
from tailrace_server.wal.record.mutation import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace_server.wal.record.mutation import Mutation


class OlderWriter(LogWriter):
    """Appends transactions without the rules for rows, and says nothing of removals."""

    def append(self, mutations: Sequence[Mutation], **options: Any) -> None:
        with _without_rules():
            super().append(mutations, **options)


@contextmanager
def _without_rules() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_writer, "check_mutations", _check_fields)
        patch.setattr(input_rows, "first_fault", lambda *_: None)
        patch.setattr(columnar, "first_repeated_key", lambda *_: None)
        patch.setattr(transaction_writer, "removals_of", lambda _: {})
        patch.setattr(transaction_writer, "removals_in", lambda *_: {})
        yield


def _check_fields(mutations: Sequence[Mutation], first_row: int) -> None:
    for mutation in mutations:
        check(mutation)
