"""The policy file: it is read and checked as a whole, and read again when it changes.

::

    [[grant]]
    name = "a customer's own orders"                  # for people
    who.issuer = "https://login.example/realms/shop"
    who.claims = { role = "customer" }                # equal, or a member if the claim is a list
    catalogs = ["shop"]                               # shell patterns
    entity_types = ["orders"]                         # absent: all
    hidden_columns = ["margin"]                       # or columns = [...]: only these
    primary_key = "{sub}"                             # or a list; absent: all
    where = "tenant_id = {tenant} AND NOT draft"      # a condition on the row; needs entity_types
    bodies = true
    actions = ["subscribe", "history", "schema"]

Instead of an issuer, ``who`` may have ``who.api_key``, ``who.certificate`` or ``who.anonymous = true``. Grants
add up. If the file is not valid at the start, the server does not start. If a changed file is not valid, the
earlier policy stays in force.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from tailrace_server.access.policy import Policy, PolicyRule, Who
from tailrace_server.errors import ConfigError
from tailrace_server.filters.claims import read_claimed
from tailrace_server.filters.tree import ConditionRefused
from tailrace_server.grants.grant import ALL_COLUMNS, READING, Action, Columns

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace_server.filters.claims import ClaimedCondition

_MEMBERS: Final = frozenset(
    {
        *("name", "who", "catalogs", "entity_types", "columns", "hidden_columns"),
        *("primary_key", "where", "bodies", "actions"),
    }
)
_WHO: Final = frozenset({"anonymous", "issuer", "claims", "api_key", "certificate"})
_BRACES: Final = re.compile(r"[{}]")
_PLACE: Final = re.compile(r"\{[^{}]+\}")


def read_policy(file: Path) -> Policy:
    """Return the policy in a file.

    Raises:
        ConfigError: The file cannot be read or is not valid; the error names file and place.
    """
    return _policy(file, _content(file))


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"policy: {file}: {(error.strerror or str(error)).lower()}") from error


def _policy(file: Path, content: bytes) -> Policy:
    where = f"policy: {file}"
    try:
        value = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is no error of TOML's
        raise ConfigError(f"{where}: not TOML: {error}") from error
    tables = value.pop("grant", [])
    if value:
        raise ConfigError(
            f"{where}: unknown: {', '.join(sorted(value))}; only [[grant]] is allowed"
        )
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise ConfigError(f"{where}: write grants as [[grant]]")
    return Policy(
        tuple(
            _rule(table, place, f"{where}, grant {place}") for place, table in enumerate(tables, 1)
        )
    )


class PolicyFile:
    """A policy file, and the policy in force: the last valid one that was read from the file."""

    def __init__(self, file: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: The file cannot be read or is not valid.
        """
        self.file = file
        content = _content(file)
        self.policy = _policy(file, content)
        self.fingerprint = hashlib.sha256(content).hexdigest()
        """SHA-256 of the version of the file that is in force."""
        self.error: str | None = None
        """Why the current file is not in force; None if it is in force."""

    def reload(self) -> None:
        """Read the file again; on an error the earlier policy stays in force.

        Raises:
            ConfigError: The file cannot be read or is not valid.
        """
        try:
            content = _content(self.file)
            self.policy = _policy(self.file, content)
        except ConfigError as error:
            self.error = str(error)
            raise
        self.fingerprint = hashlib.sha256(content).hexdigest()
        self.error = None


def _rule(table: dict[str, Any], place: int, where: str) -> PolicyRule:
    _refuse_unknown(table, _MEMBERS, where)
    name = table.get("name", f"grant {place}")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: name must be a text")
    if "catalogs" not in table:
        raise ConfigError(f'{where}: catalogs is missing; catalogs = ["*"] means all of them')
    types = table.get("entity_types")
    keys = table.get("primary_key")
    bodies = table.get("bodies", True)
    if not isinstance(bodies, bool):
        raise ConfigError(f"{where}: bodies must be true or false")
    return PolicyRule(
        name,
        _who(table.get("who"), where),
        texts_of(table["catalogs"], f"{where}: catalogs"),
        None if types is None else frozenset(texts_of(types, f"{where}: entity_types")),
        _columns(table, where),
        None if keys is None else _keys(keys, f"{where}: primary_key"),
        bodies,
        _actions(table.get("actions"), where),
        _condition(table, where),
    )


