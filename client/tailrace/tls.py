"""TLS of a client: the trusted CAs, the client's certificate, and the diagnosis of failed handshakes.

The core of gRPC reports only that a handshake failed, or that the socket was closed. So after a failed
connection the client connects once more in a thread, with Python's own TLS, and reports the result of that.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
"""Files with the roots of the system, on Debian, Fedora and RHEL (new, old), SUSE, Alpine and macOS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Options of TLS to a server: paths of PEM files, read at the start and after a failed handshake."""

    ca: str | os.PathLike[str] | None = None
    """File of the trusted CAs; None: the system's roots, or those in the file that ``SSL_CERT_FILE`` names."""
    certificate: str | os.PathLike[str] | None = None
    """File of the client's certificate, for a server that requires one; with the intermediate certificates."""
    key: str | os.PathLike[str] | None = None
    """File of the certificate's key, without a password; None: the file of the certificate has the key."""


Trust = bool | str | os.PathLike[str] | Tls
"""The trusted CAs: True = the system's roots; a path = the CAs in that file; `Tls` for all options."""


@dataclass(frozen=True, slots=True)
class LoadedTls:
    """The contents of the files of `Tls`."""

    roots: bytes | None
    """Trusted CAs; None: there is no file of the system's roots, and gRPC uses its built-in ones."""
    certificate: bytes | None
    key: bytes | None

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials for a channel of gRPC."""
        import grpc

        return grpc.ssl_channel_credentials(self.roots, self.key, self.certificate)


def tls_of(asked: Trust) -> Tls:
    """Return the options that the argument ``tls`` of ``connect`` means; the caller handles None and False.

    Raises:
        InvalidRequest: ``asked`` is neither True nor a path nor a `Tls`.
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
    """Read and check the files.

    Raises:
        InvalidRequest: A file is missing or has a wrong content; the error names the file and the fault.
    """
    if tls.key is not None and tls.certificate is None:
        raise InvalidRequest("tls: a key without its certificate; give both files")
    roots = _system_roots() if tls.ca is None else _read("ca", tls.ca, b"CERTIFICATE")
    if tls.certificate is None:
        return LoadedTls(roots, None, None)
    certificate = _read("certificate", tls.certificate, b"CERTIFICATE")
    key_path = tls.certificate if tls.key is None else tls.key
    key = _read("key", key_path, b"PRIVATE KEY")
    # Check that the key fits the certificate. gRPC's core accepts any pair, and then each handshake fails
    # without a reason.
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


_PATIENCE_S: Final = 5.0
_EXPIRED: Final = 10
_NOT_YET: Final = 9
_OTHER_NAME: Final = (62, 64)
_UNKNOWN_CA: Final = (18, 19, 20, 21)
"""Results of OpenSSL's verification: x509_vfy.h."""
_NO_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)
_ASKS: Final = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
_PLAIN_PORT: Final = (
    "it does not speak TLS; leave TLS out (http:// or host:port), or use the port that speaks TLS"
)
_TLS_PORT: Final = (
    "it speaks TLS, but the connection is plain text: connect with tls=True or tls=FILE, in "
    "commands with https://, --tls or --tls-ca FILE"
)
_NO_GRPC: Final = (
    "it speaks TLS, but not gRPC; give the server's gRPC address, not its HTTP address"
)
_WITHOUT: Final = (
    "it requires a client certificate: Tls(certificate=…, key=…), in commands --tls-certificate "
    "and --tls-key"
)


def why_plain_failed(host: str, port: int) -> str | None:
    """Return the reason of a failed plain-text connection if the port uses TLS; else None. Blocks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    # No verification: the question is only whether the port uses TLS at all.
    with suppress(OSError), _connected(host, port) as plain:
        try:
            context.wrap_socket(plain, server_hostname=host).close()
        except ssl.SSLError as error:
            # An alert also shows that the port uses TLS: the server has understood our handshake.
            return _TLS_PORT if "ALERT" in (error.reason or "") else None
        return _TLS_PORT
    return None


def why_tls_failed(host: str, port: int, tls: LoadedTls) -> str | None:
    """Return the reason why TLS to a server fails; None if it works, or the reason is unknown. Blocks."""
    with suppress(OSError), _connected(host, port) as plain:
        try:
            with _context(tls).wrap_socket(plain, server_hostname=host) as connection:
                if connection.selected_alpn_protocol() != "h2":
                    return _NO_GRPC
                # With TLS 1.3 the server checks our certificate after the handshake has ended for us. If it
                # accepts the certificate, an HTTP/2 server sends its settings first.
                return None if connection.recv(1) else _of_certificate(tls, None)
        except ssl.SSLCertVerificationError as error:
            return _of_server(error, host, port, tls)
        except ssl.SSLError as error:
            reason = error.reason or ""
            if reason in _NO_TLS:
                return _PLAIN_PORT
            return _of_certificate(tls, reason) if "ALERT" in reason else None
        except ConnectionError:
            return _of_certificate(tls, None)
    return None


def _connected(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), _PATIENCE_S)


def _context(tls: LoadedTls) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cadata=None if tls.roots is None else tls.roots.decode("ascii", "ignore")
    )
    context.set_alpn_protocols(["h2"])
    if tls.certificate is not None and tls.key is not None:
        # Python loads a certificate only from a file.
        with tempfile.NamedTemporaryFile() as file:
            file.write(tls.key + b"\n" + tls.certificate)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _of_server(error: ssl.SSLCertVerificationError, host: str, port: int, tls: LoadedTls) -> str:
    """Return the reason why a server's certificate was not accepted."""
    if error.verify_code == _EXPIRED:
        return "its certificate has expired; the server's operator has to renew it"
    if error.verify_code == _NOT_YET:
        return "its certificate is not valid yet; compare the clocks of both machines"
    if error.verify_code in _UNKNOWN_CA:
        return (
            f"its certificate is of a CA that is not trusted here ({error.verify_message}): give "
            "the CA's file with tls=FILE, in commands with --tls-ca FILE"
        )
    if error.verify_code in _OTHER_NAME:
        names = _names(host, port, tls)
        meant = f"for {', '.join(names)}" if names else "for another name"
        return f"its certificate is {meant}, not for {host}: connect by a name in the certificate"
    return f"its certificate is not trusted: {error.verify_message}"


def _names(host: str, port: int, tls: LoadedTls) -> list[str]:
    """Return the names in a server's certificate that is trusted apart from its names; empty if unknown."""
    context = _context(tls)
    context.check_hostname = False
    with (
        suppress(OSError),
        _connected(host, port) as plain,
        context.wrap_socket(plain) as connection,
    ):
        found: Any = (connection.getpeercert() or {}).get("subjectAltName", ())
        return [str(value) for kind, value in found if kind in ("DNS", "IP Address")]
    return []


def _of_certificate(tls: LoadedTls, alert: str | None) -> str | None:
    """Return why the server did not accept the client's certificate; None if the alert has another cause.

    Args:
        tls: The files, with or without a certificate.
        alert: OpenSSL's name of the server's alert; None: the server closed the connection without one.
    """
    if tls.certificate is None:
        return _WITHOUT if alert in (None, _ASKS) or "HANDSHAKE" in alert else _alert(alert)
    if alert is None:
        return "it rejected the client's certificate without a reason; see the server's log"
    return f"it rejected the client's certificate: {_plain(alert)}"


def _alert(alert: str) -> str:
    return f"it rejected the handshake: {_plain(alert)}"


def _plain(alert: str) -> str:
    return alert.rpartition("ALERT_")[2].replace("_", " ").lower()
