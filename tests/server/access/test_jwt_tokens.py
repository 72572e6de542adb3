"""JWTs: whose they are, and everything that makes one worthless. The issuer and its keys are real."""

from __future__ import annotations

import base64
import json
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import OctKey

from tailrace.errors import TailraceError, TokenExpired, Unauthenticated
from tailrace_server.access import jwt_tokens
from tailrace_server.access.configured import Access
from tailrace_server.access.door import Door, Identified
from tailrace_server.access.identity import Credentials, bearer_token
from tailrace_server.access.jwt_tokens import JwtTokens
from tailrace_server.access.key_sets import Issuer, IssuerKeys
from tailrace_server.access.settings import AccessSettings
from tests.support.issuer import AUDIENCE, TokenIssuer, new_key, signed

if TYPE_CHECKING:
    from pathlib import Path


def door_of(issuer: TokenIssuer, folder: Path, **members: object) -> Door:
    file = issuer.settings(folder, **({"keys": f"{issuer.address}/jwks"} | members))
    return Access(AccessSettings(identities=file)).door


async def refused(door: Door, token: str) -> str:
    """Return why a token is refused; the text never has it."""
    with pytest.raises(TailraceError) as raised:
        await door.admit(Credentials(token))
    text = f"{type(raised.value).__name__}: {raised.value}"
    assert all(part not in text for part in token.split(".") if len(part) > 8)
    return text


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
async def test_a_token_of_each_algorithm_proves_who_it_is_of(
    algorithm: str, tmp_path: Path
) -> None:
    issuer = TokenIssuer("https://login.example", algorithm)
    (tmp_path / "jwks.json").write_bytes(issuer.jwks())
    door = door_of(issuer, tmp_path, keys="jwks.json")
    found = await door.admit(Credentials(issuer.token(team=["a"], aud=["x", AUDIENCE])))
    assert isinstance(found, Identified)
    assert found.name == "jwt anna of https://login.example"
    assert found.identity.claims["team"] == ["a"]
    assert found.expires_at is not None
    assert 0 < found.expires_at - time.time() <= 600


async def test_what_is_wrong_with_a_token_is_said(issuer: TokenIssuer, tmp_path: Path) -> None:
    door = door_of(issuer, tmp_path)
    other = TokenIssuer("https://elsewhere.example")
    symmetric = OctKey.import_key(issuer.jwks())
    reasons = {
        issuer.token(-1): "TokenExpired",
        issuer.token(exp=None): "`exp`",
        issuer.token(exp="soon"): "`exp` is not a time",
        issuer.token(exp=True): "`exp` is not a time",
        issuer.token(nbf=time.time() + 600): "not valid yet",
        issuer.token(aud="other"): "another audience",
        issuer.token(aud=None): "another audience",
        issuer.token(aud={"tailrace": 1}): "another audience",
        issuer.token(sub=None): "`sub`",
        issuer.token(sub="x" * 300): "`sub`",
        issuer.token(iss=None): "issuer is not accepted",
        other.token(): "issuer is not accepted",
        other.token(iss=issuer.address): "signature was not made with a key",
        issuer.token(key=new_key("EdDSA", "9")): "key is not one of its issuer's",
        signed({"alg": "HS256", "kid": "1"}, {"iss": issuer.address}, symmetric): "algorithm",  # type: ignore[arg-type]
        _with_head(issuer.token(), {"alg": "none"}): "algorithm",
        _with_head(issuer.token(), {"alg": "none", "kid": "1"}).rpartition(".")[0]
        + ".": "algorithm",
        _with_head(issuer.token(), {"alg": ["EdDSA"]}): "algorithm",
        _with_head(issuer.token(), {"alg": "EdDSA", "kid": 1}): "key id is not a text",
        _with_head(issuer.token(), {"alg": "EdDSA", "kid": "1", "crit": ["b64"], "b64": False}): "",
        issuer.token()[:-2]: "signature was not made with a key",
        issuer.token()[:-40] + "A" * 40: "signature was not made with a key",
        issuer.token() + "=": "cannot be read",
        issuer.token().replace(".", ".\n", 1): "cannot be read",
        _with_head(issuer.token(), {"alg": "EdDSA", "kid": "1", "crit": ["exp"]}): "`crit`",
        _signed(issuer, {"sub": "a\ud800"}): "cannot be read",
        _signed(issuer, {"sub": "anna", "team": ["\udfff"]}): "cannot be read",
        _signed(issuer, {"exp": float("nan")}): "cannot be read",
        "a.b.c": "cannot be read",
        "..": "cannot be read",
        issuer.token(pad="x" * 20_000): "more than 16384 characters",
    }
    for token, reason in reasons.items():
        assert reason in await refused(door, token)
    assert (await door.admit(Credentials(issuer.token()))).name.startswith("jwt anna")


