"""The files of TLS: read whole, checked before they are used, and read again when they change.

::

    a file changes ──▶ settled for a second? ──▶ fit to use? ──▶ both listeners take it for new connections
                                                   no: the earlier ones stay, a line says why,
                                                       /health is degraded until they are fit

What is open stays open: a connection keeps the certificate of its handshake. The files are read once for both
listeners, so that they never serve different ones.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from tailrace_server.errors import CannotStart
from tailrace_server.resources.faults import ServerFault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tailrace_server.api.settings import TransportSecuritySettings

_LOOK_S: Final = 1.0
"""How often the files are looked at. A change is taken once two looks have seen the same: a certificate is
written before its key, or after it."""
_LATE_PARTS: Final = 10
"""A certificate is to be renewed before the last of so many parts of its life."""
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1)

_log = structlog.get_logger("tailrace.tls")


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The files of a handshake, as they were read."""

    certificate: bytes
    """PEM: the server's certificate first, then the certificates between it and a root."""
    key: bytes
    client_ca: bytes | None
    """PEM; None where clients need no certificate."""
    begins: datetime
    ends: datetime

    def context(self) -> ssl.SSLContext:
        """Return a context for a listener that speaks HTTP/1.1.

        Raises:
            ssl.SSLError: OpenSSL does not take it, for instance a key that is too short.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["http/1.1"])
        # OpenSSL takes a chain from a file only. Read from the path it could be a newer one than ours by now.
        descriptor = os.memfd_create("tls")
        try:
            os.write(descriptor, self.key + b"\n" + self.certificate)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=self.client_ca.decode("ascii"))
        return context

    def for_grpc(self) -> grpc.ServerCertificateConfiguration:
        """Return the same in the form of core."""
        pairs = [(self.key, self.certificate)]
        return grpc.ssl_server_certificate_configuration(pairs, self.client_ca)


@dataclass(frozen=True, slots=True)
class TlsStatistics:
    """The state of the files since the process began."""

    ends: datetime
    """When the certificate in use expires."""
    reloads: int
    """Changes that were taken."""
    reloads_failed: int
    """Changes that could not be used."""


class TlsFiles:
    """The files of one server. ``run`` reads them again while it runs."""

    def __init__(self, settings: TransportSecuritySettings, *, look_s: float = _LOOK_S) -> None:
        """Read them for the first time.

        Args:
            settings: Names the files; there is a certificate.
            look_s: How often ``run`` looks at them.

        Raises:
            CannotStart: They cannot be used; names the setting, and says why.
        """
        self._settings = settings
        self._look_s = look_s
        self._seen = self._look()
        self.material = _read(settings)
        """The files for new connections; replaced as a whole."""
        self._listeners: list[Callable[[TlsMaterial], Awaitable[None]]] = []
        self._unfit: str | None = None
        """Why the files as they are now cannot be used; None where they are used."""
        self._reloads = self._reloads_failed = 0

    def add_listener(self, renew: Callable[[TlsMaterial], Awaitable[None]]) -> None:
        """Have ``renew`` called with what new connections are to get, at each change."""
        self._listeners.append(renew)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return what a server of core listens with; it follows the files by itself."""
        given = self.material

        def fetched() -> grpc.ServerCertificateConfiguration | None:
            # Core asks at each handshake, in a thread of its own; None is "as before".
            nonlocal given
            if given is self.material:
                return None
            given = self.material
            return given.for_grpc()

        return grpc.dynamic_ssl_server_credentials(
            given.for_grpc(),
            fetched,  # type: ignore[arg-type]  # the stubs do not know of None
            require_client_authentication=given.client_ca is not None,
        )

    @property
    def client_certificates(self) -> bool:
        """True if clients must show a certificate."""
        return self._settings.tls_client_ca is not None

    def faults(self) -> tuple[ServerFault, ...]:
        """Return what is wrong with the files, or with the certificate that they brought."""
        subject = str(self._settings.tls_certificate)
        reason = lateness(self.material, datetime.now(UTC))
        if self._unfit is not None:
            reason = f"{self._unfit}; new connections go on with the files as they were before"
        return () if reason is None else (ServerFault("certificate", subject, reason),)

    def statistics(self) -> TlsStatistics:
        """Return the figures of this moment."""
        return TlsStatistics(self.material.ends, self._reloads, self._reloads_failed)

    async def run(self) -> None:
        """Look at the files until cancelled, and take what has changed."""
        taken = before = self._seen
        late = None
        while True:
            # 1. A certificate that nobody renews is told once, before its clients find out.
            found = lateness(self.material, datetime.now(UTC))
            if found is not None and found.partition(" ")[0] != (late or "").partition(" ")[0]:
                _log.error("certificate", reason=found, file=str(self._settings.tls_certificate))
            late = found
            # 2. A change is taken when it has settled.
            await asyncio.sleep(self._look_s)
            now = await asyncio.to_thread(self._look)
            settled, before = now == before, now
            if settled and now != taken:
                taken = now
                await self._reload()

    async def _reload(self) -> None:
        try:
            material = await asyncio.to_thread(_read, self._settings)
        except CannotStart as error:
            self._reloads_failed += 1
            self._unfit = str(error)
            _log.error("changed TLS files cannot be used, the earlier ones stay", reason=str(error))
            return
        self._unfit = None
        if material == self.material:
            return
        self.material = material
        for renew in self._listeners:
            await renew(material)
        self._reloads += 1
        _log.info("TLS files read again", certificate_ends=material.ends.isoformat())

    def _look(self) -> tuple[object, ...]:
        """Return the identity of the files' state."""
        return tuple(map(_state, _files(self._settings)))


