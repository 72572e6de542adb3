"""From the text of a statement to its tree, within bounds: a caller can write a text as large as a message.

A word takes the parser 15 µs and 500 bytes, and what it makes is freed when the statement has begun.
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
"""Length of a statement, UTF-8."""
_WORDS_MAX: Final = 20_000
"""Words and signs of a statement."""
TOO_DEEP: Final = (
    "the statement cannot be read: its parts are nested too deeply; nest less, or use WITH"
)
_ONE: Final = (
    "give one SELECT; SHOW TABLES, VIEWS or CDC, DESCRIBE of a table, EXPLAIN of a SELECT, and CREATE, ALTER "
    "and DROP of a VIEW or CDC stand alone too"
)
_INNER: Final = (
    (re.compile(r"<Token token_type: [\w.]+, text: (.*?), line: .*?>", re.DOTALL), r"'\1'"),
    (re.compile(r"<class '(?:\w+\.)*(\w+)'>"), r"\1"),
)
"""Texts of the parser about words and about its own classes, and the texts to write in their place."""
_PIECE: Final = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'[^']*'|"[^"]*"|--[^\n]*"""
    r"""|(?P<open>/\*|\$(?:[^\W\d]\w*)?\$)|(?P<parameter>\$\w+)(?=[^\w\s$])""",
    re.DOTALL,
)
"""Parts of a statement in which a dollar means nothing, and parameters with another character behind them."""
_PIVOT: Final = (
    "PIVOT and UNPIVOT stand behind a table: FROM product PIVOT (count(*) FOR name IN ('chair'))"
)

# The parser logs what it does not understand, which anybody may write: here that is an error of the statement.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


def refuse_long(text: str) -> None:
    """Raise InvalidRequest if a statement is too long to be looked at."""
    if len(text) > _BYTES_MAX or len(text.encode(errors="replace")) > _BYTES_MAX:
        raise InvalidRequest(f"the statement is longer than {_BYTES_MAX} bytes")


def words_of(text: str) -> list[Token]:
    """Return the words and signs of a statement that is not too long.

    Raises:
        InvalidRequest: There are too many, or the text cannot be read.
    """
    try:
        words = DUCKDB.tokenize(text)
    except SqlglotError as error:
        reason = str(error).partition("\n")[0]
        raise InvalidRequest(f"the statement cannot be read: {reason}") from None
    if len(words) > _WORDS_MAX:
        raise InvalidRequest(
            f"the statement has {len(words):,} words and signs, and may have {_WORDS_MAX:,}: give a long list "
            "as a parameter, as in `id IN $ids`"
        )
    return words


def statements_of(trees: ParsedTrees, words: list[Token], text: str) -> list[exp.Expr]:
    """Return the statements in a text.

    Raises:
        ParseError, SqlglotError, RecursionError: The text cannot be read.
    """
    # A comment behind the last semicolon is a statement of its own to the parser.
    found = trees.parse(words, text)
    return [each for each in found if each is not None and not isinstance(each, exp.Semicolon)]


@contextmanager
def parsed(text: str) -> Iterator[exp.Query]:
    """Give a block the tree of the one query in a text; it ends with the block.

    Raises:
        InvalidRequest: The text is no query, or not one that only reads.
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
        raise InvalidRequest(f"the statement cannot be read: {reason}") from None
    if len(found) != 1:
        raise InvalidRequest(f"{len(found)} statements; {_ONE}")
    return _checked(found[0], text)


def _checked(query: exp.Expr, text: str) -> exp.Query:
    """Return a tree that is a query which only reads."""
    if any(each.this is not None for each in query.find_all(exp.Pivot)):
        raise InvalidRequest(_PIVOT)
    if not isinstance(query, exp.Query):
        kind = query.name.upper() if isinstance(query, exp.Command) else query.key.upper()
        if isinstance(
            query, exp.Condition
        ):  # a word that is no statement is a column to the parser
            kind = repr(text.strip()[:30])
        raise InvalidRequest(f"{kind} is not run here; {_ONE}")
    for each in query.find_all(exp.DML, exp.DDL, exp.Command, exp.Into, exp.Describe, exp.Lock):
        if not isinstance(each, exp.Query):
            raise InvalidRequest(f"{each.key.upper()} is not run here: the log is only read")
    for call in query.find_all(exp.Anonymous):
        if call.name.lower() == "current_setting":
            raise InvalidRequest(
                "current_setting(…) is not called here: statements read the log alone"
            )
    return query


def _parameters_apart(text: str) -> str:
    """Return a text with a space behind each parameter: the parser takes ``$a,$`` for the begin of a quote."""
    parts: list[str] = []
    done = place = 0
    while (found := _PIECE.search(text, place)) is not None:
        place = found.end()
        if found["parameter"]:
            parts += (text[done:place], " ")
            done = place
        elif found["open"]:
            # A comment or a quoted text: what is in it stays as it is.
            close = "*/" if found["open"] == "/*" else found["open"]
            end = text.find(close, place)
            place = len(text) if end < 0 else end + len(close)
    return "".join(parts) + text[done:]


def named_parameters(expression: exp.Expr) -> set[str]:
    """Return the names of the parameters, ``$name`` or ``:name``, that an expression has.

    Raises:
        InvalidRequest: One has no name.
    """
    names = {each.name for each in expression.find_all(exp.Placeholder, exp.Parameter)}
    if "?" in names or "" in names:
        raise InvalidRequest("a parameter has a name: $price, not ?")
    return names
