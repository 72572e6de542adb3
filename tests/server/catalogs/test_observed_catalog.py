"""A catalog that cannot be read, and then can. Dropped and replaced ones are covered in test_recovery.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import TailraceError
from tailrace_server.codecs import JSON
from tailrace_server.engine.engine import Engine
from tailrace_server.grants.principal import ANONYMOUS
from tailrace_server.resources.settings import EngineSettings
from tests.support.inprocess import observer_of
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.inprocess import ModelWriter


async def test_a_log_that_can_be_read_again_is_served_again(
    log_root: Path, writer: ModelWriter
) -> None:
    document = log_root / "shop" / "catalog.json"
    whole = document.read_bytes()
    document.write_bytes(b"{")
    async with Engine(log_root, EngineSettings(reopen_interval_s=0.01)) as engine:
        with pytest.raises(TailraceError) as first:
            await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
        with pytest.raises(TailraceError) as second:
            observer_of(engine, "shop")
        assert str(first.value) == str(second.value)
        assert engine.catalogs(ANONYMOUS) == ()
        document.write_bytes(whole)
        await until(lambda: bool(engine.catalogs(ANONYMOUS)))
        assert engine.unreadable(ANONYMOUS) == {}
        await engine.subscribe(ANONYMOUS, "shop", codec=JSON)
