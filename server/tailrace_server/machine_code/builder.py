"""Compiles ``loops/`` by numba and LLVM for the processor that this runs on.

A function of numba says by its result whether it has raised, and its caller checks that. LLVM finds from all
functions together that ours cannot raise. So numba's functions that report errors are not needed, and the code
calls nothing outside of itself.
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
    updates,
    values,
)

_MODULES: Final = (json_objects, image_shapes, members, values, updates, cutting, frames)
_OPTIMIZATION: Final = 3


def compiled() -> tuple[dict[str, tuple[int, int]], bytes]:
    """Return place and number of arguments of each loop, and the code of all."""
    return compiled_code({name: _function(name) for name in Loops._fields})


def compiled_code(functions: dict[str, Any]) -> tuple[dict[str, tuple[int, int]], bytes]:
    """Return place and number of arguments of functions, and their code.

    Raises:
        ValueError: A function calls what is not in the code, such as numba's report of an error.
    """
    # 1. Compile each function with all that it calls, and put all of them into one module.
    symbols, arguments = {}, {}
    whole = llvm.parse_assembly("")
    for name, function in functions.items():
        arguments[name] = len(inspect.signature(function).parameters)
        signature = types.int64(*[types.int64] * arguments[name])
        made = numba.cfunc(signature, nopython=True)(function)
        symbols[name] = made.native_name
        whole.link_in(llvm.parse_assembly(made.inspect_llvm()))
    # 2. Optimize them together. Only what the functions need is left.
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=_OPTIMIZATION,
        reloc="pic",
        codemodel="small",
    )
    whole.triple = machine.triple
    _optimize(whole, {*symbols.values()}, machine)
    # 3. Link, which refuses code that needs anything else.
    linked, code = link(machine.emit_object(whole), [*symbols.values()])
    places = {name: (linked[symbol], arguments[name]) for name, symbol in symbols.items()}
    return places, code


def _function(name: str) -> Any:
    [found] = [vars(module)[name] for module in _MODULES if name in vars(module)]
    return found


def _optimize(whole: Any, public: set[str], machine: Any) -> None:
    for each in (*whole.functions, *whole.global_variables):
        if not each.is_declaration and each.name not in public:
            each.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMIZATION)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(whole, passes)
