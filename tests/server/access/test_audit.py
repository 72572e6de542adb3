"""What is recorded of whom, and what happens where it cannot be."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing

from tailrace.errors import NotPermitted, ServerFull, Unauthenticated
from tailrace_server.access.audit import Audit, address_of
from tailrace_server.access.audit_trail import Ended
from tailrace_server.access.door import Door, Identified
from tailrace_server.access.identity import Credentials, Identity, IdentityKind
from tailrace_server.access.settings import AuditSettings
from tailrace_server.grants.principal import ANONYMOUS, Peer
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

ANNA = Identity(IdentityKind.JWT, "https://issuer.example", "anna", expires_at=4e9, key_id="1")
PEER = Peer("rest", "[2001:db8::1]:5000", "curl")
SECRET = "s3cret-of-anna"


class OneToken:
    """Knows one."""

    async def identify(self, credentials: Credentials) -> Identity | None:
        return ANNA if credentials.token == SECRET else None

    def recognise(self, credentials: Credentials) -> Identity | None:
        return None

    def accepts(self, identity: Identity) -> bool:
        return True


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:50", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("[2001:db8::15]:50", "2001:db8::15"),
        ("2001:db8::15", "2001:db8::15"),
        ("::1", "::1"),
        ("", ""),
    ],
)
def test_an_address_is_recorded_whole_and_without_its_port(address: str, host: str) -> None:
    assert address_of(Peer("rest", address, "curl")) == host


def test_without_a_file_nothing_is_kept_and_nothing_refused() -> None:
    with closing(Audit(AuditSettings(audit_required=True))) as audit:
        assert audit.put(Ended, ANONYMOUS, PEER, "shop")
        audit.refuse_unrecorded()
        assert (audit.is_on, audit.statistics(), audit.faults()) == (False, None, ())


async def test_who_comes_to_the_door_is_recorded_and_no_credential(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with closing(Audit(AuditSettings(audit=path))) as audit:
        door = Door([OneToken()], audit=audit)
        await door.admit(Credentials(SECRET, address="10.0.0.1", transport="grpc"))
        with pytest.raises(Unauthenticated):
            await door.admit(Credentials("guessed", address="10.0.0.2", transport="http"))
    started, admitted, refused, stopped = lines_of(path)
    assert (started["event"], stopped["event"]) == ("audit_started", "audit_stopped")
    time = admitted.pop("time")
    assert time.endswith("Z")
    assert len(time) == len("2026-11-26T02:25:09.000731Z")
    assert admitted == {
        "event": "authenticated",
        "logger": "tailrace.audit",
        "principal": "anna",
        "kind": "jwt",
        "issuer": "https://issuer.example",
        "address": "10.0.0.1",
        "transport": "grpc",
        "catalog": "",
        "expires_at": 4e9,
    }
    assert (refused["event"], refused["code"]) == ("refused", "UNAUTHENTICATED")
    assert (refused["principal"], refused["address"]) == ("", "10.0.0.2")
    text = path.read_text()
    assert SECRET not in text
    assert "guessed" not in text


async def test_the_same_proof_is_recorded_once_a_minute(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit", Clock()
    with closing(Audit(AuditSettings(audit=path), clock)) as audit:
        door = Door([OneToken()], audit=audit)
        for clock.now in (0.0, 59.0, 60.0, 61.0):
            await door.admit(Credentials(SECRET, address="10.0.0.1"))
        await door.admit(Credentials(SECRET, address="10.0.0.2"))
    addresses = [each["address"] for each in lines_of(path) if each["event"] == "authenticated"]
    assert addresses == ["10.0.0.1", "10.0.0.1", "10.0.0.2"]


async def test_what_is_no_text_is_written_out(tmp_path: Path) -> None:
    """The path of a file may have a byte that is no character, and what happened is recorded all the same."""
    path = tmp_path / "audit"
    with closing(Audit(AuditSettings(audit=path))) as audit:
        audit.policy_loaded("/etc/p\udc80", 3, "ab12")
        audit.put(Ended, ANONYMOUS, PEER, "shop\nx", reason="\ud800", captures=3)
    policy, ended = lines_of(path)[1:-1]
    assert (policy["file"], policy["grants"]) == ("/etc/p\\udc80", 3)
    assert (ended["event"], ended["reason"], ended["captures"]) == ("ended", "\\ud800", 3)
    assert ended["catalog"] == "shop\nx"


def test_rules_and_operators_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    anna = Identified(ANNA, OneToken())
    with closing(Audit(AuditSettings(audit=path))) as audit:
        audit.policy_loaded("/etc/policy.toml", 3, "ab12")
        audit.keys_changed("keys.toml", ["job"], ["old"])
        audit.operator_action(anna, PEER, "end_subscription", "77", "too slow", "shop")
        audit.refused(NotPermitted("no"), PEER, anna, "shop")
    policy, keys, action, refused = lines_of(path)[1:-1]
    assert [policy[name] for name in ("event", "file", "grants", "fingerprint", "principal")] == [
        *("policy_loaded", "/etc/policy.toml", 3, "ab12", "")
    ]
    assert [keys[name] for name in ("event", "source", "added", "removed")] == [
        *("keys_changed", "keys.toml", ["job"], ["old"])
    ]
    names = ("principal", "address", "catalog", "action", "subject", "reason")
    assert [action[name] for name in names] == [
        *("anna", "2001:db8::1", "shop", "end_subscription", "77", "too slow")
    ]
    assert [refused[name] for name in ("principal", "transport", "code")] == [
        *("anna", "rest", "NOT_PERMITTED")
    ]


@pytest.mark.parametrize("required", [False, True])
async def test_an_audit_that_stands_still_is_told_and_refuses_if_it_is_required(
    tmp_path: Path, required: bool
) -> None:
    """A full disk; then there is room again."""
    path = tmp_path / "audit"
    path.symlink_to("/dev/full")
    settings = AuditSettings(audit=path, audit_required=required)
    with structlog.testing.capture_logs(), closing(Audit(settings)) as audit:
        await until(lambda: audit.faults() != ())
        [fault] = audit.faults()
        assert (fault.kind, fault.subject) == ("audit_not_written", str(path))
        assert "No space left on device" in fault.reason
        if required:
            with pytest.raises(ServerFull, match="requires an audit of each read"):
                audit.refuse_unrecorded()
        else:
            audit.refuse_unrecorded()
        path.unlink()
        await until(lambda: audit.faults() == ())
        audit.refuse_unrecorded()
    assert [each["event"] for each in lines_of(path)] == ["audit_started", "audit_stopped"]


@pytest.mark.parametrize("required", [False, True])
async def test_a_required_audit_that_stands_still_for_its_patience_stops_the_server(
    tmp_path: Path, required: bool
) -> None:
    path, clock, stops = tmp_path / "audit", Clock(), []
    path.symlink_to("/dev/full")
    settings = AuditSettings(audit=path, audit_required=required, audit_patience_s=30.0)
    with structlog.testing.capture_logs(), closing(Audit(settings, clock)) as audit:
        await until(lambda: audit.faults() != ())
        clock.now = 29.0
        audit.look(lambda: stops.append(29))
        clock.now = 30.0
        audit.look(lambda: stops.append(30))
        audit.look(lambda: stops.append(31))
    assert stops == ([30] if required else [])
    assert audit.has_given_up == required
