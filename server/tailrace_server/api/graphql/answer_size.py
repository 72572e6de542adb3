"""How large an answer may be: counted while it is made, since a short document can ask for much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

_FIELD_BYTES: Final = 200
"""Of a field beside its text, while the answer is made."""


class AnswerTooLarge(BaseException):
    """Ends an execution at once; as an ordinary exception it would become an error of each further field."""

    def __init__(self, bytes_max: int) -> None:
        """Keep the limit."""
        super().__init__(bytes_max)
        self.bytes_max = bytes_max

    def refusal(self) -> InvalidRequest:
        """Return the text of the caller's error."""
        return InvalidRequest(
            f"the answer takes more than {self.bytes_max} bytes of memory, the limit "
            f"(graphql_answer_bytes), {_FIELD_BYTES} for each field; ask for less at once"
        )


def bounded(bytes_max: int) -> Callable[..., Any]:
    """Return a middleware for one execution.

    Raises:
        AnswerTooLarge: From the resolver with which the answer is larger than the limit.
    """
    left = bytes_max

    def resolve(following: Callable[..., Any], source: Any, info: Any, **arguments: Any) -> Any:
        nonlocal left
        value = following(source, info, **arguments)
        left -= _FIELD_BYTES
        if isinstance(value, str | bytes | msgspec.Raw):
            left -= len(bytes(value)) if isinstance(value, msgspec.Raw) else len(value)
        if left < 0:
            raise AnswerTooLarge(bytes_max)
        return value

    return resolve
