"""From criteria to a predicate: the same by either way."""

from __future__ import annotations

import threading

import pytest

from tailrace.criteria import Criteria
from tailrace_server.rows.predicate import Alternative, Predicate, compiled


@pytest.mark.parametrize(("keys", "elsewhere"), [(10, False), (5_000, True)])
async def test_many_keys_are_hashed_in_another_thread(
    keys: int, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    made = Alternative.__init__

    def noted(self: Alternative, criteria: Criteria) -> None:
        threads.append(threading.current_thread())
        made(self, criteria)

    monkeypatch.setattr(Alternative, "__init__", noted)
    criteria = (Criteria(entity_type=("order",), primary_key=tuple(map(str, range(keys)))),)
    predicate = await compiled(criteria)
    assert [each is not threading.main_thread() for each in threads] == [elsewhere]
    assert predicate.identity == Predicate(criteria).identity
