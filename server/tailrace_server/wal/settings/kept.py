"""The settings of a catalog, kept in its log: a sequence of numbered objects, as the lists of bases are.

settings/1.json, 2, 3, … are dense and created exclusively, by any process, at any time, whoever writes the log.
Each says all that is set, so the newest one is the whole truth, and the older ones are its history. Of two that
change something at once one gets the number n + 1. The other reads that object: if it changed the same setting,
the second gets an error; if not, both changes are stored, in n + 1 and n + 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tailrace.errors import EntityTypeUnknown, InvalidRequest
from tailrace_server.wal.files import documents
from tailrace_server.wal.files.documents import FORMAT_VERSION
from tailrace_server.wal.files.numbered import newest_number, numbered_path, read_numbered
from tailrace_server.wal.files.settings_documents import (
    SETTINGS,
    SettingsDocument,
    TypeSettingsDocument,
)
from tailrace_server.wal.settings.values import setting
from tailrace_server.wal.state.entity_names import EntityNames

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from tailrace_server.wal.files.object_store import ObjectStore
    from tailrace_server.wal.state.view import LogView

_FIRST_CRC: Final = 0


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """The settings of a catalog: the newest object of the sequence, or none."""

    number: int = 0
    """Of the object; 0 for none."""
    crc: int = _FIRST_CRC
    settings: Mapping[str, int] = field(default_factory=dict)
    """Of the catalog as a whole, by name."""
    of_types: tuple[TypeSettingsDocument, ...] = ()

    def by_type(self, view: LogView) -> dict[str, Mapping[str, int]]:
        """Return what is set of entity types, by the names that they have in the newest schema."""
        return {current_name(view, each): each.settings for each in self.of_types}


def newest_settings(store: ObjectStore, uuid: UUID) -> CatalogSettings:
    """Return what is set of a catalog now.

    Raises:
        CatalogReplaced: The settings are of another log.
        LogCorrupted: The object is damaged.
        LogUnreadable: It has a newer format version.
    """
    number = newest_number(store, SETTINGS)
    if not number:
        return CatalogSettings()
    document, crc = read_numbered(store, SETTINGS, number, uuid, SettingsDocument)
    return CatalogSettings(number, crc, document.settings, tuple(document.entity_types))


def change_settings(
    store: ObjectStore,
    view: LogView,
    changes: Mapping[str, int | None],
    now: int,
    *,
    entity_type: str | None = None,
) -> CatalogSettings:
    """Set and unset some settings; return what is set from then on. Any process may, at any time.

    Args:
        store: The catalog's objects.
        view: Its log.
        changes: Name → value, as ``KeptSetting.parsed`` gives it; None: unset it.
        now: µs since the epoch.
        entity_type: Change those of this entity type; None: those of the catalog.

    Raises:
        EntityTypeUnknown: The newest schema has none of that name.
        InvalidRequest: Somebody else changed one of these settings meanwhile.
        LogFull: No room; nothing was changed.
        LogCorrupted: The newest settings are damaged.
    """
    types = view.schema_of(view.published).entity_types
    if entity_type is not None and entity_type not in types:
        raise EntityTypeUnknown(view.name, entity_type, sorted(types))
    begun = known = newest_settings(store, view.uuid)
    while True:
        changed = _changed(known, view, changes, entity_type)
        if changed == known:
            return known
        document = SettingsDocument(
            format_version=FORMAT_VERSION,
            number=known.number + 1,
            uuid=view.uuid,
            previous_crc32c=known.crc,
            timestamp=now,
            settings=dict(changed.settings),
            entity_types=list(changed.of_types),
        )
        data, crc = documents.sealed(document)
        store.make_folder(SETTINGS)
        if store.create(numbered_path(SETTINGS, document.number), data, failpoint="settings"):
            return CatalogSettings(document.number, crc, changed.settings, changed.of_types)
        # Somebody else got the number. What they set may be why this caller would not.
        known = newest_settings(store, view.uuid)
        _refuse_conflict(begun, known, view, changes, entity_type)


def current_name(view: LogView, document: TypeSettingsDocument) -> str:
    """Return the name, in the newest schema, of an entity type with settings."""
    try:
        names = EntityNames(view.schema_of(document.version), document.entity_type)
    except KeyError:  # somebody's hand has made the object
        return document.entity_type
    return names.name_in(view.schema_of(view.published)) or document.entity_type


def _changed(
    known: CatalogSettings,
    view: LogView,
    changes: Mapping[str, int | None],
    entity_type: str | None,
) -> CatalogSettings:
    """Return settings with changes made to them."""
    before = _of(known, view, entity_type)
    merged = {name: value for name, value in {**before, **changes}.items() if value is not None}
    if merged == before:
        return known
    if entity_type is None:
        return replace(known, settings=merged)
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
    """Refuse to overwrite what somebody else set between the first look and the creation."""
    for name, value in changes.items():
        before, after = (_of(each, view, entity_type).get(name) for each in (begun, known))
        if before != after and after != value:
            kind = setting(name, of_type=entity_type is not None)
            found = "unset" if after is None else f"set to {kind.shown(after)}"
            raise InvalidRequest(
                f"{name} was {found} by somebody else at this moment; nothing was changed here: look at "
                "tailrace catalog show, and set it again if you mean to"
            )
