"""The net below what is freed by its last reference: bounded, and before a reader is cut."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from tailrace_server import collector
from tailrace_server.collector import CycleCollector

if TYPE_CHECKING:
    from collections.abc import Iterator


class Cycle:
    """Refers to itself: reference counts alone never free it."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def none_by_itself() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def lost(generation: int) -> weakref.ref[Cycle]:
    """Return a reference to a cycle that nobody has, in a generation."""
    cycle = Cycle()
    for younger in range(generation):
        gc.collect(younger)
    return weakref.ref(cycle)


@pytest.mark.usefixtures("none_by_itself")
def test_want_of_memory_collects_young_and_old_and_not_again_at_once() -> None:
    cycles = CycleCollector()
    found = [lost(generation) for generation in (0, 1, 2)]
    assert cycles.for_memory()
    assert [each() for each in found] == [None] * 3
    assert cycles.longest_s > 0
    another = lost(0)
    assert not cycles.for_memory()
    assert another() is not None


@pytest.mark.usefixtures("none_by_itself")
def test_the_old_are_left_alone_where_they_are_too_many_to_walk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everybody would wait for it."""
    monkeypatch.setattr(collector, "_OLD_OBJECTS_MAX", 0)
    young, old = lost(1), lost(2)
    assert CycleCollector().for_memory()
    assert young() is None
    assert old() is not None
