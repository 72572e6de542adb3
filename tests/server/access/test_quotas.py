"""Quotas of principals and addresses: what is taken is given back, rates fill with time, tables are bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import QuotaExceeded, Unauthenticated
from tailrace_server.access import quotas as module
from tailrace_server.access.configured import CertificateNames
from tailrace_server.access.door import Door, Identified
from tailrace_server.access.identity import Credentials, Identity, IdentityKind
from tailrace_server.access.quotas import Quotas, block_of
from tailrace_server.access.settings import QuotaSettings
from tailrace_server.grants.principal import ANONYMOUS

if TYPE_CHECKING:
    from tailrace_server.access.quotas import Taken


class Known:
    """Knows one token, and counts what it is asked; what it has verified it knows again at once."""

    def __init__(self) -> None:
        self.asked = 0
        self.verified = set[str | None]()

    async def identify(self, credentials: Credentials) -> Identity | None:
        self.asked += 1
        if credentials.token != "anna":
            return None
        self.verified.add(credentials.token)
        return ANNA.identity

    def recognise(self, credentials: Credentials) -> Identity | None:
        return ANNA.identity if credentials.token in self.verified else None

    def accepts(self, identity: Identity) -> bool:
        return True


ANNA = Identified(Identity(IdentityKind.JWT, "https://issuer.example", "anna"), Known())
JOB = Identified(Identity(IdentityKind.API_KEY, "", "job"), Known())


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_numbers_nothing_is_counted() -> None:
    quotas = Quotas()
    assert not quotas.is_on
    with quotas.take(ANNA, "10.0.0.1", {"subscriptions": 1, "keys": 100}, {"criteria": "a"}):
        assert quotas.accounts == 0
    quotas.request(ANNA, "10.0.0.1")
    assert quotas.history(ANNA, "10.0.0.1", 1 << 30) == 0


def test_a_principal_has_its_quota_wherever_it_comes_from() -> None:
    quotas = Quotas(QuotaSettings(quota_subscriptions=2))
    first = quotas.take(ANNA, "10.0.0.1", {"subscriptions": 1})
    quotas.take(ANNA, "10.0.0.2", {"subscriptions": 1})
    with pytest.raises(QuotaExceeded) as caught:
        quotas.take(ANNA, "10.0.0.3", {"subscriptions": 1})
    assert (caught.value.quota, caught.value.limit, caught.value.used) == ("subscriptions", 2, 2)
    assert caught.value.retry_after_s > 0
    quotas.take(JOB, "10.0.0.1", {"subscriptions": 2})
    first.give_back()
    first.give_back()
    quotas.take(ANNA, "10.0.0.3", {"subscriptions": 1})
    assert quotas.used["subscriptions", "token"] == 2
    assert quotas.refused == {("subscriptions", "token"): 1}


def test_an_address_has_the_quotas_of_several_principals() -> None:
    quotas = Quotas(QuotaSettings(quota_streams=1, quota_address_share=2))
    taken = [quotas.take(ANONYMOUS, "10.0.0.1", {"streams": 1}) for _ in range(2)]
    with pytest.raises(QuotaExceeded):
        quotas.take(ANNA, "10.0.0.1", {"streams": 1})
    quotas.take(ANNA, "10.0.0.2", {"streams": 1})
    taken[0].give_back()
    with pytest.raises(QuotaExceeded):
        quotas.take(ANNA, "10.0.0.1", {"streams": 1})
    quotas.take(None, "10.0.0.1", {"streams": 1})


def test_of_criteria_and_connections_the_distinct_ones_count() -> None:
    quotas = Quotas(QuotaSettings(quota_criteria=1))
    both = [quotas.take(ANNA, "10.0.0.1", {}, {"criteria": "a"}) for _ in range(2)]
    with pytest.raises(QuotaExceeded):
        quotas.take(ANNA, "10.0.0.1", {}, {"criteria": "b"})
    both[0].give_back()
    with pytest.raises(QuotaExceeded):
        quotas.take(ANNA, "10.0.0.1", {}, {"criteria": "b"})
    both[1].give_back()
    quotas.take(ANNA, "10.0.0.1", {}, {"criteria": "b"})


def test_a_use_that_lacks_one_quota_takes_none() -> None:
    quotas = Quotas(QuotaSettings(quota_subscriptions=5, quota_keys=10))
    with pytest.raises(QuotaExceeded):
        quotas.take(ANNA, "10.0.0.1", {"subscriptions": 1, "keys": 11})
    quotas.take(ANNA, "10.0.0.1", {"subscriptions": 5})


def test_requests_fill_with_time() -> None:
    clock = Clock()
    quotas = Quotas(QuotaSettings(quota_requests=2), clock)
    for _ in range(2):
        quotas.request(ANNA, "10.0.0.1")
    with pytest.raises(QuotaExceeded) as caught:
        quotas.request(ANNA, "10.0.0.1")
    assert 0.5 <= caught.value.retry_after_s < 0.51
    quotas.request(JOB, "10.0.0.1")
    clock.now = caught.value.retry_after_s
    quotas.request(ANNA, "10.0.0.1")


def test_history_is_slowed_down_and_a_new_read_waits_for_the_debt() -> None:
    clock = Clock()
    quotas = Quotas(QuotaSettings(quota_history_bytes=1_000), clock)
    assert quotas.history(ANNA, "10.0.0.1", 1_000) == 0
    assert quotas.history(ANNA, "10.0.0.1", 500) == 0.5
    with pytest.raises(QuotaExceeded, match="history_bytes"):
        quotas.begin_history(ANNA, "10.0.0.1")
    quotas.begin_history(JOB, "10.0.0.1")
    clock.now = 0.5
    quotas.begin_history(ANNA, "10.0.0.1")


async def test_an_address_that_guesses_is_not_looked_at_for_a_while() -> None:
    """No token is verified for it, not even a right one, since that is what costs time."""
    clock, known = Clock(), Known()
    quotas = Quotas(QuotaSettings(quota_failed_authentications=3), clock)
    door = Door([known], quotas=quotas)
    for host in ("2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::3"):
        with pytest.raises(Unauthenticated):
            await door.admit(Credentials("guessed", address=host))
    with pytest.raises(QuotaExceeded) as caught:
        await door.admit(Credentials("anna", address="2001:db8::4"))
    assert (caught.value.quota, caught.value.limit) == ("failed_authentications", 3)
    assert known.asked == 3
    assert (await door.admit(Credentials("anna", address="2001:db9::1"))).name
    clock.now = caught.value.retry_after_s
    assert (await door.admit(Credentials("anna", address="2001:db8::4"))).name


async def test_who_is_known_is_let_in_beside_one_who_guesses() -> None:
    """They may share the address, as behind a proxy: of him it is told without a check who he is."""
    clock, known = Clock(), Known()
    quotas = Quotas(QuotaSettings(quota_failed_authentications=1), clock)
    door = Door([known, CertificateNames()], quotas=quotas)
    await door.admit(Credentials("anna", address="10.0.0.1"))
    with pytest.raises(Unauthenticated):
        await door.admit(Credentials("guessed", address="10.0.0.1"))
    with pytest.raises(QuotaExceeded):
        await door.admit(Credentials("guessed", address="10.0.0.1"))
    for credentials in (
        Credentials("anna", address="10.0.0.1"),
        Credentials(certificate_names=("cn:x",), address="10.0.0.1"),
    ):
        assert (await door.admit(credentials)).name
    assert known.asked == 2, "the guess that was looked at, and anna's first"
    ticket = door.tickets.issue(ANNA)
    shown = Credentials(address="10.0.0.1")
    assert door.redeem(shown, lambda: door.tickets.redeem(ticket)) is ANNA


async def test_a_request_without_a_credential_is_no_failure() -> None:
    door = Door([Known()], quotas=Quotas(QuotaSettings(quota_failed_authentications=1)))
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            await door.admit(Credentials(None, address="10.0.0.1"))
    assert (await door.admit(Credentials("anna", address="10.0.0.1"))).name


def test_a_flood_of_addresses_has_a_bounded_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is not forgotten by it."""
    monkeypatch.setattr(module, "_ACCOUNTS_MAX", 100)
    quotas = Quotas(QuotaSettings(quota_streams=1, quota_requests=10, quota_address_share=1))
    quotas.take(None, "192.0.2.1", {"streams": 1})
    for number in range(1_000):
        quotas.request(None, f"10.0.{number // 250}.{number % 250}")
        quotas.failed(f"2001:db8:{number:x}::1")
    assert quotas.accounts == 100
    with pytest.raises(QuotaExceeded):
        quotas.take(None, "192.0.2.1", {"streams": 1})


