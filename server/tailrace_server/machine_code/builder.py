"""Compiles ``loops/`` by numba and LLVM for the processor of this machine.

A function that numba compiles returns a status that says if it has raised an exception, and its caller checks
the status. If LLVM optimizes all functions together, it proves that ours never raise. Then it removes the calls
of numba's error functions, and the code calls nothing outside of itself.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import llvmlite.binding as llvm
import numba
from numba import types

from tailrace_server.machine_code.elf import link
from tailrace_server.machine_code.loader import Loops
from tailrace_server.machine_code.loops import (
    cutting,
    frames,
    image_shapes,
    json_objects,
    members,
    table_rows,
    updates,
)

_MODULES: Final = (json_objects, image_shapes, members, updates, cutting, frames, table_rows)
_OPTIMIZATION: Final = 3


def compiled() -> tuple[dict[str, tuple[int, int]], bytes]:
    """Compile all loops; return the place and the number of arguments of each, and the code."""
    return compiled_code({name: _function(name) for name in Loops._fields})


def compiled_code(functions: dict[str, Any]) -> tuple[dict[str, tuple[int, int]], bytes]:
    """Compile functions; return the place and the number of arguments of each, and the code.

    Raises:
        ValueError: A function calls a function outside of the code, such as numba's report of an error.
    """
    # 1. Compile each function with all functions that it calls, and put all of them into one module.
    symbols, arguments = {}, {}
    whole = llvm.parse_assembly("")
    for name, function in functions.items():
        arguments[name] = len(inspect.signature(function).parameters)
        signature = types.int64(*[types.int64] * arguments[name])
        made = numba.cfunc(signature, nopython=True)(function)
        symbols[name] = made.native_name
        whole.link_in(llvm.parse_assembly(made.inspect_llvm()))
    # 2. Optimize them together. This removes all code that the functions do not need.
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=_OPTIMIZATION,
        reloc="pic",
        codemodel="small",
    )
    whole.triple = machine.triple
    _optimize(whole, {*symbols.values()}, machine)
    # 3. Link. This raises an error if the code needs anything outside of itself.
    linked, code = link(machine.emit_object(whole), [*symbols.values()])
    places = {name: (linked[symbol], arguments[name]) for name, symbol in symbols.items()}
    return places, code


def _function(name: str) -> Any:
    """Return the function with a name, which exactly one of the modules has."""
    [found] = [vars(module)[name] for module in _MODULES if name in vars(module)]
    return found


def _optimize(whole: Any, public: set[str], machine: Any) -> None:
    # LLVM may remove or inline what is internal; it would have to keep every public function.
    for each in (*whole.functions, *whole.global_variables):
        if not each.is_declaration and each.name not in public:
            each.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMIZATION)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(whole, passes)
