"""The policy: rules that grant callers access to catalogs, and the resulting grant of one identity.

A claim is a value, never a pattern: the values of a token are compared, and inserted into keys, as they are. A
rule that inserts a claim grants nothing if the claim is missing, empty, or neither text nor whole number.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from tailrace_server.access.identity import IdentityKind
from tailrace_server.filters.claims import ClaimUnfit
from tailrace_server.grants.grant import (
    ALL_COLUMNS,
    READING,
    Action,
    Allowance,
    Columns,
    Grant,
    KeyPatterns,
)
from tailrace_server.wal.catalog import SYSTEM_CATALOG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace_server.access.identity import Identity
    from tailrace_server.filters.claims import ClaimedCondition

_PLACE: Final = re.compile(r"\{([^{}]+)\}")
"""A placeholder for a claim in the text of a key."""
_SYSTEM_TYPES: Final = frozenset({"catalog"})
_SHOWN: Final = 5
"""Most texts of keys that an error names."""


@dataclass(frozen=True, slots=True)
class Who:
    """The callers that a rule applies to; every field that is set must match."""

    anonymous: bool = False
    """True if the rule applies only to callers without credentials."""
    issuer: str | None = None
    claims: tuple[tuple[str, tuple[str | int | bool, ...]], ...] = ()
    """Pairs of a claim's name and accepted values; the claim must be one of the values, or a list with one."""
    api_key: str | None = None
    certificate: str | None = None

    def takes(self, identity: Identity | None) -> bool:
        """Return True if the rule applies to an identity; None is an anonymous caller."""
        if identity is None or self.anonymous:
            return self.anonymous and identity is None
        # API keys and certificates are named in the rule. A name is unique only within its kind, so compare
        # both.
        wanted = (
            (self.api_key, IdentityKind.API_KEY),
            (self.certificate, IdentityKind.CERTIFICATE),
        )
        for name, kind in wanted:
            if name is not None and (identity.kind is not kind or identity.name != name):
                return False
        if (self.issuer is not None or self.claims) and identity.kind is not IdentityKind.JWT:
            return False
        if self.issuer is not None and identity.issuer != self.issuer:
            return False
        return all(
            any(_same(value, held) for value in values for held in _each(identity.claims.get(name)))
            for name, values in self.claims
        )


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One grant of the policy file."""

    name: str
    """A name for people: that in the file, or else the grant's number."""
    who: Who
    catalogs: tuple[str, ...]
    """Shell patterns of catalog names, case-sensitive."""
    entity_types: frozenset[str] | None = None
    columns: Columns = ALL_COLUMNS
    primary_keys: tuple[str, ...] | None = None
    """Texts of keys in which ``{claim}`` is replaced by the claim's value; None: all keys."""
    bodies: bool = True
    actions: frozenset[Action] = READING
    where: ClaimedCondition | None = None
    """The condition that rows must meet; None: all rows are granted."""

    def is_for(self, catalog: str) -> bool:
        """Return True if the rule applies to a catalog."""
        return any(fnmatchcase(catalog, each) for each in self.catalogs)

    def allowance(self, identity: Identity | None) -> Allowance | None:
        """Return the allowance of an identity that the rule applies to; None if a claim is unusable."""
        try:
            return self._filled(identity)
        except ClaimUnfit:
            return None

    def unfit_claim(self, identity: Identity | None) -> str | None:
        """Return which claim of an identity is unusable, and why; None if there is no such claim."""
        try:
            self._filled(identity)
        except ClaimUnfit as unfit:
            return str(unfit)
        return None

    def _filled(self, identity: Identity | None) -> Allowance:
        """Return the allowance, with the claims of an identity inserted.

        Raises:
            ClaimUnfit: A claim is unusable, so the rule grants nothing.
        """
        claims = {} if identity is None else claims_of(identity)
        keys = None
        if self.primary_keys is not None:
            keys = frozenset(key for each in self.primary_keys for key in keys_of(each, claims))
            if not keys:
                texts = " or ".join(self.primary_keys[:_SHOWN])
                raise ClaimUnfit(
                    f"{texts} has a claim that is missing, or is not a text or whole number"
                )
        rows = None if self.where is None else self.where.filled(claims)
        return Allowance(self.entity_types, keys, self.columns, self.bodies, self.actions, rows)


