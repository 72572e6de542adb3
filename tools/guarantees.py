"""Keep docs/guarantees.md and the tests in step: each promise lists the tests that prove it.

``python -m tools.guarantees`` rewrites the lines that begin with ``Proof:`` from the names of the
tests; ``--check`` only compares. A test proves line 13 when its name begins with
``test_contract_13_``; one name may carry several numbers. The words of a promise are written by
hand and stay as they are.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

from tests.support.contract import contract_numbers
from tools.pages import renew

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
PROMISES = range(1, 52)


def proofs(tests: Path) -> dict[int, list[tuple[str, str]]]:
    """Return, by contract number, the (file in the repository, test name) that prove it."""
    found: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for path in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(), path.name)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in contract_numbers(node.name):
                    found[number].add((path.relative_to(tests.parent).as_posix(), node.name))
    return {number: sorted(tests) for number, tests in found.items()}


def render(page: str, found: dict[int, list[tuple[str, str]]]) -> str:
    """Return the page with its proofs renewed.

    Raises:
        SystemExit: The page does not list every promise once, in order, each with a proof line, or
            a test carries a number that is no promise.
    """
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", page, re.MULTILINE)]
    if numbers != list(PROMISES):
        raise SystemExit(
            f"{PAGE.name} must list promises 1 to {PROMISES[-1]} once and in order, not {numbers}"
        )
    if strangers := sorted(set(found) - set(PROMISES)):
        raise SystemExit(f"tests name contract lines that do not exist: {strangers}")
    promise = re.compile(
        r"^(\d+)(\. .*?\n) +Proof:.*?(?=\n\d+\. |\n\n|\n?\Z)", re.MULTILINE | re.DOTALL
    )

    def renew(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}{_proof(found.get(int(match[1]), []))}"

    renewed, count = promise.subn(renew, page)
    if count != len(PROMISES):
        raise SystemExit(f"{PAGE.name}: {len(PROMISES) - count} promises have no line 'Proof:'")
    return renewed


def _proof(tests: list[tuple[str, str]]) -> str:
    if not tests:
        return "    Proof: not yet."
    lines = [f"    - [`{name}`](../{path})" for path, name in tests]
    return "\n".join(["    Proof:", *lines])


def main(arguments: list[str]) -> None:
    """Renew the page, or with ``--check`` fail if it is not what the tests say."""
    renewed = render(PAGE.read_text(), proofs(ROOT / "tests"))
    renew(PAGE, renewed, arguments, made_of="tests")


if __name__ == "__main__":
    main(sys.argv[1:])
