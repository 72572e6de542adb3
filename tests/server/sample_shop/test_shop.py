"""The shop: what its transactions say is consistent; its topics are tested in `test_topics.py`."""

from __future__ import annotations

import orjson
import pytest

from tailrace_server.sample_shop.shop import KEYS, Row, Shop, image


def key_of(table: str, row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in KEYS[table])


@pytest.mark.parametrize("seed", [1, 7])
def test_every_step_starts_from_the_row_that_is_there(seed: int) -> None:
    """The steps applied one after the other never miss a row, and never find one too many."""
    tables: dict[str, dict[tuple[str, ...], Row]] = {table: {} for table in KEYS}
    numbers = []
    for transaction in Shop(seed, products=30, customers=20).transactions(400):
        numbers.append((transaction.number, transaction.committed_us))
        assert transaction.snapshot == (len(numbers) == 1)
        for step in transaction.steps:
            rows = tables[step.table]
            key = tuple(step.key.values())
            assert rows.get(key) == step.before
            assert (step.op in "cr") == (step.before is None)
            assert (step.op == "d") == (step.after is None)
            if step.after is None:
                del rows[key]
            else:
                assert key_of(step.table, step.after) == key
                rows[key] = step.after
    assert len(numbers) == 401
    assert numbers == sorted(set(numbers))
    assert all(tables.values())


def test_rows_are_json_texts_in_the_order_of_their_table() -> None:
    first, *_ = Shop(3, products=2, customers=2).transactions(0)
    for step in first.steps:
        assert step.after is not None
        assert list(orjson.loads(image(step.after))) == list(step.after)
    assert (
        image({"id": "1", "price": "0.10", "note": "null"}) == '{"id":1,"price":0.10,"note":null}'
    )


def test_equal_seeds_give_equal_shops() -> None:
    one, same, other = ([*Shop(seed).transactions(20)] for seed in (1, 1, 2))
    assert one == same
    assert one != other
