"""`tools.structure`: what it finds in trees that break a promise each, and that ours breaks none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.structure import (
    LINES_MAX,
    LINES_WITH_REASON_MAX,
    MODULES_MAX,
    REASON,
    ROOT,
    faults,
    modules,
)

if TYPE_CHECKING:
    from pathlib import Path

SERVER = "server/tailrace_server"


def test_the_tree_keeps_its_promises() -> None:
    assert list(faults(modules(ROOT))) == []


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        (
            {
                "a.py": "def f():\n    from tailrace_server.b import g",
                "b.py": "if TYPE_CHECKING:\n    from tailrace_server import a",
            },
            "import circle: tailrace_server.a -> tailrace_server.b",
        ),
        (
            {
                "low/a.py": "from tailrace_server.high.b import f",
                "low/c.py": "",
                "high/b.py": "from tailrace_server.low import c",
            },
            f"circle of folders: {SERVER}/high, {SERVER}/low",
        ),
        ({"a.py": "\n" * (LINES_MAX + 1)}, f"{SERVER}/a.py has 501 lines; the bound is 500"),
        (
            {"a.py": f"{REASON}a state machine." + "\n" * LINES_WITH_REASON_MAX},
            f"{SERVER}/a.py has 801 lines; the bound is 800",
        ),
        (
            {f"part/a{number}.py": "" for number in range(MODULES_MAX + 1)},
            f"{SERVER}/part has 21 modules; the bound is 20",
        ),
        (
            {"a.py": "class Segment: ...", "b.py": "class Segment: ..."},
            "class Segment is defined in tailrace_server.a and tailrace_server.b",
        ),
        (
            {"a.py": '__all__ = ["seal"]', "b.py": '__all__ = ["seal"]'},
            "seal is exported by tailrace_server.a and tailrace_server.b",
        ),
    ],
)
def test_what_breaks_a_promise_is_named(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    for name, text in files.items():
        path = tmp_path / SERVER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert list(faults(modules(tmp_path))) == [fault]


def test_a_tree_below_every_bound_has_no_fault(tmp_path: Path) -> None:
    path = tmp_path / SERVER / "part"
    path.mkdir(parents=True)
    for number in range(MODULES_MAX):
        (path / f"a{number}.py").write_text("\n" * LINES_MAX)
    (path / "a0.py").write_text(REASON + "\n" * (LINES_WITH_REASON_MAX - 1))
    (path / "__init__.py").write_text("from tailrace_server.part import a1")
    (path / "other").mkdir()
    (path / "other/b.py").write_text("if TYPE_CHECKING:\n    from tailrace_server.part.a1 import A")
    (path / "a2.py").write_text("from tailrace_server.part.other.b import B")
    assert list(faults(modules(tmp_path))) == []
