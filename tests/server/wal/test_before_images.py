"""A writer that fills in images before writes the log of a program that gives them all."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.criteria import Area, Operation
from tailrace.errors import InvalidRequest
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.server.wal.logs import AREA, rows_of
from tests.server.wal.test_columnar import append, appended_by

if TYPE_CHECKING:
    from collections.abc import Sequence

Model = dict[tuple[str, str], bytes]
TIME = 12


@st.composite
def transactions(draw: st.DrawFn) -> list[Mutation]:
    """Draw mutations without images before; each key comes once."""
    truncates = draw(st.sampled_from([None, None, None, "order", "line"]))
    rows = [] if truncates is None else [Mutation(truncates, None, Operation.REMOVE)]
    names = draw(
        st.lists(st.tuples(st.sampled_from(["order", "line"]), st.sampled_from("abc")), unique=True)
    )
    for entity_type, key in names:
        operation = draw(st.sampled_from([Operation.UPSERT, Operation.UPSERT, Operation.REMOVE]))
        columns = draw(st.dictionaries(st.sampled_from("xyz"), st.integers(0, 2)))
        after = orjson.dumps({"id": key, **columns})
        rows.append(
            Mutation(
                *(entity_type, key, operation),
                after=after if operation is Operation.UPSERT else None,
            )
        )
    return rows


def with_befores(rows: Sequence[Mutation], state: Model) -> list[Mutation]:
    """Return mutations with the images before that a program would give, and apply them to the state."""
    found = []
    for row in rows:
        if row.primary_key is None:
            for name in [name for name in state if name[0] == row.entity_type]:
                del state[name]
            found.append(row)
            continue
        name = (row.entity_type, row.primary_key)
        found.append(replace(row, before=state.pop(name, None)))
        if row.after is not None:
            state[name] = row.after
    return found


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(transactions(), min_size=1, max_size=2)),
        st.tuples(st.just("batch"), st.lists(transactions(), min_size=1, max_size=3)),
        st.tuples(st.just("refused"), st.lists(transactions(), min_size=1, max_size=2)),
        st.tuples(st.sampled_from(["commit", "reopen"]), st.just([])),
    ),
    max_size=8,
)


@settings(max_examples=60)
@given(steps=STEPS, columns=st.booleans())
def test_the_log_is_that_of_a_program_that_gives_every_image_before(
    steps: list[tuple[str, list[list[Mutation]]]], columns: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder, appended_by(columns=columns):
        root, state = Path(folder), Model()
        filled = LogWriter.open(root, "filled", images="full")
        given_all = LogWriter.open(root, "given")
        for step, parts in steps:
            named = [(f"tx-{place}", rows) for place, rows in enumerate(parts) if rows]
            if step == "refused":
                wrong = [Mutation("order", "d", after=b"no object")]
                with pytest.raises(InvalidRequest):
                    append(filled, [*named[:1], ("wrong", wrong)], batch=True)
            elif step == "commit":
                filled.commit()
                given_all.commit()
            elif step == "reopen":
                for writer in (filled, given_all):
                    with writer:
                        pass
                filled = LogWriter.open(root, "filled", images="full")
                given_all = LogWriter.open(root, "given")
            elif named:
                append(filled, named, batch=step == "batch")
                whole = [(id, with_befores(rows, state)) for id, rows in named]
                append(given_all, whole, batch=step == "batch")
        with filled, given_all:
            pass
        assert _rows(root / "filled") == _rows(root / "given")


def _rows(catalog: Path) -> list[tuple[Any, ...]]:
    return [row[:TIME] for row in rows_of(catalog)]


def test_an_image_before_has_the_names_of_the_version_that_is_written(log_root: Path) -> None:
    renames = SchemaMapping.parse(
        """
        [entity_types.product]
        columns.price = { renamed_from = "cost" }
        """
    )
    with LogWriter.open(log_root, "shop") as writer:
        writer.append([Mutation("product", "1", after=b'{"id":1,"cost":5}')])
    with LogWriter.open(log_root, "shop", mapping=renames, images="full") as writer:
        writer.append([Mutation("product", "1", after=b'{"id":1,"price":6}')])
        writer.append([Mutation("product", "1", after=b'{"id":1,"price":7}')])
    changes = [row[8:TIME] for row in rows_of(log_root / "shop") if row[AREA] == Area.DATA]
    assert changes[1:] == [
        (["price"], b'{"price":6}', b'{"id":1,"price":5}', b'{"id":1,"price":6}'),
        (["price"], b'{"price":7}', b'{"id":1,"price":6}', b'{"id":1,"price":7}'),
    ]


def test_a_mapping_says_which_entity_types_are_filled(log_root: Path) -> None:
    mapping = SchemaMapping.parse('[entity_types.order]\nimages = "full"')
    with LogWriter.open(log_root, "shop", mapping=mapping) as writer:
        for value in (b"1", b"2"):
            image = b'{"v":' + value + b"}"
            writer.append([Mutation(name, "k", after=image) for name in ("order", "line")])
    changes = [row[5:11] for row in rows_of(log_root / "shop") if row[AREA] == Area.DATA][2:]
    assert [(row[0], row[5]) for row in changes] == [("order", b'{"v":1}'), ("line", None)]


def test_rows_that_are_counted_stay_as_they_are_given(log_root: Path) -> None:
    counted = Mutation("line", "k", after=b'{"v":1}', change=b'{"diff":1}')
    with LogWriter.open(log_root, "shop", images="full") as writer:
        for _ in range(2):
            writer.append([counted])
    changes = [row[8:TIME] for row in rows_of(log_root / "shop") if row[AREA] == Area.DATA]
    assert changes == [(None, b'{"diff":1}', None, b'{"v":1}')] * 2


def test_another_word_for_images_is_refused_before_a_catalog_is_made(log_root: Path) -> None:
    with pytest.raises(InvalidRequest, match="images must be as-sent or full, not 'all'"):
        LogWriter.open(log_root, "shop", images="all")  # type: ignore[arg-type]
    assert not (log_root / "shop").exists()