class Policy:
    """The rules of one version of the policy file."""

    def __init__(self, rules: tuple[PolicyRule, ...]) -> None:
        """Make a policy of rules in the order of the file."""
        self.rules = rules

    def rules_for(self, identity: Identity | None) -> tuple[PolicyRule, ...]:
        """Return the rules that apply to an identity; None is an anonymous caller."""
        return tuple(rule for rule in self.rules if rule.who.takes(identity))

    def grant(self, identity: Identity | None, catalog: str) -> Grant | None:
        """Return the grant of an identity for a catalog; None: no access, and the catalog is hidden from it."""
        rules = self.rules_for(identity)
        if catalog == SYSTEM_CATALOG:
            return _system_grant(rules, identity)
        allowances = (each.allowance(identity) for each in rules if each.is_for(catalog))
        found = tuple(each for each in allowances if each is not None)
        return Grant(found) if found else None

    def unfit_claims(self, identity: Identity | None, catalog: str) -> Iterator[tuple[str, str]]:
        """Yield name and reason of each rule that grants nothing of a catalog because a claim is unusable."""
        for rule in self.rules_for(identity):
            if rule.is_for(catalog) and (why := rule.unfit_claim(identity)) is not None:
                yield rule.name, why

    def grants_anything(self, identity: Identity | None) -> bool:
        """Return True if any rule applies to an identity."""
        return bool(self.rules_for(identity))


def _system_grant(rules: tuple[PolicyRule, ...], identity: Identity | None) -> Grant | None:
    """Return the grant for the log of catalogs: the records of those catalogs that the caller may know."""
    # The keys of this log are names of catalogs: a rule grants the records of the catalogs that its patterns
    # match. Only a rule for all catalogs grants the other entity types too.
    given = [(rule, held) for rule in rules if (held := rule.allowance(identity)) is not None]
    allowances: list[Allowance] = []
    for rule, held in given:
        whole = "*" in rule.catalogs
        keys = None if whole else KeyPatterns(tuple(sorted(rule.catalogs)))
        types = None if whole else _SYSTEM_TYPES
        allowances.append(Allowance(types, keys, ALL_COLUMNS, actions=held.actions))
    return Grant(tuple(dict.fromkeys(allowances))) if allowances else None


def claims_of(identity: Identity) -> Mapping[str, Any]:
    """Return the claims of an identity; an API key or certificate has one claim, ``sub``, with its name."""
    if identity.kind is IdentityKind.JWT:
        return identity.claims
    return {"sub": identity.name}


def keys_of(text: str, claims: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys that result from a text of the policy; none if a claim in the text is missing.

    A claim that is a list gives a key for each of its values. In a key of several columns, which is a JSON
    array, a value fills its own member, whatever characters the value contains.
    """
    names = list(dict.fromkeys(_PLACE.findall(text)))
    # Every combination of the claims' values. A missing claim has no value, so there is no combination.
    filled: list[dict[str, str | int]] = [{}]
    for name in names:
        values = [
            each
            for each in _each(claims.get(name))
            if each != "" and isinstance(each, str | int) and not isinstance(each, bool)
        ]
        filled = [{**held, name: value} for held in filled for value in values]
    for held in filled:
        yield _filled(text, held)


def _filled(text: str, held: Mapping[str, str | int]) -> str:
    if text.startswith("["):
        members = json.loads(text)  # the reader of the file has checked that it is a JSON array
        return json.dumps(
            [_filled_member(each, held) for each in members],
            ensure_ascii=False,
            separators=(",", ":"),
        )
    return _PLACE.sub(lambda found: str(held[found[1]]), text)


def _filled_member(member: Any, held: Mapping[str, str | int]) -> Any:
    if not isinstance(member, str):
        return member
    alone = _PLACE.fullmatch(member)
    return held[alone[1]] if alone else _PLACE.sub(lambda found: str(held[found[1]]), member)


def _each(value: object) -> tuple[Any, ...]:
    """Return the values of a claim: the members of a list, or the claim itself."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _same(wanted: str | int | bool, held: object) -> bool:
    """Return True if a claim's value equals the wanted one and has the same type; 1 is not true."""
    return type(held) is type(wanted) and held == wanted
