"""Errors of the Avro form: texts, figures, places; all of them go to another process."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from tailrace_server.cdcv2 import DataMisfit, MessageUnreadable, SchemaDiffers

if TYPE_CHECKING:
    from tailrace.cdcv2 import CdcError

ERRORS: dict[str, tuple[CdcError, dict[str, str]]] = {
    "schema differs at [1].fields[0].type: expected long, found int": (
        SchemaDiffers("[1].fields[0].type", "long", "int"),
        {"place": "[1].fields[0].type", "expected": "long", "found": "int"},
    ),
    "schema differs at the top: expected JSON, found nothing": (
        SchemaDiffers("", "JSON", "nothing"),
        {"place": "", "expected": "JSON", "found": "nothing"},
    ),
    "line 7: not JSON": (
        MessageUnreadable("not JSON", "line 7"),
        {"reason": "not JSON", "where": "line 7"},
    ),
    "it is empty": (MessageUnreadable("it is empty"), {"reason": "it is empty", "where": ""}),
    "[3].data.price: 'x' is no int": (
        DataMisfit("'x' is no int").inside(".price").inside(".data").inside("[3]"),
        {"reason": "'x' is no int", "place": "[3].data.price"},
    ),
}


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_says_what_is_wrong_and_where(text: str) -> None:
    error, figures = ERRORS[text]
    assert str(error) == text
    assert error.figures() == figures


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_goes_to_another_process(text: str) -> None:
    """Tasks of Spark raise them."""
    error, figures = ERRORS[text]
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.figures()) == (type(error), text, figures)
