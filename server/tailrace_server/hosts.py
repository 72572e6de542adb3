"""The host names that a request may use for a listener: a defence against DNS rebinding.

A page at ``evil.example`` may let that name resolve to 127.0.0.1 after the page was loaded. Then the browser
takes the answers of this server for answers of the page's own site. The page's requests still have
``Host: evil.example``, so the server refuses them. Always accepted: addresses, ``localhost``, the name that the
listener is bound to, the name of the machine, and a request without ``Host``, which no browser sends.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_AUTHORITY: Final = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]*)?", re.ASCII)


class Hosts:
    """The host names that a listener accepts."""

    def __init__(self, bound: str, named: Iterable[str]) -> None:
        """Accept the names of this machine and of the listener, and further names.

        Args:
            bound: The host that the listener is bound to.
            named: Further names; ``*.example.com`` for all names below a domain, ``*`` for any name.
        """
        self._names = {"localhost", _plain(bound), _plain(socket.gethostname())}
        self._suffixes = [".localhost"]
        self._any = False
        for each in named:
            if each == "*":
                self._any = True
            elif each.startswith("*."):
                self._suffixes.append(_plain(each[1:]))
            else:
                self._names.add(_plain(each))

    def has(self, authority: str) -> bool:
        """Return True if a ``Host`` is accepted, with any port; an empty one is accepted."""
        found = _AUTHORITY.fullmatch(authority.strip())
        if self._any or not authority:
            return True
        if found is None:
            return False
        name = _plain(found[1] if found[1] is not None else found[2])
        return name in self._names or name.endswith(tuple(self._suffixes)) or _is_address(name)


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
