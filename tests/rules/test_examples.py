"""Every example is named with its command where a reader looks for one, and is among those that are tested."""

from __future__ import annotations

import re
from pathlib import Path

from tests.examples.test_real_clients import PAGES, PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TRANSPORTS = (ROOT / "docs" / "transports.md").read_text()


def test_every_client_is_run_by_a_test() -> None:
    programs = {f"node/{path.name}" for path in EXAMPLES.glob("node/*.js")}
    programs |= {f"python/{path.name}" for path in EXAMPLES.glob("python/*.py")}
    assert programs == set(PROGRAMS)
    assert {path.stem for path in EXAMPLES.glob("browser/*.html")} == set(PAGES)


def test_the_page_of_transports_has_the_command_of_each() -> None:
    commands = re.findall(r"`((?:node|python) examples/\S+ shop --server [\d.:]+)", TRANSPORTS)
    ports = {"http": 7412, "grpc": 7411}
    expected = {
        f"{path.partition('/')[0]} examples/{path} shop --server 127.0.0.1:{ports[face]}"
        for path, face in PROGRAMS.items()
    }
    assert set(commands) == expected
    pages = re.findall(r"`http://127.0.0.1:5173/(\S+)\.html", TRANSPORTS)
    assert set(pages) == set(PAGES)
