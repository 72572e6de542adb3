"""Parser of conditions in SQL: sqlglot parses the text, and this module accepts a small part of the language.

Each comparison is between one column and values. Names of columns are case-sensitive, and need double quotes if
they are not plain words. ``:name`` is a parameter. The syntax is that of PostgreSQL.

The nodes of sqlglot's trees and their children refer to each other. Python frees such cycles only in a full
collection of garbage, which the server runs seldom. So ``ParsedTrees`` breaks the cycles of a text's trees at
the end of the block that uses them, also after an error.
"""

from __future__ import annotations

import re
import traceback
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from sqlglot import Dialect, TokenType, exp
from sqlglot.errors import ParseError, SqlglotError

from tailrace_server.filters.tree import (
    ColumnName,
    Comparison,
    ConditionRefused,
    Constant,
    Distinction,
    Family,
    Junction,
    Likeness,
    Membership,
    Negation,
    NullTest,
    Operator,
    Parameter,
    TermCount,
    refuse_deep,
    refuse_long,
    refused,
    too_deep,
)

if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

    from tailrace_server.filters.tree import Condition, Place, Value

_E = TypeVar("_E", bound=exp.Expr)


class ParsedTrees:
    """A parser as a context manager; the trees that it has returned become invalid at the end of its block."""

    def __init__(self, dialect: Dialect) -> None:
        """Create a parser for a dialect."""
        self._parser = _parser_class(dialect.parser_class)(dialect=dialect)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _take_apart(self._parser.made)

    def parse(self, tokens: list[Token], text: str) -> list[exp.Expr | None]:
        """Parse the statements of a text; one tree for each statement.

        Args:
            tokens: The tokens of the text.
            text: The text, for errors.

        Raises:
            SqlglotError, RecursionError: The text cannot be parsed.
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
    """Return a subclass of a dialect's parser that collects all nodes that it creates, in ``made``."""

    class Parser(base):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.made: list[exp.Expr] = []

        def expression(self, instance: _E, *rest: Any, **more: Any) -> _E:
            # Nodes that the parser drops again are collected too: they are in reference cycles as well.
            self.made.append(instance)
            found: _E = super().expression(instance, *rest, **more)
            return found

    return Parser


def sql_text(tree: exp.Expr, dialect: str) -> str:
    """Return the text of a tree without changing the tree."""
    copied = tree.copy()  # `sql` would make a copy too, but leave it to the garbage collector
    try:
        return copied.sql(dialect=dialect, copy=False)
    finally:
        _take_apart([copied])


def _take_apart(nodes: list[exp.Expr]) -> None:
    """Remove all references between nodes, and between their parents and children; empties the list."""
    while nodes:
        node = nodes.pop()
        if node.parent is not None:  # it may be a copy, which is not in the parser's list
            nodes.append(node.parent)
        for value in node.args.values():
            below = value if isinstance(value, list) else (value,)
            nodes.extend(each for each in below if isinstance(each, exp.Expr))
        node.args, node.parent = {}, None


_SHOWN_MAX: Final = 40
_DIALECT: Final = Dialect.get_or_raise("postgres")
_OPENING: Final = ("'", '"', "/*")
_PIECES: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|/\*.*?\*/|--[^\n]*|['"]|/\*""", re.DOTALL
)
"""Matches quoted texts and comments, and the opening of one that is not closed."""
_OPERATORS: Final[dict[type[exp.Expr], Operator]] = {
    exp.EQ: Operator.EQUAL,
    exp.NEQ: Operator.UNEQUAL,
    exp.LT: Operator.LESS,
    exp.LTE: Operator.LESS_OR_EQUAL,
    exp.GT: Operator.GREATER,
    exp.GTE: Operator.GREATER_OR_EQUAL,
}
_TURNED: Final = {
    Operator.LESS: Operator.GREATER,
    Operator.LESS_OR_EQUAL: Operator.GREATER_OR_EQUAL,
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_OR_EQUAL: Operator.LESS_OR_EQUAL,
}
"""Operator → the operator with exchanged sides, if it is another one."""
_FAMILIES: Final = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE"), Family.NUMBER),
    **dict.fromkeys(("DECIMAL", "BIGDECIMAL"), Family.NUMBER),
    **dict.fromkeys(("CHAR", "NCHAR", "VARCHAR", "NVARCHAR", "TEXT", "UUID"), Family.TEXT),
    "BOOLEAN": Family.BOOLEAN,
    "DATE": Family.DATE,
    "TIME": Family.TIME,
    "TIMESTAMP": Family.TIMESTAMP,
    "TIMESTAMPTZ": Family.INSTANT,
}
"""Type that a value may be cast to → its family."""
_WORDS: Final = {TokenType.DAMP: "AND", TokenType.DPIPE: "OR"}
"""Operators of other languages → the SQL word, for errors."""
_WHAT_THERE_IS: Final = (
    "a filter has comparisons, IN, BETWEEN, LIKE, IS NULL, IS DISTINCT FROM, AND, OR and NOT"
)


