"""The settings of a catalog: names, forms and bounds of their values, and the objects that store them.

settings/1.json, 2, 3, … is a sequence (files/numbered.py). Each object has all settings. The newest object is
valid, and the older ones are the history. If two processes change settings at the same time, the second one
reads what the first one wrote. If both changed the same setting, the second one gets an error; otherwise both
changes are stored.

Durations are stored in microseconds and sizes in bytes; people write ``7d`` and ``200GiB``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tailrace.errors import EntityTypeUnknown, InvalidRequest
from tailrace.errors.requests import nearest
from tailrace_server.units import format_bytes, format_seconds, parse_bytes, parse_seconds
from tailrace_server.wal.files.documents import FORMAT_VERSION
from tailrace_server.wal.files.numbered import NumberedSequence
from tailrace_server.wal.files.sequence_documents import (
    SETTINGS,
    SettingsDocument,
    TypeSettingsDocument,
)
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from tailrace_server.wal.files.numbered import Newest
    from tailrace_server.wal.files.object_store import ObjectStore
    from tailrace_server.wal.state.view import LogView

MAX_LOOKBACK: Final = "max_lookback"
MAX_BYTES: Final = "max_bytes"
BODIES: Final = "bodies"

_MICROS: Final = 1_000_000
_LOOKBACK_MIN: Final = 600 * _MICROS
_TIME_MAX: Final = 36_500 * 86_400 * _MICROS
_BYTES_MIN: Final = 64 << 20
_BYTES_MAX: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class KeptSetting:
    """One setting and the bounds of its values."""

    name: str
    is_time: bool
    """True if values are durations in microseconds; False: sizes in bytes."""
    least: int
    most: int
    because: str
    """Reason for the lower bound, for the error message."""

    def parsed(self, text: str) -> int:
        """Return the value of a text such as ``7d`` or ``200GiB``.

        Raises:
            InvalidRequest: The text is not a valid value; the message describes valid values.
        """
        # 1. Require a unit: a bare number could mean seconds or days, bytes or megabytes.
        bare = text.strip().removeprefix("-").replace(".", "", 1).isdecimal()
        if bare or not text.strip():
            raise InvalidRequest(
                f"{self.name}={text}: the unit is missing; write it as in "
                + ("7d, 36h or 90m" if self.is_time else "200GiB or 512MiB")
            )
        if text.strip().startswith("-"):
            raise InvalidRequest(
                f"{self.name}={text}: must not be negative; use tailrace catalog unset for no bound"
            )
        try:
            value = round(parse_seconds(text) * _MICROS) if self.is_time else parse_bytes(text)
        except ValueError as error:
            raise InvalidRequest(f"{self.name}={text}: {error}") from None
        # 2. Values outside the bounds are mostly a wrong unit.
        if value < self.least:
            raise InvalidRequest(
                f"{self.name}={text}: must be at least {self.shown(self.least)}, {self.because}"
            )
        if value > self.most:
            raise InvalidRequest(
                f"{self.name}={text}: must be at most {self.shown(self.most)}; use tailrace "
                "catalog unset for no bound"
            )
        return value

    def shown(self, value: int) -> str:
        """Return a value as text with its unit."""
        return format_seconds(value / _MICROS) if self.is_time else format_bytes(value)


OF_CATALOG: Final = {
    each.name: each
    for each in (
        KeptSetting(
            MAX_LOOKBACK,
            True,
            _LOOKBACK_MIN,
            _TIME_MAX,
            "the time for which removed files are retained for active readers",
        ),
        KeptSetting(
            MAX_BYTES, False, _BYTES_MIN, _BYTES_MAX, "the largest size of one file of records"
        ),
    )
}
OF_ENTITY_TYPE: Final = {
    BODIES: KeptSetting(
        BODIES,
        True,
        _LOOKBACK_MIN,
        _TIME_MAX,
        "the time for which removed files are retained for active readers",
    )
}


def setting(name: str, *, of_type: bool) -> KeptSetting:
    """Return the setting of a name.

    Args:
        name: Name of the setting.
        of_type: True: a setting of entity types; False: a setting of catalogs.

    Raises:
        InvalidRequest: No such setting exists, or it exists only for the other kind.
    """
    known, other = (OF_ENTITY_TYPE, OF_CATALOG) if of_type else (OF_CATALOG, OF_ENTITY_TYPE)
    if name in known:
        return known[name]
    if name in other:
        how = "leave --entity-type out" if of_type else "name one with --entity-type"
        kind = "the whole catalog" if of_type else "an entity type"
        raise InvalidRequest(f"{name} is a setting of {kind}: {how}")
    raise InvalidRequest(f"no setting {name!r}{nearest(name, known)}")


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """The settings of a catalog, read from the newest object of the sequence."""

    number: int = 0
    """Number of the object; 0: nothing was ever set."""
    settings: Mapping[str, int] = field(default_factory=dict)
    """Setting → value, for the catalog as a whole."""
    of_types: tuple[TypeSettingsDocument, ...] = ()

    def by_type(self, view: LogView) -> dict[str, Mapping[str, int]]:
        """Return the settings of entity types, by the names that these have in the newest schema."""
        return {current_name(view, each): each.settings for each in self.of_types}


def newest_settings(store: ObjectStore, uuid: UUID) -> CatalogSettings:
    """Return the present settings of a catalog.

    Raises:
        CatalogReplaced: The settings belong to another log.
        LogCorrupted: The object is damaged.
        LogUnreadable: The object has a newer format version.
    """
    return _settings_in(setting_sequence(store, uuid).read())


def change_settings(
    store: ObjectStore,
    view: LogView,
    changes: Mapping[str, int | None],
    now: int,
    *,
    entity_type: str | None = None,
) -> CatalogSettings:
    """Set and unset some settings; return all settings after the change.

    Any process may call this at any time.

    Args:
        store: The catalog's objects.
        view: Published versions of the catalog's log.
        changes: Setting → value in the form of ``KeptSetting.parsed``; None unsets it.
        now: Present time, in microseconds since 1970.
        entity_type: Entity type whose settings change; None: those of the catalog.

    Raises:
        EntityTypeUnknown: The newest schema has no such entity type.
        InvalidRequest: Another process changed one of these settings at the same time.
        LogFull: The file system is full; nothing was changed.
        LogCorrupted: The newest settings are damaged.
    """
    types = view.schema_of(view.published).entity_types
    if entity_type is not None and entity_type not in types:
        raise EntityTypeUnknown(view.name, entity_type, sorted(types))
    begun: CatalogSettings | None = None

    def next_document(newest: Newest[SettingsDocument]) -> SettingsDocument | None:
        nonlocal begun
        known = _settings_in(newest)
        # The first read is what the caller's change is based on; later reads have the changes of other
        # processes.
        if begun is None:
            begun = known
        # This is called again if another process took the number: its change may conflict with this one.
        _refuse_conflict(begun, known, view, changes, entity_type)
        changed = _changed(known, view, changes, entity_type)
        if changed == known:
            return None
        return SettingsDocument(
            format_version=FORMAT_VERSION,
            number=0,
            uuid=view.uuid,
            previous_crc32c=0,
            timestamp=now,
            settings=dict(changed.settings),
            entity_types=list(changed.of_types),
        )

    return _settings_in(setting_sequence(store, view.uuid).change(next_document))


def setting_sequence(store: ObjectStore, uuid: UUID) -> NumberedSequence[SettingsDocument]:
    """Return the sequence of a catalog's settings."""
    return NumberedSequence(store, SETTINGS, SettingsDocument, uuid, "settings")