def _signed(issuer: TokenIssuer, claims: dict[str, object]) -> str:
    """Return a token whose claims are what no library would sign: half a character, a number that is none."""
    body = {
        "iss": issuer.address,
        "aud": AUDIENCE,
        "sub": "anna",
        "exp": time.time() + 600,
        **claims,
    }
    key = issuer.keys[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        return jws.serialize_compact(
            {"alg": "EdDSA", "kid": key.kid}, json.dumps(body).encode(), key, ["EdDSA"]
        )


def _with_head(token: str, head: dict[str, object]) -> str:
    encoded = base64.urlsafe_b64encode(json.dumps(head).encode()).rstrip(b"=").decode()
    return ".".join([encoded, *token.split(".")[1:]])


async def test_a_token_is_known_again_until_it_expires_or_its_key_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = TokenIssuer("https://login.example")
    file = tmp_path / "jwks.json"
    file.write_bytes(issuer.jwks())
    keys = IssuerKeys(Issuer(issuer.address, (AUDIENCE,), ("EdDSA",), file, 0.0))
    tokens = JwtTokens({issuer.address: (keys._issuer, keys)})
    token = issuer.token()
    first = await tokens.identify(Credentials(token))
    assert first is not None
    assert await tokens.identify(Credentials(token)) is first, "it was not verified again"
    now = time.time()
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: now + 3600)
        with pytest.raises(TokenExpired):
            await tokens.identify(Credentials(token))
    issuer.rotate()
    file.write_bytes(issuer.jwks())
    keys.reload()
    assert not tokens.accepts(first)
    with pytest.raises(Unauthenticated):
        await tokens.identify(Credentials(token))


async def test_one_token_costs_one_check_also_when_it_has_expired(
    issuer: TokenIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old token is easily had, and its check is what costs."""
    verified, verify = list[str](), jwt_tokens._verify

    def counted(token: str, *others: Any) -> None:
        verified.append(token)
        verify(token, *others)

    monkeypatch.setattr(jwt_tokens, "_verify", counted)
    door, old = door_of(issuer, tmp_path), issuer.token(-1)
    for _ in range(3):
        assert "TokenExpired" in await refused(door, old)
    assert verified == [old]
    # The last character of a signature may have bits that mean nothing, and whoever has one token has many.
    last = "AQgw".index(old[-1])
    for other in {*"ABCDQRSTghijwxyz"} - {old[-1]}:
        if "ABCDQRSTghijwxyz".index(other) // 4 == last:
            assert "cannot be read" in await refused(door, old[:-1] + other)
    assert verified == [old]


async def test_tokens_that_are_known_are_bounded(
    issuer: TokenIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace_server.access.jwt_tokens._SEEN_MAX", 3)
    door = door_of(issuer, tmp_path)
    [tokens] = door._authenticators
    assert isinstance(tokens, JwtTokens)
    for number in range(8):
        await door.admit(Credentials(issuer.token(sub=f"number {number}")))
        assert len(tokens._seen) <= 3
    for number in range(8):
        await refused(door, issuer.token(-1, sub=f"number {number}"))
    assert len(tokens._seen) <= 3


GARBAGE = st.one_of(
    st.text(max_size=60),
    st.binary(max_size=60).map(lambda data: data.decode("latin-1")),
    st.tuples(*[st.binary(max_size=40)] * 3).map(
        lambda parts: ".".join(base64.urlsafe_b64encode(each).decode() for each in parts)
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["alg", "kid", "iss", "exp", "crit"]), inner, max_size=4
            )
        ),
        max_leaves=6,
    ).map(lambda value: ".".join([_encoded(value), _encoded(value), "AA"])),
)


def _encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@given(GARBAGE)
async def test_no_garbage_is_let_in_and_none_does_harm(token: str) -> None:
    issuer = FUZZED
    with pytest.raises((Unauthenticated, TokenExpired)):
        await FUZZED_DOOR.admit(Credentials(token))
    assert issuer.asked == []


async def test_a_token_of_half_a_character_is_refused_as_any_other() -> None:
    """JSON may have one, and a WebSocket's token comes in JSON."""
    with pytest.raises(Unauthenticated):
        await FUZZED_DOOR.admit(Credentials("a\ud800.b.c"))


@given(st.data())
async def test_no_change_of_a_good_token_is_let_in(data: st.DataObject) -> None:
    token = GOOD
    place = data.draw(st.integers(0, len(token) - 1))
    altered = token[:place] + data.draw(st.characters()) + token[place + 1 :]
    # The last character of a part in base64 may have bits that mean nothing.
    part = altered.split(".")
    if len(part) == 3 and [_bits(each) for each in part] == [
        _bits(each) for each in token.split(".")
    ]:
        return
    with pytest.raises((Unauthenticated, TokenExpired)):
        await FUZZED_DOOR.admit(Credentials(altered))


def _bits(part: str) -> bytes | None:
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True)
    except ValueError:
        return None


@given(st.lists(st.text(max_size=30) | st.just("Bearer x"), max_size=3))
def test_an_authorization_field_is_a_bearer_token_or_is_refused(values: list[str]) -> None:
    try:
        token = bearer_token(values)
    except Unauthenticated:
        return
    if not values:
        assert token is None
    else:
        [value] = values
        assert token is not None
        assert token.isascii()
        assert token.isprintable()
        assert value.strip().lower().startswith("bearer ")


FUZZED = TokenIssuer("https://login.example")


def _fuzzed_door() -> tuple[Door, str]:
    import tempfile
    from pathlib import Path

    with tempfile.NamedTemporaryFile() as file:
        file.write(FUZZED.jwks())
        file.flush()
        issuer = Issuer(FUZZED.address, (AUDIENCE,), ("EdDSA",), Path(file.name), 0.0)
        keys = IssuerKeys(issuer)
    return Door([JwtTokens({FUZZED.address: (issuer, keys)})]), FUZZED.token(86_400)


FUZZED_DOOR, GOOD = _fuzzed_door()
