"""The summary of lines that were set aside: it takes their place where only numbers and reasons matter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tailrace_server.pipeline.input.change import READ, is_effect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tailrace_server.pipeline.input.change import Change

_Name = TypeVar("_Name")

_REASONS: Final = 30
_REASON_CHARS: Final = 80
OTHER_REASONS: Final = "other"
"""The common kind of all reasons after the first thirty."""


def kind_of(reason: str, known: Mapping[str, object]) -> str:
    """Return the kind of a quarantine reason: the reason up to its first colon, or `OTHER_REASONS`.

    Args:
        reason: The reason, or its kind.
        known: The kinds so far. Beyond thirty kinds all new ones are `OTHER_REASONS`.
    """
    kind = reason.partition(":")[0][:_REASON_CHARS]
    return kind if kind in known or len(known) < _REASONS else OTHER_REASONS


class SetAsideLines(NamedTuple):
    """Some quarantined lines that have something in common."""

    number: int
    """How many they are."""
    place: bytes
    """Place of the first line."""
    file: str
    block: int
    line: int
    """The first line's number in its block, from 1."""
    reason: str
    """Reason of the first line."""
    last_place: bytes
    last_reason: str
    """Reason of the last line."""

    def plus(self, other: SetAsideLines) -> SetAsideLines:
        """Return both together."""
        first = min(self, other, key=lambda each: each.place)
        last = max(self, other, key=lambda each: each.last_place)
        return first._replace(
            number=self.number + other.number,
            last_place=last.last_place,
            last_reason=last.last_reason,
        )


@dataclass(slots=True)
class SetAside:
    """The summary of quarantined lines; it grows with the numbers of entity types and tables, not of lines."""

    kinds: dict[str, SetAsideLines] = field(default_factory=dict)
    """Kind of reason → its lines. The kind is the reason up to its first colon, so that it has few values."""
    entity_types: dict[str, SetAsideLines] = field(default_factory=dict)
    """Entity type → its lines; lines of an unknown entity type are not included."""
    shapes: dict[str, SetAsideLines] = field(default_factory=dict)
    """Reason → lines in another format than the source's messages."""
    incompatible: SetAsideLines | None = None
    """The lines with a value that a declared type cannot hold."""
    snapshot_types: set[str | None] = field(default_factory=set)
    """Entity types of the lines that may be of a snapshot; None if that of any of them is unknown."""
    effects: dict[tuple[str, str | None], SetAside] = field(default_factory=dict)
    """Table and connector → lines about statements that changed rows of the table. They are not in the other
    fields before `with_effects`."""

    @classmethod
    def of(cls, changes: Iterable[Change], tells_shape: Callable[[str], bool]) -> SetAside:
        """Return the summary of some QUARANTINED changes; ``tells_shape`` is `Source.tells_shape`."""
        found = cls()
        for change in changes:
            if is_effect(change):
                name = change.table or "", change.source
                found.effects.setdefault(name, cls())._add(change, tells_shape)
            else:
                found._add(change, tells_shape)
        return found

    @property
    def together(self) -> SetAsideLines | None:
        """All lines, without those in ``effects``; None if there are none."""
        together = None
        for lines in self.kinds.values():
            together = lines if together is None else together.plus(lines)
        return together

    def add(self, other: SetAside) -> None:
        """Add the lines of another summary."""
        for kind, lines in other.kinds.items():
            _join(self.kinds, kind_of(kind, self.kinds), lines)
        for entity_type, lines in other.entity_types.items():
            _join(self.entity_types, entity_type, lines)
        for shape, lines in other.shapes.items():
            _join(self.shapes, shape, lines)
        if other.incompatible is not None:
            ours = self.incompatible
            self.incompatible = (
                other.incompatible if ours is None else ours.plus(other.incompatible)
            )
        self.snapshot_types |= other.snapshot_types
        for name, effect in other.effects.items():
            self.effects.setdefault(name, SetAside()).add(effect)

    def with_effects(self, keeps: Callable[[str, str | None], bool]) -> SetAside:
        """Return a summary that includes the effects on the tables for which ``keeps`` is true, and no others.

        Args:
            keeps: Returns True for a table, by name and connector, whose effects go to quarantine.
        """
        found = SetAside()
        found.add(self)
        found.effects = {}
        for name, effect in self.effects.items():
            if keeps(*name):
                found.add(effect)
                found.effects[name] = effect
        return found

    def _add(self, change: Change, tells_shape: Callable[[str], bool]) -> None:
        reason = change.reason or ""
        lines = SetAsideLines(
            *(1, change.place, change.file or "", change.block or 0, change.line or 0),
            *(reason, change.place, reason),
        )
        _join(self.kinds, kind_of(reason, self.kinds), lines)
        if change.entity_type is not None:
            _join(self.entity_types, change.entity_type, lines)
        if tells_shape(reason):
            _join(self.shapes, reason, lines)
        if change.number:
            known = self.incompatible
            self.incompatible = lines if known is None else known.plus(lines)
        if change.operation in (0, READ):
            self.snapshot_types.add(change.entity_type)


def _join(known: dict[_Name, SetAsideLines], name: _Name, lines: SetAsideLines) -> None:
    before = known.get(name)
    known[name] = lines if before is None else before.plus(lines)
