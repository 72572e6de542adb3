"""``tailrace policy``: a file in words, and what a request would come to, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace_server.cli.policy import app
from tailrace_server.errors import ConfigError
from tests.server.reads.test_view_rows import CHEAP
from tests.server.sql.test_change_tables import define
from tests.server.sql.test_query import products

POLICY = """
[[grant]]
name = "customers"
who.issuer = "https://login.example"
who.claims = { role = "customer" }
catalogs = "shop"
entity_types = "orders"
hidden_columns = "margin"
primary_key = "{sub}"
where = "region = {region}"

[[grant]]
name = "etl"
who.api_key = "etl"
catalogs = "*"
"""
CUSTOMER = json.dumps(
    {"iss": "https://login.example", "sub": "4711", "role": "customer", "region": 7}
)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return str(path)


def test_check_says_what_is_granted(file: str) -> None:
    found = CliRunner().invoke(app, ["check", file]).output.splitlines()
    assert found == [
        "customers: a token of https://login.example whose claim role 'customer' may subscribe to, read the "
        "history of and see the schema of orders with the key {sub} where region = {region} in the catalog "
        "shop: all columns but margin",
        "etl: the API key 'etl' may subscribe to, read the history of and see the schema of every entity type "
        "in the catalog *: all columns",
    ]


def test_check_says_what_is_wrong(tmp_path: Path) -> None:
    broken = tmp_path / "policy.toml"
    broken.write_text("[[grant]")
    found = CliRunner().invoke(app, ["check", str(broken)])
    assert isinstance(found.exception, ConfigError)


@pytest.mark.parametrize(
    ("who", "request_", "told"),
    [
        (CUSTOMER, {}, ["customers applies", "key 4711", "etl does not apply", "granted: ["]),
        (CUSTOMER, {}, ["rows \"region\" = '7'", "all columns but margin, of rows where "]),
        (
            CUSTOMER,
            {"criteria": [{"entityType": ["users"]}]},
            ["NOT_PERMITTED: entity type 'users' is not granted"],
        ),
        (
            CUSTOMER,
            {"catalog": "depot"},
            ["NOT_PERMITTED: the policy grants nothing of catalog 'depot'"],
        ),
        (CUSTOMER.replace('"4711"', '""'), {}, ["has a claim that is missing", "NOT_PERMITTED"]),
        ('{"api_key": "etl"}', {}, ["granted: the whole request"]),
        ("anonymous", {}, ["NOT_PERMITTED"]),
    ],
)
def test_a_request_is_tried(
    file: str, who: str, request_: dict[str, object], told: list[str]
) -> None:
    asked = json.dumps({"catalog": "shop", **request_})
    found = CliRunner().invoke(app, ["test", file, "--as", who, "--request", asked]).output
    for each in told:
        assert each in found


def test_check_says_which_names_mean_nothing_in_a_log(file: str, log_root: Path) -> None:
    products(log_root)
    define(log_root, CHEAP)
    names = 'entity_types = ["cheap", "product", "prodduct"]'
    policy = Path(file)
    policy.write_text(POLICY.replace('entity_types = "orders"', names))
    found = CliRunner().invoke(app, ["check", file, "--log", str(log_root)])
    assert found.output.splitlines()[2:] == [
        "customers: catalog shop has no entity type or view 'prodduct'; the name grants nothing until one "
        "exists; did you mean product?"
    ]
