"""What must happen before others are imported; torch is not imported for it.

Names of a package are imported when they are first asked for, so that a command imports only what it needs (`lazy`).

Ctrl-C during the imports of the command ends it without a traceback.

Operators: programs that torch.export or AOTInductor wrote name `torch.ops.htaf`, and PyTorch asks nobody for what it
does not know. So they are declared with torch, whichever is imported first.

One repair: the default torchvision wheel is built for CUDA and fails to import beside a CPU-only torch.

Its first import then ends in `operator torchvision::nms does not exist`, which also breaks lightning, torchmetrics
and transformers, because they import it. Declaring the two operators' schemas first mends everything but the two.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


def quiet_interrupt() -> None:
    """Let Ctrl-C end the command `htaf` at once while it imports; `htaf.cli.main` takes the signal over."""
    if Path(sys.argv[0]).stem == "htaf" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:

        def stop(*_: object) -> None:
            os.write(2, b"htaf: error: stopped\n")
            os._exit(130)  # an exception would pass through the imports of others, some of which catch it

        signal.signal(signal.SIGINT, stop)


class _Torch(MetaPathFinder):
    """Finds torch by the other finders, and has the operators declared once it is imported."""

    asking = False

    def find_spec(self, fullname: str, path: Any = None, target: object = None) -> ModuleSpec | None:
        if fullname != "torch" or self.asking:
            return None
        self.asking = True  # another finder may ask all of them, as this one does
        try:
            others = (getattr(finder, "find_spec", None) for finder in list(sys.meta_path) if finder is not self)
            specs = (find(fullname, path, target) for find in others if find is not None)
            spec = next((spec for spec in specs if spec is not None), None)
        finally:
            self.asking = False
        execute = getattr(spec and spec.loader, "exec_module", None)
        if spec is None or execute is None or isinstance(spec.loader, type):  # a loader that all modules share
            return spec

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            with suppress(Exception):  # torch is there all the same; whoever uses htaf gets the error
                declare_operators()

        spec.loader.exec_module = exec_module  # pyright: ignore[reportOptionalMemberAccess]
        return spec


def declare_operators() -> None:
    """Declare `torch.ops.htaf`: now where torch is there, else as soon as it is imported."""
    if "torch" in sys.modules:
        importlib.import_module("htaf.core.kernels.operators")
    elif not any(isinstance(finder, _Torch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Torch())


@contextmanager
def free_start_method() -> Iterator[None]:
    """How processes start is chosen by whoever asks first (lightning, tqdm); after the block it is open as before."""
    import multiprocessing

    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        if before is None:
            multiprocessing.set_start_method(None, force=True)  # pyright: ignore[reportArgumentType]


def _filters() -> list[Any]:
    """The filters of warnings, as the list that `warnings.catch_warnings` puts aside and brings back."""
    return warnings.filters  # pyright: ignore[reportReturnType]


@contextmanager
def no_trace() -> Iterator[None]:
    """Import other libraries in the block: what they set for the whole process is as it was when it ends.

    These are the filters and the format of warnings, environment variables, the start method of processes, and the
    numbers that `random` draws. Lightning leaves filters with classes of its own, which scikit-learn sends to its
    workers: there they would import lightning, without the repair below.
    """
    shown, environment, drawn = warnings.formatwarning, dict(os.environ), random.getstate()
    filters, before = _filters(), [*_filters()]
    try:
        with free_start_method():
            yield
    finally:
        with warnings.catch_warnings():  # its beginning has the filters read anew
            added = [one for one in filters if one not in before]
        filters[:] = before
        if (now := _filters()) is not filters:  # another thread is within a `catch_warnings`
            now[:] = [one for one in now if one not in added]
        warnings.formatwarning = shown
        random.setstate(drawn)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


def is_mismatched() -> bool:
    """Whether torchvision was built for CUDA and torch was not; neither is imported for it but torch."""
    import torch

    if torch.version.cuda is not None or torch.version.hip is not None:
        return False
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    return version.is_file() and "+cu" in version.read_text()


class _Torchvision(MetaPathFinder):
    """Finds no module, but is asked for every one: so it knows when torchvision is imported, by whomever.

    The first part of torchvision is asked for when torchvision has imported torch. torchvision itself is not waited
    for: others look for it without importing it, torch among them while it is imported.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.startswith("torchvision.") and self in sys.meta_path:
            sys.meta_path.remove(self)
            repair_torchvision()


def repair_torchvision_when_imported() -> bool:
    """Have it repaired just before it is imported; False when it has been, which is too late."""
    if "torchvision" in sys.modules:
        return False
    if not any(isinstance(finder, _Torchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Torchvision())
    return True


def repair_torchvision() -> bool:
    """Declare `nms` and `qnms` when torch has no CUDA and torchvision was built for it; True when it did."""
    import torch

    if not is_mismatched():
        return False
    for name, schema in {
        "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    }.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
    return True


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        homes: public name -> the module that has it; a module by its own name is that module itself.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name])
        value = module if homes[name].endswith(f".{name}") else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
