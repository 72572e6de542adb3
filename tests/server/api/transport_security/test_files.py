"""The files of TLS are judged before they are used, each with a sentence that says what to do."""

from __future__ import annotations

import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from structlog.testing import capture_logs

from tailrace_server.api.settings import TransportSecuritySettings
from tailrace_server.api.transport_security.files import TlsFiles, lateness
from tailrace_server.api.transport_security.startup import tls_files
from tailrace_server.errors import CannotStart
from tests.support.certificates import Authority, ServerKey

AUTHORITY = Authority()


@pytest.fixture
def settings(tmp_path: Path) -> TransportSecuritySettings:
    certificate, key = AUTHORITY.server().write(tmp_path)
    return TransportSecuritySettings(tls_certificate=certificate, tls_key=key)


def test_fit_files_make_contexts_of_tls_1_2_and_newer(settings: TransportSecuritySettings) -> None:
    context = TlsFiles(settings).material.context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE


def test_one_file_may_hold_certificate_and_key(
    settings: TransportSecuritySettings, tmp_path: Path
) -> None:
    issued = AUTHORITY.server()
    both = tmp_path / "both.pem"
    both.write_bytes(issued.key + issued.certificate + AUTHORITY.certificate)
    TlsFiles(replace(settings, tls_certificate=both, tls_key=None))


def test_clients_must_show_a_certificate_where_there_is_a_ca_for_them(
    settings: TransportSecuritySettings, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes("# Büro\n".encode() + AUTHORITY.certificate)  # comments are common in such files
    tls = TlsFiles(replace(settings, tls_client_ca=ca))
    assert tls.client_certificates
    assert tls.material.context().verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (ed25519.Ed25519PrivateKey.generate(), "Ed25519"),
        (ec.generate_private_key(ec.SECP521R1()), "secp521r1"),
    ],
    ids=["Ed25519", "P-521"],
)
def test_a_key_that_clients_of_grpc_do_not_speak_is_refused(
    tmp_path: Path, key: ServerKey, kind: str
) -> None:
    certificate, file = AUTHORITY.server(key=key).write(tmp_path)
    settings = TransportSecuritySettings(tls_certificate=certificate, tls_key=file)
    with pytest.raises(
        CannotStart, match=f"a key of {kind}, which gRPC clients do not support; .* P-256 or P-384"
    ):
        TlsFiles(settings)


def test_a_file_that_is_not_there_is_named(settings: TransportSecuritySettings) -> None:
    assert settings.tls_key is not None
    settings.tls_key.unlink()
    with pytest.raises(CannotStart, match=r"^--tls-key .*server\.key: no such file or directory$"):
        TlsFiles(settings)


def test_what_is_no_certificate_and_no_key_is_said(
    settings: TransportSecuritySettings, tmp_path: Path
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x00\xff-----BEGIN CERTIFICATE-----\n")
    for changed, words in (
        (replace(settings, tls_certificate=garbage), "--tls-certificate .*: no certificate in PEM"),
        (replace(settings, tls_key=garbage), "--tls-key .*: no private key in PEM form"),
        (replace(settings, tls_client_ca=garbage), "--tls-client-ca .*: no certificate in PEM"),
    ):
        with pytest.raises(CannotStart, match=words):
            TlsFiles(changed)


def test_the_key_of_another_certificate_is_refused(settings: TransportSecuritySettings) -> None:
    assert settings.tls_key is not None
    settings.tls_key.write_bytes(AUTHORITY.server().key)
    with pytest.raises(CannotStart, match="it is not the key of the first certificate"):
        TlsFiles(settings)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(
    settings: TransportSecuritySettings,
) -> None:
    assert settings.tls_key is not None
    key = load_pem_private_key(settings.tls_key.read_bytes(), None)
    form = Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    settings.tls_key.write_bytes(key.private_bytes(*form))
    with pytest.raises(CannotStart, match="it has a password, which cannot be entered here"):
        TlsFiles(settings)


def test_a_key_that_everybody_may_read_is_told(settings: TransportSecuritySettings) -> None:
    assert settings.tls_key is not None
    settings.tls_key.chmod(0o644)
    with capture_logs() as lines:
        TlsFiles(settings)
    assert [each["log_level"] for each in lines] == ["warning"]


def test_a_certificate_is_late_when_a_tenth_of_its_life_is_left(
    settings: TransportSecuritySettings,
) -> None:
    now = datetime.now(UTC)
    day = timedelta(days=1)
    material = replace(
        TlsFiles(settings).material, begins=now - 90 * day, ends=now + 10 * day + day
    )
    assert lateness(material, now) is None
    assert "and is not renewed yet" in str(lateness(material, now + day))
    assert "clients reject it; renew it" in str(lateness(material, now + 11 * day))
    assert "not valid before" in str(lateness(material, now - 91 * day))


def test_an_expired_certificate_is_a_fault_and_no_reason_not_to_start(
    settings: TransportSecuritySettings, tmp_path: Path
) -> None:
    """The next one may be on its way, and comes without a restart."""
    AUTHORITY.server(since=timedelta(days=9), lasts=-timedelta(days=1)).write(tmp_path)
    (fault,) = TlsFiles(settings).faults()
    assert (fault.kind, fault.subject) == ("certificate", str(settings.tls_certificate))


def test_a_key_or_a_ca_alone_would_be_passed_over_and_is_an_error(
    settings: TransportSecuritySettings,
) -> None:
    with pytest.raises(CannotStart, match=r"--tls-key .*: TLS also needs --tls-certificate"):
        tls_files(replace(settings, tls_certificate=None))
    with pytest.raises(CannotStart, match=r"--tls-client-ca ca: TLS also needs --tls-certificate"):
        tls_files(TransportSecuritySettings(tls_client_ca=Path("ca")))
    assert tls_files(TransportSecuritySettings()) is None
