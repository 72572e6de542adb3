"""How a client trusts its server, and shows who it is, over TLS."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    import grpc

_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""The files in which systems have their roots: Debian, Fedora and RHEL (new, old), SUSE, Alpine and macOS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS to a server; paths of files in PEM form, read at the start and whenever a handshake has failed."""

    ca: str | os.PathLike[str] | None = None
    """The CAs that are trusted; None: the system's roots (``SSL_CERT_FILE`` names others)."""
    certificate: str | os.PathLike[str] | None = None
    """The client's own, with the certificates between it and its CA; for a server that requires one."""
    key: str | os.PathLike[str] | None = None
    """Its key, without a password; None: it is in the same file."""


Trust = bool | str | os.PathLike[str] | Tls
"""True = the system's roots; a path = the CAs in that file."""


@dataclass(frozen=True, slots=True)
class LoadedTls:
    """The contents of the files."""

    roots: bytes | None
    """None: there is no file of the system's roots; gRPC takes those that it brings."""
    certificate: bytes | None
    key: bytes | None

    def credentials(self) -> grpc.ChannelCredentials:
        """Return what a channel needs."""
        import grpc

        return grpc.ssl_channel_credentials(self.roots, self.key, self.certificate)


def tls_of(asked: Trust) -> Tls:
    """Return what ``tls=`` of ``connect`` means; it is not False.

    Raises:
        InvalidRequest: It is neither True, a path, nor `Tls`.
    """
    if isinstance(asked, Tls):
        return asked
    if asked is True:
        return Tls()
    if isinstance(asked, str | os.PathLike) and str(asked):
        return Tls(ca=asked)
    raise InvalidRequest(
        f"tls {asked!r}: write True for the system's roots, the path of a file of CAs, or "
        "Tls(ca=…, certificate=…, key=…)"
    )


def load(tls: Tls) -> LoadedTls:
    """Read the files.

    Raises:
        InvalidRequest: One is not there, or does not hold what it should; says which and what.
    """
    if tls.key is not None and tls.certificate is None:
        raise InvalidRequest("tls: a key without its certificate; give both")
    roots = _system_roots() if tls.ca is None else _read("ca", tls.ca, b"CERTIFICATE")
    if tls.certificate is None:
        return LoadedTls(roots, None, None)
    certificate = _read("certificate", tls.certificate, b"CERTIFICATE")
    key_path = tls.certificate if tls.key is None else tls.key
    key = _read("key", key_path, b"PRIVATE KEY")
    # Core takes whatever it is given, and fails in each handshake without saying why.
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(
            tls.certificate, tls.key, password=_nobody_asks
        )
    except ssl.SSLError as error:
        why = (error.reason or str(error)).lower().replace("_", " ")
        raise InvalidRequest(
            f"tls key {os.fspath(key_path)}: not the key of the certificate, or it has a password: {why}"
        ) from None
    return LoadedTls(roots, certificate, key)


def _nobody_asks() -> str:
    return ""  # OpenSSL would ask on the terminal


def _read(name: str, path: str | os.PathLike[str], mark: bytes) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"tls {name} {os.fspath(path)}: {(error.strerror or str(error)).lower()}"
        ) from None
    if b"-----BEGIN " not in data or mark not in data:
        raise InvalidRequest(
            f"tls {name} {os.fspath(path)}: not in PEM form (-----BEGIN {mark.decode()}-----)"
        )
    return data


def _system_roots() -> bytes | None:
    named = ssl.get_default_verify_paths().cafile or ""
    found = next((each for each in (named, *_BUNDLES) if os.path.isfile(each)), None)
    return None if found is None else _read("ca", found, b"CERTIFICATE")
