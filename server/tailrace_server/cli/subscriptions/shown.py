"""Named subscriptions on a terminal, and as lines of JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import typer

from tailrace.named.values import SubscriptionHealth
from tailrace_server.cli.output import date_text, note, printable
from tailrace_server.units import duration, format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.named.values import NamedSubscription

_HEALTH: Final = {
    SubscriptionHealth.HELD: "held",
    SubscriptionHealth.NOT_HELD: "not held",
    SubscriptionHealth.BROKEN: "hold broken",
    SubscriptionHealth.LOST: "lost",
}
_EXPLAINED: Final = {
    SubscriptionHealth.HELD: "what it needs is kept by retention",
    SubscriptionHealth.NOT_HELD: "the next trim may take what it needs",
    SubscriptionHealth.BROKEN: "a trim has broken its hold; what it needs is there still, but no longer kept",
    SubscriptionHealth.LOST: "the log has no longer what it needs: read the state, and go on behind it",
}


def show_table(found: Sequence[NamedSubscription]) -> None:
    """Print a line for each."""
    if not found:
        note("no named subscriptions yet")
        return
    rows = [("NAME", "NEXT", "BEHIND", "BYTES", "HOLD", "STATE", "TAKEN BY")]
    rows += [
        (
            each.name,
            str(each.needed),
            duration(each.age_s) if each.age_s else "-",
            f"{each.behind_bytes:,}",
            _hold(each),
            f"{_HEALTH[each.health]}{', paused' if each.paused else ''}",
            printable(each.reader) or "none yet",
        )
        for each in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        cells[3] = row[3].rjust(widths[3])
        typer.echo("  ".join(cells).rstrip())


def show_one(one: NamedSubscription) -> None:
    """Print all of one."""
    from tailrace_server.capture.criteria_form import in_words

    lines = (
        ("name", one.name),
        ("catalog", one.catalog),
        ("takes", printable(in_words(one.criteria))),
        (
            "next",
            f"{one.needed}, {duration(one.age_s)} old, {one.behind_bytes:,} bytes from there on"
            if one.age_s
            else f"{one.needed}, which is still to come",
        ),
        ("state", f"{_HEALTH[one.health]}: {_EXPLAINED[one.health]}"),
        ("hold", f"up to {_hold(one)}"),
        ("taken by", f"{printable(one.reader)} (epoch {one.epoch})" if one.epoch else "none yet"),
        ("paused", "yes: it takes no readers" if one.paused else "no"),
        ("owner", printable(one.owner) or "nobody in particular"),
        ("created", date_text(one.created)),
        ("moved", date_text(one.moved)),
        ("cursor", str(one.cursor)),
    )
    for name, text in lines:
        typer.echo(f"{name:>8}  {text}")


def print_lines(found: Sequence[NamedSubscription]) -> None:
    """Print each as a line of JSON."""
    import orjson

    from tailrace_server.capture.criteria_form import criteria_form

    for each in found:
        fields = {
            "name": each.name,
            "catalog": each.catalog,
            "criteria": criteria_form(each.criteria),
            "cursor": str(each.cursor),
            "needed": str(each.needed),
            "epoch": each.epoch,
            "reader": each.reader,
            "holdMs": round(each.hold_s * 1000),
            "holdBytes": each.hold_bytes,
            "ageMs": round(each.age_s * 1000),
            "behindBytes": each.behind_bytes,
            "health": each.health.name,
            "paused": each.paused,
            "owner": each.owner,
            "created": each.created,
            "moved": each.moved,
        }
        sys.stdout.buffer.write(orjson.dumps(fields) + b"\n")
    sys.stdout.buffer.flush()


def _hold(one: NamedSubscription) -> str:
    if not one.hold_s or not one.hold_bytes:
        return "nothing"
    return f"{format_seconds(one.hold_s)}, {format_bytes(one.hold_bytes)}"
