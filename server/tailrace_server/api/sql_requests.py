"""The reader of SQL requests for all faces: a message becomes a checked `SqlRequest` of the engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tailrace.conditions import checked_text, number_of
from tailrace.cursor import Cursor
from tailrace.errors import InvalidRequest
from tailrace.v1.sql_pb2 import SQL_FORM_ARROW, SQL_MISFITS_NULL
from tailrace_server.api import requests
from tailrace_server.reads.sql_request import SqlForm, SqlRequest
from tailrace_server.typed.misfits import OnMisfit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.v1.sql_pb2 import QuerySqlRequest, SqlParameter

_PARAMETERS_MAX: Final = 1_000
_VALUES_MAX: Final = 100_000
"""Most values in the list of one parameter."""


def asked(request: QuerySqlRequest, form: SqlForm | None = None) -> SqlRequest:
    """Return the checked request; without ``form``, the message names the form of the answer.

    Raises:
        InvalidRequest: A value is not valid, or two values contradict each other.
        CursorInvalid: ``after`` is not a cursor.
    """
    wait = requests.waited(request)
    more: dict[str, Any] = {}
    if wait is not None:
        more = {"wait_for_version": wait.version, "wait_s": wait.patience_s}
    if request.HasField("since_version"):
        more["since_version"] = requests.at_least(0, request.since_version, "since_version")
    if request.HasField("from_time"):
        more["from_time"] = requests.at_least(0, request.from_time, "from_time")
    if request.HasField("after"):
        more["after"] = Cursor.parse(request.after)
    if form is None:
        form = SqlForm.ARROW if request.form == SQL_FORM_ARROW else SqlForm.ROWS
    return SqlRequest(
        statement=request.statement,
        parameters=_parameters(request.parameter),
        form=form,
        on_misfit=OnMisfit.NULL if request.misfits == SQL_MISFITS_NULL else OnMisfit.RAISE,
        **more,
    )


def _parameters(given: Iterable[SqlParameter]) -> dict[str, object]:
    found: dict[str, object] = {}
    for each in given:
        if not each.name.isidentifier():
            raise InvalidRequest(
                f"parameter {each.name[:60]!r}: write letters, digits and _, without the $"
            )
        if each.name in found:
            raise InvalidRequest(f"parameter {each.name!r} is given twice")
        if len(found) == _PARAMETERS_MAX:
            raise InvalidRequest(f"there are more than {_PARAMETERS_MAX} parameters")
        found[each.name] = _value(each.name, each.value)
    return found


def _value(name: str, text: str) -> object:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        # A too long number is refused while it is parsed: to convert 400 kB of digits takes seconds.
        value = json.loads(text, parse_float=number_of, parse_int=number_of, parse_constant=refuse)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidRequest(f"parameter {name!r} is not JSON: {error}") from None
    except ValueError as error:
        raise InvalidRequest(f"parameter {name!r}: {error}") from None
    if isinstance(value, list):
        if len(value) > _VALUES_MAX:
            raise InvalidRequest(f"parameter {name!r}: its list has more than {_VALUES_MAX} values")
        parts = value
    else:
        parts = [value]
    if any(isinstance(part, list | dict) for part in parts):
        raise InvalidRequest(
            f"parameter {name!r}: must be a number, a text, true, false, null, or a list of them"
        )
    for part in parts:
        if isinstance(part, str):
            checked_text(part, f"parameter {name!r}")
    return value
