"""Trees of sqlglot that are freed as soon as they are not needed.

A node of a tree refers to its children, and each child to its node. Python frees such objects only when its
collector walks all objects, which a server lets it do seldom. So the trees of a text are taken apart at the end
of the block that uses them, also where the text is wrong.
"""

from __future__ import annotations

import traceback
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlglot import exp
from sqlglot.errors import SqlglotError

if TYPE_CHECKING:
    from sqlglot import Dialect
    from sqlglot.tokenizer_core import Token

_E = TypeVar("_E", bound=exp.Expr)


class ParsedTrees:
    """Parses texts; what it has parsed ends with its block."""

    def __init__(self, dialect: Dialect) -> None:
        """Prepare to parse texts of a dialect."""
        self._parser = _parser_class(dialect.parser_class)(dialect=dialect)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _take_apart(self._parser.made)

    def parse(self, tokens: list[Token], text: str) -> list[exp.Expr | None]:
        """Return the trees of a text's statements, as the parser does.

        Args:
            tokens: The words of the text.
            text: The text, for errors.

        Raises:
            SqlglotError, RecursionError: The text cannot be read.
        """
        try:
            found: list[exp.Expr | None] = self._parser.parse(tokens, text)
        except (SqlglotError, RecursionError) as error:
            # The error refers to the parser's frames, and one of these to the error and to nodes.
            traceback.clear_frames(error.__traceback__)
            raise
        return found


@lru_cache
def _parser_class(base: Any) -> Any:
    """Return a dialect's parser that keeps what it makes."""

    class Parser(base):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.made: list[exp.Expr] = []

        def expression(self, instance: _E, *rest: Any, **more: Any) -> _E:
            # Also those that the parser drops again: they refer to themselves as well.
            self.made.append(instance)
            found: _E = super().expression(instance, *rest, **more)
            return found

    return Parser


def sql_text(tree: exp.Expr, dialect: str) -> str:
    """Return the text of a tree, which stays as it is."""
    copied = tree.copy()  # as `sql` would do by itself, and leave the copy to the collector
    try:
        return copied.sql(dialect=dialect, copy=False)
    finally:
        _take_apart([copied])


def _take_apart(nodes: list[exp.Expr]) -> None:
    """Remove all references of nodes, and of the nodes above and below them; empties the list."""
    while nodes:
        node = nodes.pop()
        if node.parent is not None:  # which may be one that the parser does not know any more
            nodes.append(node.parent)
        for value in node.args.values():
            below = value if isinstance(value, list) else (value,)
            nodes.extend(each for each in below if isinstance(each, exp.Expr))
        node.args, node.parent = {}, None
