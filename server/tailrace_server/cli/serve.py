"""``tailrace serve``: run the server until a signal stops it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tailrace_server import settings
from tailrace_server.cli.terminal.output import note
from tailrace_server.cli.terminal.typer_options import keyword, with_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

_PANELS: Final = {
    each: f"{title[0].upper()}{title[1:]}"
    for title, group in settings.SECTIONS.items()
    for each in group
    if title != "the process"
}


def serve(config_file: Path | None, print_config: bool, **flags: str | None) -> int | None:
    """Serve the catalogs under a log root to subscribers.

    Settings come from a TOML file, the environment (TAILRACE_LOG and so on)
    and these options; options win over the environment, and it wins over the
    file. Ctrl-C or SIGTERM ends every subscription with the cursor that it
    resumes from. A second signal stops the server at once.
    """
    loaded = settings.load(flags, file=config_file)
    for variable, near in settings.misspelt().items():
        note(f"variable {variable} is ignored, as it is not a setting; did you mean {near}?")
    if print_config:
        typer.echo(settings.render(loaded), nl=False)
        return None
    from tailrace_server import app, logging_setup

    logging_setup.configure(loaded.settings.log_level, loaded.settings.log_format)
    return app.run(loaded.settings)


def _with_flags(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Add an option for each setting to a command. Values are texts, which ``settings.load`` checks."""
    parameters = [
        keyword(
            "config_file",
            Annotated[
                Path | None,
                typer.Option("--config", metavar="FILE", help="TOML file with settings."),
            ],
            None,
        ),
        keyword(
            "print_config",
            Annotated[
                bool,
                typer.Option(
                    "--print-config", help="Print the settings in effect as TOML, and exit."
                ),
            ],
            default=False,
        ),
    ]
    for each in settings.EVERY:
        panel = _PANELS.get(each) if each.name != "memory" else None
        default = f" [default: {each.format(each.default)}]" if each.default is not None else ""
        option: Any = typer.Option(
            each.flag,
            metavar=each.unit.upper(),
            help=f"{each.reason[0].upper()}{each.reason[1:]}.{default}".replace("[", r"\["),
            rich_help_panel=panel,
        )
        parameters.append(keyword(each.name, Annotated[str | None, option], None))
    return with_parameters(command, parameters)


serve_command: Final = _with_flags(serve)
