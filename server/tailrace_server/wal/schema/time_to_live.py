"""How long the rows of an entity type live: as long as a column says, or so long after their last change.

::

    ttl = "expires_at"                        a row is over when the time in that column is past
    ttl = "7 days after the last change"      seconds, minutes, hours, days or weeks
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_UNITS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_AGE: Final = re.compile(r"(\d{1,9}) (second|minute|hour|day|week)s? after the last change")
_NEARLY_AGE: Final = re.compile(r"\d+\s*[a-z]*(\s.*)?|.*\safter\s.*", re.IGNORECASE)
"""Texts that are no column's name, but an age in another notation."""


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """One of both is set."""

    column: str | None = None
    """The column that says when a row is over."""
    age_s: int | None = None
    """Seconds from the commit of a row's last change on."""

    @classmethod
    def parse(cls, text: str) -> TimeToLive:
        """Read one.

        Raises:
            ValueError: It is neither a column nor an age; says what it must be.
        """
        if (age := _AGE.fullmatch(text)) is not None:
            if not int(age[1]):
                raise ValueError("must be at least 1 second after the last change")
            return cls(age_s=int(age[1]) * _UNITS[age[2]])
        if _NEARLY_AGE.fullmatch(text):
            raise ValueError(
                "must be a column, or an age as in 7 days after the last change (seconds, minutes, "
                f"hours, days, weeks), not {text!r}"
            )
        return cls(column=text)
