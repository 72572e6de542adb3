"""client/tailrace/v1 is what `make proto` makes of proto/, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.proto import ROOT, generate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_generated_code_is_that_of_the_sources(tmp_path: Path) -> None:
    generate(tmp_path)
    assert _generated_below(ROOT / "client") == _generated_below(tmp_path)


def _generated_below(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("tailrace/v1/*_pb2*.py*")}
