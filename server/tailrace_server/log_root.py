"""A check that a folder can be served as a log root, made before anything in it is opened."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tailrace_server.errors import CannotStart

if TYPE_CHECKING:
    from pathlib import Path


def check_log_root(root: Path) -> None:
    """Check that a folder contains catalogs, or is empty.

    Raises:
        CannotStart: The folder is missing, cannot be read, is itself a catalog, or has files but no catalog.
    """
    try:
        entries = sorted(each for each in os.listdir(root) if not each.startswith("."))
    except FileNotFoundError:
        raise CannotStart(
            f"--log {root}: no such folder; `tailrace ingest` creates it, or create an empty folder"
        ) from None
    except NotADirectoryError:
        raise CannotStart(
            f"--log {root}: a file; give a folder with one folder per catalog"
        ) from None
    except OSError as error:
        raise CannotStart(f"--log {root}: {error.strerror}") from error
    if not os.access(root, os.X_OK):
        raise CannotStart(f"--log {root}: permission denied")
    if "catalog.json" in entries:
        raise CannotStart(
            f"--log {root}: the folder of one catalog; serve the log root above it: "
            f"{root.absolute().parent}"
        )
    # For a folder without permission os.path returns False, while pathlib raises: so the folder counts as one
    # without a catalog, and the other catalogs are served.
    strangers = [each for each in entries if not os.path.isdir(root / each)]
    catalogs = [each for each in entries if os.path.exists(root / each / "catalog.json")]
    if strangers and not catalogs:
        raise CannotStart(
            f"--log {root}: not a log root: it has no catalog, but {strangers[0]!r}"
            + (f" and {len(strangers) - 1} other files" if len(strangers) > 1 else "")
        )
