"""Commands and their groups of options, given by the names of fields as a command line gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tailrace_server.option_fields import called_with, groups_of, options_of, values_of

if TYPE_CHECKING:
    from collections.abc import Callable

_G = TypeVar("_G")


def made(group: type[_G], **given: Any) -> _G:
    """Return a group of options; those that are not given have their defaults."""
    return group(**values_of(group, {**_defaults(group), **given}))


def call(command: Callable[..., int], **given: Any) -> int:
    """Call a command; options that are not given have their defaults."""
    groups = groups_of(command).values()
    defaults = {name: each for group in groups for name, each in _defaults(group).items()}
    return called_with(command, {**defaults, **given})


def _defaults(group: type) -> dict[str, Any]:
    return {name: each.default for name, each in options_of(group).items()}
