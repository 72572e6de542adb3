"""Addresses as quotas count them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

_HOST_BITS = 64
"""Of an IPv6 address: whoever has one has the whole block, and a new address for each connection."""


def block_of(address: str) -> str:
    """Return an IPv4 address as it is, the /64 of an IPv6 one, and any other text unchanged."""
    try:
        found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        network = int(found) >> _HOST_BITS << _HOST_BITS
        return f"{IPv6Address(network)}/{128 - _HOST_BITS}"
    return str(found)
