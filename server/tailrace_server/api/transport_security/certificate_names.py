"""The names in a client's certificate, in one form for gRPC and HTTP, by which identities are checked.

::

    cn:reports                  common name of the subject
    dns:reports.example.com     alternative names, of the three kinds that identify a program or a person
    uri:spiffe://example/reports
    email:reports@example.com

TLS has already verified the certificate. Without a CA for clients, no certificate is requested and there are no
names. The library that reads certificates is loaded only when the first certificate comes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import grpc.aio

CERTIFICATE_NAMES: Final = "tailrace.certificate_names"
"""Key of the names in the scope of an HTTP application; missing if there are no names."""

_GRPC_PEM: Final = "x509_pem_cert"
_KEPT: Final = 1024
"""Most certificates whose names are cached, since the names are needed for each request of a connection."""


def names_over_http(scope: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in the certificate of a request's or WebSocket's client."""
    names: tuple[str, ...] = scope.get(CERTIFICATE_NAMES, ())
    return names


def names_over_grpc(context: grpc.aio.ServicerContext[Any, Any]) -> tuple[str, ...]:
    """Return the names in the certificate of a call's client."""
    found = tuple(context.auth_context().get(_GRPC_PEM, ()))
    return _of_pem(found[0]) if found else ()


def names_of_transport(transport: Any) -> tuple[str, ...]:
    """Return the names in the certificate of an asyncio connection's client."""
    tls = transport.get_extra_info("ssl_object")
    der = None if tls is None else tls.getpeercert(binary_form=True)
    return () if der is None else _of_der(der)


@lru_cache(_KEPT)
def _of_pem(data: bytes) -> tuple[str, ...]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    return _of_der(x509.load_pem_x509_certificate(data).public_bytes(Encoding.DER))


@lru_cache(_KEPT)
def _of_der(data: bytes) -> tuple[str, ...]:
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(data)
    names = [
        f"cn:{each.value!s}"
        for each in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    ]
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return tuple(names)
    for prefix, kind in (
        ("dns", x509.DNSName),
        ("uri", x509.UniformResourceIdentifier),
        ("email", x509.RFC822Name),
    ):
        names += [f"{prefix}:{value}" for value in others.get_values_for_type(kind)]
    return tuple(names)
