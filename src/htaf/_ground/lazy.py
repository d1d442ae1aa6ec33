"""Names of a package that are imported when they are first asked for, so that a command imports only what it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        homes: public name -> the module that has it; a module by its own name is that module itself.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name])
        value = module if homes[name].endswith(f".{name}") else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
