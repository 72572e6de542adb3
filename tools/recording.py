"""Makes the README's picture of the demo: what `tailrace demo` prints on a terminal, as an SVG file.

`python -m tools.recording` runs the demo, which takes about a minute and a half, and writes
`docs/images/demo.svg`. It shows two moments: the first return of a slow subscriber, with the panel
below it, and the verdict at the end. `--from FILE` takes the output from a file instead, for instance
one that `script --command "tailrace demo" FILE` has written.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

IMAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "images" / "demo.svg"
COLUMNS: Final = 132
ROWS: Final = 44
WIDTH: Final = 134
"""Columns of the picture; the longest line of the verdict fits."""
_CAPTURE: Final = 112
"""Captures are cut here."""
_ABOVE: Final = 12
"""Lines above the panel that the picture shows."""
_PANEL: Final = 11
_VERDICT: Final = 11
_CONTROL: Final = re.compile(r"\r\n|\n|\r|\x1b\[\d*[AK]|\x1b\[\?25[lh]")


def output(command: list[str]) -> str:
    """Run a command on a terminal of its own and return all that it writes there."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": f"{COLUMNS}"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    written = io.BytesIO()
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # Linux says so, with EIO, when the last writer has closed its end.
            break
        if not piece:
            break
        written.write(piece)
    os.close(ours)
    if process.wait() != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return written.getvalue().decode()


def screens(written: str) -> list[list[str]]:
    """Return the lines that stand on the terminal, at each moment when it has been drawn anew.

    Only what the demo uses is understood: colours, carriage returns, one line up, erase a line.
    A moment is each time that a panel is about to be erased, and the end.
    """
    lines = [""]
    row = 0
    found: list[list[str]] = []
    is_drawn = False
    place = 0
    for control in _CONTROL.finditer(written):
        piece = written[place : control.start()]
        lines[row] += piece
        is_drawn = is_drawn or bool(piece)
        place = control.end()
        match control[0]:
            case "\r\n" | "\n":
                row += 1
                if row == len(lines):
                    lines.append("")
            case each if each.endswith("A"):
                row = max(0, row - 1)
            case each if each.endswith("K"):
                # Of the lines that are erased one after the other, the first still has all below it.
                if is_drawn:
                    found.append([line for line in lines if line])
                    is_drawn = False
                lines[row] = ""
            case _:
                pass
    lines[row] += written[place:]
    found.append([line for line in lines if line])
    return found


def moments(written: str) -> tuple[list[str], list[str]]:
    """Return the lines around the first return of the slow subscriber, and those of the verdict."""
    drawn = screens(written)
    back = next(
        lines
        for lines in drawn
        if any("live again" in each for each in lines[-_ABOVE - _PANEL : -_PANEL])
        and "live" in lines[-1]
    )
    verdict = [each for each in drawn[-1] if not each.startswith("Script done")]
    return back[-_ABOVE - _PANEL :], verdict[-_VERDICT:]


def picture(lines: list[str]) -> str:
    """Return the SVG file of a terminal that shows these lines."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for line in lines:
        text = Text.from_ansi(line)
        if "│" in text.plain:
            text.truncate(_CAPTURE, overflow="ellipsis")
        console.print(text, highlight=False)
    # Rich's frame fetches a font from another host; the reader's own will do.
    frame = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    frame = frame.replace("Fira Code,", "ui-monospace, 'DejaVu Sans Mono',")
    return console.export_svg(title="make demo", code_format=frame, unique_id="demo")


def main(arguments: list[str]) -> None:
    """Write the picture, from the output in a file or from a demo that is run now."""
    match arguments:
        case ["--from", file]:
            written = Path(file).read_bytes().decode()
        case []:
            written = output([sys.executable, "-m", "tailrace_server", "demo"])
        case _:
            raise SystemExit("usage: python -m tools.recording [--from FILE]")
    back, verdict = moments(written)
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    IMAGE.write_text(picture([*back, "", "          ⋮", "", *verdict]))


if __name__ == "__main__":
    main(sys.argv[1:])
