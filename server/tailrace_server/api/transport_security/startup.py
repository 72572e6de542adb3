"""Checks at the start of a server: the files of TLS, and the exposure of its addresses.

An address that other machines reach needs TLS, and clients with an identity. Without them any caller who
reaches the port reads everything, and so does any machine between. The server refuses to start so, since later
nothing would show it. A server without files of TLS does not load their reader.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from tailrace_server.errors import CannotStart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace_server.api.settings import TransportSecuritySettings
    from tailrace_server.api.transport_security.files import TlsFiles
    from tailrace_server.units import Address


def tls_files(settings: TransportSecuritySettings) -> TlsFiles | None:
    """Return the files that settings name, read; None where they name none.

    Raises:
        CannotStart: They cannot be used, or a certificate is missing.
    """
    if settings.tls_certificate is not None:
        from tailrace_server.api.transport_security.files import TlsFiles

        return TlsFiles(settings)
    for flag, path in (
        ("--tls-key", settings.tls_key),
        ("--tls-client-ca", settings.tls_client_ca),
    ):
        if path is not None:
            raise CannotStart(f"{flag} {path}: there is no --tls-certificate, so TLS is not spoken")
    return None


def check_exposure(
    addresses: Mapping[str, Address | None],
    settings: TransportSecuritySettings,
    *,
    identified: bool,
) -> None:
    """Refuse to listen on more than loopback for anybody, unless the settings allow it; may resolve names.

    Args:
        addresses: By the flag that names it; None listens nowhere.
        settings: How both listeners are reached.
        identified: Whether callers have to say who they are, or get next to nothing.

    Raises:
        CannotStart: Says which address, what is missing, and what to do.
    """
    if settings.allow_insecure:
        return
    missing = []
    if settings.tls_certificate is None:
        missing.append(
            "it would speak plain text, which --tls-certificate FILE and --tls-key FILE change"
        )
    if not identified:
        missing.append(
            "whoever reaches it could read everything, unless clients must show a certificate "
            "(--tls-client-ca FILE) or a token (docs/security.md)"
        )
    for flag, address in addresses.items():
        if missing and address is not None and not _is_loopback(address):
            raise CannotStart(
                f"{flag} {address} is open to other machines: {'; and '.join(missing)}. Where something else "
                "protects it, as a proxy on a network of its own, say --allow-insecure yes"
            )


def _is_loopback(address: Address) -> bool:
    """Return True if only this machine reaches an address; a name has to mean such addresses only."""
    try:
        found = {each[4][0] for each in socket.getaddrinfo(*address, type=socket.SOCK_STREAM)}
    except OSError:
        return True  # nobody can listen there, which is told as what it is
    return all(ipaddress.ip_address(str(each).partition("%")[0]).is_loopback for each in found)
