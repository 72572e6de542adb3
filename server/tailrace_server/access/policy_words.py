"""A policy in words: a text for each grant, and why a grant applies to an identity or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_server.filters.tree import words_of
from tailrace_server.grants.grant import Action, Columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace_server.access.identity import Identity
    from tailrace_server.access.policy import Policy, PolicyRule, Who

_ACTIONS: Final = {
    Action.SUBSCRIBE: "subscribe to",
    Action.HISTORY: "read the history of",
    Action.SCHEMA: "see the schema of",
    Action.STATISTICS: "see the statistics of",
    Action.NAMED: "have named subscriptions of",
    Action.OPERATE: "operate",
}
_SHOWN: Final = 5
"""Most values of a list that a text names."""


def policy_words(policy: Policy) -> Iterator[str]:
    """Yield a line for each grant of a policy."""
    if not policy.rules:
        yield "no grants: all access is denied"
    for rule in policy.rules:
        yield f"{rule.name}: {who_words(rule.who)} may {rule_words(rule)}"


def who_words(who: Who) -> str:
    """Return the callers of a grant in words."""
    if who.anonymous:
        return "everyone, without a credential,"
    if who.api_key is not None:
        return f"the API key {who.api_key!r}"
    if who.certificate is not None:
        return f"the certificate of {who.certificate!r}"
    claims = " and ".join(f"{name} {_any_of(map(repr, values))}" for name, values in who.claims)
    return f"a token of {who.issuer}" + (f" whose claim {claims}" if claims else "")


def rule_words(rule: PolicyRule) -> str:
    """Return the actions, entity types, keys, catalogs and columns of a grant in words."""
    keys = "" if rule.primary_keys is None else f" with the key {_any_of(rule.primary_keys)}"
    types = "every entity type" if rule.entity_types is None else _any_of(sorted(rule.entity_types))
    bodies = "" if rule.bodies else ", without images"
    actions = [words for action, words in _ACTIONS.items() if action in rule.actions]
    does = " and ".join([", ".join(actions[:-1]), actions[-1]] if len(actions) > 1 else actions)
    catalogs = _any_of(rule.catalogs)
    if rule.where is not None:
        keys += f" where {rule.where.text}"
    return f"{does} {types}{keys} in the catalog {catalogs}: {columns_words(rule.columns)}{bodies}"


def columns_words(columns: Columns) -> str:
    """Return the visible columns in words."""
    if columns.are_all:
        return "all columns"
    names = ", ".join(sorted(columns.names))
    return f"only the columns {names}" if columns.listed else f"all columns but {names}"


def why_words(policy: Policy, identity: Identity | None, catalog: str) -> Iterator[str]:
    """Yield a line for each grant of a policy: whether it applies to an identity and a catalog, and why not."""
    for rule in policy.rules:
        if not rule.who.takes(identity):
            why = f"does not apply: it is for {who_words(rule.who).rstrip(',')}"
        elif not rule.is_for(catalog):
            why = f"does not apply: it is for the catalog {_any_of(rule.catalogs)}"
        elif (held := rule.allowance(identity)) is None:
            why = f"grants nothing: {rule.unfit_claim(identity)}"
        else:
            keys = held.primary_keys
            shown = "" if not isinstance(keys, frozenset) else f", key {_any_of(sorted(keys))}"
            if held.rows is not None:
                shown += f", rows {words_of(held.rows)}"
            why = f"applies: {rule_words(rule)}{shown}"
        yield f"{rule.name} {why}"


def _any_of(values: Iterable[str]) -> str:
    listed = list(values)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return " or ".join(listed[:_SHOWN]) + more