def test_a_caller_is_counted_although_all_others_hold_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_ACCOUNTS_MAX", 2)
    quotas = Quotas(QuotaSettings(quota_streams=1, quota_address_share=1))
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        quotas.take(None, address, {"streams": 1})
        with pytest.raises(QuotaExceeded):
            quotas.take(None, address, {"streams": 1})


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_addresses_are_counted_by_block(address: str, block: str) -> None:
    assert block_of(address) == block


@given(
    st.lists(
        st.tuples(
            st.sampled_from([ANNA, JOB, ANONYMOUS, None]),
            st.sampled_from(["10.0.0.1", "10.0.0.2"]),
            st.dictionaries(st.sampled_from(["subscriptions", "keys"]), st.integers(0, 4)),
            st.dictionaries(st.just("criteria"), st.sampled_from("ab")),
        ),
        max_size=20,
    ),
    st.data(),
)
def test_whatever_is_taken_and_refused_all_is_given_back(
    uses: list[tuple[Identified, str, dict[str, int], dict[str, str]]], data: st.DataObject
) -> None:
    quotas = Quotas(QuotaSettings(quota_subscriptions=5, quota_keys=6, quota_criteria=2))
    held: list[Taken] = []
    for caller, address, amounts, distinct in uses:
        try:
            held.append(quotas.take(caller, address, amounts, distinct))
        except QuotaExceeded:
            if held:
                held.pop(data.draw(st.integers(0, len(held) - 1))).give_back()
    for each in held:
        each.give_back()
    assert not any(quotas.used.values())
    for account in quotas._accounts.values():
        assert not any(account.held.values())
        assert not account.distinct
