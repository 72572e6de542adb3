"""The registry of all sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.pipeline.sources.debezium.source import Debezium

if TYPE_CHECKING:
    from tailrace_server.pipeline.input.source import Source

SOURCES: Final[dict[str, type[Source]]] = {
    Debezium.name: Debezium,
}
"""Name of a source → its class."""
