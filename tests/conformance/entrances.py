"""How the server of a test is reached: by anybody in plain text, or over TLS by who has a token."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tailrace_server.access.configured import Access
from tailrace_server.access.settings import AccessSettings
from tailrace_server.api.settings import TransportSecuritySettings
from tailrace_server.api.transport_security.files import TlsFiles
from tests.support.certificates import Authority
from tests.support.issuer import TokenIssuer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

POLICY: Final = """
[[grant]]
who.issuer = {issuer}
who.claims = {{ role = "reader" }}
catalogs = "*"
actions = ["subscribe", "history", "schema", "statistics", "operate"]
"""


@dataclass(frozen=True)
class Entrance:
    """What a server is given, and what its clients need for it."""

    served: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of both servers: ``tls`` and ``door``."""
    ca: Path | None = None
    """Whose certificates clients trust; None: plain text is spoken."""
    token: str | None = None
    context: ssl.SSLContext | None = None
    """The same trust, for clients over HTTP."""

    def url(self, scheme: str, port: int) -> str:
        """Return where ``http`` or ``ws`` is spoken."""
        return f"{scheme}{'s' if self.ca else ''}://127.0.0.1:{port}"

    @property
    def headers(self) -> dict[str, str]:
        """Header fields, and gRPC metadata, that show the token."""
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}

    @property
    def init(self) -> dict[str, Any]:
        """What ``connection_init`` has beside its type."""
        return {} if self.token is None else {"payload": {"token": self.token}}


OPEN: Final = Entrance()


def guarded(folder: Path) -> Entrance:
    """Return an entrance by TLS and a token, whose policy grants all catalogs whole; files go to the folder."""
    authority = Authority()
    certificate, key = authority.server().write(folder)
    tls = TlsFiles(TransportSecuritySettings(tls_certificate=certificate, tls_key=key))
    issuer = TokenIssuer("https://issuer.example")
    folder.mkdir(parents=True, exist_ok=True)
    keys, policy = folder / "jwks.json", folder / "policy.toml"
    keys.write_bytes(issuer.jwks())
    policy.write_text(POLICY.format(issuer=json.dumps(issuer.address)))
    settings = AccessSettings(identities=issuer.settings(folder, keys=str(keys)), policy=policy)
    ca = authority.write(folder)
    return Entrance(
        {"tls": tls, "door": Access(settings).door},
        ca,
        issuer.token(3600, role="reader"),
        ssl.create_default_context(cafile=str(ca)),
    )
