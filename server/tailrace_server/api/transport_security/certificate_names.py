"""The names in a client's certificate, in one form for gRPC and HTTP, for the check of identities.

::

    cn:reports                  common name of the subject
    dns:reports.example.com     the three kinds of alternative names that name a program or a person
    uri:spiffe://example/reports
    email:reports@example.com

Whether a certificate may be believed was decided by TLS: without a CA for clients none is asked for, and the
names here are none. The library that reads certificates is loaded with the first one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import grpc.aio

CERTIFICATE_NAMES: Final = "tailrace.certificate_names"
"""Key of the scope under which an HTTP application finds them; it is not there where there are none."""

_GRPC_PEM: Final = "x509_pem_cert"
_KEPT: Final = 1024
"""Certificates whose names are kept: one of each connection is asked for with each of its requests."""


def names_over_http(scope: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the client of a request or a WebSocket."""
    names: tuple[str, ...] = scope.get(CERTIFICATE_NAMES, ())
    return names


def names_over_grpc(context: grpc.aio.ServicerContext[Any, Any]) -> tuple[str, ...]:
    """Return the names of the client of a call."""
    found = tuple(context.auth_context().get(_GRPC_PEM, ()))
    return _of_pem(found[0]) if found else ()


def names_of_transport(transport: Any) -> tuple[str, ...]:
    """Return the names of the client of a connection of the event loop's."""
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
