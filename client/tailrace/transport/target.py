"""Addresses of servers, as `connect` and the commands accept them, and proxies on the way.

::

    localhost              127.0.0.1:7411        [::1]:7411     ::1          port 7411 by default
    grpc://host:7411       http://host:7411      plain text
    grpcs://host           https://host          TLS, port 443 by default
    dns:///host:7411       unix:/run/socket  …   gRPC's own names, passed to gRPC unchanged

gRPC silently uses a proxy from the environment: from the first of three variables that is set, unless
``no_proxy`` matches the end of the host name or its network. This module repeats that decision, so that an
error can name the proxy. It also excludes loopback addresses, which a proxy cannot reach for this machine.

Source: grpc/grpc, doc/environment_variables.md; src/core/handshaker/http_connect/http_proxy_mapper.cc.
"""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORT: Final = 7411
"""The port of ``tailrace serve --grpc``."""
_TLS_PORT: Final = 443
_PORT_LARGEST: Final = 65_535
_PLAIN: Final = ("grpc", "http")
_TLS: Final = ("grpcs", "https")
_OF_GRPC: Final = re.compile(r"(?:dns|unix|unix-abstract|vsock|ipv4|ipv6|xds):\S+", re.ASCII)
_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.ASCII | re.DOTALL)
_ADDRESS: Final = re.compile(r"(?:\[([^\[\]\s]+)\]|([^:\[\]\s/?#@,]+))(?::([0-9]*))?", re.ASCII)
_FORMS: Final = "write the server's address as host:port, such as 127.0.0.1:7411 or [::1]:7411"


class Target(NamedTuple):
    """The address of a server, in the form that gRPC needs."""

    name: str
    """The name that gRPC resolves and connects to."""
    host: str
    """Host in the name, without brackets; empty for gRPC's own names."""
    tls: bool = False
    """True if the address selects TLS by ``https://`` or ``grpcs://``."""

    @classmethod
    def parse(cls, text: object, *, tls: bool = False) -> Target:
        """Parse the address of a server; ``tls`` is True if the caller requests TLS.

        Raises:
            InvalidRequest: ``text`` is not an address, or selects plain text although ``tls`` is True. The
                error has the correct form.
        """
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"{text!r}: {_FORMS}")
        if (scheme := _SCHEME.fullmatch(text)) is not None and not _OF_GRPC.fullmatch(text):
            return cls._of_url(text, scheme[1].lower(), scheme[2], tls=tls)
        if _OF_GRPC.fullmatch(text):
            return cls(text, "")
        return cls._of_address(text, text, DEFAULT_PORT)

    @classmethod
    def _of_url(cls, text: str, scheme: str, rest: str, *, tls: bool) -> Target:
        if scheme not in _PLAIN + _TLS:
            raise InvalidRequest(f"{text!r}: the client speaks gRPC, not {scheme}; {_FORMS}")
        if scheme in _PLAIN and tls:
            raise InvalidRequest(
                f"{text!r}: {scheme}:// means plain text, but TLS was requested; leave one of "
                "them out"
            )
        authority, _, path = rest.partition("/")
        if path or "?" in authority or "#" in authority:
            raise InvalidRequest(f"{text!r}: a gRPC address has no path; {_FORMS}")
        if "@" in authority:
            raise InvalidRequest(
                f"{text!r}: the address has a user, which gRPC does not support; {_FORMS}"
            )
        found = cls._of_address(text, authority, _TLS_PORT if scheme in _TLS else DEFAULT_PORT)
        return found._replace(tls=scheme in _TLS)

    @classmethod
    def _of_address(cls, text: str, address: str, default: int) -> Target:
        if _is_ipv6(address):
            return cls(f"[{address}]:{default}", address)
        found = _ADDRESS.fullmatch(address)
        if found is None or found[3] == "" or (found[1] and not _is_ipv6(found[1])):
            raise InvalidRequest(f"{text!r}: {_FORMS}")
        port = (
            default if found[3] is None else int(found[3][:9])
        )  # nine digits are too large already
        if not 0 < port <= _PORT_LARGEST:
            raise InvalidRequest(f"{text!r}: {port} is not a port that can be connected to")
        return cls(
            f"[{found[1]}]:{port}" if found[1] else f"{found[2]}:{port}", found[1] or found[2]
        )


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS: Final = ("no_grpc_proxy", "no_proxy")


class EnvironmentProxy(NamedTuple):
    """A proxy between a client and its server, from the environment."""

    variable: str
    """Environment variable that names the proxy."""
    address: str
    """Address of the proxy, ``host:port``, without a user and a password."""
    host: str
    """Host of the server that is reached through the proxy."""

    def __str__(self) -> str:
        """Describe the proxy, and how to avoid it."""
        return (
            f"the proxy {self.address} from the variable {self.variable} (to bypass it: "
            f"no_proxy={self.host})"
        )


def proxy_to(host: str, environment: Mapping[str, str] = os.environ) -> EnvironmentProxy | None:
    """Return the proxy that gRPC uses for a host; None without a proxy, or if ``host`` is empty."""
    if not host or is_loopback(host):
        return None
    # The order of the variables, the exceptions and their matching are those of gRPC's core.
    variable = next((each for each in _VARIABLES if environment.get(each)), None)
    if variable is None:
        return None
    try:
        parts = urlsplit(environment[variable])
    except ValueError:
        return None
    if parts.scheme != "http" or not parts.hostname:
        return None  # gRPC's core cannot use such a proxy: it logs that and connects directly
    around = next((environment[each] for each in _EXCEPTIONS if environment.get(each)), "")
    if any(_covers(each.strip(), host) for each in around.split(",") if each.strip()):
        return None
    return EnvironmentProxy(variable, parts.netloc.rpartition("@")[2], host)


def is_loopback(host: str) -> bool:
    """Return True if a host is a loopback address or ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def _covers(entry: str, host: str) -> bool:
    """Return True if an entry of ``no_proxy`` matches the end of a host name, or its network."""
    if host.lower().endswith(entry.lower()):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
