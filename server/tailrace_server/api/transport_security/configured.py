"""From settings to the files of TLS; a server without any does not load what reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.errors import CannotStart

if TYPE_CHECKING:
    from tailrace_server.api.transport_security.files import TlsFiles
    from tailrace_server.api.transport_security.settings import TransportSecuritySettings


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
