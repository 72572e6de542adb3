"""A connection to a listener of our own, by which a face learns that it still answers."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tailrace_server.api.transport_security.files import TlsFiles
    from tailrace_server.units import Address


@asynccontextmanager
async def opened(
    address: Address, tls: TlsFiles | None, protocol: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]:
    """Connect, and drop the connection at the end of the block.

    If clients must show a certificate, no request is possible, as we have none. The listener says so in the
    handshake, and that is an answer. Then the streams are None.

    Args:
        address: Where this machine reaches the listener.
        tls: Of the listener; None speaks plain text.
        protocol: What is spoken inside of TLS, as ALPN names it.

    Raises:
        OSError: Nothing listens, or the TLS handshake failed.
    """
    try:
        streams = await asyncio.open_connection(
            *address, ssl=None if tls is None else _trusting(protocol)
        )
    except ssl.SSLError:
        # TLS 1.2 tells it within the handshake. With 1.3 we hear of it after that, and do not wait for it.
        if tls is None or not tls.client_certificates:
            raise
        yield None
        return
    try:
        yield None if tls is not None and tls.client_certificates else streams
    finally:
        streams[1].transport.abort()


def _trusting(protocol: str) -> ssl.SSLContext:
    """Return a context that takes any certificate: it is ours, and its names are those that clients use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    return context
