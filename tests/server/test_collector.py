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
def test_many_old_objects_do_not_keep_garbage_from_being_collected() -> None:
    """Garbage alone may be more than any count: a bound on objects would switch its own remedy off."""
    many: list[list[object]] = [[] for _ in range(300_000)]
    old = lost(2)
    assert CycleCollector().for_memory()
    assert old() is None
    assert len(many) == 300_000


@pytest.mark.usefixtures("none_by_itself")
def test_a_long_walk_puts_the_next_one_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks have a bounded share of the time: 5 % where memory is short."""
    clock = Clock()
    monkeypatch.setattr(collector, "time", clock)
    monkeypatch.setattr(collector, "gc", clock)
    cycles = CycleCollector()
    clock.collection_s = 1.0
    assert cycles.for_memory()
    clock.now += 19 * clock.collection_s
    assert not cycles.for_memory()
    clock.now += 5 * clock.collection_s
    assert cycles.for_memory()


class Clock:
    """Time that passes while objects are collected, and where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.collection_s = 0.0

    def monotonic(self) -> float:
        return self.now

    def collect(self, generation: int) -> None:
        self.now += self.collection_s if generation == 2 else 0.0
