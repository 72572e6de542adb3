"""Which origins a list allows."""

from __future__ import annotations

import pytest

from tailrace_server import settings
from tailrace_server.api.settings import Origins
from tailrace_server.errors import ConfigError


@pytest.mark.parametrize(
    ("listed", "origin", "allowed"),
    [
        ("https://a.example", "https://a.example", True),
        ("https://A.example", "https://a.example", True),
        ("https://a.example", "https://a.example:8443", False),
        ("https://a.example", "https://aXexample", False),
        ("https://*.example.com", "https://a.example.com", True),
        ("https://*.example.com", "https://a.b-1.example.com", True),
        ("https://*.example.com", "https://example.com", False),
        ("https://*.example.com", "https://evilexample.com", False),
        ("https://*.example.com", "https://evil.com/.example.com", False),
        ("https://*.example.com", "https://a.example.com.evil.com", False),
        ("https://*.example.com", "http://a.example.com", False),
        ("https://*.example.com", "https://a.example.com:8443", False),
        ("https://*.example.com:8443", "https://a.example.com:8443", True),
        ("*", "https://anything.example", True),
        ("", "https://a.example", False),
    ],
)
def test_an_origin_is_allowed_as_a_whole(listed: str, origin: str, allowed: bool) -> None:
    assert Origins(filter(None, [listed])).has(origin) == allowed


@pytest.mark.parametrize(
    "text",
    [
        "https://*",
        "https://a.*.example",
        "*.example.com",
        "https://**.example",
        "example.com",
        "https://a/b",
    ],
)
def test_what_is_no_origin_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--ws-origins: .* https://\*\.example\.org for all names"
    ):
        settings.load({"ws_origins": text}, environment={})
