"""The client's address as a proxy reports it, accepted from trusted proxies only.

::

    Forwarded: for=203.0.113.7;proto=https;host=db.example.com          RFC 7239
    X-Forwarded-For: 203.0.113.7    X-Forwarded-Proto: https    X-Forwarded-Host: db.example.com

Each proxy appends the address of its own client. So the list is read from its end while it names trusted
proxies: the first other address is the client's. The client itself may have written the elements before that
one, so they are ignored. If an element is malformed, the proxy that made the connection counts as the client.

Only the form that the settings name is read. A proxy that writes one form passes the other one unchanged, so a
client could forge the other one.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_PAIR: Final = re.compile(
    r'\s*([A-Za-z]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;,"]+))\s*(?:([;,])|$)', re.ASCII
)
"""One ``name=value`` pair of an element, and the separator after it: RFC 7239, 4."""
_LAST_CHARACTERS: Final = 2_048
"""Characters that are read from the end of a header; a client wrote the earlier ones."""
_NODE: Final = re.compile(
    r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+)|([0-9A-Fa-f:]+:[0-9A-Fa-f:.]*))(?::([0-9]{1,5}))?", re.ASCII
)
_HOST: Final = re.compile(
    r"[A-Za-z0-9._-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?", re.ASCII
)
_PROTOS: Final = ("http", "https")


_FORWARDED: Final = frozenset({b"forwarded"})
_X_FORWARDED: Final = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})


class TrustedProxies:
    """The set of trusted proxies, and the headers that they write."""

    def __init__(self, listed: Iterable[str], *, rfc7239: bool = False) -> None:
        """Parse addresses and networks, such as ``10.0.0.7`` and ``10.0.0.0/8``.

        Args:
            listed: The addresses and networks of the proxies.
            rfc7239: True if the proxies write ``Forwarded``; False for ``X-Forwarded-For`` and the like.

        Raises:
            ValueError: A text is neither an address nor a network.
        """
        self.headers = _FORWARDED if rfc7239 else _X_FORWARDED
        self._networks = []
        for each in listed:
            try:
                self._networks.append(ipaddress.ip_network(each))
            except ValueError:
                raise ValueError(
                    f"{each!r} is not an address such as 10.0.0.7, or a network such as 10.0.0.0/8 with "
                    "a host part of 0"
                ) from None

    def __bool__(self) -> bool:
        """Return True if there is a trusted proxy."""
        return bool(self._networks)

    def has(self, address: str) -> bool:
        """Return True if an address is that of a trusted proxy."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in each for each in self._networks)


NO_PROXIES: Final = TrustedProxies(())
"""The empty set: no proxy is trusted."""


class Forwarded(NamedTuple):
    """A proxy's report about its client; a field is None if its value is missing or malformed."""

    address: str | None
    port: int
    proto: str | None
    host: str | None


def client_of(
    peer: str, headers: Iterable[tuple[bytes, bytes]], trusted: TrustedProxies
) -> Forwarded | None:
    """Return the report about a request's client; None if the peer is not trusted, or reports nothing.

    Args:
        peer: The address that the request came from.
        headers: The headers of the request, with names in lower case; headers of one name in their order.
        trusted: The trusted proxies.
    """
    # Any client can send these headers, so they count only from a trusted proxy.
    if not trusted.has(peer):
        return None
    named: dict[bytes, list[str]] = {}
    for name, value in headers:
        if name in trusted.headers:
            named.setdefault(name, []).append(value.decode("latin-1"))
    if not named:
        return None
    joined = {name: ",".join(values)[-_LAST_CHARACTERS:] for name, values in named.items()}
    hops = _forwarded(joined[b"forwarded"]) if b"forwarded" in joined else _x_forwarded(joined)
    found = None
    # From the nearest proxy outwards, as long as the reported client is itself a trusted proxy.
    for hop in reversed(hops):
        found = hop
        if hop.address is None or not trusted.has(hop.address):
            break
    return found


def _forwarded(text: str) -> list[Forwarded]:
    """Return the elements of a ``Forwarded`` header after the last malformed one."""
    hops: list[Forwarded] = []
    pairs: dict[str, str] = {}
    place = 0
    while place < len(text):
        found = _PAIR.match(text, place)
        if found is None:
            # A cut element, or one that a client wrote. Drop it; the next comma begins an element of another
            # proxy.
            comma = text.find(",", place)
            if comma < 0:
                return []
            hops, pairs, place = [], {}, comma + 1
            continue
        name, quoted, plain, behind = found.groups()
        pairs[name.lower()] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        place = found.end()
        if behind != ";":
            hops.append(_hop(pairs.get("for"), pairs.get("proto"), pairs.get("host")))
            pairs = {}
    return hops


def _x_forwarded(headers: dict[bytes, str]) -> list[Forwarded]:
    """Return an element for each address. For scheme and host a proxy appends a value, or sets one for all."""
    addresses = _listed(headers.get(b"x-forwarded-for", ""))
    protos = _listed(headers.get(b"x-forwarded-proto", ""))
    hosts = _listed(headers.get(b"x-forwarded-host", ""))
    count = max(1, len(addresses))
    return [
        _hop(
            addresses[place] if addresses else None,
            _of_hop(protos, place, count),
            _of_hop(hosts, place, count),
        )
        for place in range(count)
    ]


def _of_hop(values: list[str], place: int, count: int) -> str | None:
    """Return the value of a hop if each has one; else the last value, since only that is a proxy's."""
    if not values:
        return None
    return values[place] if len(values) == count else values[-1]


def _listed(text: str) -> list[str]:
    return [each for each in map(str.strip, text.split(",")) if each]


def _hop(node: str | None, proto: str | None, host: str | None) -> Forwarded:
    address, port = None, 0
    found = _NODE.fullmatch(node) if node is not None else None
    if found is not None:
        try:
            address = str(ipaddress.ip_address(found[1] or found[2] or found[3]))
            port = int(found[4] or 0)
        except ValueError:
            pass
    proto = None if proto is None else proto.lower()
    return Forwarded(
        address,
        port,
        proto if proto in _PROTOS else None,
        host if host is not None and _HOST.fullmatch(host) else None,
    )
