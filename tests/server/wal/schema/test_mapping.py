"""What a schema mapping may say; how it changes a catalog is tested in `pipeline/test_schema_changes.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.wal.record.mutation import columns_of
from tailrace_server.wal.schema.mapping import SchemaMapping


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[entity_types", r"shop\.toml: not TOML: .*table declaration"),
        ("[types.product]", r"types: not known; known keys here are entity_types"),
        ("[entity_types.a]\nkeys = []", r"entity_types\.a\.keys: not known"),
        ("[entity_types.a]\nkey = 'id'", r"entity_types\.a\.key: must be a list"),
        ("entity_types = 1", r"entity_types: must be a table, not 1"),
        ("[entity_types.a.columns.b]\ntype = 'INTEGRE'", r"a\.columns\.b\.type: no SQL type"),
        ("[entity_types.a.columns.b]\ntype = 'DATE(3)'", r"a\.columns\.b\.type: no SQL type"),
        ("[entity_types.a.columns.b]\nrole = 'PRISE'", r"role: no role 'PRISE'; choose one of"),
        ("[entity_types.a.columns.b]\nencoding = 'json'", r"an encoding also needs a type"),
        (
            "[entity_types.a.columns.b]\ntype = 'DATE'\nencoding = 'debezium.Day'",
            r"encoding: no encoding 'debezium\.Day'",
        ),
        ("[entity_types.a.columns.b]\noptional = 'yes'", r"optional: must be true or false"),
        ("[entity_types.a]\nrenamed_from = ''", r"renamed_from: must be a non-empty text"),
    ],
)
def test_a_mapping_that_says_nothing_sensible_is_refused_by_its_key(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        SchemaMapping.parse(text, "shop.toml")


def test_the_pages_example_of_a_mapping_says_what_it_is_said_to() -> None:
    page = (Path(__file__).parents[4] / "docs" / "schemas.md").read_text()
    text = page.partition("```toml\n")[2].partition("```")[0]
    product = SchemaMapping.parse(text).entity_types["product"]
    assert (product.renamed_from, product.key) == ("item", ("id",))
    assert list(product.columns) == ["price", "made", "note", "legacy", "photo"]
    assert product.columns["price"].renamed_from == "cost"
    assert product.columns["note"].optional
    assert product.columns["legacy"].dropped
    assert product.columns["photo"].same_when_added_again


@pytest.mark.parametrize(
    ("image", "fault"),
    [
        (b'{"id":1,"price":1.50}', None),
        (b'{"id":1}', None),
        (
            b'{"id":1,"price":1.505}',
            "column price: 1.505 has more digits, and shop.toml declares DECIMAL(4,2)",
        ),
        (b'{"id":1,"price":null}', None),
        (b'{"id":null}', "column id is null, and shop.toml declares it not nullable"),
    ],
)
def test_values_are_held_against_their_declared_types(image: bytes, fault: str | None) -> None:
    mapping = SchemaMapping.parse(
        """
        [entity_types.product]
        columns.id = { type = "BIGINT", nullable = false }
        columns.price = { type = "DECIMAL(4,2)" }
        """,
        "shop.toml",
    )
    assert mapping.fault_of("product", columns_of(image)) == fault
    assert mapping.fault_of("order", columns_of(image)) is None


def test_a_file_that_cannot_be_read_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"shop\.toml: No such file"):
        SchemaMapping.load(tmp_path / "shop.toml")
    (tmp_path / "shop.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match=r"shop\.toml: not UTF-8"):
        SchemaMapping.load(tmp_path / "shop.toml")
    (tmp_path / "shop.toml").write_text("[entity_types.a.columns.b]\nrole = 'PRICE'")
    mapping = SchemaMapping.load(tmp_path / "shop.toml")
    assert list(mapping.entity_types["a"].columns) == ["b"]
    assert mapping.where("a", "b").endswith("shop.toml: entity_types.a.columns.b")
