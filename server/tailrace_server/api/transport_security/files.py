"""The files of TLS: they are read and checked together, and read again when they change.

::

    a file changes ──▶ stable for a second? ──▶ valid? ──▶ both listeners use it for new connections
                                                   no: the earlier files remain in use, an error is logged,
                                                       /health is degraded until the files are valid

An open connection keeps the certificate of its handshake. The files are read once for both listeners, so that
the listeners never serve different certificates.
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
"""Seconds between two checks of the files. A change is used only when two checks have seen the same state,
since a certificate and its key are written one after the other."""
_LATE_PARTS: Final = 10
"""A certificate should be renewed before the last 1/10 of its lifetime."""
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1)

_log = structlog.get_logger("tailrace.tls")


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The contents of the TLS files, as they were read together."""

    certificate: bytes
    """PEM: the server's certificate, then the intermediate certificates."""
    key: bytes
    client_ca: bytes | None
    """PEM: the CA of clients' certificates; None if clients need no certificate."""
    begins: datetime
    ends: datetime

    def context(self) -> ssl.SSLContext:
        """Return a TLS context for the HTTP listener.

        Raises:
            ssl.SSLError: OpenSSL refuses the material, for instance a key that is too short.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["http/1.1"])
        # OpenSSL reads a chain from a file only, but the file at the path may have changed since it was
        # checked. So it reads the checked bytes from a file in memory.
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
        """Return the material in the form of gRPC core."""
        pairs = [(self.key, self.certificate)]
        return grpc.ssl_server_certificate_configuration(pairs, self.client_ca)


@dataclass(frozen=True, slots=True)
class TlsStatistics:
    """The figures of the TLS files since the process began."""

    ends: datetime
    """Time when the certificate in use expires."""
    reloads: int
    """Number of changes that came into use."""
    reloads_failed: int
    """Number of changes that were not valid."""


class TlsFiles:
    """The TLS files of one server; ``run`` follows their changes."""

    def __init__(self, settings: TransportSecuritySettings, *, look_s: float = _LOOK_S) -> None:
        """Read the files for the first time.

        Args:
            settings: The settings with the files; a certificate is required.
            look_s: Seconds between two checks of the files.

        Raises:
            CannotStart: The files are not valid; the error has the setting and the reason.
        """
        self._settings = settings
        self._look_s = look_s
        self._seen = self._look()
        self.material = _read(settings)
        """The material for new connections; replaced as a whole."""
        self._listeners: list[Callable[[TlsMaterial], Awaitable[None]]] = []
        self._unfit: str | None = None
        """Why the current files are not in use; None if they are in use."""
        self._reloads = self._reloads_failed = 0

    def add_listener(self, renew: Callable[[TlsMaterial], Awaitable[None]]) -> None:
        """Add a listener: ``renew`` is called with the new material at each change."""
        self._listeners.append(renew)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a gRPC server; they follow the files without further calls."""
        given = self.material

        def fetched() -> grpc.ServerCertificateConfiguration | None:
            # Core calls this at each handshake, in one of its threads; None means "unchanged".
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
        """Return the fault of the files or of the certificate in use, if there is one."""
        subject = str(self._settings.tls_certificate)
        reason = lateness(self.material, datetime.now(UTC))
        if self._unfit is not None:
            reason = f"{self._unfit}; new connections continue with the previous files"
        return () if reason is None else (ServerFault("certificate", subject, reason),)

    def statistics(self) -> TlsStatistics:
        """Return the current figures."""
        return TlsStatistics(self.material.ends, self._reloads, self._reloads_failed)

    async def run(self) -> None:
        """Check the files until cancelled, and reload them when they have changed."""
        # Begin with the state of the first read, so that a change between it and this task is noticed.
        taken = before = self._seen
        late = None
        while True:
            # 1. Log once that a certificate is due for renewal, before clients refuse it.
            found = lateness(self.material, datetime.now(UTC))
            if found is not None and found.partition(" ")[0] != (late or "").partition(" ")[0]:
                _log.error("certificate", reason=found, file=str(self._settings.tls_certificate))
            late = found
            # 2. Reload the files when a change is stable.
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
            _log.error(
                "changed TLS files cannot be used; the previous ones remain in use",
                reason=str(error),
            )
            return
        self._unfit = None
        if material == self.material:
            return
        self.material = material
        # gRPC fetches the material at each handshake; only the HTTP listener is added here.
        for renew in self._listeners:
            await renew(material)
        self._reloads += 1
        _log.info("TLS files read again", certificate_ends=material.ends.isoformat())

    def _look(self) -> tuple[object, ...]:
        """Return a value that changes whenever a file changes."""
        return tuple(map(_state, _files(self._settings)))


def lateness(material: TlsMaterial, now: datetime) -> str | None:
    """Return why a certificate is expired, not valid yet or due for renewal; None if it is none of these."""
    if now >= material.ends:
        return f"expired at {material.ends:%Y-%m-%d %H:%M} UTC: clients reject it; renew it"
    if now < material.begins:
        return (
            f"not valid before {material.begins:%Y-%m-%d %H:%M} UTC: clients reject it until then"
        )
    if material.ends - now < (material.ends - material.begins) / _LATE_PARTS:
        return f"expires at {material.ends:%Y-%m-%d %H:%M} UTC, and is not renewed yet"
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
    """Read the files, check them, and return their contents.

    Raises:
        CannotStart: A file cannot be read or is not valid, or the key does not belong to the certificate.
    """
    assert settings.tls_certificate is not None
    certificate = _content(settings.tls_certificate, "--tls-certificate")
    chain = _certificates(settings.tls_certificate, "--tls-certificate", certificate)
    key_path, flag = settings.tls_key or settings.tls_certificate, "--tls-key"
    key = _key(key_path, _content(key_path, flag), chain[0])
    client_ca = None
    if settings.tls_client_ca is not None:
        client_ca = _content(settings.tls_client_ca, "--tls-client-ca")
        # Keep only the certificates: OpenSSL accepts no other text here, and files of CAs often have some.
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
        # OpenSSL checks the key and the chain here, before a listener depends on them.
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
        _log.warning(
            "all users of this machine can read the TLS key; run chmod 600", file=str(path)
        )
    return data


def _certificates(path: Path, flag: str, data: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise CannotStart(
            f"{flag} {path}: no certificate in PEM form (-----BEGIN CERTIFICATE-----)"
        ) from error


def _key(path: Path, data: bytes, certificate: x509.Certificate) -> bytes:
    """Return the key of a certificate in the form that both TLS libraries read."""
    try:
        key = load_pem_private_key(data, None)
    except TypeError as error:
        raise CannotStart(
            f"--tls-key {path}: it has a password, which cannot be entered here; store it without one, "
            "readable only by the server"
        ) from error
    except ValueError as error:
        raise CannotStart(
            f"--tls-key {path}: no private key in PEM form (-----BEGIN PRIVATE KEY-----)"
        ) from error
    if (kind := _unspoken(key)) is not None:
        raise CannotStart(
            f"--tls-key {path}: a key of {kind}, which gRPC clients do not support; create an RSA key, "
            "or one of the curve P-256 or P-384"
        )
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise CannotStart(f"--tls-key {path}: it is not the key of the first certificate")
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _unspoken(key: object) -> str | None:
    """Return the kind of a key that gRPC's TLS does not support; None if it supports the key."""
    if isinstance(key, rsa.RSAPrivateKey):
        return None
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return None if isinstance(key.curve, _CURVES) else key.curve.name
    return type(key).__name__.removesuffix("PrivateKey").lstrip("_")
