"""Filters of Spark that a read takes: it skips what they allow it to skip, and never a wanted row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tailrace_server.log_read.plan import open_log, plan, read_part
from tailrace_server.log_read.request import CHANGE_TYPES, Deduplication, Shape
from tailrace_server.pipeline.dataframe.pushed_filters import PushedFilters
from tests.server.log_read.histories import request, write
from tests.server.wal.logs import remove, update, upsert

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tailrace_server.log_read.request import ReadRequest

BY_ORDER: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: lambda a, b: a == b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
}
VERSIONS = st.integers(-1, 9)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    history = [[upsert("1"), upsert("2")], [update("1", 1, 2)], [remove("2")], [upsert("3")]]
    write(folder, history)
    return folder


def rows_with(read: ReadRequest, filters: Sequence[Filter]) -> list[dict[str, Any]]:
    """Return the rows of a read that takes filters."""
    with open_log(read) as log:
        pushed = PushedFilters.of(read, filters, log.view)
        limited = pushed.of_request(read)
        parts = pushed.of_parts(plan(limited, log).parts, log.view)
        return [
            row for part in parts for batch in read_part(part, log) for row in batch.to_pylist()
        ]


def holds(filter: Filter, row: dict[str, Any]) -> bool:
    match filter:
        case In(attribute=(name,), value=values):
            return row[name] in values
        case Not() | IsNotNull():
            return True
    name, value = filter.attribute[0], filter.value  # type: ignore[attr-defined]
    return row[name] is not None and BY_ORDER[type(filter)](row[name], value)


def filters_on(times: Sequence[datetime]) -> st.SearchStrategy[list[Filter]]:
    """Return lists of filters on the columns that a read looks at, and on others."""
    versions = st.builds(
        lambda kind, value: kind(("_commit_version",), value),
        st.sampled_from([*BY_ORDER]),
        VERSIONS,
    )
    moments = st.builds(
        lambda kind, value: kind(("_commit_timestamp",), value),
        st.sampled_from([*BY_ORDER]),
        st.sampled_from(times),
    )
    several = st.lists(VERSIONS, min_size=1).map(lambda each: In(("_commit_version",), tuple(each)))
    kinds = st.lists(st.sampled_from([*CHANGE_TYPES, "other"]), min_size=1).map(
        lambda each: In(("_change_type",), tuple(each))
    )
    others = st.sampled_from(
        [EqualTo(("id",), "1"), IsNotNull(("id",)), Not(EqualTo(("id",), "1"))]
    )
    return st.lists(versions | moments | several | kinds | others, max_size=4)


@settings(max_examples=60)
@given(data=st.data())
def test_no_wanted_row_is_skipped_and_none_of_other_versions_is_read(
    root: Path, data: st.DataObject
) -> None:
    read = request(root, rows_per_part=data.draw(st.sampled_from([1, 1000])))
    every = rows_with(read, [])
    times = sorted({row["_commit_timestamp"] for row in every})
    filters = data.draw(
        filters_on([*times, datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)])
    )
    found = rows_with(read, filters)
    exact = [row for row in every if all(holds(each, row) for each in filters)]
    assert [row for row in found if all(holds(each, row) for each in filters)] == exact
    bounds = [each for each in filters if type(each) in BY_ORDER and each.attribute != ("id",)]  # type: ignore[attr-defined]
    assert all(holds(each, row) for row in found for each in bounds)


@settings(max_examples=20)
@given(keys=st.lists(st.sampled_from(["1", "2", "3", "9"]), min_size=1))
def test_of_a_state_only_the_keys_are_looked_up(root: Path, keys: list[str]) -> None:
    read = request(root, shape=Shape.STATE)
    found = [row["id"] for row in rows_with(read, [In(("id",), tuple(keys))])]
    assert sorted(found) == sorted({*keys} & {"0", "1", "3"})


def test_a_net_change_is_that_of_the_whole_range(root: Path) -> None:
    read = request(root, deduplication=Deduplication.NET_CHANGES)
    filters = [GreaterThan(("_commit_version",), 2)]
    assert rows_with(read, filters) == rows_with(read, [])
