"""``tailrace play``: changes arrive in a second terminal, and nothing is left when it ends."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from tests.process.commands import INTERRUPT, Command

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_what_it_names_to_try_shows_changes_and_ctrl_c_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with Command(
        *("play", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--rate", "50")
    ) as play:
        greeting = ""
        while "version 1:" not in greeting:
            greeting += (await play.line()).decode()
        told = re.search(r"tailrace (watch shop --server \S+)\n", greeting)
        assert told, greeting
        async with Command(*told[1].split(), "--json") as watch:
            first, *_, last = await watch.captures(20)
            assert last["version"] > first["version"] > 1
        play.send(INTERRUPT)
        assert await play.end() == 130
    assert os.listdir(tmp_path) == []


async def test_a_server_that_cannot_start_ends_it_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with Command("play", "--grpc", "127.0.0.1:0", "--http", "192.0.2.1:80") as play:
        assert await play.end() == 1
        assert "192.0.2.1:80" in play.notes[-1]
    assert os.listdir(tmp_path) == []
