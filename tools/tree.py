"""The table of folders in docs/architecture.md, from the first sentence of each ``__init__.py``.

``python -m tools.tree`` renews it; ``--check`` fails if the page is behind the tree. Folders of the server
come in the order of the layers in pyproject.toml, from the lowest to the highest; the others come last.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from typing import TYPE_CHECKING, Final

from tools.pages import renew
from tools.structure import PACKAGES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE: Final = ROOT / "docs/architecture.md"
_BEGIN: Final = "<!-- folders: made by `make docs` -->\n"
_END: Final = "<!-- end of folders -->\n"


def render(page: str) -> str:
    """Return the page with the table of now."""
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    return before + _BEGIN + "\n" + tables() + "\n" + _END + after


def tables() -> str:
    """Return a table of folders for each package, the server first."""
    found = []
    for package in reversed(PACKAGES):
        root = ROOT / package
        rows = sorted(
            (_rank(package, folder), folder, _sentence(path))
            for path in root.rglob("__init__.py")
            if (folder := str(path.parent.relative_to(root))) not in {".", "v1"}
        )
        lines = "".join(f"| `{folder}` | {sentence} |\n" for _, folder, sentence in rows)
        found.append(f"| Folder of `{package}` | |\n|---|---|\n{lines}")
    return "\n".join(found)


def _sentence(path: Path) -> str:
    """Return the first sentence of a package's docstring, its code in single backticks."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = text.split("\n\n")[0].removesuffix("\n::").replace("\n", " ")
    return first.replace("``", "`")


def _layers() -> list[str]:
    """Return the server's packages from the lowest layer to the highest."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return [
        name for layer in reversed(layers) for name in re.findall(r"tailrace_server\.(\w+)", layer)
    ]


_ORDER: Final = _layers()


def _rank(package: str, folder: str) -> int:
    top = folder.split("/")[0]
    if package == PACKAGES[0]:
        return 0
    return _ORDER.index(top) if top in _ORDER else len(_ORDER)


def main(arguments: list[str]) -> None:
    """Renew the page, or with ``--check`` fail if it is behind."""
    renew(PAGE, render(PAGE.read_text()), arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
