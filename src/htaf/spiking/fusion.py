"""Folding batch normalisation into the convolution before it, for inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.overrides import TorchFunctionMode

from htaf.convert.finding import arguments
from htaf.convert.functional_sites import duplicate
from htaf.convert.modes import hooked

_PAIRS: dict[type, type] = {nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}


class _Recorder(TorchFunctionMode):
    """Sees in a run which normalisations read the output of a convolution, and what else does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.made: dict[int, tuple[str, Tensor]] = {}  # the tensors are kept, so that no id comes twice
        self.runs: Counter[str] = Counter()
        self.pairs: dict[str, str] = {}  # path of a normalisation -> path of the convolution whose output it reads
        self.shared: set[str] = set()  # convolutions whose output something else reads too
        self.inside: list[nn.Module] = []
        paths = list(model.named_modules(remove_duplicate=False))
        places = Counter(id(module) for _, module in paths)
        self.hooks = []
        for path, module in paths:
            if places[id(module)] == 1 and (type(module) in _PAIRS or type(module) in _PAIRS.values()):
                self.hooks += self._watch(path, module)

    def _watch(self, path: str, module: nn.Module) -> list[Any]:
        def before(_: nn.Module, args: tuple[Any, ...]) -> None:
            self.runs[path] += 1
            if isinstance(module, _BatchNorm) and id(args[0]) in self.made:
                conv = self.made[id(args[0])][0]
                if conv in self.pairs.values():
                    self.shared.add(conv)
                self.pairs[path] = conv
                self.inside.append(module)

        def after(_: nn.Module, __: tuple[Any, ...], out: Tensor) -> None:
            if isinstance(module, _ConvNd):
                self.made[id(out)] = path, out
            elif self.inside:
                self.inside.pop()

        return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]

    def read(self, value: object) -> None:
        """Note that a function of the model, or its caller, takes a value."""
        self.shared.update(self.made[id(tensor)][0] for tensor in _tensors(value) if id(tensor) in self.made)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if not self.inside:
            self.read((args, kwargs))
        return func(*args, **(kwargs or {}))


def fuse_batch_norm(model: nn.Module, example: Any) -> nn.Module:
    """Return a copy in eval mode with every batch normalisation that follows a convolution folded into it.

        w' = w gamma / sqrt(var + eps),   b' = (b - mean) gamma / sqrt(var + eps) + beta

    The pairs are those of a run of the example: a normalisation that takes the very output of a convolution, which
    nothing else reads, both run once. Any other stays, and is an affine map too.

    Args:
        model: not changed.
        example: a tensor, a tuple of positional arguments, or a mapping of keyword arguments.
    """
    model = duplicate(model).eval()
    args, kwargs = arguments(example)
    record = _Recorder(model)
    with hooked(record.hooks):
        with torch.no_grad(), record:
            out = model(*args, **kwargs)
        record.read(out)
    for path, conv_path in record.pairs.items():
        conv, norm = model.get_submodule(conv_path), model.get_submodule(path)
        assert isinstance(conv, _ConvNd)
        assert isinstance(norm, _BatchNorm)
        once = record.runs[path] == record.runs[conv_path] == 1 and conv_path not in record.shared
        if once and _PAIRS[type(conv)] is type(norm) and norm.running_mean is not None:
            _put(model, conv_path, fuse_conv_bn_eval(conv, norm))
            _put(model, path, nn.Identity())
    return model.eval()


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    model.get_submodule(parent)._modules[name] = module
