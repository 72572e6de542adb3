"""``tailrace export``: write the contents of a catalog's log in the formats of other systems."""

from __future__ import annotations

from typing import Final

import typer

from tailrace_server.cli.export.cdcv2 import app as cdcv2_app
from tailrace_server.cli.export.delta import app as delta_app

export_app: Final = typer.Typer(
    name="export",
    no_args_is_help=True,
    help="Write the contents of a catalog in the formats of other systems.",
)


@export_app.callback()
def export() -> None:
    """Write what a catalog's log says for other systems."""


for _each in (cdcv2_app, delta_app):
    export_app.add_typer(_each)
