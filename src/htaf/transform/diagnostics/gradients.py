"""How large the gradient is that reaches each activation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from htaf.core.activations import Heaviside
from htaf.core.contract import SmoothStep

ACTIVATIONS: tuple[type, ...] = (SmoothStep, Heaviside, nn.ReLU)
SAFE = (1e-12, 1e15)  # between these a float32 norm has lost nothing to underflow or overflow of its squares


@dataclass(frozen=True)
class LayerGradient:
    """The gradient G = dL/d(pre-activation) of one activation layer, [rows, ...], one row a sample.

    norm: ||G||, the L2 norm over the whole batch matrix.
    per_sample: mean over the samples i of ||dl_i/dx_i||, where l_i is the loss of sample i alone. For a mean loss
        L = (1/B) sum l_i, which it must be, that is B times the mean row norm, so sum_i ||G_i||. (Batch norm ties
        samples together; the formula stays.) Equal rows give per_sample = sqrt(B) norm, else less.
    """

    norm: float
    per_sample: float


@final
class GradientNorms:
    """Record ||dL/d(pre-activation)|| at every activation module while backward passes run.

        with GradientNorms(model) as norms:
            loss(model(x), y).backward()
            norms.read()["hidden.0.act"].norm

    The pre-activation is the module's input. Its gradient is the total one, over all that use this tensor (in a block
    that adds its input to its output, the shortcut too). The squares of several calls in one forward pass (time steps
    of a spiking network) add up, row by row; rows of several passes before one `read` (gradient accumulation) stand
    side by side. Nothing is kept but one number a row, in float64 (float32 on mps). Forward passes without gradients
    record nothing; without an open recorder a model has no hooks and costs nothing.

    Args:
        model: holds the activations, in neurons too. Open the recorder before `torch.compile`: what runs compiled
            already does not see new hooks. (They break the compiled graph at every activation.)

    Raises:
        ValueError: no activation, or a compiled model.

    Source: Glorot and Bengio 2010; the paper, appendix on vanishing gradients.
    """

    def __init__(self, model: nn.Module) -> None:
        found = {path: module for path, module in model.named_modules() if isinstance(module, ACTIVATIONS)}
        if compiled := [path for path, _ in model.named_modules() if path.rpartition(".")[2] == "_orig_mod"]:
            raise ValueError(
                f"expected a model before torch.compile, got a compiled one: give its {compiled[0]} instead"
            )
        if not found:
            names = ", ".join(kind.__name__ for kind in ACTIVATIONS)
            raise ValueError(f"expected a module of {names} in {type(model).__name__}, got none")
        self._squares: dict[str, dict[tuple[int, int], Tensor]] = {path: {} for path in found}
        self._passes = 0
        self._open = True
        # functions, not methods: a copy of the model (htaf.harden) must not copy the recorder with its hooks
        self._handles: list[RemovableHandle] = [model.register_forward_pre_hook(lambda *_: self._begin_pass())]
        for path, module in found.items():
            self._handles.append(module.register_forward_pre_hook(self._watcher(path), with_kwargs=True))

    def read(self) -> dict[str, LayerGradient]:
        """The norms since the last call, and start anew.

        Returns:
            path -> norms in the order of `named_modules`, for layers that a backward pass reached.
        """
        result = {}
        for path, squares in self._squares.items():
            if squares:
                rows = torch.cat([s.cpu().double() for s in squares.values()])
                lengths = rows.sqrt()
                result[path] = LayerGradient(rows.sum().sqrt().item(), lengths.sum().item())
                squares.clear()
        return result

    def close(self) -> None:
        """Take all hooks off the model."""
        self._open = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> GradientNorms:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begin_pass(self) -> None:
        self._passes += 1

    def _watcher(self, path: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def watch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            if not (self._open and torch.is_grad_enabled() and x.requires_grad):
                return
            number = self._passes

            def record(gradient: Tensor) -> None:
                if x_is_leaf:  # a leaf outlives its graph, and would report the next one too
                    handle.remove()
                if self._open:
                    self._add(path, number, gradient)

            x_is_leaf = x.is_leaf
            handle = x.register_hook(record)

        return watch

    def _add(self, path: str, number: int, gradient: Tensor) -> None:
        rows = gradient.detach().reshape(len(gradient) if gradient.ndim else 1, -1)
        squares, here = _row_norms(rows).square(), self._squares[path]
        key = (number, len(rows))
        here[key] = here[key] + squares if key in here else squares


def _row_norms(rows: Tensor) -> Tensor:
    """L2 norms of rows, [rows, n] -> [rows], in float64 (float32 on mps), tiny gradients included.

    On CPUs float64 sums are 20 times slower, so they are kept for rows whose squares leave the range of float32.
    """
    if rows.device.type == "mps":
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32)
    if rows.device.type != "cpu" or rows.dtype == torch.float64:
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32).double()
    unsafe = ~((norms > SAFE[0]) & (norms < SAFE[1]))
    if unsafe.any():
        norms[unsafe] = torch.linalg.vector_norm(rows[unsafe], dim=1, dtype=torch.float64)
    return norms


def mean_by_layer(batches: Iterable[dict[str, LayerGradient]]) -> dict[str, LayerGradient]:
    """Means over the batches of an epoch of both norms; a batch whose norm is not finite (an overflow that a gradient
    scaler skips) is left out, and a layer without a finite one has NaN."""
    sums: dict[str, list[LayerGradient]] = {}
    for batch in batches:
        for path, layer in batch.items():
            sums.setdefault(path, []).append(layer)
    return {path: _mean([g for g in layers if math.isfinite(g.norm)]) for path, layers in sums.items()}


def _mean(layers: list[LayerGradient]) -> LayerGradient:
    if not layers:
        return LayerGradient(math.nan, math.nan)
    return LayerGradient(
        math.fsum(layer.norm for layer in layers) / len(layers),
        math.fsum(layer.per_sample for layer in layers) / len(layers),
    )
