"""A generator of a Python program as a source: ``tailrace ingest python package.module:function``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import InvalidRequest
from tailrace_server.pipeline.feed.source import SourceRefused, Transaction, TransactionBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from typing import Self

    from tailrace_server.pipeline.feed.source import Item


class PythonSource:
    """The items that a function yields; see `TransactionSource` for the methods."""

    def __init__(self, name: str, function: Callable[[str | None], Iterable[Item | None]]) -> None:
        """Store the function.

        Args:
            name: Name under which the log stores the position.
            function: Receives the position in the log, None at first; returns what follows it.
        """
        self._name = name
        self._function = function

    @classmethod
    def load(cls, function: str, name: str | None = None) -> Self:
        """Import a function; modules are also searched in the current folder.

        Args:
            function: ``package.module:function``.
            name: Name of the source; None: ``function``.

        Raises:
            InvalidRequest: The text has another form, or there is no such module or function.
        """
        module, _, attribute = function.partition(":")
        if not (module and attribute):
            raise InvalidRequest(f"{function!r}: write package.module:function")
        sys.path.insert(0, str(Path.cwd()))
        try:
            found = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            raise InvalidRequest(f"{function!r}: there is no module {error.name}") from error
        except AttributeError:
            raise InvalidRequest(f"{function!r}: {module} has no {attribute}") from None
        return cls(name or function, found)

    @property
    def name(self) -> str:
        """Name of the source in the log."""
        return f"python:{self._name}"

    def check(self) -> None:
        """Do nothing: the function has been imported."""

    def items(self, after: str | None) -> Generator[Item | None, None, None]:
        """Yield what the function yields.

        Raises:
            SourceRefused: A transaction is not behind the one before, or not behind the position.
        """
        for item in self._function(after):
            if isinstance(item, Transaction | TransactionBatch):
                if not self._is_behind(item.position, after):
                    raise SourceRefused(
                        f"{self.name} yields a transaction at position {item.position!r}, but it is already at "
                        f"{after!r}: yield only what follows the position that the function receives"
                    )
                after = item.position
            yield item

    def _is_behind(self, position: str, before: str | None) -> bool:
        """Return whether a position may follow another one; texts that are no numbers have no known order."""
        place, place_before = self.place(position), None if before is None else self.place(before)
        if place is None or place_before is None:
            return position != before
        return place > place_before

    def acknowledge(self, position: str) -> None:
        """Do nothing: the function reads its position from the log."""

    def lag_bytes(self) -> int | None:
        """Return None: the size of the source is unknown."""
        return None

    def place(self, position: str) -> int | None:
        """Return the position if it is a whole number."""
        return int(position) if position.isdecimal() else None
