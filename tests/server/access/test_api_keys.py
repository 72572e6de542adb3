"""API keys: the file has their hashes only, and a key that is gone from it is nobody's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import InvalidRequest, Unauthenticated
from tailrace_server.access.api_keys import ApiKeys, new_key, read_keys, write_keys
from tailrace_server.access.configured import Access
from tailrace_server.access.identity import Credentials
from tailrace_server.access.settings import AccessSettings
from tailrace_server.errors import ConfigError
from tests.support.issuer import TokenIssuer

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_key_proves_its_name_until_it_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    (first, grafana), (other, _) = new_key("grafana"), new_key("grafana")
    write_keys(file, {"grafana": grafana})
    assert first not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    keys = ApiKeys(file)
    found = await keys.identify(Credentials(first))
    assert found is not None
    assert (found.name, keys.accepts(found)) == ("grafana", True)
    for wrong in (
        other,
        first[:-1],
        first + "x",
        "tlr_",
        "tlr_grafana_",
        "tlr_nobody_x",
        "tlr_a\0_b",
    ):
        with pytest.raises(Unauthenticated, match="not known here"):
            await keys.identify(Credentials(wrong))
    assert await keys.identify(Credentials("a.b.c")) is None
    write_keys(file, {})
    keys.reload()
    assert not keys.accepts(found)


async def test_a_key_whose_name_has_dots_is_no_jwt(tmp_path: Path) -> None:
    text, key = new_key("reports.eu.example")
    file = tmp_path / "keys"
    write_keys(file, {key.name: key})
    issuer = TokenIssuer("https://login.example")
    (tmp_path / "jwks.json").write_bytes(issuer.jwks())
    identities = issuer.settings(tmp_path, keys="jwks.json")
    door = Access(AccessSettings(api_keys=file, identities=identities)).door
    assert (await door.admit(Credentials(text))).name == "api_key reports.eu.example"
    assert (await door.admit(Credentials(issuer.token()))).name.startswith("jwt anna")


def test_a_file_that_is_replaced_keeps_its_rights(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    write_keys(file, {})
    file.chmod(0o640)
    write_keys(file, {"a": new_key("a")[1]})
    assert file.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["keys"], "nothing is left beside it"


@pytest.mark.parametrize("name", ["", "a b", "a_b", "ä", "-a", "x" * 65, "a/b"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not a valid name of a key"):
        new_key(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b c\n", "line 1: not"),
        (f"a {'0' * 64} 2026-01-01\na {'1' * 64} 2026-01-01\n", "line 2: 'a' is there twice"),
        (f"a_b {'0' * 64} 2026-01-01\n", "line 1: not"),
        (f"a {'0' * 63} 2026-01-01\n", "line 1: not"),
    ],
)
def test_a_line_that_is_none_is_told(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_keys(file)
    assert said in str(raised.value)


def test_a_file_that_is_not_there_and_certificates_without_a_ca_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Access(AccessSettings(api_keys=tmp_path / "keys"))
    with pytest.raises(ConfigError, match="tls_client_ca"):
        Access(AccessSettings(certificate_identities=True))


async def test_a_certificate_is_an_identity_where_that_is_set(tmp_path: Path) -> None:
    door = Access(AccessSettings(certificate_identities=True), tmp_path / "ca.pem").door
    names = ("cn:reports", "dns:reports.example")
    assert (await door.admit(Credentials(None, names))).name == "certificate cn:reports"
    for credentials in (Credentials(), Credentials("token", names)):
        with pytest.raises(Unauthenticated):
            await door.admit(credentials)
