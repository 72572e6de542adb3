"""Who is let in, and whether what was opened may go on."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tailrace.errors import NotPermitted, TokenExpired, Unauthenticated
from tailrace_server.access.credentials import Credentials
from tailrace_server.access.door import Door, Identified
from tailrace_server.access.entrance import Entrance
from tailrace_server.access.identity import Identity, IdentityKind
from tailrace_server.capture.principal import ANONYMOUS

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
    [(Credentials(), "no credential came"), (Credentials("c"), "neither a JWT")],
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
    with pytest.raises(NotPermitted, match="somebody else"):
        await entrance.admit("c")
    with pytest.raises(Unauthenticated):
        await entrance.admit("garbage")
    await entrance.admit(None)
    assert entrance.principal is principal


def test_a_token_is_not_shown() -> None:
    shown = repr(Credentials("s3cret", ("host.example",), "10.0.0.1"))
    assert "s3cret" not in shown
    assert "host.example" in shown
