"""The server's own event loop: what a transport keeps depends on it."""

from __future__ import annotations

from tests.server.api.rest.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
