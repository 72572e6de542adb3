"""By which hosts a request may name a listener, so that no page reads it by a name of its own.

A page at ``evil.example`` may have that name resolve to 127.0.0.1 a moment later (DNS rebinding). Then the
browser takes our answers for the page's own. Its requests still say ``Host: evil.example``, by which they are
known. Names that are never such a page's: addresses, ``localhost``, the name that the listener is bound to, and
the machine's. Who sends no ``Host`` is no browser.
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
    """The hosts that are ours."""

    def __init__(self, bound: str, named: Iterable[str]) -> None:
        """Begin with what is always ours.

        Args:
            bound: The host that the listener is bound to.
            named: Further names; ``*.example.com`` for all below one, ``*`` for any.
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
        """Return whether a ``Host`` is one of ours, whatever its port."""
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
