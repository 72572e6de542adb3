"""What proxies say of the client behind them is taken from those that are trusted, and from nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.api.peers import over_grpc
from tailrace_server.api.transport_security.proxies import Forwarded, TrustedProxies, client_of

TRUSTED = TrustedProxies(("10.0.0.0/8", "::1", "127.0.0.1"))
RFC7239 = TrustedProxies(("10.0.0.0/8", "::1"), rfc7239=True)
CLIENT = "203.0.113.7"


def said(**headers: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (said(x_forwarded_for=CLIENT), (CLIENT, 0, None, None)),
        (said(x_forwarded_for=f"{CLIENT}:5001"), (CLIENT, 5001, None, None)),
        (said(x_forwarded_for=f"1.2.3.4, {CLIENT}, 10.9.9.9"), (CLIENT, 0, None, None)),
        (said(x_forwarded_for="10.1.1.1, 10.2.2.2"), ("10.1.1.1", 0, None, None)),
        (said(x_forwarded_for="2001:db8::7"), ("2001:db8::7", 0, None, None)),
        (said(x_forwarded_for="[2001:db8::7]:443"), ("2001:db8::7", 443, None, None)),
        (
            said(x_forwarded_for=CLIENT, x_forwarded_proto="https", x_forwarded_host="db.example"),
            (CLIENT, 0, "https", "db.example"),
        ),
        (
            said(x_forwarded_for=f"{CLIENT}, 10.1.1.1", x_forwarded_proto="https, http"),
            (CLIENT, 0, "https", None),
        ),
        (
            said(x_forwarded_for=CLIENT, x_forwarded_proto="http, https"),
            (CLIENT, 0, "https", None),
        ),
        (said(x_forwarded_proto="HTTPS"), (None, 0, "https", None)),
        (
            said(forwarded=f"for={CLIENT};proto=https;host=db.example:8443"),
            (CLIENT, 0, "https", "db.example:8443"),
        ),
        (
            said(forwarded=f'for=1.2.3.4, For="{CLIENT}:99" ; Proto=https, for="[::1]"'),
            (CLIENT, 99, "https", None),
        ),
        (said(forwarded="for=unknown"), (None, 0, None, None)),
        (said(forwarded="for=_hidden;proto=gopher"), (None, 0, None, None)),
        (said(forwarded=f'for="1.2.3.4, for=5.6.7.8 x;, for={CLIENT}'), (CLIENT, 0, None, None)),
        (said(forwarded='"' * 9000 + f",for={CLIENT}"), (CLIENT, 0, None, None)),
        (said(x_forwarded_for="999.1.1.1"), (None, 0, None, None)),
        (said(x_forwarded_for=f"{CLIENT}, nonsense"), (None, 0, None, None)),
        (said(x_forwarded_host="evil.example/<script>"), (None, 0, None, None)),
        (
            [*said(x_forwarded_for="1.2.3.4"), *said(x_forwarded_for=CLIENT)],
            (CLIENT, 0, None, None),
        ),
    ],
)
def test_the_last_address_that_is_no_proxy_of_ours_is_the_clients(
    headers: list[tuple[bytes, bytes]], expected: tuple[object, ...]
) -> None:
    trusted = RFC7239 if headers[0][0] == b"forwarded" else TRUSTED
    assert client_of("10.0.0.1", headers, trusted) == Forwarded(*expected)  # type: ignore[arg-type]


def test_the_form_that_proxies_do_not_write_is_a_clients_word() -> None:
    headers = said(forwarded="for=1.2.3.4", x_forwarded_for=CLIENT)
    found = [client_of("10.0.0.1", headers, each) for each in (TRUSTED, RFC7239)]
    assert [each and each.address for each in found] == [CLIENT, "1.2.3.4"]
    assert client_of("10.0.0.1", said(forwarded="for=1.2.3.4"), TRUSTED) is None
    assert client_of("10.0.0.1", said(forwarded="for=a b"), RFC7239) is None


def test_nobody_else_is_believed() -> None:
    headers = said(x_forwarded_for="1.2.3.4", forwarded="for=1.2.3.4")
    assert client_of(CLIENT, headers, TRUSTED) is None
    assert client_of("127.0.0.1", headers, TrustedProxies(())) is None
    assert client_of("10.0.0.1", said(accept="*/*"), TRUSTED) is None


def test_an_address_of_ipv4_may_come_as_one_of_ipv6() -> None:
    assert TRUSTED.has("::ffff:10.1.2.3")
    assert not TRUSTED.has("::ffff:11.1.2.3")


NAMES = ("forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host")
TEXTS = st.text('for=;,"\\[]:_ .0123456789abx\0é', max_size=40)


@given(st.lists(st.tuples(st.sampled_from(NAMES), TEXTS), max_size=4), st.booleans())
def test_whatever_is_said_has_a_meaning_or_none(
    headers: list[tuple[str, str]], rfc7239: bool
) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    found = client_of("10.0.0.1", raw, RFC7239 if rfc7239 else TRUSTED)
    assert found is None or found.proto in (None, "http", "https")
    assert found is None or found.host is None or "\0" not in found.host


@pytest.mark.parametrize("text", ["proxy.example", "10.0.0.1/8", "10.0.0.0/40", ""])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"not an address such as 10.0.0.7, or a network such as 10.0.0.0/8"
    ):
        TrustedProxies((text,))


def test_a_call_is_from_whom_a_trusted_proxy_says() -> None:
    metadata = (("x-forwarded-for", CLIENT), ("user-agent", "a"))
    assert over_grpc("ipv4:127.0.0.1:5000", metadata, TRUSTED).address == CLIENT
    assert over_grpc("ipv4:192.0.2.9:5000", metadata, TRUSTED).address == "192.0.2.9:5000"
    assert over_grpc("ipv6:%5B::1%5D:5000", (), TRUSTED).address == "[::1]:5000"
    assert over_grpc("ipv4:127.0.0.1:5000", metadata).address == "127.0.0.1:5000"
