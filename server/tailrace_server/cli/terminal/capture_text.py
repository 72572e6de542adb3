"""Captures as lines for a person: aligned, with the version and time only if they change.

::

    ── 2026-03-01 ──
      1207:1  12:40:01.123  update  order       1007  status "new" → "paid"  total 10.00 → 12.50
          :2                insert  order_item  5512  order_id 1007  product_id 17  quantity 2
      1208:1  12:40:01.140  remove  cart        77    customer_id 12
      1208:4                column  order       1007  .status "paid"
      1209:1  12:40:01.155  schema  order             column added: note

A line with the date precedes the first capture of each day, except if that is today at the beginning. Columns
widen for wider values and never narrow, so that the output does not jump. Values are the image's own text. Key
columns, which are in the key already, and the nulls of a removal are left out. A line that is longer than the
terminal is cut and ends with "…"; in a pipe lines are not cut.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.cells import cell_len, set_cell_size

from tailrace.criteria import Area, CaptureKind, Operation, Transition
from tailrace_server.cli.terminal.output import Palette, clock_text, day_text, printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tailrace.capture import Capture, Heartbeat, StateComplete
    from tailrace.schema import Schema

_KEY_MAX: Final = 28
_TYPE_MAX: Final = 24
_VALUE_MAX: Final = 60
_IMAGE: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Changes(msgspec.Struct):
    changes: list[dict[str, Any]]


_LEAD_MEMBERS: Final = (
    *("counts", "transaction_id", "late", "of", "snapshot"),
    *("expected_count", "without_end", "quarantined", "incomplete_images", "expired_at"),
)
_CHANGES: Final = msgspec.json.Decoder(_Changes)
_COLOURS: Final = {
    "schema": "magenta",
    "insert": "green",
    "update": "yellow",
    "upsert": "green",
    "remove": "red",
    "expire": "magenta",
    "truncate": "red",
    "column": "cyan",
    "row": "green",
    "begin": "blue",
}


class TextForm:
    """Formatter of captures as lines for a person, with widths and the last version as its state."""

    def __init__(self, palette: Palette, *, width: int | None = None) -> None:
        """Store the colours, and the width in cells at which lines are cut; None = never."""
        self._palette = palette
        self._width = width
        self._position_width = 7
        self._type_width = 8
        self._key_width = 4
        self.keys: Mapping[str, frozenset[str]] = {}
        """Entity type → names of its key columns, if they are known."""
        self._version: int | None = None
        self._day = day_text(time.time_ns() // 1_000)

    @classmethod
    def for_stdout(cls) -> TextForm:
        """Return a formatter for stdout, with the terminal's width and colours, if it is a terminal."""
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        return cls(Palette.of(sys.stdout), width=width)

    def learn(self, schema: Schema) -> None:
        """Store the key columns of each entity type; they are not printed again as values."""
        self.keys = {
            entity_type: frozenset(column.name for column in columns if column.key)
            for entity_type, columns in schema.entity_types.items()
        }

    def captures(self, captures: Sequence[Capture]) -> list[bytes]:
        """Return one line for each capture, after a line with the date if the day has changed."""
        pieces = []
        for capture in captures:
            day = self._day_line(capture)
            head = "" if day is None else f"{day}\n"
            pieces.append(f"{head}{self.render(capture)}\n".encode())
        return pieces

    def _day_line(self, capture: Capture) -> str | None:
        """Return the line with the date of a capture; None if the day has not changed since the last one."""
        if capture.version == self._version or capture.kind is CaptureKind.STATE:
            return None
        day = day_text(capture.commit_timestamp)
        if day == self._day:
            return None
        self._day = day
        return self._palette.dim(f"── {day} ──")

    def render(self, capture: Capture) -> str:
        """Return a capture's line, without a line end."""
        # 1. Position and time; only the first line of a version has the version and the time.
        palette = self._palette
        first = capture.version != self._version
        timed = capture.kind is not CaptureKind.STATE  # rows of a state are of many days
        self._version = capture.version
        version = str(capture.version) if first else ""
        place = f"{version}:{capture.index}" + (f".{capture.ordinal}" if capture.ordinal else "")
        self._position_width = max(self._position_width, len(place) + 1)
        word = _word(capture)
        head = [
            palette.paint(place.rjust(self._position_width), *(("bold",) if first else ("grey",))),
            palette.dim(clock_text(capture.commit_timestamp) if first and timed else " " * 12),
            palette.paint(word.ljust(8), _COLOURS[word]),
        ]
        # 2. Entity type and key, which a lead record does not have. ``used`` counts the cells up to the
        # details.
        used = self._position_width + 12 + 8 + 2 * 3
        if capture.operation is not Operation.TRANSACTION:
            entity_type = self._fitted(capture.entity_type or "", _TYPE_MAX, "_type_width")
            key = capture.primary_key
            if key is None:
                key = "" if _is_schema_change(capture) else "*"
            shown_key = self._fitted(key, _KEY_MAX, "_key_width")
            head += [palette.paint(entity_type, "bold"), shown_key]
            used += self._type_width + self._key_width + 2 * 2
        # 3. As many details as fit, with marks such as "(enters)" first.
        details = list(_details(capture, self.keys.get(capture.entity_type or "", ()), palette))
        if capture.kind is CaptureKind.LATEST:
            details.insert(0, ("(latest)", palette.dim("(latest)")))
        if capture.kind is not CaptureKind.STATE and capture.transition in _MOVES:
            text = _MOVES[capture.transition]
            details.insert(0, (text, palette.dim(text)))
        return "  ".join([*head, self._cut(details, used)]).rstrip()

    def state_complete(self, mark: StateComplete) -> bytes:
        """Return the line after the last row of a state."""
        text = (
            f"{'·':>{self._position_width}}  all rows as of version {mark.version} are printed; "
            "changes follow"
        )
        return f"{self._palette.dim(text)}\n".encode()

    def heartbeat(self, heartbeat: Heartbeat) -> bytes:
        """Return a heartbeat's line."""
        text = (
            f"{'·':>{self._position_width}}  heartbeat: published {heartbeat.published}, "
            f"{heartbeat.records_scanned:,} records scanned, {heartbeat.records_matched:,} matched"
        )
        return f"{self._palette.dim(text)}\n".encode()

    def _fitted(self, text: str, most: int, column: str) -> str:
        text = _shortened(printable(text), most)
        width = max(getattr(self, column), cell_len(text))
        setattr(self, column, width)
        return set_cell_size(text, width)

    def _cut(self, details: list[tuple[str, str]], used: int) -> str:
        """Return the coloured details that fit; each comes as a plain text, to be measured, and coloured."""
        left = None if self._width is None else self._width - used
        parts: list[str] = []
        for plain, painted in details:
            size = cell_len(plain) + 2
            if left is not None and size > left:
                if left > 4 and (room := left - 1) > 2:
                    parts.append(_shortened(plain, room))
                break
            parts.append(painted)
            left = None if left is None else left - size
        return "  ".join(parts)


