"""The audit has by which keys and which policy callers are judged, from the first and at each change."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from typing import TYPE_CHECKING

from tailrace_server.access.api_keys import ApiKeys, new_key, write_keys
from tailrace_server.access.audit import Audit
from tailrace_server.access.configured import RecordedRules
from tailrace_server.access.policy_file import PolicyFile
from tailrace_server.access.settings import AuditSettings

if TYPE_CHECKING:
    from pathlib import Path

GRANT = '[[grant]]\nwho.api_key = "job"\ncatalogs = ["shop"]\n'


def test_keys_and_policy_are_recorded_when_they_change(tmp_path: Path) -> None:
    file, policy = tmp_path / "keys", tmp_path / "policy.toml"
    keys = {name: new_key(name)[1] for name in ("job", "old")}
    write_keys(file, keys)
    policy.write_text(GRANT)
    with closing(Audit(AuditSettings(audit=tmp_path / "audit"))) as audit:
        rules = RecordedRules(audit)
        api_keys, rules.policy = ApiKeys(file), PolicyFile(policy)
        rules.keys["keys"] = api_keys.fingerprints
        rules.record()
        rules.record()
        # One is removed, one made anew under its name.
        write_keys(file, {"job": new_key("job")[1]})
        api_keys.reload()
        policy.write_text(GRANT * 2)
        rules.policy.reload()
        rules.record()
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    changes = [each for each in lines if each["event"] == "keys_changed"]
    assert [(each["source"], each["added"], each["removed"]) for each in changes] == [
        ("keys", ["job", "old"], []),
        ("keys", ["job"], ["job", "old"]),
    ]
    loaded = [each for each in lines if each["event"] == "policy_loaded"]
    assert [(each["grants"], each["fingerprint"]) for each in loaded] == [
        (count, hashlib.sha256((GRANT * count).encode()).hexdigest()) for count in (1, 2)
    ]


def test_without_an_audit_nothing_is_looked_at() -> None:
    rules = RecordedRules(None)
    rules.keys["keys"] = lambda: 1 / 0  # type: ignore[assignment, return-value]
    rules.record()
