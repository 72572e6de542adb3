"""The condition of a view, as SQL: its columns under the names that they have where it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp

if TYPE_CHECKING:
    from collections.abc import Callable


def with_columns(condition: str, named: Callable[[str, bool], str]) -> exp.Expr:
    """Return a condition with other names for its columns.

    Args:
        condition: A filter's text.
        named: Given a name and whether it is quoted, returns the one to write; may raise.
    """
    tree = sqlglot.parse_one(condition, read="postgres")
    for column in list(tree.find_all(exp.Column)):
        if isinstance(column.this, exp.Identifier):
            name = named(column.name, bool(column.this.args.get("quoted")))
            column.set("this", exp.to_identifier(name, quoted=True))
    return tree
