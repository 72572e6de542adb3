"""Which pages may read from the server, besides its own: by their origin, as the setting ``ws_origins`` has it.

::

    https://shop.example.com:8443     that origin
    https://*.example.com             any name below, of one more label or several, never example.com itself
    *                                 every page
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(\*\.)?([^\s/?#*@]+)", re.ASCII)
_LABELS: Final = r"(?:[a-z0-9_-]+\.)+"


class Origins:
    """The origins that are allowed."""

    def __init__(self, listed: Iterable[str]) -> None:
        """Read them.

        Raises:
            ValueError: One is no origin; says what is.
        """
        patterns = []
        for origin in listed:
            found = _ORIGIN.fullmatch(origin.lower())
            if origin == "*":
                patterns.append(".*")
            elif found is None:
                raise ValueError(
                    f"{origin!r} is no origin such as https://example.org:8443, nor https://*.example.org for "
                    "all names below one, nor *"
                )
            else:
                labels = _LABELS if found[2] else ""
                patterns.append(f"{re.escape(found[1])}://{labels}{re.escape(found[3])}")
        self.any = ".*" in patterns
        """Whether every page is allowed."""
        self.pattern = re.compile("|".join(patterns) or r"(?!)", re.ASCII)
        """Matches the whole of each origin that is allowed."""

    def has(self, origin: str) -> bool:
        """Return whether an origin is allowed, as a browser writes it."""
        return self.pattern.fullmatch(origin) is not None