def parse(text: str) -> Condition:
    """Parse the text of a condition; takes some 30 µs for each term.

    Raises:
        ConditionRefused: The text is too long, is not valid SQL, or uses a part of SQL that conditions do not
            have. The error has the place.
    """
    refuse_long(len(text.encode("utf-8", "surrogatepass")))
    try:
        return _read(text)
    except ParseError as error:
        told = error.errors[0]
        place = _place_of_line(text, told.get("line"), told.get("col"))
        near = f"{told.get('start_context', '')}{told.get('highlight', '')}"[-_SHOWN_MAX:]
        raise refused(place, f"the condition cannot be parsed after {near!r}") from None
    except SqlglotError as error:
        # The tokenizer's errors have no place. Their usual reason is a quote or a comment that is not closed.
        if (opened := _unclosed(text)) is not None:
            raise refused(opened, "this bracket, quote or comment is not closed") from None
        raise ConditionRefused(f"where: {error}") from None
    except RecursionError:  # raised by the parser, or by the code that reads or prints its tree
        raise too_deep() from None


def _read(text: str) -> Condition:
    tokens = _DIALECT.tokenize(text)
    for token in tokens:
        # Refuse brackets before parsing: the parser takes seconds for a few thousand brackets in a row.
        if token.token_type is TokenType.L_BRACKET:
            raise refused(token.start, f"there is nothing in square brackets; {_WHAT_THERE_IS}")
        if (word := _WORDS.get(token.token_type)) is not None:
            raise refused(token.start, f"{token.text} is not supported: write {word}")
    with ParsedTrees(_DIALECT) as trees:
        statements = trees.parse(tokens, text)
        if len(statements) != 1 or statements[0] is None:
            raise ConditionRefused(f"where: give one condition; {_WHAT_THERE_IS}")
        return _ConditionReader().condition(statements[0], 0)


def _unclosed(text: str) -> int | None:
    """Return the place of a quote or a comment that is not closed; None if all are closed."""
    return next((each.start() for each in _PIECES.finditer(text) if each[0] in _OPENING), None)


def _place_of_line(text: str, line: object, column: object) -> int:
    """Convert line and column, counted from 1 as in the parser's errors, to a place in the text."""
    if not isinstance(line, int) or not isinstance(column, int):
        return 0
    before = text.split("\n")[: line - 1]
    return sum(len(each) + 1 for each in before) + max(column - 1, 0)


def _place(node: exp.Expr, near: Place = 0) -> Place:
    """Return the place of an expression; ``near`` if sqlglot has no place for any of its tokens."""
    places = (each.meta.get("start") for each in node.walk())
    return min((place for place in places if place is not None), default=near)


