"""What is told of a lost server. The command itself: tests/process/test_watch.py."""

from __future__ import annotations

from uuid import UUID

import pytest

from tailrace import Cursor, Position
from tailrace.capture import Acknowledgement, Limits
from tailrace.errors import NotGrpc, TransportError
from tailrace.link import Disconnected, Reconnected
from tailrace_server.cli.watch import Teller

CURSOR = Cursor(UUID(int=7), 3, 2)
ACKNOWLEDGEMENT = Acknowledgement(
    *("s", "shop", CURSOR.catalog_uuid, Position(3, 3), CURSOR, 3, 5.0),
    limits=Limits(1, 1, 1, 1.0, 1),
    features=frozenset(),
)
LOST = Disconnected(TransportError("refused"), CURSOR, 1, 0.1)


def test_a_lost_server_is_told_once_until_it_is_back(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller("here:7411")
    for _ in range(3):
        teller.disconnected(LOST)
    teller.reconnected(Reconnected(CURSOR, 3, ACKNOWLEDGEMENT))
    teller.disconnected(LOST)
    first, back, again = capsys.readouterr().err.splitlines()
    assert first == again
    assert f"waiting for here:7411, to resume after {CURSOR}: " in first
    assert "here:7411 is back after 3 attempts" in back


def test_a_wrong_address_is_not_waited_for() -> None:
    with pytest.raises(NotGrpc):
        Teller("here:8081").disconnected(Disconnected(NotGrpc("here:8081"), None, 1, 0.1))
