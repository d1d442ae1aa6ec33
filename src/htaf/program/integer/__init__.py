"""Integer programs: a network of exact steps of integers alone, and what is made of it."""

from typing import TYPE_CHECKING

from htaf._ground.compat import lazy

if TYPE_CHECKING:
    from htaf.program.integer.build import integer_program
    from htaf.program.integer.c import to_c
    from htaf.program.integer.circuit import Circuit
    from htaf.program.integer.execute import missing, run_c
    from htaf.program.integer.files import load, save
    from htaf.program.integer.ops import IntegerError
    from htaf.program.integer.program import Input, IntegerProgram
    from htaf.program.integer.verilog import to_verilog

_HOMES = {
    "htaf.program.integer.build": ("integer_program",),
    "htaf.program.integer.c": ("to_c",),
    "htaf.program.integer.circuit": ("Circuit",),
    "htaf.program.integer.execute": ("missing", "run_c"),
    "htaf.program.integer.files": ("load", "save"),
    "htaf.program.integer.ops": ("IntegerError",),
    "htaf.program.integer.program": ("Input", "IntegerProgram"),
    "htaf.program.integer.verilog": ("to_verilog",),
}
__all__ = [
    "Circuit",
    "Input",
    "IntegerError",
    "IntegerProgram",
    "integer_program",
    "load",
    "missing",
    "run_c",
    "save",
    "to_c",
    "to_verilog",
]
__getattr__, __dir__ = lazy(__name__, {name: module for module, names in _HOMES.items() for name in names})