_MOVES: Final = {
    Transition.ENTER: "(enters)",
    Transition.LEAVE: "(leaves)",
    Transition.UNKNOWN: "(unknown)",
}
"""Words for changes that move their row into or out of the rows that meet the condition, or may do so."""


def _word(capture: Capture) -> str:
    """Return one word for a capture. An upsert is an update if it has changed columns or a before-image."""
    if capture.ordinal:
        return "column"
    if capture.kind is CaptureKind.STATE:
        return "row"
    if _is_schema_change(capture):
        return "schema"
    match capture.operation:
        case Operation.TRANSACTION:
            return "begin"
        case Operation.UPSERT if capture.changed is not None:
            return "update"
        case Operation.UPSERT:
            return "insert" if capture.before is None else "update"
        case Operation.REMOVE if capture.primary_key is None:
            return "truncate"
        case Operation.EXPIRE:
            return "expire"
        case _:
            return "remove"


def _changes(change: bytes) -> list[str]:
    """Return the changes of a SCHEMA record in words; a body of another form is returned unchanged."""
    try:
        changes = _CHANGES.decode(change).changes
    except msgspec.DecodeError:
        return [_shortened(printable(change.decode("utf-8", "replace")), _VALUE_MAX)]
    return [printable(change_text(each)) for each in changes]


