"""A connection to a listener of this process, by which a face checks that it still answers."""

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
    """Connect, yield the streams, and drop the connection at the end of the block.

    If clients must show a certificate, the probe has none and can make no request. The listener's refusal in
    the handshake then counts as an answer, and None is yielded in place of streams.

    Args:
        address: The address at which this machine reaches the listener.
        tls: The TLS files of the listener; None for plain text.
        protocol: The protocol inside of TLS, as ALPN names it.

    Raises:
        OSError: Nothing listens, or the TLS handshake failed.
    """
    try:
        streams = await asyncio.open_connection(
            *address, ssl=None if tls is None else _trusting(protocol)
        )
    except ssl.SSLError:
        # TLS 1.2 refuses within the handshake. TLS 1.3 refuses after it, and the probe does not wait for that.
        if tls is None or not tls.client_certificates:
            raise
        yield None
        return
    try:
        yield None if tls is not None and tls.client_certificates else streams
    finally:
        streams[1].transport.abort()


def _trusting(protocol: str) -> ssl.SSLContext:
    """Return a context that accepts any certificate: it is ours, and its names need not match this address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    return context
