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
    """The request of one stream, its granted part, and the allowances that it was granted by."""

    caller: Principal
    catalog: str
    action: Action
    asked: tuple[Criteria, ...]
    """The requested criteria, canonical."""
    narrowed: Narrowed
    """The granted part of the request."""
    content: Content
    _granted: tuple[Allowance, ...]
    """The allowances for the action when the stream was opened."""
    views: tuple[ViewDocument, ...] = ()
    """The definitions of the requested views when the stream was opened."""
    by_view: ViewGrant | None = None
    """The grants of the requested view, if only they allow the stream; None: the grants of entity types do."""

    @property
    def effective(self) -> tuple[Criteria, ...]:
        """The effective criteria; empty if the whole catalog is granted, so that nothing was narrowed."""
        return () if self.narrowed.is_whole else self.narrowed.criteria

    @property
    def identity(self) -> str:
        """Digest of the effective criteria and their visible part; empty if the whole catalog is granted."""
        if self.narrowed.is_whole:
            return ""
        shown = b"" if self.narrowed.shown is None else self.narrowed.shown.identity
        text = repr(self.narrowed.criteria).encode("utf-8", "surrogatepass")
        return blake2b(text + shown, digest_size=16).hexdigest()

    @property
    def keys(self) -> tuple[str, ...] | None:
        """All keys in the effective criteria; None if one ``Criteria`` has no keys and so matches any row."""
        named = [one.primary_key for one in self.narrowed.criteria]
        return tuple({key for keys in named for key in keys}) if all(named) else None

    def granted_types(self, names: Iterable[str]) -> list[str]:
        """Return the granted ones of some entity types."""
        return [name for name in names if any(each.takes_type(name) for each in self._granted)]

    def columns_of(self, entity_type: str) -> Columns:
        """Return the columns of an entity type that are visible in some of its rows."""
        shown = self.narrowed.shown
        return ALL_COLUMNS if shown is None else columns_of(shown.rules_of(entity_type))

    def looked_at(self, records: int, matched: int) -> int:
        """Return the number of scanned records that may be revealed to the caller.

        A caller who is granted only a part of the catalog gets the number of matches instead.
        """
        return max(0, records) if self.narrowed.is_whole else matched

    def refusal(self) -> str | None:
        """Return why the stream has to end by the policy in force now; None if everything is still granted."""
        grant = self.caller.grant(self.catalog)
        now = () if grant is None else grant.of(self.action)
        if self.by_view is not None:
            now = self.by_view.again(now)
        # Most policies change nothing for most callers, so compare the allowances as a whole first.
        if now and (now == self._granted or cover(now, self._used())):
            return None
        return (
            f"the policy has changed: {self.caller.name} is no longer granted all that this stream gives of "
            f"catalog {self.catalog!r}; ask again for what is granted"
        )

    def _used(self) -> Iterator[Allowance]:
        """Yield what the stream delivers, as allowances, to compare it with a new policy."""
        if self.by_view is not None:
            yield from self._granted
            return
        for one in self.narrowed.criteria:
            for each in self._granted:
                for met in common(one, each):
                    yield self._of(met, each)
            if takes_leads(one):
                # A TRANSACTION record reveals how many records of these entity types there are.
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
    """Return the granted part of a request under the policy in force now.

    If ``by_view`` is given, ``asked`` is already expanded, and only these grants allow the request.
    ``judges_rows`` and ``view`` are those of ``narrowed``.

    Raises:
        NotPermitted: The request names something that is not granted, or nothing of it is granted. Or rows are
            granted by a condition which cannot be applied here.
    """
    if by_view is None:
        grant = caller.grant(catalog) or Grant(())
        granted = grant.of(action)
    else:
        # Without rules to filter rows, the expanded criteria
        # already have the keys and conditions of the grants.
        grant = by_view.of_rows if judges_rows else by_view.of_criteria
        granted = by_view.allowances
    alternatives = canonical(asked)
    found = narrowed(alternatives, content, grant, action, judges_rows=judges_rows, view=view)
    return GrantUse(caller, catalog, action, alternatives, found, content, granted, by_view=by_view)
