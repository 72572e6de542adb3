"""Keep the table of parameters in docs/protocol.md in step with the comments of proto/.

``python -m tools.parameters`` rewrites the chapter; ``--check`` only compares. Each field of the three requests
has one row: the first sentence of its comment, from the first request that says more than "As in …".
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from tools.pages import renew

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "protocol.md"
PROTO: Final = ROOT / "proto" / "tailrace" / "v1"

REQUESTS: Final = {
    "SubscribeRequest": ("change_capture.proto", "subscribe"),
    "ReadChangesRequest": ("change_capture.proto", "history"),
    "ReadStateRequest": ("change_capture.proto", "state"),
    "Criteria": ("capture.proto", "criteria"),
}
"""Message → its file, and the word that the table has for it."""

PYTHON: Final = {
    "since_version": "since",
    "since_index": "since",
    "until_version": "until",
    "until_index": "until",
    "body": "content",
    "at_version": "at",
    "at_time": "at",
    "column": "columns",
    "values": "decoded",
    "heartbeat_interval_ms": "heartbeat_interval_s",
    "overrun_policy": "overrun",
    "wait_for_version": "wait_for",
    "wait_ms": "wait_s",
    "where_parameter": "parameters",
    "where_tree": "where",
}
"""Field → argument of the Python client, if the names differ."""

CHAPTER: Final = "\n## Parameters\n"
HEAD: Final = """
Every transport takes these parameters, with the same meaning. JSON, URLs and GraphQL use camelCase
(`sinceVersion`), Python the names in the second column. The comments of
[the contract](../proto/tailrace/v1/change_capture.proto) have bounds, defaults and errors.

| Field | Python | Used by | Meaning |
|---|---|---|---|
"""
_FIELD: Final = re.compile(
    r"((?:^  //.*\n)*)^  (?:optional |repeated )?[\w.]+ (\w+) = \d+", re.MULTILINE
)


def rows() -> list[str]:
    """Return the rows of the table, in the order of the contract."""
    of: dict[str, list[str]] = {}
    meaning: dict[str, str] = {}
    for message, (file, word) in REQUESTS.items():
        text = (PROTO / file).read_text()
        body = text.partition(f"\nmessage {message} {{\n")[2].partition("\n}")[0]
        for comment, name in _FIELD.findall(body):
            said = " ".join(re.sub(r"^ *//", "", comment, flags=re.MULTILINE).split())
            of.setdefault(name, []).append(word)
            if not said.startswith("As in"):
                meaning.setdefault(name, re.split(r"(?<=\.) ", said)[0])
    return [
        f"| `{name}` | {f'`{PYTHON[name]}`' if name in PYTHON else ''} | {', '.join(words)} "
        f"| {meaning[name]} |"
        for name, words in of.items()
    ]


def render(page: str) -> str:
    """Return the page with its chapter of parameters renewed.

    Raises:
        SystemExit: The page has no such chapter.
    """
    before, chapter, rest = page.partition(CHAPTER)
    if not chapter:
        raise SystemExit(f"docs/{PAGE.name} has no chapter 'Parameters'")
    table = "\n".join(rows())
    _, end, behind = rest.partition("\n## ")
    return f"{before}{CHAPTER}{HEAD}{table}\n{end}{behind}"


def main(arguments: list[str]) -> None:
    """Renew the page, or with ``--check`` fail if it is behind."""
    renew(PAGE, render(PAGE.read_text()), arguments, made_of="contract")


if __name__ == "__main__":
    main(sys.argv[1:])
