"""What do tokens and grants cost a hundred subscribers, and what does a hidden column?

::

    log of 200,000 captures ──▶ tailrace without identities   ──▶ 100 raw subscribers      (baseline)
                            ──▶ tailrace with a token and a policy that grants all     ──▶ 100
                            ──▶ tailrace with a policy that hides a column of 22 bytes ──▶ 100

From the oldest position; captures of 200 bytes, of 178 with the column hidden. All subscribers of a server are
granted the same, so columns are cut once for all of them. The server has the first core, subscribers the
second. The three are taken in turn. It does not show a network, nor principals who are granted different
columns: each of those sets is cut by itself.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from bench._harness import (
    machine,
    median,
    result,
    server,
    stay_with_the_subscribers,
    subscribers,
    table,
    tailrace_server,
)
from bench._log import CATALOG, measure_capture_bytes, write_log
from bench.one_log_hundred_subscribers import rates, warm_up, write_warm_up
from tailrace_server.grants.grant import Allowance, Columns, Grant
from tests.support.issuer import TokenIssuer
from tests.support.principals import Holder

STREAMS = 100
CAPTURES = 200_000
"""To each subscriber."""
RUNS = 5
HIDDEN = "price"
_GRANTS = """
[[grant]]
who.issuer = "https://issuer.example"
catalogs = "*"
"""
_HIDES = f"""
[[grant]]
who.anonymous = true
catalogs = "{CATALOG}"
hidden_columns = "{HIDDEN}"

[[grant]]
who.anonymous = true
catalogs = "warmup"
"""


class Kind(NamedTuple):
    """How a server is set up."""

    name: str
    options: tuple[str, ...] = ()
    token: str | None = None
    hides: bool = False
    to_reach: str = ""


def catch_up(root: Path, kind: Kind, sizes: tuple[int, int]) -> tuple[float, float]:
    """Return captures a second and server CPU µs a delivery; sizes of captures are whole and cut."""
    whole, cut = sizes
    with server(tailrace_server(root, *kind.options)) as subject:
        warm_up(subject, whole, token=kind.token)
        before = subject.cpu_s()
        asked: dict[str, Any] = {"capture_bytes": cut if kind.hides else whole, "token": kind.token}
        with subscribers(subject.address, STREAMS, CAPTURES, **asked) as process:
            report = result(process)
        return rates(report, subject.cpu_s() - before)


def kinds(folder: Path) -> list[Kind]:
    """Return the servers to compare, the baseline first."""
    issuer = TokenIssuer("https://issuer.example")
    (folder / "jwks.json").write_bytes(issuer.jwks())
    identities = issuer.settings(folder, keys="jwks.json")
    grants, hides = folder / "grants.toml", folder / "hides.toml"
    grants.write_text(_GRANTS)
    hides.write_text(_HIDES)
    asked = ("--identities", str(identities), "--policy", str(grants))
    return [
        Kind("neither"),
        Kind("token and grants", asked, issuer.token(86_400), to_reach="≥ 0.98"),
        Kind("a hidden column", ("--policy", str(hides)), hides=True, to_reach="≥ 0.9"),
    ]


def main() -> None:
    """Measure and print."""
    print(machine())
    stay_with_the_subscribers()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = folder / "logs"
        root.mkdir()
        write_log(root, rows=CAPTURES, rows_per_transaction=100, transactions_per_commit=2000)
        write_warm_up(root)
        cut = Allowance(columns=Columns(frozenset({HIDDEN})))
        sizes = (
            measure_capture_bytes(root),
            measure_capture_bytes(root, Holder({CATALOG: Grant((cut,))})),
        )
        compared = kinds(folder)
        runs = [[catch_up(root, kind, sizes) for kind in compared] for _ in range(RUNS)]
    rows = []
    for place, kind in enumerate(compared):
        rate, cpu = (median([run[place][figure] for run in runs]) for figure in (0, 1))
        ratios = [
            median([run[place][0] / run[0][0] for run in runs]),
            median([run[0][1] / run[place][1] for run in runs]),
        ]
        told = [f"{rate / 1e6:.2f} M/s", f"{cpu:.3f} µs", *(f"{each:.2f}" for each in ratios)]
        rows.append([kind.name, *told, kind.to_reach])
    table(
        f"{STREAMS} subscribers, captures of {sizes[0]} bytes ({sizes[1]} without the column), {CAPTURES:,} to "
        f"each; median of {RUNS} runs",
        ["", "captures/s", "server CPU a capture", "rate", "CPU of neither / CPU", "to reach"],
        rows,
    )


if __name__ == "__main__":
    main()
