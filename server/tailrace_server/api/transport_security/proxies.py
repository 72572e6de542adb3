"""The client's address as a proxy states it, accepted from trusted proxies only.

::

    Forwarded: for=203.0.113.7;proto=https;host=db.example.com          RFC 7239
    X-Forwarded-For: 203.0.113.7    X-Forwarded-Proto: https    X-Forwarded-Host: db.example.com

Each proxy adds, at the end, the address of its own client. So the list is read from its end, as long as
it names proxies that are trusted: the first other address is the client's. The client itself wrote the elements
before it. An element without a meaning is skipped: then the proxy counts as the client.

Only one of the two forms is read, the one that the settings name. A proxy that writes one lets the other pass,
and by that any client could say of itself what it likes.
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
"""A pair of an element, and the text behind it: RFC 7239, 4."""
_LAST_CHARACTERS: Final = 2_048
"""The number of elements to look at, from the end; a client wrote the earlier ones."""
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
    """Addresses of proxies."""

    def __init__(self, listed: Iterable[str], *, rfc7239: bool = False) -> None:
        """Read addresses and networks, as ``10.0.0.7`` and ``10.0.0.0/8``.

        Args:
            listed: Of the proxies.
            rfc7239: Whether they write ``Forwarded``; else ``X-Forwarded-For`` and its like.

        Raises:
            ValueError: One is neither.
        """
        self.headers = _FORWARDED if rfc7239 else _X_FORWARDED
        self._networks = []
        for each in listed:
            try:
                self._networks.append(ipaddress.ip_network(each))
            except ValueError:
                raise ValueError(
                    f"{each!r} is no address as 10.0.0.7, nor a network as 10.0.0.0/8 whose host part is 0"
                ) from None

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._networks)

    def has(self, address: str) -> bool:
        """Return whether an address is one of theirs."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in each for each in self._networks)


NO_PROXIES: Final = TrustedProxies(())
"""No proxy is trusted."""


class Forwarded(NamedTuple):
    """A proxy's statement about its client; None if it has no meaning."""

    address: str | None
    port: int
    proto: str | None
    host: str | None


def client_of(
    peer: str, headers: Iterable[tuple[bytes, bytes]], trusted: TrustedProxies
) -> Forwarded | None:
    """Return what is said of a request's client; None where its peer is not to be believed, or says nothing.

    Args:
        peer: Address that the request came from.
        headers: Of the request, names in small letters; those of one name in their order.
        trusted: Whom to believe.
    """
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
    for hop in reversed(hops):
        found = hop
        if hop.address is None or not trusted.has(hop.address):
            break
    return found


def _forwarded(text: str) -> list[Forwarded]:
    """Return the elements of a header; none where it does not follow the grammar up to its end."""
    hops: list[Forwarded] = []
    pairs: dict[str, str] = {}
    place = 0
    while place < len(text):
        found = _PAIR.match(text, place)
        if found is None:
            # It may be cut, or a client's: what stands behind the next comma is another's.
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
    """Return one for each address; of the others each proxy adds one, or sets one for all."""
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
    """Return the value of a hop, where there is one for each; else the last, since only that is a proxy's."""
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
