"""``python -m tailrace_server.machine_code.builder MODULE FUNCTION…``: compile them, and print the object.

Each function takes the address of a table, int64, and returns an int64. Their callees are compiled into them,
so that the object needs only the C library; else this fails, before a process loads it.

A function of numba says by its result whether it has raised, and whoever calls it asks. If ours cannot raise,
LLVM finds that out from all of them together: then numba's functions that report errors are not needed.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Final

import llvmlite.binding as llvm
import numba
from numba import types

from tailrace_server.machine_code.object_code import head_and_object

_PRIORITY: Final = 10
"""Of nice: whoever serves meanwhile comes first, and this is done in the end."""
_OPTIMIZATION: Final = 3
_LIBRARY: Final = ("llvm.", "memcpy", "memmove", "memset")
"""How functions begin that an object may leave to others: LLVM's own, and the C library's."""
_SIGNATURE: Final = types.int64(types.int64)


def compiled_object(module: Any, functions: tuple[str, ...]) -> bytes:
    """Return a file's content without its key.

    Raises:
        ValueError: A function calls what is not in the object: numba's own, as for an error.
    """
    symbols, whole = {}, None
    for name in functions:
        made = numba.cfunc(_SIGNATURE, nopython=True)(getattr(module, name))
        symbols[name] = made.native_name
        part = llvm.parse_assembly(made.inspect_llvm())
        if whole is None:
            whole = part
        else:
            whole.link_in(part)
    assert whole is not None
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=_OPTIMIZATION,
        codemodel="jitdefault",
        jit=True,
    )
    if _missing(whole):
        _optimize_together(whole, {*symbols.values()}, machine)
    if missing := _missing(whole):
        raise ValueError(f"the code calls {', '.join(missing)}, which the object cannot hold")
    return head_and_object(symbols, machine.emit_object(whole))


def _missing(whole: Any) -> list[str]:
    """Return the names of functions that are called and are not there."""
    names = [each.name for each in whole.functions if each.is_declaration]
    return [each for each in names if not each.startswith(_LIBRARY)]


def _optimize_together(whole: Any, kept: set[str], machine: Any) -> None:
    """Leave of what is in a module what the functions that are kept need."""
    for each in (*whole.functions, *whole.global_variables):
        if not each.is_declaration and each.name not in kept:
            each.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMIZATION)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(whole, passes)


def main() -> None:
    """Compile and print."""
    os.nice(_PRIORITY)
    _, module, *functions = sys.argv
    content = compiled_object(import_module(module), tuple(functions))
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
