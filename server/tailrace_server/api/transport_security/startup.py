"""Checks at the start of a server: the files of TLS, and the exposure of its addresses.

An address that other machines can reach needs TLS and clients with an identity. Otherwise every caller, and
every machine on the way, could read everything. The server refuses to start in this state, because later
nothing would reveal it. A server without TLS files does not load the module that reads them.
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
    """Return the TLS files that the settings name, already read; None if they name none.

    Raises:
        CannotStart: The files are not valid, or the certificate is missing.
    """
    if settings.tls_certificate is not None:
        from tailrace_server.api.transport_security.files import TlsFiles

        return TlsFiles(settings)
    for flag, path in (
        ("--tls-key", settings.tls_key),
        ("--tls-client-ca", settings.tls_client_ca),
    ):
        if path is not None:
            raise CannotStart(f"{flag} {path}: TLS also needs --tls-certificate")
    return None


def check_exposure(
    addresses: Mapping[str, Address | None],
    settings: TransportSecuritySettings,
    *,
    identified: bool,
) -> None:
    """Refuse to listen beyond loopback without TLS or identities, unless the settings allow it.

    This may resolve names.

    Args:
        addresses: The address of each listener by its flag; None if the listener is off.
        settings: The settings of TLS.
        identified: True if callers must prove an identity.

    Raises:
        CannotStart: An address is exposed; the error has the address, what is missing, and what to do.
    """
    if settings.allow_insecure:
        return
    # Collect everything that is missing, so that the operator sees all of it in one error.
    missing = []
    if settings.tls_certificate is None:
        missing.append("it would use plain text; give --tls-certificate FILE and --tls-key FILE")
    if not identified:
        missing.append(
            "any client that connects could read everything; require a client certificate "
            "(--tls-client-ca FILE) or a token (docs/security.md)"
        )
    for flag, address in addresses.items():
        if missing and address is not None and not _is_loopback(address):
            raise CannotStart(
                f"{flag} {address} is open to other machines: {'; and '.join(missing)}. If it is "
                "protected in another way, such as by a proxy in a private network, give "
                "--allow-insecure yes"
            )


def _is_loopback(address: Address) -> bool:
    """Return True if only this machine can reach an address; every address of a name must be such one."""
    try:
        found = {each[4][0] for each in socket.getaddrinfo(*address, type=socket.SOCK_STREAM)}
    except OSError:
        return True  # listening fails later, with a better error
    return all(ipaddress.ip_address(str(each).partition("%")[0]).is_loopback for each in found)
