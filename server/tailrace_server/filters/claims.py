"""Conditions of a policy, in which ``{claim}`` is replaced by a claim of the caller.

A claim becomes a value in the parsed tree. It never becomes a part of the text, so it cannot inject SQL. If a
claim is missing, empty, or neither a text nor a whole number, the condition is an error and grants nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tailrace_server.filters.tree import (
    Comparison,
    ConditionRefused,
    Distinction,
    Given,
    Junction,
    Likeness,
    Membership,
    Negation,
    NullTest,
    Parameter,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace_server.filters.tree import Condition, Value

_PIECES: Final = re.compile(r"""'[^']*'|"[^"]*"|\{([^{}]*)\}|[{}]""")
"""Matches quoted text, claims, and braces that are not part of a claim."""
_QUOTED_CLAIM: Final = re.compile(r"'\{[^{}]+\}'")
_VALUES_MAX: Final = 10_000
"""The most values of a claim that is a list."""
_BITS_MAX: Final = 1_024
"""The most bits of a claim that is a whole number."""


class ClaimUnfit(ValueError):
    """A claim is missing or is not a usable value; the message names the claim and the reason."""


@dataclass(frozen=True, slots=True)
class ClaimedCondition:
    """A parsed condition of a policy, with parameters in place of its claims."""

    text: str
    """The text in the policy."""
    _condition: Condition
    _claims: tuple[str, ...]
    """Names of claims; in the condition they are the parameters ``claim_0``, ``claim_1`` …, in this order."""

    def filled(self, claims: Mapping[str, Any]) -> Condition:
        """Return the condition with a caller's claims as values.

        Raises:
            ClaimUnfit: A claim is missing or is not a usable value.
        """
        return _filled(
            self._condition,
            {f"claim_{n}": (each, claims.get(each)) for n, each in enumerate(self._claims)},
        )


def read_claimed(text: str) -> ClaimedCondition:
    """Parse a condition of a policy.

    Raises:
        ConditionRefused: The text is not a valid condition; the error has the place.
    """
    from tailrace_server.filters.parsing import parse  # large, and most policies have no condition

    names: dict[str, int] = {}

    def parameter(found: re.Match[str]) -> str:
        # Quoted texts and names stay as they are, but a claim in quotes is a likely mistake.
        piece = found[0]
        if piece[0] in "'\"":
            if _QUOTED_CLAIM.fullmatch(piece):
                raise ConditionRefused(
                    f"where, at character {found.start() + 1}: write {piece[1:-1]} without quotes: a claim is "
                    "a value by itself"
                )
            return piece
        name = found[1]
        if not name:
            raise ConditionRefused(
                f"where, at character {found.start() + 1}: write the name of a claim in braces"
            )
        # Pad to the width of the claim if possible, so that places in errors are those of the policy's text.
        return f":claim_{names.setdefault(name, len(names))}".ljust(len(piece))

    # 1. Parse the text with a parameter in place of each claim.
    condition = parse(_PIECES.sub(parameter, text))
    # 2. Check that each claim has become a value. Otherwise it would be text that is not a value, or a pattern,
    #    in which a caller's `%` would be a wildcard.
    used = set()
    for value, is_pattern in _values_in(condition):
        if isinstance(value, Parameter):
            used.add(value.name)
            if is_pattern:
                raise ConditionRefused("where: a claim is a value, and cannot be a pattern of LIKE")
    for name, number in names.items():
        if f"claim_{number}" not in used:
            raise ConditionRefused(f"where: {{{name}}} must be in the place of a value")
        used.remove(f"claim_{number}")
    if used:
        raise ConditionRefused(
            f"where: :{min(used)} is not a parameter of a policy; a claim is written as {{name}}"
        )
    return ClaimedCondition(text, condition, tuple(names))


def _values_in(condition: Condition) -> Iterator[tuple[Value, bool]]:
    """Yield each value of a condition, with True if it is a LIKE pattern."""
    match condition:
        case Junction(parts=parts):
            for part in parts:
                yield from _values_in(part)
        case Negation(part=part):
            yield from _values_in(part)
        case Comparison(value=value) | Distinction(value=value):
            yield value, False
        case Likeness(pattern=value):
            yield value, True
        case Membership(values=values):
            yield from ((value, False) for value in values)
        case NullTest():
            pass


def _filled(condition: Condition, held: Mapping[str, tuple[str, Any]]) -> Condition:
    """Replace the parameters of a condition by values; ``held`` is parameter → name and value of its claim."""

    def one(value: Value) -> Value:
        if not isinstance(value, Parameter):
            return value
        name, claim = held[value.name]
        if isinstance(claim, list | tuple):
            raise ClaimUnfit(f"the claim {name!r} is a list, which only IN supports")
        return Given(_text(name, claim), value.family, value.place)

    def some(value: Value) -> tuple[Value, ...]:
        if not isinstance(value, Parameter) or not isinstance(held[value.name][1], list | tuple):
            return (one(value),)
        name, claim = held[value.name]
        if not claim:
            raise ClaimUnfit(f"the claim {name!r} is an empty list")
        if len(claim) > _VALUES_MAX:
            raise ClaimUnfit(f"the claim {name!r} has more than {_VALUES_MAX} values")
        # Sorted and without duplicates, so that equal sets of
        # values give equal conditions, which share a publisher.
        texts = dict.fromkeys(_text(name, each) for each in claim)
        return tuple(Given(text, value.family, value.place) for text in sorted(texts))

    match condition:
        case Junction(parts=parts):
            return replace(condition, parts=tuple(_filled(part, held) for part in parts))
        case Negation(part=part):
            return replace(condition, part=_filled(part, held))
        case NullTest() | Likeness():
            return condition
        case Membership(values=values):
            return replace(
                condition, values=tuple(each for value in values for each in some(value))
            )
        case Comparison(value=value) | Distinction(value=value):
            return replace(condition, value=one(value))


def _text(name: str, claim: object) -> str:
    """Return a claim that is a single value as text.

    Raises:
        ClaimUnfit: The claim is missing or is not a usable value.
    """
    if claim is None:
        raise ClaimUnfit(f"the claim {name!r} is missing")
    if claim == "" or isinstance(claim, bool) or not isinstance(claim, str | int):
        raise ClaimUnfit(f"the claim {name!r} is neither a text nor a whole number")
    if isinstance(claim, int) and claim.bit_length() > _BITS_MAX:
        raise ClaimUnfit(f"the claim {name!r} is too large")
    if isinstance(claim, str) and not claim.isascii():
        try:
            claim.encode()
        except UnicodeEncodeError:
            raise ClaimUnfit(f"the claim {name!r} has half a character") from None
    return str(claim)
