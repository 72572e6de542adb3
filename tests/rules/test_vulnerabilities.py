"""Every package of the lock file is asked for, and a machine that cannot ask says so."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

from tests.support.held_port import HeldPort
from tools.vulnerabilities import ROOT, main, script

if TYPE_CHECKING:
    import pytest


def test_every_locked_package_is_asked_for() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    lines = script(lock).splitlines()[1:-1]
    head = tomllib.loads("\n".join(line.removeprefix("#") for line in lines))
    wanted = [line.rstrip(" \\") for line in lock.splitlines() if line[:1].isalnum()]
    assert len(wanted) > 100
    assert head["dependencies"] == wanted


def test_a_machine_without_a_way_to_the_service_says_that_nothing_was_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held = HeldPort()
    assert main(f"http://{held.address}/") == 0
    assert f"not checked, as http://{held.address}/ does not answer" in capsys.readouterr().out
