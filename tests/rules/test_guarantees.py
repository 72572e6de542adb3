"""docs/guarantees.md names the tests that prove it, all of them and no others."""

from __future__ import annotations

import re

import pytest

from tests.conformance.drivers import DRIVERS, InProcess
from tools.guarantees import PAGE, PROMISES, main, render

PAGE_OF_TWO = "1. One.\n    Proof: not yet.\n2. Two,\n   longer.\n    Proof:\n    - [`x`](../y)\n"

TRANSPORTS = {
    "sse": "server-sent events",
    "graphql-ws": "GraphQL over WebSocket",
    "graphql-sse": "GraphQL over server-sent events",
}
"""Driver → its transport on the page, of those that lack something."""


def test_the_page_says_what_each_transport_has_no_words_for() -> None:
    _head, *rows = re.findall(r"^\| ([^|]+) \| (\w+)[^|]* \| ([^|]+) \|$", PAGE.read_text(), re.M)
    said = {
        (TRANSPORTS[name], lacking, because)
        for name, driver in DRIVERS.items()
        if driver is not InProcess  # which is no transport
        for lacking, because in driver.cannot.items()
    }
    assert set(rows) == said
    assert len(rows) == len(said)


def test_the_page_names_every_proof_and_no_other() -> None:
    main(["--check"])


def test_every_number_stands_on_the_page_once_and_in_order() -> None:
    assert render(PAGE.read_text(), {}).count("Proof: not yet.") == len(PROMISES)


def test_rendering_replaces_proofs_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.guarantees.PROMISES", range(1, 3))
    found = {1: [("tests/a.py", "test_contract_01_a"), ("tests/b.py", "test_contract_01_b")]}
    once = render(PAGE_OF_TWO, found)
    assert once == (
        "1. One.\n    Proof:\n"
        "    - [`test_contract_01_a`](../tests/a.py)\n    - [`test_contract_01_b`](../tests/b.py)\n"
        "2. Two,\n   longer.\n    Proof: not yet.\n"
    )
    assert render(once, found) == once


def test_a_contract_number_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(SystemExit, match="do not exist: \\[52\\]"):
        render(PAGE.read_text(), {52: [("tests/a.py", "test_contract_52_a")]})
