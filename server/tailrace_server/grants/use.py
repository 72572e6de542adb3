"""The grants that an open stream depends on; checked again when the policy changes."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from tailrace.criteria import canonical
from tailrace_server.grants.grant import ALL_COLUMNS, Allowance, Columns, Grant, cover
from tailrace_server.grants.narrowing import common, narrowed
from tailrace_server.grants.shown import columns_of, gives_every_record, takes_leads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tailrace.criteria import Content, Criteria
    from tailrace_server.grants.grant import Action
    from tailrace_server.grants.narrowing import Narrowed
    from tailrace_server.grants.principal import Principal
    from tailrace_server.grants.view_grants import ViewGrant
    from tailrace_server.wal.files.sequence_documents import ViewDocument
    from tailrace_server.wal.state.view import LogView


@dataclass(frozen=True, slots=True, eq=False)
class GrantUse:
    """One stream: its caller, what it was given, and the allowances behind that."""

    caller: Principal
    catalog: str
    action: Action
    asked: tuple[Criteria, ...]
    """Canonical."""
    narrowed: Narrowed
    content: Content
    _granted: tuple[Allowance, ...]
    """The allowances for the action when the stream was opened."""
    views: tuple[ViewDocument, ...] = ()
    """The views that it was asked for by, as they were defined then."""
    by_view: ViewGrant | None = None
    """The view by whose grants alone it is given; None: by those of entity types."""

    @property
    def effective(self) -> tuple[Criteria, ...]:
        """The criteria that it is served by, where they are less than what was asked for; else empty."""
        return () if self.narrowed.is_whole else self.narrowed.criteria

    @property
    def identity(self) -> str:
        """Digest of what is given of what was asked for; empty: all of it."""
        if self.narrowed.is_whole:
            return ""
        shown = b"" if self.narrowed.shown is None else self.narrowed.shown.identity
        text = repr(self.narrowed.criteria).encode("utf-8", "surrogatepass")
        return blake2b(text + shown, digest_size=16).hexdigest()

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The keys that all of the criteria name; None if one of them names none, and so takes every row."""
        named = [one.primary_key for one in self.narrowed.criteria]
        return tuple({key for keys in named for key in keys}) if all(named) else None

    def granted_types(self, names: Iterable[str]) -> list[str]:
        """Return those of some entity types that are granted."""
        return [name for name in names if any(each.takes_type(name) for each in self._granted)]

    def columns_of(self, entity_type: str) -> Columns:
        """Return the columns of an entity type that are visible in some of its rows."""
        shown = self.narrowed.shown
        return ALL_COLUMNS if shown is None else columns_of(shown.rules_of(entity_type))

    def looked_at(self, records: int, matched: int) -> int:
        """Return how many records it may know were looked at: of a part of the catalog, those that matched."""
        return max(0, records) if self.narrowed.is_whole else matched

    def refusal(self) -> str | None:
        """Return why it has to end, by the policy in force now; None if all that it has is granted still."""
        grant = self.caller.grant(self.catalog)
        now = () if grant is None else grant.of(self.action)
        if self.by_view is not None:
            now = self.by_view.again(now)
        if now and (now == self._granted or cover(now, self._used())):
            return None
        return (
            f"the policy has changed: {self.caller.name} is no longer granted all that this stream gives of "
            f"catalog {self.catalog!r}; ask again for what is granted"
        )

    def _used(self) -> Iterator[Allowance]:
        """Yield what it gives, as allowances."""
        if self.by_view is not None:
            yield from self._granted
            return
        for one in self.narrowed.criteria:
            for each in self._granted:
                for met in common(one, each):
                    yield self._of(met, each)
            if takes_leads(one):
                # A lead tells how many records of an entity type there are.
                yield from (
                    Allowance(each.entity_types, bodies=False)
                    for each in self._granted
                    if gives_every_record(each)
                )

    def _of(self, met: Criteria, allowance: Allowance) -> Allowance:
        names = met.container_name
        columns = Columns(frozenset(names), listed=True) if names else allowance.columns
        return Allowance(
            frozenset(met.entity_type) if met.entity_type else None,
            frozenset(met.primary_key) if met.primary_key else allowance.primary_keys,
            columns,
            allowance.bodies and bool(self.content),
            rows=allowance.rows,
        )


def use_of(
    caller: Principal,
    catalog: str,
    action: Action,
    asked: Sequence[Criteria],
    content: Content,
    *,
    judges_rows: bool = False,
    view: LogView | None = None,
    by_view: ViewGrant | None = None,
) -> GrantUse:
    """Return the granted part of a request under the current policy.

    A request for a view that grants name is a request for its entity type; only these grants allow it.

    Raises:
        NotPermitted: As ``narrowed``, whose ``judges_rows`` and ``view`` it takes.
    """
    if by_view is None:
        grant = caller.grant(catalog) or Grant(())
        granted = grant.of(action)
    else:
        # Whose rows are not judged by rules has the conditions in the criteria.
        grant = by_view.of_rows if judges_rows else by_view.of_criteria
        granted = by_view.allowances
    alternatives = canonical(asked)
    found = narrowed(alternatives, content, grant, action, judges_rows=judges_rows, view=view)
    return GrantUse(caller, catalog, action, alternatives, found, content, granted, by_view=by_view)