class _ConditionReader:
    """Converts sqlglot's tree of one text and counts its terms, whose number is bounded."""

    def __init__(self) -> None:
        self._terms = TermCount()

    def condition(self, node: exp.Expr, depth: int) -> Condition:
        """Convert an expression to a condition; raises like ``parse``."""
        refuse_deep(depth)
        within = partial(self.condition, depth=depth + 1)
        match node:
            case exp.Paren():
                return within(node.this)
            case exp.And() | exp.Or():
                return Junction(isinstance(node, exp.And), tuple(map(within, _parts(node))))
            case exp.Not():
                return Negation(within(node.this))
            case exp.Column():
                return Comparison(self._column(node), Operator.EQUAL, _TRUE)
        found = self._leaf(node, depth)
        return Negation(found) if node.args.get("negate") else found

    def _leaf(self, node: exp.Expr, depth: int) -> Condition:
        if (operator := _OPERATORS.get(type(node))) is not None:
            # A comparison may have its column on either side: put
            # it on the left, and turn the operator if needed.
            column, value = node.this, node.expression
            if isinstance(_bare(value), exp.Column) and not isinstance(_bare(column), exp.Column):
                column, value = value, column
                operator = _TURNED.get(operator, operator)
            named = self._column(column)
            return Comparison(named, operator, self._value(value, named.place))
        match node:
            case exp.In() if node.expressions and not node.args.get("query"):
                column = self._column(node.this)
                values = tuple(self._value(each, column.place) for each in node.expressions)
                return Membership(column, values)
            case exp.Between() if not node.args.get("symmetric"):
                column = self._column(node.this)
                low, high = (self._value(node.args[name], column.place) for name in ("low", "high"))
                return Junction(
                    True,
                    (
                        Comparison(column, Operator.GREATER_OR_EQUAL, low),
                        Comparison(column, Operator.LESS_OR_EQUAL, high),
                    ),
                )
            case exp.In() if not node.args.get("query"):
                raise refused(_place(node), "IN takes values in brackets: IN ('paid', 'sent')")
            case exp.Escape():
                found = self.condition(node.this, depth + 1)
                return self._escaped(found, node.expression)
            case exp.Like() | exp.ILike():
                column = self._column(node.this)
                pattern = self._value(node.expression, column.place)
                return Likeness(column, pattern, isinstance(node, exp.ILike), "\\")
            case exp.NullSafeNEQ() | exp.NullSafeEQ():
                column = self._column(node.this)
                distinct = Distinction(column, self._value(node.expression, column.place))
                return distinct if isinstance(node, exp.NullSafeNEQ) else Negation(distinct)
            case exp.Is():
                column = self._column(node.this)
                if isinstance(node.expression, exp.Null):
                    return NullTest(column)
                if isinstance(node.expression, exp.Boolean):
                    value = self._value(node.expression, column.place)
                    return Negation(Distinction(column, value))
        raise refused(
            _place(node), f"{_shown(node)} is not a supported condition; {_WHAT_THERE_IS}"
        )

    def _escaped(self, found: Condition, escape: exp.Expr) -> Condition:
        """Return a LIKE condition with its escape character."""
        # sqlglot puts LIKE inside of ESCAPE, so the condition was
        # already converted with the default escape character.
        text = escape.this if isinstance(escape, exp.Literal) and escape.is_string else ""
        negated = isinstance(found, Negation)
        part = found.part if isinstance(found, Negation) else found
        if not isinstance(part, Likeness) or len(text) != 1:
            raise refused(_place(escape), "ESCAPE needs one character, after a LIKE")
        likeness = Likeness(part.column, part.pattern, part.ignores_case, text)
        return Negation(likeness) if negated else likeness

    def _column(self, node: exp.Expr) -> ColumnName:
        found = _bare(node)
        if not isinstance(found, exp.Column) or not isinstance(found.this, exp.Identifier):
            raise refused(
                _place(node), f"{_shown(node)} is not a column; compare a column with a value"
            )
        if found.args.get("table") is not None:
            raise refused(_place(node), f"{_shown(node)}: write the column without its table")
        self._count(node)
        return ColumnName(found.name, _place(found))

    def _value(self, node: exp.Expr, near: Place) -> Value:
        """Convert a literal, a cast or a parameter to a value; ``near`` is its place if sqlglot has none."""
        node = _bare(node)
        place = _place(node, near)
        self._count(node)
        match node:
            case exp.Null():
                return Constant(None, None, place)
            case exp.Boolean():
                return Constant("true" if node.this else "false", Family.BOOLEAN, place)
            case exp.Literal():
                return Constant(node.this, None if node.is_string else Family.NUMBER, place)
            case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
                return Constant(f"-{node.this.this}", Family.NUMBER, place)
            case exp.Placeholder() if node.this:
                return Parameter(str(node.this), None, place)
            case exp.Cast():
                family = _FAMILIES.get(
                    node.to.this.name if isinstance(node.to.this, exp.DType) else ""
                )
                # A cast of a value sets its family; any other cast is refused below.
                value = self._value(node.this, place)
                if family is not None and isinstance(value, Parameter):
                    return Parameter(value.name, family, value.place)
                if family is not None and isinstance(value, Constant):
                    return Constant(value.text, family if value.text is not None else None, place)
        hint = "write a literal, or a parameter as :name"
        if isinstance(node, exp.Column):
            hint = "write a text in single quotes; columns cannot be compared with each other"
        raise refused(place, f"{_shown(node)} is not a value; {hint}")

    def _count(self, node: exp.Expr) -> None:
        self._terms.count(_place(node))


_TRUE: Final = Constant("true", Family.BOOLEAN)


def _bare(node: exp.Expr) -> exp.Expr:
    """Return an expression without the brackets around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _parts(node: exp.Expr) -> list[exp.Expr]:
    """Return the operands of a chain of AND or OR in their order.

    sqlglot nests ``a AND b AND c`` to the left. The chain may be long, so this uses a loop, not recursion.
    """
    kind, found = type(node), []
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, kind):
            waiting += (each.expression, each.this)
        else:
            found.append(each)
    return found


def _shown(node: exp.Expr) -> str:
    text = sql_text(node, "postgres")
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
