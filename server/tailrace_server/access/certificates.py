"""Names in clients' certificates as identities; the listener has verified the certificate by then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.access.identity import Identity, IdentityKind

if TYPE_CHECKING:
    from tailrace_server.access.credentials import Credentials


class CertificateNames:
    """Tells who somebody is by the first name in its certificate, where no token came."""

    async def identify(self, credentials: Credentials) -> Identity | None:
        """Return whose certificate it is; None without one, or beside a token. Its claim ``names`` has all."""
        return self.recognise(credentials)

    def recognise(self, credentials: Credentials) -> Identity | None:
        """Return the same: TLS has verified it."""
        if credentials.token is not None or not credentials.certificate_names:
            return None
        names = credentials.certificate_names
        return Identity(IdentityKind.CERTIFICATE, "", names[0], {"names": list(names)})

    def accepts(self, _: Identity) -> bool:
        """Return True: a certificate is checked when its connection begins."""
        return True
