"""What the tree promises of itself; ``make check`` runs it and fails where a promise is broken.

``python -m tools.structure`` checks the two import packages:

- no module is part of an import circle, imports for type checkers and inside functions included;
- no folder is part of a circle of imports that run; a module in the root of a package counts as a folder;
- no folder has more than 20 modules;
- no module has more than 500 lines, or 800 if a comment ``# Long: …`` in it gives the reason;
- no class has the name of another, and no name is re-exported by two packages.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("client/tailrace", "server/tailrace_server")

MODULES_MAX: Final = 20
LINES_MAX: Final = 500
LINES_WITH_REASON_MAX: Final = 800
REASON: Final = "\n# Long: "
"""The start of the comment that says why a module is better long than split."""

SAME_IDEA: Final[Mapping[str, str]] = {
    "Publisher": "of Reactive Streams in the client; what subscribers share in the engine",
    "Subscription": "a subscriber's link: in the client, by the rules of Reactive Streams, in the engine",
    "SubscriptionStatistics": "the figures of that link, as either end counts them",
    "read": "a function whose module says what is read: the messages of CDCv2, or a log",
}
"""Names of classes and exports that stand for one idea in two places, each with what it is."""


class Module(NamedTuple):
    """One source file of the packages."""

    name: str
    """Dotted name, as it is imported."""
    path: Path
    tree: ast.Module
    lines: int
    lines_max: int


def modules(root: Path) -> list[Module]:
    """Return the modules of both packages below a root, generated code left out."""
    found = []
    for package in PACKAGES:
        source = (root / package).parent
        for path in sorted((root / package).rglob("*.py")):
            if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                continue
            text = path.read_text()
            parts = path.relative_to(source).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            lines_max = LINES_WITH_REASON_MAX if REASON in text else LINES_MAX
            lines = len(text.splitlines())
            found.append(Module(name, path.relative_to(root), ast.parse(text), lines, lines_max))
    return found


def faults(found: list[Module]) -> Iterator[str]:
    """Yield a sentence for each broken promise."""
    yield from (f"import circle: {' -> '.join(each)}" for each in circles(imports(found)))
    yield from (f"circle of folders: {', '.join(each)}" for each in circles(folder_imports(found)))
    yield from sizes(found)
    yield from shared_names(found)


def imports(found: list[Module]) -> dict[str, set[str]]:
    """Return, for each module, the modules of the packages that it imports anywhere in its file."""
    known = {each.name for each in found}
    return {each.name: set(_imported(each, known)) - {each.name} for each in found}


def folder_imports(found: list[Module]) -> dict[str, set[str]]:
    """Return, for each folder, the folders of which its modules import at run time.

    The root of a package holds both its top and its floor, so each module there counts as a folder of its own.
    """
    folders = {each.name: _folder(each) for each in found}
    edges: dict[str, set[str]] = {folder: set() for folder in folders.values()}
    for each in found:
        if each.path.name != "__main__.py":  # it is run, and imported by nothing
            edges[folders[each.name]] |= {
                folders[name] for name in _imported(each, set(folders), at_run_time=True)
            }
    return {folder: others - {folder} for folder, others in edges.items()}


def _folder(module: Module) -> str:
    parent = str(module.path.parent)
    return str(module.path) if parent in PACKAGES else parent


def _for_types(tree: ast.Module) -> set[int]:
    """Return the lines of blocks below ``if TYPE_CHECKING``."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _imported(module: Module, known: set[str], *, at_run_time: bool = False) -> Iterator[str]:
    skipped = _for_types(module.tree) if at_run_time else set()
    for node in ast.walk(module.tree):
        if getattr(node, "lineno", 0) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                target = inner if inner in known else node.module
                if target in known:
                    yield target


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other, sorted: Tarjan's strongly connected components."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for each in edges.get(name, ()):
            if each not in order:
                visit(each)
                lowest[name] = min(lowest[name], lowest[each])
            elif each in stack:
                lowest[name] = min(lowest[name], order[each])
        if lowest[name] == order[name]:
            start = stack.index(name)
            group = sorted(stack[start:])
            del stack[start:]
            if len(group) > 1:
                found.append(group)

    for name in edges:
        if name not in order:
            visit(name)
    return sorted(found)


def sizes(found: list[Module]) -> Iterator[str]:
    """Yield a sentence for each folder and each module that is too large."""
    folders: dict[Path, int] = defaultdict(int)
    for each in found:
        folders[each.path.parent] += each.path.name != "__init__.py"
        if each.lines > each.lines_max:
            yield f"{each.path} has {each.lines} lines; the bound is {each.lines_max}"
    for folder, count in folders.items():
        if count > MODULES_MAX:
            yield f"{folder} has {count} modules; the bound is {MODULES_MAX}"


def shared_names(found: list[Module]) -> Iterator[str]:
    """Yield a sentence for each class name that is defined twice, and each name that is re-exported twice."""
    classes: dict[str, list[str]] = defaultdict(list)
    exports: dict[str, list[str]] = defaultdict(list)
    for each in found:
        defined = {node.name for node in ast.walk(each.tree) if isinstance(node, ast.ClassDef)}
        for name in defined:
            classes[name].append(each.name)
        for name in _exported(each.tree):
            exports[name].append(each.name)
    for name, places in sorted(classes.items()):
        if len(places) > 1 and name not in SAME_IDEA:
            yield f"class {name} is defined in {' and '.join(places)}"
    for name, places in sorted(exports.items()):
        yield from (
            f"{name} is exported by {one} and {other}"
            for one, other in combinations(places, 2)
            if name not in SAME_IDEA
        )


def _exported(tree: ast.Module) -> Iterator[str]:
    """Yield the names in a module's ``__all__``."""
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.List | ast.Tuple)
            and any(isinstance(each, ast.Name) and each.id == "__all__" for each in node.targets)
        ):
            yield from (
                str(each.value) for each in node.value.elts if isinstance(each, ast.Constant)
            )


def main() -> int:
    """Print what is broken; return the exit status."""
    found = list(faults(modules(ROOT)))
    print("\n".join(found) or "the tree is as it promises to be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
