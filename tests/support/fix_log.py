"""Fixtures for log folders, and for who writes to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.inprocess import ModelWriter
from tests.support.model import ModelLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def log_root(tmp_path: Path) -> Path:
    """Return an empty folder to keep catalogs in, removed with the test's temporary files."""
    root = tmp_path / "log"
    root.mkdir()
    return root


@pytest.fixture
def writer(log_root: Path) -> Iterator[ModelWriter]:
    """Return a writer of the catalog ``shop``, with a model beside it of what it has written."""
    writer = ModelWriter(log_root, "shop", ModelLog())
    yield writer
    writer.writer.close()
