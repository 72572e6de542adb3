"""CDCv2 messages as Avro JSON, one on each line, as in the example of Materialize's documentation.

::

    {"array":[{"data":{"id":5,"price":{"int":10}},"time":5,"diff":1}]}
    {"com.materialize.cdc.progress":{"lower":[0],"upper":[3],"counts":[]}}

The value of a union is an object whose only member is named after the branch. Blank lines are skipped, but
counted in line numbers. JSON has no NaN and no infinite numbers: they are the texts ``NaN``, ``Infinity`` and
``-Infinity``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tailrace_server.cdcv2.errors import DataMisfit, MessageUnreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.cdcv2 import Statement
    from tailrace_server.cdcv2.form import AvroForm


def read_line(form: AvroForm, line: str | bytes, where: str = "") -> Statement[int]:
    """Return the statement of one line.

    Args:
        form: The schema.
        line: The text, with or without a line break.
        where: The place of the line, for errors.

    Raises:
        MessageUnreadable: The line is not the JSON of a message of this schema; the message names the field.
    """
    try:
        return form.of_json(json.loads(line, object_pairs_hook=_object, parse_constant=_refuse))
    except DataMisfit as error:
        raise MessageUnreadable(str(error), where) from error
    except (ValueError, RecursionError) as error:
        raise MessageUnreadable(f"not JSON: {error}", where) from error


def read_lines(form: AvroForm, lines: Iterable[str | bytes]) -> Iterator[Statement[int]]:
    """Yield the statements of lines.

    Raises:
        MessageUnreadable: A line is not a message; the message has the number of the line, from 1.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield read_line(form, line, f"line {number}")


def write_line(form: AvroForm, statement: Statement[int]) -> bytes:
    """Return one line, with its line break.

    Raises:
        DataMisfit: A value does not fit the schema; the message names its field.
    """
    form.encode(statement)  # checks every value, which `to_json` does not
    text = json.dumps(form.to_json(statement), ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


def write_lines(form: AvroForm, statements: Iterable[Statement[int]]) -> Iterator[bytes]:
    """Yield the lines of statements.

    Raises:
        DataMisfit: A value does not fit the schema.
    """
    for statement in statements:
        yield write_line(form, statement)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    # Python would silently use the last of two members of one name.
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
