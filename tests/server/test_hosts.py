"""Which names are ours, and which a foreign page may have."""

from __future__ import annotations

import socket

import pytest

from tailrace_server.hosts import Hosts


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:7412", "localhost.", "shop.localhost:80"),
        *("127.0.0.1", "127.0.0.1:7412", "10.1.2.3:1", "[::1]:7412", "[fe80::1]", ""),
        *("db.example.com:7412", "DB.example.com", "a.b.corp.example", socket.gethostname()),
    ],
)
def test_names_that_no_foreign_page_has_are_ours(host: str) -> None:
    assert Hosts("db.example.com", ["*.corp.example"]).has(host)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:7412", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("corp.example", "notcorp.example", "[evil.example]", "evil.example@localhost"),
        *("localhost:80:80", "127.0.0.1, evil.example", "2130706433", "[::1", "\u00e9"),
    ],
)
def test_other_names_are_not_ours(host: str) -> None:
    assert not Hosts("127.0.0.1", ["*.corp.example"]).has(host)
    assert Hosts("127.0.0.1", ["*"]).has(host)
