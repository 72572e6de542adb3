"""The settings of transport security; docs/settings.md is made from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - get_type_hints reads it
from typing import Literal

from tailrace_server.api.transport_security.proxies import TrustedProxies
from tailrace_server.resources.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSecuritySettings:
    """How both listeners are reached; in the file also as a table, ``[tls]`` with ``certificate`` and so on."""

    tls_certificate: Path | None = setting(
        None,
        "file",
        "PEM: the server's certificate and the intermediate ones; both listeners then speak TLS "
        "1.2 and 1.3 only; read again when it changes, as the other two are",
    )
    tls_key: Path | None = setting(
        None,
        "file",
        "PEM, without a password: the key, if it is not in the file of the certificate",
    )
    tls_client_ca: Path | None = setting(
        None,
        "file",
        "PEM: the CA whose certificates clients must show; without it none is required",
    )
    allow_insecure: bool = setting(
        False,
        "yes or no",
        "listen beyond loopback without TLS or without identities",
    )
    trusted_proxies: str = setting(
        "",
        "networks",
        "addresses and networks of proxies whose headers name the client, separated by commas",
    )
    proxy_headers: Literal["x-forwarded", "forwarded"] = setting(
        "x-forwarded",
        "name",
        "headers that these proxies write: X-Forwarded-For, -Proto and -Host, or Forwarded (RFC "
        "7239); the server ignores the other form",
    )

    @property
    def proxies(self) -> TrustedProxies:
        """Those of ``trusted_proxies``.

        Raises:
            ValueError: One is none.
        """
        named = filter(None, map(str.strip, self.trusted_proxies.split(",")))
        return TrustedProxies(named, rfc7239=self.proxy_headers == "forwarded")
