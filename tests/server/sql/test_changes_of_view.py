"""``CHANGES('view')``: the changes of its entity type, as a plain fold says what they are to the view."""

from __future__ import annotations

from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.wal.log_writer import LogWriter
from tailrace_server.wal.record.mutation import Mutation
from tailrace_server.wal.schema.mapping import SchemaMapping
from tests.server.sql.test_change_tables import define, written_and_folded
from tests.server.sql.test_query import TYPED, ask, image, products

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {"delete": "delete", "ttl_delete": "expire", "truncate": "truncate"}


@pytest.mark.parametrize("seed", range(2))
def test_contract_42_50_changes_of_a_view_are_a_fold_of_the_log(log_root: Path, seed: int) -> None:
    wanted = written_and_folded(log_root, seed)
    limit = Decimal(10**24) / 30
    define(log_root, f"CREATE VIEW dear AS SELECT note FROM item WHERE price > {limit:.2f}")
    expected: list[tuple[Any, ...]] = []
    for _, _, event in chain(*wanted):
        pre, post = event.get("pre_image", {}), event.get("post_image", {})
        was, stays = (Decimal(row.get("price", 0)) > limit for row in (pre, post))
        before = {"note": pre["note"]} if was else None
        after = {"note": post["note"]} if stays else None
        kind = KINDS.get(event["event_type"])
        if kind == "truncate" or (kind is not None and was):
            expected.append((kind, before, None))
        elif was and stays:
            if event["change_image"].keys() != {"price"}:  # one that changed nothing is told
                expected.append(("update", before, after))
        elif was or stays:
            expected.append(("delete" if was else "insert", before, after))
    assert 5 < len(expected) < sum(map(len, wanted))
    asked = "SELECT _change_type, before, after FROM CHANGES('dear')"
    assert ask(log_root, asked) == expected
    order = "ORDER BY _commit_version DESC, _index DESC LIMIT 3"
    assert ask(log_root, f"{asked} {order}") == expected[:-4:-1]
    for kind in ("insert", "delete", "update"):
        of_kind = [each for each in expected if each[0] == kind]
        assert ask(log_root, f"{asked} WHERE _change_type = '{kind}'") == of_kind
    assert ask(log_root, asked, pushes=False) == expected


def test_a_view_keeps_its_names_for_columns_that_are_renamed(log_root: Path) -> None:
    products(log_root)
    define(log_root, "CREATE VIEW v AS SELECT id, name FROM product WHERE price > 0")
    found = ask(log_root, "SELECT after.name FROM CHANGES('v') WHERE after.id = 1")
    assert found
    renamed = SchemaMapping.parse(
        """
        [entity_types.ware]
        renamed_from = "product"
        [entity_types.ware.columns]
        title = { renamed_from = "name" }
        cost = { renamed_from = "price" }
        """
    )
    with LogWriter.open(log_root, "shop", mapping=renamed) as writer:
        writer.append([Mutation("ware", "77", after=b'{"id":77,"title":"new","cost":5.00}')])
        writer.commit(publish=True)
    assert ask(log_root, "SELECT after.name FROM CHANGES('v') WHERE after.id = 1") == found
    assert ask(log_root, "SELECT after FROM CHANGES('v') WHERE _primary_key = '77'") == [
        ({"id": 77, "name": "new"},)
    ]
    with pytest.raises(InvalidRequest, match="title"):
        ask(log_root, "SELECT after.title FROM CHANGES('v')")


def test_who_is_in_is_not_guessed(log_root: Path) -> None:
    with LogWriter.open(log_root, "shop", mapping=TYPED) as writer:
        writer.append([Mutation("product", "1", after=image(1, "a", "1.00"))])
        writer.append(
            [Mutation("product", "1", after=image(1, "a", "2.00"), changed=("id", "price"))]
        )
        writer.commit(publish=True)
    define(log_root, "CREATE VIEW a AS SELECT price FROM product WHERE name = 'a'")
    with pytest.raises(InvalidRequest, match=r"view a, 2:1: .*the row before.*--images full"):
        ask(log_root, "SELECT * FROM CHANGES('a')")
