"""Integer programs: a network of exact steps of integers alone, and what is made of it."""

from typing import TYPE_CHECKING

from htaf._lazy import lazy

if TYPE_CHECKING:
    from htaf.integer.build import integer_program
    from htaf.integer.c import to_c
    from htaf.integer.execute import missing, run_c
    from htaf.integer.ops import IntegerError
    from htaf.integer.program import Input, IntegerProgram
    from htaf.integer.verilog import to_verilog

_HOMES = {
    "htaf.integer.build": ("integer_program",),
    "htaf.integer.c": ("to_c",),
    "htaf.integer.execute": ("missing", "run_c"),
    "htaf.integer.ops": ("IntegerError",),
    "htaf.integer.program": ("Input", "IntegerProgram"),
    "htaf.integer.verilog": ("to_verilog",),
}
__all__ = [
    "Input",
    "IntegerError",
    "IntegerProgram",
    "integer_program",
    "missing",
    "run_c",
    "to_c",
    "to_verilog",
]
__getattr__, __dir__ = lazy(__name__, {name: module for module, names in _HOMES.items() for name in names})
