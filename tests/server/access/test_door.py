"""Who is let in, and whether what was opened may go on."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tailrace.errors import NotPermitted, QuotaExceeded, TokenExpired, Unauthenticated
from tailrace_server.access.door import Door, Identified
from tailrace_server.access.entrance import Entrance
from tailrace_server.access.identity import Credentials, Identity, IdentityKind
from tailrace_server.access.policy_file import PolicyFile
from tailrace_server.access.quotas import Quotas
from tailrace_server.access.settings import QuotaSettings
from tailrace_server.grants.principal import ANONYMOUS

if TYPE_CHECKING:
    from pathlib import Path

ANNA = Identity(IdentityKind.JWT, "https://issuer.example", "anna", {"team": "a"}, key_id="1")
JOB = Identity(IdentityKind.API_KEY, "", "job", key_id="2")
HOST = Identity(IdentityKind.CERTIFICATE, "", "host.example")


class Known:
    """Knows tokens by heart."""

    def __init__(self, **identities: Identity) -> None:
        self.identities = identities

    async def identify(self, credentials: Credentials) -> Identity | None:
        if credentials.certificate_names:
            return HOST
        return self.identities.get(credentials.token or "")

    def recognise(self, credentials: Credentials) -> Identity | None:
        return HOST if credentials.certificate_names else None

    def accepts(self, identity: Identity) -> bool:
        return any(identity.key_id == each.key_id for each in self.identities.values())


async def test_a_door_without_authenticators_lets_everybody_in_as_anonymous() -> None:
    assert Door().is_open
    assert await Door().admit(Credentials("whatever")) is ANONYMOUS


async def test_each_kind_of_credential_is_somebody() -> None:
    door = Door([Known(a=ANNA, b=JOB)])
    names = [
        (await door.admit(each)).name
        for each in (
            Credentials("a"),
            Credentials("b"),
            Credentials(certificate_names=("host.example",)),
        )
    ]
    assert names == [
        "jwt anna of https://issuer.example",
        "api_key job",
        "certificate host.example",
    ]


@pytest.mark.parametrize(
    ("credentials", "said"),
    [(Credentials(), "the request has no credential"), (Credentials("c"), "neither a JWT")],
)
async def test_nobody_else_is_let_in(credentials: Credentials, said: str) -> None:
    with pytest.raises(Unauthenticated, match=said):
        await Door([Known(a=ANNA)]).admit(credentials)


async def test_a_principal_is_refused_once_it_has_expired_or_its_key_is_gone() -> None:
    known = Known(a=replace(ANNA, expires_at=time.time() + 3600), b=JOB)
    door = Door([known])
    anna, job = await door.admit(Credentials("a")), await door.admit(Credentials("b"))
    assert isinstance(anna, Identified)
    assert anna.identity.claims == {"team": "a"}
    assert (anna.refusal(), job.refusal()) == (None, None)
    anna.identity = replace(ANNA, expires_at=time.time() - 1)
    assert isinstance(anna.refusal(), TokenExpired)
    del known.identities["b"]
    assert isinstance(job.refusal(), Unauthenticated)


async def test_a_newer_token_of_the_same_sender_renews_and_one_of_another_does_not() -> None:
    newer = replace(ANNA, expires_at=time.time() + 3600, claims={"team": "b"})
    door = Door([Known(a=ANNA, b=newer, c=JOB)])
    entrance = Entrance(door, Credentials())
    with pytest.raises(Unauthenticated):
        entrance.principal  # noqa: B018
    await entrance.admit("a")
    principal = entrance.principal
    assert principal.expires_at is None
    await entrance.admit("b")
    assert entrance.principal is principal
    assert principal.expires_at == newer.expires_at
    with pytest.raises(NotPermitted, match="another principal"):
        await entrance.admit("c")
    with pytest.raises(Unauthenticated):
        await entrance.admit("garbage")
    await entrance.admit(None)
    assert entrance.principal is principal


async def test_only_a_renewal_by_which_less_is_granted_has_all_streams_looked_at(
    tmp_path: Path,
) -> None:
    """Ten thousand clients renew all the time: each of them would have every stream of others judged again."""
    file = tmp_path / "policy.toml"
    file.write_text(
        '[[grant]]\nwho.issuer = "https://issuer.example"\nwho.claims = { team = ["a", "b"] }\n'
        'catalogs = "shop"\nprimary_key = "{team}"\n'
    )
    tokens = {
        name: replace(ANNA, claims={"team": team, "jti": name})
        for name, team in (("1", "a"), ("2", "a"), ("3", "b"))
    }
    door = Door([Known(**tokens)], PolicyFile(file))
    entrance = Entrance(door, Credentials())
    await entrance.admit("1")
    keys = _keys_of(entrance)
    before = door.revision
    await entrance.admit("2")
    assert door.revision == before
    assert _keys_of(entrance) == keys
    await entrance.admit("3")
    assert door.revision != before
    assert _keys_of(entrance) != keys


async def test_a_grant_that_a_claim_makes_empty_is_told_once(tmp_path: Path) -> None:
    """The log says which and why; the caller is told nothing of it."""
    file = tmp_path / "policy.toml"
    file.write_text(
        '[[grant]]\nname = "own"\nwho.issuer = "https://issuer.example"\ncatalogs = "shop"\n'
        'entity_types = "orders"\nwhere = "tenant = {tenant}"\n'
    )
    door = Door([Known(a=ANNA)], PolicyFile(file))
    with capture_logs() as lines:
        for _ in range(2):
            assert (await door.admit(Credentials("a"))).grant("shop") is None
    (told,) = [each for each in lines if each["event"] == "grant gives nothing"]
    assert (told["grant"], told["reason"]) == ("own", "the claim 'tenant' is missing")


def _keys_of(entrance: Entrance) -> object:
    grant = entrance.principal.grant("shop")
    assert grant is not None
    return grant.allowances[0].primary_keys


async def test_a_token_that_is_too_long_is_counted_as_every_wrong_one() -> None:
    """Whether it comes in a header or in a message."""
    quotas = Quotas(QuotaSettings(quota_failed_authentications=2))
    door = Door([Known(a=ANNA)], quotas=quotas)
    long = Credentials("x" * 17_000, address="10.0.0.1")
    with pytest.raises(Unauthenticated, match="16384"):
        await door.admit(long)
    with pytest.raises(Unauthenticated, match="16384"):
        await Entrance(door, long).admit("x" * 17_000)
    with pytest.raises(QuotaExceeded):
        await door.admit(Credentials("y", address="10.0.0.1"))


async def test_tickets_of_one_push_out_nobody_elses() -> None:
    door = Door([Known(a=ANNA, b=JOB)])
    anna, job = await door.admit(Credentials("a")), await door.admit(Credentials("b"))
    ticket, mine = door.tickets.issue(job), [door.tickets.issue(anna) for _ in range(150)]
    assert door.tickets.redeem(ticket) is job
    with pytest.raises(Unauthenticated):
        door.tickets.redeem(mine[0])
    assert door.tickets.redeem(mine[-1]) is anna
    with pytest.raises(Unauthenticated):
        door.tickets.redeem(mine[-1])


def test_a_token_is_not_shown() -> None:
    shown = repr(Credentials("s3cret", ("host.example",), "10.0.0.1"))
    assert "s3cret" not in shown
    assert "host.example" in shown
