"""`tools.prose`: which sentences it counts, and which commit subjects it refuses."""

from __future__ import annotations

import re

import pytest

from tools.prose import ROOT, is_unclear, main, subject_fault


@pytest.mark.parametrize(
    "sentence",
    [
        "Who may read it.",
        "Whether it fits; who asks again waits.",
        "A grant, of which the rules follow.",
        "Nobody is ended for that.",
        "It stands in the log.",
        "The reader is told.",
        "It goes\n    on from there.",
    ],
)
def test_a_sentence_that_has_to_be_read_twice_is_counted(sentence: str) -> None:
    assert is_unclear(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Return the view whose grant allows this read.",
        "The server disconnects a reader that is slow.",
    ],
)
def test_a_plain_sentence_is_not_counted(sentence: str) -> None:
    assert not is_unclear(sentence)


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("sql: reuse the process after an empty poll", None),
        ("wal, sql: read one list of types", None),
        ("memory: " + "x" * 64, None),
        ("memory: " + "x" * 65, "73 characters; at most 72"),
        ("Reuse the process", "write `area: imperative`"),
        ("sql:", "write `area: imperative`"),
    ],
)
def test_a_subject_names_its_area_and_is_short(subject: str, fault: str | None) -> None:
    found = subject_fault(subject)
    assert found == fault or (fault and found and found.startswith(fault))


def test_the_repository_keeps_its_bounds() -> None:
    assert main([]) == 0


def test_each_item_of_a_list_in_the_documents_begins_a_line() -> None:
    pages = (page for page in ROOT.rglob("*.md") if not set(page.parts) & {"node_modules", ".venv"})
    swallowed = re.compile(
        r"[.;:)] - (\*\*|[a-zA-Z`])|[.;:)] -$|[.;] [2-9]\. [A-Za-z`*]", re.MULTILINE
    )
    for page in pages:
        text = re.sub(r"```.*?```|^\|.*?$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert swallowed.findall(text) == [], page
