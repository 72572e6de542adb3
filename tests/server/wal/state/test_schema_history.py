"""Schemas are given back as they were written, whatever of them is a difference."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import LogCorrupted
from tailrace.schema import Column, Schema
from tailrace_server.wal.catalog import open_writer
from tailrace_server.wal.files.sealed import seal, unseal
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.state.commit_log import CommitLog
from tailrace_server.wal.upkeep.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _with_new_type(schema: Schema, number: int) -> Schema:
    return replace(
        schema,
        entity_types={**schema.entity_types, f"type {number}": (Column("id", id=1 + number),)},
    )


def _with_new_column(schema: Schema, number: int) -> Schema:
    names = [*schema.entity_types]
    if not names:
        return _with_new_type(schema, number)
    name = names[number % len(names)]
    columns = (*schema.entity_types[name], Column(f"column {number}", id=1000 + number))
    return replace(schema, entity_types={**schema.entity_types, name: columns})


def _with_renamed_type(schema: Schema, number: int) -> Schema:
    return replace(
        schema,
        entity_types={
            f"{name}'" if place == number % 3 else name: columns
            for place, (name, columns) in enumerate(schema.entity_types.items())
        },
    )


def _with_dropped_column(schema: Schema, number: int) -> Schema:
    return replace(
        schema,
        entity_types={
            name: tuple(replace(column, dropped=True) for column in columns)
            if place == number % 5
            else columns
            for place, (name, columns) in enumerate(schema.entity_types.items())
        },
    )


def _with_placeholder(schema: Schema, number: int) -> Schema:
    return replace(schema, placeholders=(f"not sent {number}",))


def _without_a_type(schema: Schema, number: int) -> Schema:
    return replace(schema, entity_types=dict([*schema.entity_types.items()][1:]))


CHANGES: tuple[Callable[[Schema, int], Schema], ...] = (
    *(_with_new_type, _with_new_type, _with_new_column, _with_new_column, _with_renamed_type),
    *(_with_dropped_column, _with_placeholder, _without_a_type),
)


@settings(max_examples=12, deadline=None)
@given(
    changes=st.lists(st.sampled_from(CHANGES), min_size=1, max_size=45),
    reopened=st.integers(1, 45),
)
def test_every_version_has_the_schema_that_it_was_written_with(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[Callable[[Schema, int], Schema]],
    reopened: int,
) -> None:
    root = tmp_path_factory.mktemp("log")
    written: list[Schema] = []
    schema = Schema()
    for part in (changes[:reopened], changes[reopened:]):
        with open_writer(root, "shop", writer="w") as writer:
            for change in part:
                schema = change(schema, len(written))
                writer.commit(batch_id=len(written), schema_changes=[(0, schema)])
                written.append(replace(schema, id=len(written) + 1))
            assert [*writer.log.read_schemas().up_to(len(CHANGES))] == written
    log = CommitLog.open(root / "shop")
    assert [*log.schemas.up_to(1)] == written
    assert [[*each.entity_types] for each in log.schemas.up_to(1)] == [
        [*each.entity_types] for each in written
    ]
    assert all(log.schemas.at_place(place) == each for place, each in enumerate(written))


def test_a_new_entity_type_costs_its_own_columns(log_root: Path) -> None:
    """Forty types, one a commit: whole schemas would come to twenty times the largest."""
    with LogWriter.open(log_root, "wide") as writer:
        for number in range(40):
            writer.append([Mutation(f"type {number}", "1", after=b'{"id":1,"name":"x"}')])
            writer.commit()
    sizes = [path.stat().st_size for path in (log_root / "wide" / "schemas").iterdir()]
    assert len(sizes) == 40
    assert sum(sizes) < 5 * max(sizes)
    log = CommitLog.open(log_root / "wide")
    assert [len(log.view.schema_of(version).entity_types) for version in range(1, 41)] == [
        *range(1, 41)
    ]
    assert log.view.had_entity_type("type 39")
    assert not log.view.had_entity_type("type 40")


def test_contract_33_a_difference_from_another_schema_is_named(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop") as writer:
        for number in range(4):
            writer.append([Mutation(f"type {number}", "1", after=b"{}")])
            writer.commit()
    file = next(
        path
        for path in sorted((log_root / "shop" / "schemas").iterdir())
        if b'"parent"' in path.read_bytes()
    )
    document = json.loads(bytes(unseal("x", file.read_bytes())[0]))
    document["parent"] += 5
    file.write_bytes(seal(json.dumps(document).encode())[0])
    with pytest.raises(LogCorrupted, match="continues schema") as corrupted:
        CommitLog.open(log_root / "shop")
    assert corrupted.value.path == f"schemas/{file.name}"
    assert [fault.path for fault in verify(log_root / "shop").faults] == [f"schemas/{file.name}"]
