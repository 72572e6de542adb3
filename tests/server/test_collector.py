"""Growth by many live objects costs no full collection, and cycles that are dropped go all the same."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from tailrace_server import collector

if TYPE_CHECKING:
    from collections.abc import Iterator


class Cycle:
    """Refers to itself: reference counts alone never free it."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def settled() -> Iterator[None]:
    before = gc.get_threshold()
    collector.settle()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("settled")
def test_half_a_million_objects_more_are_never_walked_as_a_whole() -> None:
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            generations.append(info["generation"])

    gc.callbacks.append(note)
    try:
        kept = [[number] for number in range(500_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 500_000
    assert 2 not in generations
    assert 1 in generations


@pytest.mark.usefixtures("settled")
def test_dropped_cycles_are_found_after_a_bounded_number_of_new_objects() -> None:
    dropped = weakref.ref(Cycle())
    kept: list[list[int]] = []
    while dropped() is not None:
        kept.append([])
        assert len(kept) <= 2 * collector.THRESHOLDS[0]
