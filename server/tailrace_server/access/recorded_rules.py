"""Records in the audit the keys and the policy in force, at each change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace_server.access.audit.audit import Audit
    from tailrace_server.access.policy_file import PolicyFile


class RecordedRules:
    """The recorded rules of one server."""

    def __init__(self, audit: Audit | None) -> None:
        """Begin with nothing recorded; ``audit`` None = nothing ever is."""
        self._audit = audit
        self.keys: dict[str, Callable[[], Mapping[str, str]]] = {}
        """By file or issuer, what returns the fingerprint of each of its keys, by name."""
        self.policy: PolicyFile | None = None
        self._recorded: dict[str, Mapping[str, str]] = {}
        self._policy_recorded = ""

    def record(self) -> None:
        """Record what is not as it was recorded last; the first time that is everything."""
        if self._audit is None:
            return
        for source, fingerprints in self.keys.items():
            before, now = self._recorded.get(source, {}), fingerprints()
            if now != before:
                self._audit.keys_changed(source, _new(before, now), _new(now, before))
                self._recorded[source] = now
        policy = self.policy
        if policy is not None and policy.fingerprint != self._policy_recorded:
            self._policy_recorded = policy.fingerprint
            self._audit.policy_loaded(
                str(policy.file), len(policy.policy.rules), policy.fingerprint
            )


def _new(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return sorted(name for name, each in now.items() if before.get(name) != each)
