"""Pieces between tasks."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.cdcv2.pieces import Kind, by_share, failure, pass_on, take_table
from tailrace_server.pipeline.cdcv2.updates import UPDATES, updates_table
from tailrace_server.pipeline.spark.pieces import FRAME, decoded, encoded, frame

ROWS = updates_table(
    pa.array([bytes([n]) for n in range(50)], pa.large_binary()),
    np.arange(50),
    np.ones(50, np.int64),
    np.arange(50),
)


def test_rows_go_to_the_shares_of_their_hashes_and_come_together_again() -> None:
    pieces = list(by_share(Kind.NEW_UPDATES, ROWS, 3))
    assert {share for share, _, _ in pieces} == {0, 1, 2}
    assert frame(pieces).schema == FRAME
    landed: dict[int, list[bytes]] = {}
    for row in frame(pieces).to_pylist():
        landed.setdefault(row["kind"], []).append(row["piece"])
    table = take_table(landed, Kind.NEW_UPDATES, UPDATES)
    assert table.sort_by("message") == ROWS
    assert landed == {}
    assert take_table(landed, Kind.NEW_UPDATES, UPDATES).num_rows == 0


def test_unused_pieces_are_passed_on_and_seeds_are_not() -> None:
    piece = encoded(ROWS)
    assert decoded(piece) == ROWS
    assert list(pass_on(4, {Kind.SEED: [b""], Kind.OPEN_TIMES: [piece]})) == [
        (4, Kind.OPEN_TIMES, piece)
    ]


def test_an_error_travels_with_its_type_and_figures() -> None:
    _, kind, piece = failure(InvalidRequest("no"))
    assert kind == Kind.FAILURE
    assert isinstance(pickle.loads(piece), InvalidRequest)
