"""A server whose audit is required, and cannot be written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.process.commands import ServerProcess
from tests.support.inprocess import know

if TYPE_CHECKING:
    from pathlib import Path

FULL = "/dev/full"
"""Whatever is written to it meets a full disk."""


@pytest.mark.slow
async def test_a_required_audit_on_a_full_disk_ends_the_server_with_status_1(
    log_root: Path,
) -> None:
    know(log_root, "shop", {"product": ("id",)})
    options = ("--audit", FULL, "--audit-required", "yes", "--audit-patience-s", "1")
    async with ServerProcess(log_root, (*options, "--log-format", "json")).up() as command:
        await command.note("audit not written")
        line = json.loads(await command.note("server stops because its audit cannot be written"))
        assert "space" in line["reason"]
        assert await command.end() == 1
