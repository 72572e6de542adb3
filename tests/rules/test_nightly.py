"""Each nightly test names the tests that prove the same in every run of `.ci/run`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"tests/[\w/]+\.py")


def faults(source: str, root: Path = ROOT) -> list[str]:
    """Return what is wrong with the nightly marks of a module."""
    tree = ast.parse(source)
    reasons = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and node.attr == "nightly"):
            continue
        match reasons.get(id(node)):
            case ast.Call(args=[ast.Constant(value=str(reason))], keywords=[]):
                paths = PATH.findall(reason)
                if not paths:
                    found.append(f"line {node.lineno}: the reason names no test module")
                found += [
                    f"line {node.lineno}: {path} does not exist"
                    for path in paths
                    if not (root / path).is_file()
                ]
            case _:
                found.append(f"line {node.lineno}: the mark has no reason")
    return found


def test_every_nightly_test_names_what_still_covers_it() -> None:
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    wrong = {str(path): faults(path.read_text()) for path in modules}
    assert {path: each for path, each in wrong.items() if each} == {}


@pytest.mark.parametrize(
    ("mark", "fault"),
    [
        ("pytest.mark.nightly", "the mark has no reason"),
        ("pytest.mark.nightly()", "the mark has no reason"),
        ("pytest.mark.nightly('it is slow')", "the reason names no test module"),
        ("pytest.mark.nightly('see tests/no.py')", "tests/no.py does not exist"),
        ("pytest.mark.nightly('as tests/rules/test_nightly.py')", None),
    ],
)
def test_a_nightly_mark_without_a_reason_is_found(mark: str, fault: str | None) -> None:
    expected = [] if fault is None else [f"line 1: {fault}"]
    assert faults(f"@{mark}\ndef test_x(): ...") == expected