def lateness(material: TlsMaterial, now: datetime) -> str | None:
    """Return what is wrong with a certificate's time; None where nothing is."""
    if now >= material.ends:
        return f"expired at {material.ends:%Y-%m-%d %H:%M} UTC: clients refuse it; renew it"
    if now < material.begins:
        return (
            f"not valid before {material.begins:%Y-%m-%d %H:%M} UTC: clients refuse it until then"
        )
    if material.ends - now < (material.ends - material.begins) / _LATE_PARTS:
        return f"expires at {material.ends:%Y-%m-%d %H:%M} UTC: nobody has renewed it yet"
    return None


def _files(settings: TransportSecuritySettings) -> tuple[Path | None, ...]:
    return (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)


def _state(path: Path | None) -> object:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(settings: TransportSecuritySettings) -> TlsMaterial:
    """Return what the files hold, once OpenSSL has taken it too.

    Raises:
        CannotStart: One cannot be read or used, or they do not belong together.
    """
    assert settings.tls_certificate is not None
    certificate = _content(settings.tls_certificate, "--tls-certificate")
    chain = _certificates(settings.tls_certificate, "--tls-certificate", certificate)
    key_path, flag = settings.tls_key or settings.tls_certificate, "--tls-key"
    key = _key(key_path, _content(key_path, flag), chain[0])
    client_ca = None
    if settings.tls_client_ca is not None:
        client_ca = _content(settings.tls_client_ca, "--tls-client-ca")
        # As certificates alone: OpenSSL takes no other text beside them, and files of CAs often have some.
        listed = _certificates(settings.tls_client_ca, "--tls-client-ca", client_ca)
        client_ca = b"".join(each.public_bytes(Encoding.PEM) for each in listed)
    material = TlsMaterial(
        certificate=b"".join(each.public_bytes(Encoding.PEM) for each in chain),
        key=key,
        client_ca=client_ca,
        begins=chain[0].not_valid_before_utc,
        ends=chain[0].not_valid_after_utc,
    )
    try:
        material.context()
    except ssl.SSLError as error:
        raise CannotStart(
            f"--tls-certificate {settings.tls_certificate}: {error.reason or error}"
        ) from error
    return material


def _content(path: Path, flag: str) -> bytes:
    try:
        data = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise CannotStart(f"{flag} {path}: {(error.strerror or str(error)).lower()}") from error
    if flag == "--tls-key" and mode & stat.S_IROTH:
        _log.warning("the key of TLS can be read by everybody here; chmod 600", file=str(path))
    return data


def _certificates(path: Path, flag: str, data: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise CannotStart(
            f"{flag} {path}: no certificate in PEM form (-----BEGIN CERTIFICATE-----)"
        ) from error


def _key(path: Path, data: bytes, certificate: x509.Certificate) -> bytes:
    """Return the key of a certificate in the one form that both TLS libraries read; the file may hold more."""
    try:
        key = load_pem_private_key(data, None)
    except TypeError as error:
        raise CannotStart(
            f"--tls-key {path}: it has a password, which nobody can type here; store it without one, "
            "readable by the server alone"
        ) from error
    except ValueError as error:
        raise CannotStart(
            f"--tls-key {path}: no private key in PEM form (-----BEGIN PRIVATE KEY-----)"
        ) from error
    if (kind := _unspoken(key)) is not None:
        raise CannotStart(
            f"--tls-key {path}: a key of {kind}, with which clients of gRPC cannot shake hands; make one of "
            "RSA, or of the curve P-256 or P-384"
        )
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise CannotStart(f"--tls-key {path}: it is not the key of the first certificate")
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _unspoken(key: object) -> str | None:
    """Return the name of a key's kind that gRPC's own TLS does not offer; None for the others."""
    if isinstance(key, rsa.RSAPrivateKey):
        return None
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return None if isinstance(key.curve, _CURVES) else key.curve.name
    return type(key).__name__.removesuffix("PrivateKey").lstrip("_")
