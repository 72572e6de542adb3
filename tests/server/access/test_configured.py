"""The files of the doors while a server runs: what is half written is nobody's rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.access.api_keys import new_key, write_keys
from tailrace_server.access.configured import Access
from tailrace_server.access.settings import AccessSettings
from tailrace_server.grants.grant import Columns

if TYPE_CHECKING:
    from pathlib import Path

GRANT = """
[[grant]]
who.api_key = "etl"
catalogs = "shop"
hidden_columns = "margin"
"""


def access_of(folder: Path) -> tuple[Access, Path]:
    _, key = new_key("etl")
    keys, policy = folder / "keys", folder / "policy.toml"
    write_keys(keys, {key.name: key})
    policy.write_text(GRANT)
    return Access(AccessSettings(api_keys=keys, policy=policy)), policy


def columns_of(access: Access) -> list[Columns]:
    policy = access.door.policy
    assert policy is not None
    return [rule.columns for rule in policy.rules]


async def test_a_policy_counts_when_it_has_stood_still(tmp_path: Path) -> None:
    """Each of its beginnings may be a policy too, and one that grants more."""
    access, policy = access_of(tmp_path)
    [file] = [each for each in access._files if each._file == policy]
    assert not await file.look()
    half = GRANT + "# more\n" + GRANT
    for end in (half.rindex("hidden_columns"), half.rindex("hidden_columns") + 5, len(half)):
        policy.write_text(half[:end])
        assert not await file.look()
        assert len(columns_of(access)) == 1
    assert await file.look()
    assert columns_of(access) == [Columns(frozenset({"margin"}))] * 2
    assert not await file.look()


async def test_what_changes_between_the_start_and_the_first_look_is_seen(tmp_path: Path) -> None:
    access, policy = access_of(tmp_path)
    policy.write_text(GRANT + GRANT)
    [file] = [each for each in access._files if each._file == policy]
    assert not await file.look()
    assert await file.look()
    assert len(columns_of(access)) == 2
