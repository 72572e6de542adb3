"""Fixtures for log folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log_root(tmp_path: Path) -> Path:
    """Return an empty folder to keep catalogs in, removed with the test's temporary files."""
    root = tmp_path / "log"
    root.mkdir()
    return root
