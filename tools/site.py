"""Puts what lies outside docs/ on the site: MkDocs calls these functions (`hooks` in mkdocs.yml).

Pages link to files of the whole repository, as a reader of the repository needs it. On the site

- the README, CONTRIBUTING, the changelog and the page of the benches are pages like any other;
- a folder becomes a page that lists its files, in `source/`;
- any other file is copied into `source/` as text.

Only what is linked to gets there. Links are written as paths from the page to the file; here they are
followed and written anew, so that they lead to the place on the site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "bench/README.md": "bench.md",
}
"""Pages outside docs/: path in the repository → path on the site."""
_LINK: Final = re.compile(
    r"""(?P<before>\]\(|(?:src|srcset)=")(?!https?:|mailto:|#)(?P<path>[^)\s"#]+)(?P<anchor>#[^)\s"]*)?"""
)
_FENCE: Final = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def place(path: str) -> str:
    """Return where a file of the repository is on the site, as a path below docs/."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}.md" if (ROOT / path).is_dir() else f"source/{path}.txt"


def home(uri: str) -> str:
    """Return which file of the repository a page of the site was made of."""
    for path, page in PAGES.items():
        if page == uri:
            return path
    return f"docs/{uri}"


def targets(path: str, text: str) -> set[str]:
    """Return the files of the repository to which a page links."""
    return {_target(path, found["path"]) for found in _LINK.finditer(_FENCE.sub("", text))}


def rewritten(path: str, text: str) -> str:
    """Return the text of a page with its links as they are on the site.

    Args:
        path: The page, in the repository.
        text: What it says, as Markdown.
    """
    folder = PurePosixPath(place(path)).parent

    def link(found: re.Match[str]) -> str:
        target = _target(path, found["path"])
        if not (ROOT / target).exists():
            return found[0]  # MkDocs says that it leads nowhere.
        on_site = os.path.relpath(place(target), folder)
        return f"{found['before']}{on_site}{found['anchor'] or ''}"

    pieces = []
    end = 0
    for fence in _FENCE.finditer(text):
        pieces += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, _LINK.sub(link, text[end:])])


def _target(path: str, link: str) -> str:
    return os.path.normpath(PurePosixPath(path).parent / link)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and whatever any page links to."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text()))
    linked = set()
    for page in files.documentation_pages():
        linked |= targets(home(page.src_uri), page.content_string)
    for path in sorted(linked):
        source = ROOT / path
        if path in PAGES or path.startswith("docs/") or not source.exists():
            continue
        if source.is_dir():
            listing, inside = _listing(path)
            files.append(File.generated(config, place(path), content=listing))
            for each in inside - linked:
                _copy(files, config, each)
        else:
            _copy(files, config, path)
    return files


def _copy(files: Files, config: MkDocsConfig, path: str) -> None:
    files.append(File.generated(config, place(path), content=(ROOT / path).read_text()))


def _listing(folder: str) -> tuple[str, set[str]]:
    """Return a page that lists the text files of a folder, and those files."""
    inside = sorted(
        path
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and not path.name.startswith(".")
        and not {"node_modules", "__pycache__"} & set(path.parts)
    )
    lines = [f"# {folder.capitalize()}", ""]
    for path in inside:
        name = path.relative_to(ROOT / folder).as_posix()
        lines.append(f"- [{name}]({PurePosixPath(folder).name}/{name}.txt)")
    return "\n".join(lines) + "\n", {path.relative_to(ROOT).as_posix() for path in inside}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write the links of a page anew; MkDocs calls this for each."""
    uri = page.file.src_uri
    return markdown if uri.startswith("source/") else rewritten(home(uri), markdown)
