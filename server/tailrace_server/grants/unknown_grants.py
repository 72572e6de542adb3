"""Tells the operator of names in grants that mean nothing in a log: such a grant gives nothing, for now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from tailrace.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Collection

    from tailrace_server.grants.principal import Principal
    from tailrace_server.log_cache.followed_log import FollowedLog
    from tailrace_server.wal.state.view import LogView

_TOLD_MAX: Final = 1_000
"""Most unknown names that are logged for a catalog."""
_log = structlog.get_logger("tailrace.granting")


def unknown_names_in(view: LogView, names: Collection[str], views: Collection[str]) -> list[str]:
    """Return those of some names that are no entity type's, at no version, and no view's; sorted."""
    return sorted(name for name in names if name not in views and not view.had_entity_type(name))


async def tell_unknown_grants(log: FollowedLog, caller: Principal) -> None:
    """Log the names in a caller's grants that mean nothing in a log, each once for as long as it is open."""
    view = log.view
    grant = caller.grant(view.name)
    if grant is None or any(each.is_whole for each in grant.allowances):
        return
    types = view.schema_of(view.published).entity_types
    names = {name for each in grant.allowances for name in each.entity_types or ()}
    told = log.definitions.told
    names = names.difference(types, told)
    if not names or len(told) >= _TOLD_MAX:
        return
    try:
        views = (await log.definitions.newest()).views
    except LogError:  # whoever asks for a view is told
        return
    for name in unknown_names_in(view, names, views):
        told.add(name)
        _log.warning("grant names what is not there", catalog=view.name, entity_type=name)
