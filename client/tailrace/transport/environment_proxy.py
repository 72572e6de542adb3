"""The proxy that the environment names, through which gRPC goes without a word.

Core takes the first of three variables that is set, and goes around the proxy for hosts that ``no_proxy`` ends
with, or whose network it names. Here the same is decided once more, so that an error can say that there is a
proxy between; and a loopback address, which no proxy can reach for us, is never asked for through one.

Source: grpc/grpc, doc/environment_variables.md; src/core/handshaker/http_connect/http_proxy_mapper.cc.
"""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS: Final = ("no_grpc_proxy", "no_proxy")


class EnvironmentProxy(NamedTuple):
    """A proxy between a client and its server."""

    variable: str
    """The variable that names it."""
    address: str
    """``host:port``; never the password that may precede it."""
    host: str
    """The host that is asked for through it."""

    def __str__(self) -> str:
        """Name it, and how to go around it."""
        return (
            f"the proxy {self.address} that the variable {self.variable} names (no_proxy={self.host} goes "
            "without it)"
        )


def proxy_to(host: str, environment: Mapping[str, str] = os.environ) -> EnvironmentProxy | None:
    """Return the proxy through which a host is reached; None without one, and for a name that has no host."""
    if not host or is_loopback(host):
        return None
    variable = next((each for each in _VARIABLES if environment.get(each)), None)
    if variable is None:
        return None
    try:
        parts = urlsplit(environment[variable])
    except ValueError:
        return None
    if parts.scheme != "http" or not parts.hostname:
        return None  # core says on stderr that it cannot use it, and goes without
    around = next((environment[each] for each in _EXCEPTIONS if environment.get(each)), "")
    if any(_covers(each.strip(), host) for each in around.split(",") if each.strip()):
        return None
    return EnvironmentProxy(variable, parts.netloc.rpartition("@")[2], host)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def _covers(entry: str, host: str) -> bool:
    """Return whether an entry of ``no_proxy`` names a host: its end, or a network that it lies in."""
    if host.lower().endswith(entry.lower()):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
