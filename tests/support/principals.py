"""A principal whose grants a test says, and may change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.errors import TailraceError
    from tailrace_server.grants.grant import Grant


@dataclass
class Holder:
    """Holds grants by catalog; nothing of any other."""

    grants: dict[str, Grant] = field(default_factory=dict)
    name: str = "a test"
    expires_at: float | None = None

    def grant(self, catalog: str) -> Grant | None:
        return self.grants.get(catalog)

    def refusal(self) -> TailraceError | None:
        return None