def _is_schema_change(capture: Capture) -> bool:
    """Return True if a capture describes columns. Records of the system log have area SCHEMA too, but a key."""
    return capture.area is Area.SCHEMA and capture.primary_key is None


def change_text(change: dict[str, Any]) -> str:
    """Return one change of a schema in words."""
    words = str(change.get("what")).replace("_", " ")
    if "column" in change:
        words += f": {change['column']}"
    match change.get("from"), change.get("to"):
        case str() as before, str() as after:
            words += f", {before} → {after}"
        case str() as before, None:
            words += f", before {before}"
        case dict() as before, dict() as after:
            parts = (f"{name} {before.get(name)} → {after[name]}" for name in after)
            words += f", {', '.join(parts)}"
    return words


def _details(capture: Capture, key: Collection[str], palette: Palette) -> Iterator[tuple[str, str]]:
    """Yield the details of a capture, the most important first, each as plain and as coloured text.

    Args:
        capture: The capture.
        key: Names of the key columns, which are not repeated.
        palette: The colours.
    """
    if capture.omitted_bytes:
        text = f"({capture.omitted_bytes:,} bytes left out)"
        yield text, palette.dim(text)
    before, after = _columns(capture.before), _columns(capture.after)
    if capture.operation is Operation.TRANSACTION:
        yield from _lead(after, palette)
    elif _is_schema_change(capture) and capture.change is not None:
        for text in _changes(capture.change):
            yield text, text
    elif _is_schema_change(capture):
        names = ", ".join(map(printable, capture.changed or ()))
        yield names, names
    elif capture.changed is not None and (before or after) and capture.transition not in _MOVES:
        # A column's capture carries the whole list of names, but its own column's values only.
        name = capture.container_name
        yield from _update(capture.changed if name is None else (name,), before, after, palette)
    elif after or before:
        removed = not after
        for name, value in (after or before).items():
            if name not in key and not (removed and value == "null"):
                yield _pair(name, value, palette)
    elif capture.container_name is not None:
        yield f".{printable(capture.container_name)}", f".{printable(capture.container_name)}"
    elif capture.changed:
        names = ", ".join(map(printable, capture.changed))
        yield names, names


def _update(
    changed: Iterable[str], before: dict[str, str], after: dict[str, str], palette: Palette
) -> Iterator[tuple[str, str]]:
    for name in changed:
        new = after.get(name, "∅")
        if name in before:
            shown, old = printable(name), before[name]
            painted = f"{palette.dim(shown)} {palette.dim(old)} {palette.dim('→')} {new}"
            yield f"{shown} {old} → {new}", painted
        else:
            yield _pair(name, new, palette)


def _lead(after: dict[str, str], palette: Palette) -> Iterator[tuple[str, str]]:
    count = after.get("mutation_count", "?")
    text = f"{count} change{'' if count == '1' else 's'}"
    yield text, palette.bold(text)
    for name in _LEAD_MEMBERS:
        if after.get(name) not in (None, "null", "{}", "false"):
            yield _pair(name, after[name], palette)


def _pair(name: str, value: str, palette: Palette) -> tuple[str, str]:
    shown = printable(name)
    return f"{shown} {value}", f"{palette.dim(shown)} {value}"


def _columns(image: bytes | None) -> dict[str, str]:
    """Return the text of each column's value; an image that is not an object is returned as one value."""
    if image is None:
        return {}
    try:
        found = _IMAGE.decode(image)
    except msgspec.DecodeError:
        return {"": _shortened(printable(image.decode("utf-8", "replace")), _VALUE_MAX)}
    return {
        name: _shortened(printable(bytes(raw).decode("utf-8", "replace")), _VALUE_MAX)
        for name, raw in found.items()
    }


def _shortened(text: str, most: int) -> str:
    """Return a text, cut to ``most`` cells; a cut text ends with "…"."""
    if cell_len(text) <= most:
        return text
    return set_cell_size(text, most - 1).rstrip() + "…"
