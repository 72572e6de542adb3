"""Histories to compare on both sides of a move: what each version did to each key, leads and no-ops apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from tailrace.criteria import Area
from tests.server.wal.logs import AFTER, AREA, INDEX, VERSION, rows_of

if TYPE_CHECKING:
    from pathlib import Path

History = dict[int, dict[str, tuple[int, Any, Any]]]
"""Version → key → operation, row before, row after."""

_OPERATION, _TYPE, _KEY, _BEFORE = 4, 5, 7, 10


def history(root: Path, catalog: str = "shop", entity_type: str = "item") -> History:
    """Return what the records of a log say, by version."""
    found: History = {}
    for row in rows_of(root / catalog):
        if row[AREA] == Area.DATA and row[_TYPE] == entity_type and row[_BEFORE] != row[AFTER]:
            images = (orjson.loads(row[place] or b"null") for place in (_BEFORE, AFTER))
            found.setdefault(row[VERSION], {})[row[_KEY]] = (row[_OPERATION], *images)
    return found


def moved_history(root: Path, catalog: str = "shop", entity_type: str = "item") -> History:
    """Return the same of a log that came from another, by the other's versions, which the leads name."""
    times = {
        row[VERSION]: orjson.loads(row[AFTER]).get("time")
        for row in rows_of(root / catalog)
        if row[INDEX] == 0
    }
    return {times[version]: keys for version, keys in history(root, catalog, entity_type).items()}
