"""Parsing of statements into trees, within bounds: a caller can send a text as large as a message.

The parser takes 15 µs and 500 bytes a word. Its trees are freed once the statement has begun.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sqlglot import Dialect, exp
from sqlglot.errors import ParseError, SqlglotError

from tailrace.errors import InvalidRequest
from tailrace_server.filters.parsing import ParsedTrees

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlglot.tokenizer_core import Token

DUCKDB: Final = Dialect.get_or_raise("duckdb")
_BYTES_MAX: Final = 1 << 16
"""The most bytes of a statement, in UTF-8."""
_WORDS_MAX: Final = 20_000
"""The most words and signs of a statement."""
TOO_DEEP: Final = (
    "the statement cannot be parsed: its parts are nested too deeply; nest less, or use WITH"
)
_ONE: Final = (
    "give one SELECT; SHOW TABLES, VIEWS or CDC, DESCRIBE of a table, EXPLAIN of a SELECT, and CREATE, ALTER "
    "and DROP of a VIEW or CDC are also allowed"
)
_INNER: Final = (
    (re.compile(r"<Token token_type: [\w.]+, text: (.*?), line: .*?>", re.DOTALL), r"'\1'"),
    (re.compile(r"<class '(?:\w+\.)*(\w+)'>"), r"\1"),
)
"""Texts in the parser's errors that name its own classes, each with a replacement for users."""
_PIECE: Final = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'[^']*'|"[^"]*"|--[^\n]*"""
    r"""|(?P<open>/\*|\$(?:[^\W\d]\w*)?\$)|(?P<parameter>\$\w+)(?=[^\w\s$])""",
    re.DOTALL,
)
"""Quoted texts and comments, in which a dollar has no meaning, and parameters directly before another
character.
"""
_PIVOT: Final = (
    "PIVOT and UNPIVOT must follow a table: FROM product PIVOT (count(*) FOR name IN ('chair'))"
)

# The parser logs texts that it does not understand. Any caller can send such a text: it is only an error here.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


def refuse_long(text: str) -> None:
    """Raise InvalidRequest if a statement is too long to be parsed."""
    if len(text) > _BYTES_MAX or len(text.encode(errors="replace")) > _BYTES_MAX:
        raise InvalidRequest(f"the statement is longer than {_BYTES_MAX} bytes")


def words_of(text: str) -> list[Token]:
    """Return the words and signs of a statement.

    Raises:
        InvalidRequest: There are too many, or the text cannot be read.
    """
    try:
        words = DUCKDB.tokenize(text)
    except SqlglotError as error:
        reason = str(error).partition("\n")[0]
        raise InvalidRequest(f"the statement cannot be parsed: {reason}") from None
    if len(words) > _WORDS_MAX:
        raise InvalidRequest(
            f"the statement has {len(words):,} words and signs, but may have {_WORDS_MAX:,}: give a long list "
            "as a parameter, as in `id IN $ids`"
        )
    return words


def statements_of(trees: ParsedTrees, words: list[Token], text: str) -> list[exp.Expr]:
    """Return the statements in a text.

    Raises:
        ParseError, SqlglotError, RecursionError: The text cannot be read.
    """
    # The parser returns a comment after the last semicolon as one more statement.
    found = trees.parse(words, text)
    return [each for each in found if each is not None and not isinstance(each, exp.Semicolon)]


@contextmanager
def parsed(text: str) -> Iterator[exp.Query]:
    """Give a ``with`` block the tree of the one query in a text; the tree is freed when the block ends.

    Raises:
        InvalidRequest: The text is not one query that only reads.
    """
    refuse_long(text)
    text = _parameters_apart(text)
    with ParsedTrees(DUCKDB) as trees:
        yield _query_of(trees, text)


def _query_of(trees: ParsedTrees, text: str) -> exp.Query:
    try:
        found = statements_of(trees, words_of(text), text)
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        place = f"line {first.get('line')}, column {first.get('col')}"
        reason = str(first.get("description", error))
        for pattern, instead in _INNER:
            reason = pattern.sub(instead, reason)
        raise InvalidRequest(f"{place}: {reason} (near {first.get('highlight')!r})") from None
    except RecursionError:
        raise InvalidRequest(TOO_DEEP) from None
    except SqlglotError as error:
        reason = str(error).partition("\n")[0]
        raise InvalidRequest(f"the statement cannot be parsed: {reason}") from None
    if len(found) != 1:
        raise InvalidRequest(f"{len(found)} statements; {_ONE}")
    return _checked(found[0], text)


def _checked(query: exp.Expr, text: str) -> exp.Query:
    """Return a tree if it is a query that only reads; else raise InvalidRequest."""
    if any(each.this is not None for each in query.find_all(exp.Pivot)):
        raise InvalidRequest(_PIVOT)
    if not isinstance(query, exp.Query):
        kind = query.name.upper() if isinstance(query, exp.Command) else query.key.upper()
        if isinstance(query, exp.Condition):  # the parser takes an unknown first word for a column
            kind = repr(text.strip()[:30])
        raise InvalidRequest(f"{kind} is not supported; {_ONE}")
    for each in query.find_all(exp.DML, exp.DDL, exp.Command, exp.Into, exp.Describe, exp.Lock):
        if not isinstance(each, exp.Query):
            raise InvalidRequest(f"{each.key.upper()} is not supported: statements only read")
    for call in query.find_all(exp.Anonymous):
        if call.name.lower() == "current_setting":
            raise InvalidRequest("current_setting(…) is not allowed: statements only read the log")
    return query


def _parameters_apart(text: str) -> str:
    """Return a text with a space after each parameter.

    The parser would take ``$a,$`` for the start of a quote.
    """
    parts: list[str] = []
    done = place = 0
    while (found := _PIECE.search(text, place)) is not None:
        place = found.end()
        if found["parameter"]:
            parts += (text[done:place], " ")
            done = place
        elif found["open"]:
            # A comment or a quoted text: skip to its end, as a dollar in it is no parameter.
            close = "*/" if found["open"] == "/*" else found["open"]
            end = text.find(close, place)
            place = len(text) if end < 0 else end + len(close)
    return "".join(parts) + text[done:]


def named_parameters(expression: exp.Expr) -> set[str]:
    """Return the names of the parameters, ``$name`` or ``:name``, in an expression.

    Raises:
        InvalidRequest: A parameter has no name.
    """
    names = {each.name for each in expression.find_all(exp.Placeholder, exp.Parameter)}
    if "?" in names or "" in names:
        raise InvalidRequest("a parameter needs a name: write $price, not ?")
    return names
