"""Router and predicates: whatever the criteria, both find what the model's plain filter finds."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Criteria, canonical
from tailrace_server.live.router import Router
from tailrace_server.rows.predicate import Predicate
from tailrace_server.rows.record_classes import group_by_class
from tailrace_server.wal.segment.reader import BatchReader
from tailrace_server.wal.state.commit_log import CommitLog
from tests.support.images import images_of
from tests.support.inprocess import ModelWriter
from tests.support.model import ModelLog, criteria_lists, transactions

if TYPE_CHECKING:
    from tailrace_server.rows.run import BatchSelection
    from tailrace_server.wal.segment.reader import BatchHead
    from tests.support.model import Coordinates


def found(head: BatchHead, selection: BatchSelection) -> list[Coordinates]:
    ordinals = [0] * len(selection) if selection.ordinals is None else selection.ordinals.tolist()
    return [
        (int(head.versions[row]), int(head.indexes[row]), ordinal)
        for row, ordinal in zip(selection.rows.tolist(), ordinals, strict=True)
    ]


@settings(max_examples=60)
@given(
    written=st.lists(transactions, min_size=1, max_size=12),
    wanted=st.lists(criteria_lists, min_size=1, max_size=6, unique_by=canonical),
    forgotten=st.lists(criteria_lists, max_size=2),
)
def test_contract_29_30_router_and_predicate_agree_with_a_plain_filter(
    written: list[list[object]],
    wanted: list[tuple[Criteria, ...]],
    forgotten: list[tuple[Criteria, ...]],
) -> None:
    log = ModelLog(known={})
    with TemporaryDirectory() as folder:
        writer = ModelWriter(Path(folder), "shop", log)
        writer.write(*written)  # type: ignore[arg-type]
        writer.writer.close()
        router = Router()
        for number, criteria in enumerate(forgotten):
            router.add(1000 + number, Predicate(canonical(criteria)))
        for number, criteria in enumerate(wanted):
            router.add(number, Predicate(canonical(criteria)))
        for number in range(len(forgotten)):
            router.remove(1000 + number)
        routed: list[list[Coordinates]] = [[] for _ in wanted]
        selected: list[list[Coordinates]] = [[] for _ in wanted]
        view = CommitLog.open(Path(folder) / "shop").view
        with BatchReader(Path(folder) / "shop") as reader:
            for number in range(len(view)):
                ref = view.batch(number)
                grouped = group_by_class(reader.head(ref))
                images = images_of(reader, ref, view)
                for id, selection in router.route(grouped, images):
                    assert not isinstance(selection, Exception)
                    routed[id] += found(grouped.head, selection)
                for id, criteria in enumerate(wanted):
                    selection = Predicate(canonical(criteria)).select(grouped, images)
                    selected[id] += found(grouped.head, selection)
    expected = [log.expected(criteria) for criteria in wanted]
    assert selected == expected
    assert routed == expected


def test_contract_32_equal_criteria_are_one_whatever_their_order() -> None:
    one = canonical([Criteria(entity_type=("b", "a")), Criteria(primary_key=("2", "1"))])
    other = canonical([Criteria(primary_key=("1", "2", "1")), Criteria(entity_type=("a", "b"))])
    assert one == other
    assert canonical([]) == canonical([Criteria()]) == (Criteria(),)
