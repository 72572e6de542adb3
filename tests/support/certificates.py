"""Real certificates for tests, as an operator's own CA makes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cached_property
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path

ServerKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
HERE: Final = (x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1")))
"""The names of a server of a test."""


class Issued(NamedTuple):
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str = "server") -> tuple[Path, Path]:
        """Write both as files, and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.write_bytes(self.key)
        key.chmod(0o600)
        return certificate, key


class Authority:
    """A CA of its own."""

    def __init__(self, name: str = "tests") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    @cached_property
    def certificate(self) -> bytes:
        """Its own certificate, in PEM: what clients trust."""
        builder = self._builder(self._name, self._key, timedelta(), timedelta(days=30))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, True)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def write(self, folder: Path, name: str = "ca") -> Path:
        """Write its certificate as a file, and return the path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.crt"
        path.write_bytes(self.certificate)
        return path

    def server(
        self,
        *names: x509.GeneralName,
        since: timedelta = timedelta(hours=1),
        lasts: timedelta = timedelta(days=20),
        key: ServerKey | None = None,
    ) -> Issued:
        """Issue a certificate for a server.

        Args:
            names: Of the server; none = those of this machine.
            since: How long ago it began.
            lasts: How long from now it lasts; below 0 it has expired.
            key: Its key; None: one of the curve P-256.
        """
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        return self._issue(subject, names or HERE, usage, since, lasts, key)

    def client(self, common_name: str, *names: x509.GeneralName) -> Issued:
        """Issue a certificate for a client."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        hour, day = timedelta(hours=1), timedelta(days=1)
        return self._issue(subject, names, ExtendedKeyUsageOID.CLIENT_AUTH, hour, day)

    def _issue(
        self,
        subject: x509.Name,
        names: tuple[x509.GeneralName, ...],
        usage: x509.ObjectIdentifier,
        since: timedelta,
        lasts: timedelta,
        key: ServerKey | None = None,
    ) -> Issued:
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, key, since, lasts)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        return Issued(
            builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )

    def _builder(
        self,
        subject: x509.Name,
        key: ServerKey,
        since: timedelta,
        lasts: timedelta,
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        own, ours = key.public_key(), self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(own)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - since - timedelta(minutes=1))
            .not_valid_after(now + lasts)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ours), False)
        )
