"""An address that others reach needs TLS and identities, or the word of who runs the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace_server.api.settings import TransportSecuritySettings
from tailrace_server.api.transport_security.startup import check_exposure
from tailrace_server.errors import CannotStart
from tailrace_server.units import Address

PLAIN = TransportSecuritySettings()
TLS = TransportSecuritySettings(tls_certificate=Path("server.crt"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_loopback_is_open_to_nobody_else(host: str) -> None:
    check_exposure({"--grpc": Address(host, 0), "--http": None}, PLAIN, identified=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "2001:db8::1"])
@pytest.mark.parametrize(
    ("settings", "identified", "told"),
    [
        (PLAIN, True, "plain text"),
        (TLS, False, "read everything"),
        (PLAIN, False, "plain text.*; and any client that connects could read everything"),
    ],
)
def test_other_addresses_are_refused_where_something_is_missing(
    host: str, settings: TransportSecuritySettings, identified: bool, told: str
) -> None:
    addresses = {"--grpc": Address("127.0.0.1", 0), "--http": Address(host, 7412)}
    with pytest.raises(CannotStart, match=rf"^--http .*:7412 .*{told}.*--allow-insecure yes$"):
        check_exposure(addresses, settings, identified=identified)


def test_other_addresses_are_fine_with_both_or_by_ones_word() -> None:
    addresses = {"--grpc": Address("0.0.0.0", 7411)}
    check_exposure(addresses, TLS, identified=True)
    check_exposure(addresses, TransportSecuritySettings(allow_insecure=True), identified=False)


def test_a_name_that_stands_for_nothing_is_left_to_who_listens() -> None:
    check_exposure({"--http": Address("nowhere.invalid", 1)}, PLAIN, identified=False)
