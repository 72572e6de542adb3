"""Object files of compiled loops: where they are kept, how they are made, checked and loaded.

A file is one line of JSON, its head, and the object behind it::

    {"key": …, "sha256": of the object, "symbols": {function: its name in the object}}

``key`` stands for all that the object depends on: the sources, Python, numba, LLVM and the processor. It is
part of the file's name too, so that a file of another version is passed over, not replaced. A file that is
cut short, or whose object has another hash, counts as missing: LLVM would end the process for a symbol that
it cannot find.

Files lie in ``__pycache__`` beside the source, else in the user's cache folder. A user who may write there may
also write the Python that we run.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import llvmlite.binding as llvm

from tailrace_server import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_BUILDER: Final = "tailrace_server.machine_code.builder"
_engines: Final[list[Any]] = []
"""LLVM's owners of what was loaded; the code lives as long as they do, so for good."""


@dataclass(frozen=True, slots=True)
class CompiledModule:
    """Functions of one module that are compiled; each takes the address of a table and returns a number."""

    name: str
    functions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    """Further modules that the code depends on."""

    def key(self) -> str:
        """Return what the object depends on, as 16 hexadecimal digits."""
        found = hashlib.sha256()
        for name in (self.name, *self.sources):
            found.update(_path(name).read_bytes())
        for each in (
            *self.functions,
            *(sys.implementation.cache_tag, platform.machine()),
            *(version("numba"), version("llvmlite")),
            *(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()),
        ):
            found.update(f"\0{each}".encode())
        return found.hexdigest()[:16]


def load(module: CompiledModule) -> Mapping[str, Callable[[int], int]] | None:
    """Return the functions by name; None where no file holds them. They run without Python's lock."""
    key = module.key()
    for path in _places(module, key):
        try:
            content = path.read_bytes()
        except OSError:
            continue
        if (found := _sound(content, key)) is not None:
            return _linked(*found)
    return None


def build(module: CompiledModule) -> Mapping[str, Callable[[int], int]]:
    """Compile the functions in a process of their own, keep the file, and return them.

    Takes seconds; the caller's thread waits without Python's lock. The process has a low priority and ends
    with ours. If no folder can be written to, the next start compiles again.

    Raises:
        OSError: The process failed; says how.
    """
    bound = (sys.executable, end_with_parent.__file__, str(os.getpid()))
    made = subprocess.run(
        (*bound, sys.executable, "-m", _BUILDER, module.name, *module.functions),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if made.returncode:
        said = made.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise OSError(f"the compiler ended with status {made.returncode}: {said}")
    key = module.key()
    content = b'{"key": "%s", %s' % (key.encode(), made.stdout[1:])
    found = _sound(content, key)
    assert found is not None, content[:200]
    for path in _places(module, key):
        if _kept(path, content):
            break
    return _linked(*found)


def head_and_object(symbols: Mapping[str, str], code: bytes) -> bytes:
    """Return a file's content without its key, as the builder prints it."""
    head = {"sha256": hashlib.sha256(code).hexdigest(), "symbols": dict(symbols)}
    return json.dumps(head).encode() + b"\n" + code


def _path(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _places(module: CompiledModule, key: str) -> Iterator[Path]:
    """Yield where a module's file may be, the best place first."""
    source = _path(module.name)
    name = f"{source.stem}.{sys.implementation.cache_tag}.{key}.object"
    yield source.parent / "__pycache__" / name
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    yield Path(caches).expanduser() / "tailrace" / name


def _sound(content: bytes, key: str) -> tuple[dict[str, str], bytes] | None:
    """Return symbols and object of a file's content; None if it is not whole, or another's."""
    head, _, code = content.partition(b"\n")
    try:
        found = json.loads(head)
        sound = (found["key"], found["sha256"]) == (key, hashlib.sha256(code).hexdigest())
        return (found["symbols"], code) if sound else None
    except (ValueError, KeyError, TypeError):
        return None


def _kept(path: Path, content: bytes) -> bool:
    """Put a file in its place, whole or not at all; return whether that could be done."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        return False
    return True


def _linked(symbols: Mapping[str, str], code: bytes) -> Mapping[str, Callable[[int], int]]:
    """Return the functions of an object, put into memory and linked."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        codemodel="jitdefault", jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)  # a call gives up Python's lock
    return {name: kind(engine.get_function_address(symbol)) for name, symbol in symbols.items()}