def _refuse_unknown(table: dict[str, Any], known: frozenset[str], where: str) -> None:
    for name in table:
        if name not in known:
            raise ConfigError(f"{where}: unknown: {name}; it has {', '.join(sorted(known))}")


def _who(value: object, where: str) -> Who:
    if not isinstance(value, dict) or not value:
        raise ConfigError(
            f"{where}: who is missing: give an issuer, claims, a key, a certificate or anonymous"
        )
    _refuse_unknown(value, _WHO, f"{where}: who")
    for name in ("issuer", "api_key", "certificate"):
        if name in value and (not isinstance(value[name], str) or not value[name]):
            raise ConfigError(f"{where}: who.{name} must be a text")
    anonymous = value.get("anonymous", False)
    if anonymous not in (True, False) or not isinstance(anonymous, bool):
        raise ConfigError(f"{where}: who.anonymous must be true or false")
    kinds = [
        kind
        for kind, names in (
            ("anonymous", anonymous),
            ("a JWT", "issuer" in value or "claims" in value),
            ("an API key", "api_key" in value),
            ("a certificate", "certificate" in value),
        )
        if names
    ]
    # All parts must match, and a caller has one kind of identity: with two kinds a grant would match no caller.
    if len(kinds) != 1:
        said = " and ".join(kinds) or "nobody"
        raise ConfigError(f"{where}: who names {said}; write a grant for each kind of identity")
    if "claims" in value and "issuer" not in value:
        raise ConfigError(
            f"{where}: who.claims also needs who.issuer, as other issuers may use the same claims"
        )
    return Who(
        anonymous,
        value.get("issuer"),
        _claims(value.get("claims", {}), f"{where}: who.claims"),
        value.get("api_key"),
        value.get("certificate"),
    )


def _claims(value: object, where: str) -> tuple[tuple[str, tuple[str | int | bool, ...]], ...]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a table: name = value")
    found = []
    for name, wanted in sorted(value.items()):
        values = wanted if isinstance(wanted, list) else [wanted]
        if not values or not all(isinstance(each, str | int) for each in values):
            raise ConfigError(
                f"{where}.{name} must be a text, a whole number, true or false, or a list of these"
            )
        found.append((name, tuple(values)))
    return tuple(found)


def _columns(table: dict[str, Any], where: str) -> Columns:
    if "columns" in table and "hidden_columns" in table:
        raise ConfigError(f"{where}: give columns or hidden_columns, not both")
    if "columns" in table:
        names = texts_of(table["columns"], f"{where}: columns")
        return Columns(frozenset(names), listed=True)
    if "hidden_columns" in table:
        return Columns(frozenset(texts_of(table["hidden_columns"], f"{where}: hidden_columns")))
    return ALL_COLUMNS


def _keys(value: object, where: str) -> tuple[str, ...]:
    keys = texts_of(value, where)
    for key in keys:
        # Without the placeholders no brace may be left.
        if _BRACES.search(_PLACE.sub("", key)):
            raise ConfigError(f"{where}: {key!r}: write the name of a claim in braces")
        if key.startswith("["):
            try:
                members = json.loads(key)
            except (ValueError, RecursionError):
                members = None
            if not isinstance(members, list):
                raise ConfigError(
                    f"{where}: {key!r}: a key of several columns is a JSON array, with claims in its texts"
                )
    return keys


def _condition(table: dict[str, Any], where: str) -> ClaimedCondition | None:
    if "where" not in table:
        return None
    text = table["where"]
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{where}: where must be a text: a condition in SQL")
    if "entity_types" not in table:
        raise ConfigError(f"{where}: where needs entity_types, whose columns it uses")
    try:
        return read_claimed(text)
    except ConditionRefused as error:
        raise ConfigError(f"{where}: {error}") from None


def _actions(value: object, where: str) -> frozenset[Action]:
    if value is None:
        return READING
    names = texts_of(value, f"{where}: actions")
    known = {each.value for each in Action}
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: actions: {name!r} is not one of {', '.join(Action)}")
    return frozenset(map(Action, names))


def texts_of(value: object, where: str) -> tuple[str, ...]:
    """Return the texts of a setting that is one text, or a list of at least one.

    Raises:
        ConfigError: The setting is neither; the error names the place, ``where``.
    """
    values = [value] if isinstance(value, str) else value
    if (
        not isinstance(values, list)
        or not values
        or not all(isinstance(each, str) and each for each in values)
    ):
        raise ConfigError(f"{where} must be a text, or a list of at least one")
    return tuple(values)
