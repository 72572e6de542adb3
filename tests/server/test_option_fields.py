"""Options made from fields; tests/server/pipeline/input/test_source.py has a command made of them."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import InvalidRequest
from tailrace_server.option_fields import (
    BYTES,
    FLAG,
    FOLDER,
    SECONDS,
    choice,
    one_of,
    option,
    options_of,
    values_of,
)


@dataclass(frozen=True, kw_only=True)
class Some:
    folder: Path = option("--folder", "A folder.", FOLDER)
    size: int = option("--size", "A size.", BYTES, 16 << 20)
    wait: float = option("--wait", "A wait.", SECONDS, 0.0)
    what: str = option("--what", "A word.", one_of(("a", "b", "c"), "WHAT"), "a")
    stop: bool = option("--on-error", "What to do.", choice("go-on", "stop", "WHAT"), False)
    plain: bool = option("--plain", "Plain.", FLAG, True)
    names: dict[str, str] = option("--name", "Names.", FLAG, factory=dict)
    hidden: int = 3


GIVEN: dict[str, Any] = {
    "folder": Path("in"),
    "size": "1KiB",
    "wait": "2m",
    "what": "b",
    "stop": "stop",
    "plain": False,
    "names": None,
}


def test_defaults_are_shown_as_they_are_typed() -> None:
    shown = {name: each.default for name, each in options_of(Some).items()}
    assert shown == {
        "folder": MISSING,
        "size": "16MiB",
        "wait": "0",
        "what": "a",
        "stop": "go-on",
        "plain": True,
        "names": None,
    }
    assert Some(folder=Path("x")) == Some(folder=Path("x"), size=16 << 20, names={}, hidden=3)


def test_what_is_typed_becomes_the_value_of_the_field() -> None:
    values = values_of(Some, GIVEN)
    assert (values["size"], values["wait"], values["stop"]) == (1024, 120.0, True)
    assert values["folder"] == Path.cwd() / "in"
    assert values["what"] == "b"
    assert "hidden" not in values


@pytest.mark.parametrize(
    ("field", "text", "reason"),
    [
        ("size", "much", "--size 'much': "),
        ("size", "0", "--size '0': it must be at least 1"),
        ("wait", "long", "--wait 'long': "),
        ("what", "d", "--what 'd': choose a, b or c"),
        ("stop", "maybe", "--on-error 'maybe': choose go-on or stop"),
    ],
)
def test_what_is_not_of_its_form_is_refused_by_its_flag(field: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        values_of(Some, {**GIVEN, field: text})
