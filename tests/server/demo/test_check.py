"""The demo's judge must find what a subscriber missed, got twice, out of order, or with another image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace import Criteria
from tailrace_server.demo.check import Verdict, judge, read_log
from tailrace_server.demo.watchers import Watcher
from tests.conformance.shop import SHOP

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.inprocess import ModelWriter

PRODUCTS = (Criteria(entity_type=("product",)),)


def watcher(log_root: Path, writer: ModelWriter) -> tuple[Watcher, Callable[[], Verdict]]:
    """Return a subscriber that has received exactly what it should, and its judge."""
    writer.write(*SHOP)
    facts = read_log(log_root / "shop")
    found = Watcher("products", "green", "all products", PRODUCTS)
    found.received = list(writer.log.expected(PRODUCTS))
    images = {(row.version, row.index): hash(row.after) for row in facts.rows}
    found.images = [images[version, index] for version, index, _ in found.received]
    return found, lambda: judge(found, facts.rows)


def test_what_the_model_expects_is_exact(log_root: Path, writer: ModelWriter) -> None:
    found, verdict = watcher(log_root, writer)
    count = len(found.received)
    assert count > 2
    assert verdict() == Verdict(count, count, missing=0, repeated=0, in_order=True, exact=True)


@pytest.mark.parametrize(
    ("harm", "figures"),
    [
        (lambda captures: captures.pop(1), (1, 0, True)),
        (lambda captures: captures.insert(1, captures[0]), (0, 1, True)),
        (lambda captures: captures.reverse(), (0, 0, False)),
    ],
    ids=["missing", "repeated", "disordered"],
)
def test_a_fault_of_delivery_is_found(
    log_root: Path,
    writer: ModelWriter,
    harm: Callable[[list[tuple[int, int, int]]], object],
    figures: tuple[int, int, bool],
) -> None:
    found, verdict = watcher(log_root, writer)
    harm(found.received)
    judged = verdict()
    assert (judged.missing, judged.repeated, judged.in_order) == figures
    assert not judged.exact


def test_another_image_is_found(log_root: Path, writer: ModelWriter) -> None:
    found, verdict = watcher(log_root, writer)
    found.images[0] += 1
    judged = verdict()
    assert (judged.missing, judged.repeated, judged.in_order) == (0, 0, True)
    assert not judged.exact
