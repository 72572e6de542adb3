"""Keys of issuers: from a real server on loopback, kept while it is away, and never from elsewhere."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tailrace.errors import TransportError, Unauthenticated
from tailrace_server.access import key_sets
from tailrace_server.access.configured import Access
from tailrace_server.access.identity import Credentials
from tailrace_server.access.key_sets import Issuer, IssuerKeys, read_issuers
from tailrace_server.access.quotas import Quotas
from tailrace_server.access.settings import AccessSettings, QuotaSettings
from tailrace_server.errors import ConfigError
from tests.support.inprocess import PATIENCE_S
from tests.support.issuer import AUDIENCE, TokenIssuer

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.access.door import Door


def door_of(issuer: TokenIssuer, folder: Path, **members: object) -> Door:
    return Access(AccessSettings(identities=issuer.settings(folder, **members))).door


async def admitted(door: Door, token: str) -> bool:
    try:
        await door.admit(Credentials(token))
    except Unauthenticated:
        return False
    return True


async def test_keys_are_found_by_discovery(issuer: TokenIssuer, tmp_path: Path) -> None:
    door = door_of(issuer, tmp_path)
    tokens = [issuer.token(sub=str(number)) for number in range(3)]
    assert await asyncio.gather(*(admitted(door, each) for each in tokens)) == [True] * 3
    assert issuer.asked == ["/.well-known/openid-configuration", "/jwks"], "asked for once"


async def test_a_key_that_is_not_known_is_looked_for_now_and_then(
    issuer: TokenIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = door_of(issuer, tmp_path, keys=f"{issuer.address}/jwks")
    assert await admitted(door, issuer.token())
    issuer.rotate()
    for _ in range(3):
        assert not await admitted(door, issuer.token()), "the keys were fetched a moment ago"
    assert issuer.asked == ["/jwks"]
    monkeypatch.setattr(key_sets, "_AGAIN_S", 0.0)
    assert await admitted(door, issuer.token())
    assert issuer.asked == ["/jwks"] * 2


async def test_keys_stay_while_their_issuer_is_away(
    issuer: TokenIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_sets, "_AGAIN_S", 0.0)
    [found] = read_issuers(issuer.settings(tmp_path, keys=f"{issuer.address}/jwks"))
    keys = IssuerKeys(found)
    await keys.refresh(0.0)
    [(thumbprint, _)] = await keys.candidates("1")
    issuer.answers["/jwks"] = 500, {}, b"out of order"
    await keys.refresh(0.0)
    assert "500" in keys.error or "Internal" in keys.error
    assert keys.has(thumbprint)
    fault = keys.fault()
    assert fault is not None
    assert "its last 1 keys remain in force" in fault.reason
    age_s = keys.age_s
    del issuer.answers["/jwks"]
    issuer.rotate()
    await keys.refresh(0.0)
    assert keys.error == ""
    assert keys.fault() is None
    assert keys.age_s < age_s
    assert not keys.has(thumbprint), "a key that was withdrawn"


HUGE = json.dumps({"keys": [{"kty": "OKP", "x": "A" * (300 << 10)}]}).encode()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, {}, b"not json"), "not JSON"),
        ((200, {}, b"[]"), "not a JSON object"),
        ((200, {}, b'{"keys": 7}'), "not a JWKS"),
        ((200, {}, b'{"keys": []}'), "not keys|no public key"),
        ((200, {}, b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'), "no public key|not keys"),
        ((200, {}, b'{"keys": [{"kty": "RSA", "n": 7}]}'), "not keys"),
        ((200, {}, HUGE), "more than 262144 bytes"),
        ((302, {"Location": "file:///etc/passwd"}, b""), "not allowed"),
        ((302, {"Location": "ftp://127.0.0.1/keys"}, b""), "another address"),
        ((302, {"Location": "http://keys.example/jwks"}, b""), "another address"),
        ((302, {"Location": "https://keys.example/jwks"}, b""), "another scheme"),
        ((302, {"Location": "http://127.0.0.1@keys.example/jwks"}, b""), "another address"),
        ((404, {}, b""), "Not Found"),
    ],
)
async def test_an_answer_that_is_no_key_set_is_told(
    issuer: TokenIssuer, tmp_path: Path, answer: tuple[int, dict[str, str], bytes], said: str
) -> None:
    issuer.answers["/jwks"] = answer
    [found] = read_issuers(issuer.settings(tmp_path, keys=f"{issuer.address}/jwks"))
    keys = IssuerKeys(found)
    assert await keys.candidates("1") == []
    assert any(each in keys.error for each in said.split("|")), keys.error


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nX-A: "])
async def test_an_issuer_that_sends_a_byte_now_and_then_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    """Each byte is in time, and there is no end of them."""
    monkeypatch.setattr(key_sets, "_TIMEOUT_S", 0.3)

    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(begun)
            while not reader.at_eof():
                writer.write(b"a" if begun else b"")
                await writer.drain()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await reader.read(1000)
        writer.close()
        ended.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        [found] = read_issuers(TokenIssuer(address).settings(tmp_path, keys=f"{address}/jwks"))
        keys = IssuerKeys(found)
        async with asyncio.timeout(PATIENCE_S):
            assert await keys.candidates("1") == []
            await ended.wait()
        assert "did not answer within" in keys.error


async def test_while_an_issuer_is_away_whoever_comes_is_asked_to_come_again(
    issuer: TokenIssuer, tmp_path: Path
) -> None:
    """It is not the fault of callers, who are not to give up, nor to be taken for guessing."""
    issuer.answers["/jwks"] = 500, {}, b"out of order"
    file = issuer.settings(tmp_path, keys=f"{issuer.address}/jwks")
    quotas = Quotas(QuotaSettings(quota_failed_authentications=1))
    door = Access(AccessSettings(identities=file), quotas=quotas).door
    for _ in range(3):
        with pytest.raises(TransportError, match="cannot be fetched at present") as told:
            await door.admit(Credentials(issuer.token(), address="10.0.0.1"))
        assert told.value.retriable
    [fault] = door.faults()
    assert (fault.kind, fault.subject) == ("issuer_away", issuer.address)
    assert "it has no keys" in fault.reason


async def test_a_discovery_document_of_somebody_else_is_refused(
    issuer: TokenIssuer, tmp_path: Path
) -> None:
    for document, said in (
        (
            {"issuer": "https://other.example", "jwks_uri": f"{issuer.address}/jwks"},
            "another issuer",
        ),
        ({"issuer": issuer.address}, "no jwks_uri"),
        ({"issuer": issuer.address, "jwks_uri": "file:///etc/passwd"}, "https://"),
        ({"issuer": issuer.address, "jwks_uri": "http://keys.example/jwks"}, "https://"),
    ):
        body = json.dumps(document).encode()
        issuer.answers["/.well-known/openid-configuration"] = 200, {}, body
        [found] = read_issuers(issuer.settings(tmp_path))
        keys = IssuerKeys(found)
        assert await keys.candidates("1") == []
        assert said in keys.error


async def test_keys_may_be_a_file_in_pem(tmp_path: Path) -> None:
    for algorithm in ("RS256", "ES256", "EdDSA"):
        issuer = TokenIssuer("https://login.example", algorithm)
        key = issuer.keys[0].get_op_key("verify")
        pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (tmp_path / "key.pem").write_bytes(pem)
        assert await admitted(door_of(issuer, tmp_path, keys="key.pem"), issuer.token())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no [[issuer]]"),
        ("x = 1", "unknown: x"),
        ("[[issuer]]\nx = 1", "unknown: x"),
        ("[[issuer]]\nissuer = 7", "issuer must be a text"),
        ('[[issuer]]\nissuer = "https://a"', "audience must be a text"),
        ('[[issuer]]\nissuer = "https://a"\naudience = "b"', "algorithms must be a text"),
        ('[[issuer]]\nissuer = "https://a"\naudience = []', "audience must be a text"),
        (
            '[[issuer]]\nissuer = "https://a"\naudience = "b"\nalgorithms = ["none"]',
            "'none' is not one of RS256",
        ),
        (
            '[[issuer]]\nissuer = "https://a"\naudience = "b"\nalgorithms = ["HS256"]',
            "'HS256' is not one of RS256",
        ),
        (
            '[[issuer]]\nissuer = "http://a"\naudience = "b"\nalgorithms = ["RS256"]',
            "must be an https:// address",
        ),
        (
            '[[issuer]]\nissuer = "a"\naudience = "b"\nalgorithms = ["RS256"]\nkeys = "nowhere"',
            "no such file",
        ),
        (
            '[[issuer]]\nissuer = "a"\naudience = "b"\nalgorithms = ["RS256"]\n'
            'keys = "https://user:word@keys.example"',
            "must not contain a password",
        ),
        (
            '[[issuer]]\nissuer = "https://a"\naudience = "b"\nalgorithms = "RS256"\nleeway_s = 1000',
            "leeway_s must be from 0 to 300",
        ),
        ("[[issuer]", "not TOML"),
    ],
)
def test_a_file_of_issuers_that_has_no_meaning_is_told(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "identities.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        Access(AccessSettings(identities=file))
    assert said in str(raised.value)


def test_a_key_file_that_breaks_leaves_the_keys_as_they_are(tmp_path: Path) -> None:
    issuer = TokenIssuer("https://login.example")
    file = tmp_path / "jwks.json"
    file.write_bytes(issuer.jwks())
    keys = IssuerKeys(Issuer(issuer.address, (AUDIENCE,), ("EdDSA",), file, 0.0))
    for data in (b"", b"{", HUGE):
        file.write_bytes(data)
        with pytest.raises(ConfigError):
            keys.reload()
        assert keys.has(issuer.keys[0].thumbprint())