def _settings_in(newest: Newest[SettingsDocument]) -> CatalogSettings:
    document = newest.document
    if document is None:
        return CatalogSettings()
    return CatalogSettings(newest.number, document.settings, tuple(document.entity_types))


def current_name(view: LogView, document: TypeSettingsDocument) -> str:
    """Return the present name of an entity type with settings, as of the newest schema."""
    try:
        names = EntityNames(view.schema_of(document.version), document.entity_type)
    except KeyError:  # the object was made by hand
        return document.entity_type
    return names.name_in(view.schema_of(view.published)) or document.entity_type


def _changed(
    known: CatalogSettings,
    view: LogView,
    changes: Mapping[str, int | None],
    entity_type: str | None,
) -> CatalogSettings:
    """Return settings with changes applied; the same object if nothing changes."""
    before = _of(known, view, entity_type)
    merged = {name: value for name, value in {**before, **changes}.items() if value is not None}
    if merged == before:
        return known
    if entity_type is None:
        return replace(known, settings=merged)
    # Compare present names: the stored name is that of an older schema if the entity type was renamed since.
    others = [each for each in known.of_types if current_name(view, each) != entity_type]
    if merged:
        others.append(TypeSettingsDocument(entity_type, view.published, merged))
    return replace(known, of_types=tuple(others))


def _of(known: CatalogSettings, view: LogView, entity_type: str | None) -> Mapping[str, int]:
    return known.settings if entity_type is None else known.by_type(view).get(entity_type, {})


def _refuse_conflict(
    begun: CatalogSettings,
    known: CatalogSettings,
    view: LogView,
    changes: Mapping[str, int | None],
    entity_type: str | None,
) -> None:
    """Refuse to overwrite a value that another process set since the first read."""
    for name, value in changes.items():
        before, after = (_of(each, view, entity_type).get(name) for each in (begun, known))
        # Another process that set the same value is no conflict.
        if before != after and after != value:
            kind = setting(name, of_type=entity_type is not None)
            found = "unset" if after is None else f"set to {kind.shown(after)}"
            raise InvalidRequest(
                f"{name} was {found} by another process at the same time; nothing was changed: "
                "see tailrace catalog show, and set it again if needed"
            )
