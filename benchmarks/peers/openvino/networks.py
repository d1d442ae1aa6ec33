"""The networks of benchmarks/packed.py in OpenVINO: float32, bfloat16, int8 after training, binary weights in bits.

The precision is always named: without a hint OpenVINO takes bfloat16 where the processor has it. A call is one
`infer()` on tensors that were set before, which is the least that it costs from Python.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as o
from torch import Tensor, nn

from htaf.core.binary import binary_weight
from htaf.models.bireal import BiRealNet

Run = Callable[[], np.ndarray]
CALIBRATION = 128  # images


def compiled(model: ov.Model, x: Tensor, threads: int, precision: str) -> Run:
    """`infer()` of a model in that precision ("f32", "bf16") on x."""
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    request = ov.Core().compile_model(model, "CPU", options).create_infer_request()
    request.set_input_tensor(0, ov.Tensor(x.numpy(), shared_memory=True))
    request.infer()
    given = request.get_output_tensor(0).data

    def run(kept: Tensor = x) -> np.ndarray:
        request.infer()
        return given

    return run


def read(file: Path, shape: tuple[int, ...]) -> ov.Model:
    """A model of ONNX with inputs of this shape."""
    model = ov.Core().read_model(file)
    model.reshape(list(shape))
    return model


def int8(model: ov.Model, images: Tensor) -> ov.Model:
    """Quantized after training by NNCF, calibrated on these images: its defaults, scales by minima and maxima."""
    import nncf

    one = model.inputs[0].partial_shape[0].get_length()
    batches = [part.numpy() for part in images.split(one) if len(part) == one]
    return nncf.quantize(model, nncf.Dataset(batches), subset_size=len(batches))


def binary(model: BiRealNet, shape: tuple[int, ...]) -> ov.Model:
    """Bi-Real Net whose binary layers are `BinaryConvolution`: bits by FakeQuantize, weights as u1.

    A bit is 1 where x > -1e-30, which is x >= 0 but for numbers that float32 hardly holds. Padding by 0 adds nothing.
    """
    state = _Builder()
    x = o.parameter(list(shape), np.float32)
    y: Any = x
    for layer in model.stem:
        y = state.layer(y, layer)
    for stage in model.stages:
        for block in stage:
            y = state.block(y, block)
    head = model.head
    pooled = o.reduce_mean(y, o.constant(np.array([2, 3])), False)
    product = o.matmul(pooled, o.constant(head.weight.detach().numpy()), False, True)
    return ov.Model([o.add(product, o.constant(head.bias.detach().numpy()[None]))], [x], "bireal-u1")


class _Builder:
    def layer(self, y: Any, layer: nn.Module) -> Any:
        if isinstance(layer, nn.Conv2d):
            return _convolution(y, layer)
        if isinstance(layer, nn.BatchNorm2d):
            return _norm(y, layer)
        if isinstance(layer, nn.MaxPool2d):
            k, s, p = (_two(v) for v in (layer.kernel_size, layer.stride, layer.padding))
            return o.max_pool(y, list(s), [1, 1], list(p), list(p), list(k), "floor", "explicit").output(0)
        if isinstance(layer, nn.AvgPool2d):
            rounding = "ceil" if layer.ceil_mode else "floor"
            return o.avg_pool(
                y, list(_two(layer.stride)), [0, 0], [0, 0], list(_two(layer.kernel_size)), True, rounding
            )
        raise TypeError(f"expected a layer of Bi-Real Net, got {type(layer).__name__}")

    def block(self, x: Any, block: Any) -> Any:
        below, zero, one = (o.constant(np.full((1, 1, 1, 1), v, np.float32)) for v in (-1e-30, 0.0, 1.0))
        bits = o.fake_quantize(x, below, below, zero, one, 2)
        weight = binary_weight(block.conv.weight.detach())
        signs = np.packbits((weight > 0).numpy().reshape(-1), bitorder="little")
        weights = ov.op.Constant(ov.Tensor(signs, ov.Shape(list(weight.shape)), ov.Type.u1), shared_memory=False)
        s, p = list(block.conv.stride), list(block.conv.padding)
        sums = o.binary_convolution(bits, weights, s, p, p, [1, 1], "xnor-popcount", 0.0)
        alpha = weight.abs().amax((1, 2, 3)).numpy()
        y = _norm(sums, block.norm, alpha)
        shortcut = x
        if block.shortcut is not None:
            for layer in block.shortcut:
                shortcut = self.layer(shortcut, layer)
        return o.add(y, shortcut)


def _two(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _convolution(y: Any, layer: nn.Conv2d) -> Any:
    p = list(_two(layer.padding))
    made = o.convolution(y, o.constant(layer.weight.detach().numpy()), list(layer.stride), p, p, list(layer.dilation))
    if layer.bias is None:
        return made
    return o.add(made, o.constant(layer.bias.detach().numpy()[None, :, None, None]))


def _norm(y: Any, norm: nn.BatchNorm2d, scale: Any = 1.0) -> Any:
    """The batch norm of scale y, as one multiplication and one addition."""
    weight, bias, mean, var = (
        v.detach().double().numpy() for v in (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    )
    slope = weight / np.sqrt(var + norm.eps)
    shift = (bias - mean * slope).astype(np.float32)[None, :, None, None]
    slope = (slope * scale).astype(np.float32)[None, :, None, None]
    return o.add(o.multiply(y, o.constant(slope)), o.constant(shift))


def sides(
    model: nn.Module, file: Path, x: Tensor, images: Callable[[int], Tensor], threads: int
) -> dict[str, Callable[[], Any]]:
    """The peers by name. model: the hardened network. file: ONNX of it. images: n of them, for the calibration."""
    shape = tuple(x.shape)
    found: dict[str, Callable[[], Any]] = {
        f"openvino {p}": compiled(read(file, shape), x, threads, p) for p in ("f32", "bf16")
    }
    with torch.no_grad():
        quantized = int8(read(file, shape), images(max(CALIBRATION, 8 * len(x))))
    found["openvino int8"] = compiled(quantized, x, threads, "f32")
    if isinstance(model, BiRealNet):
        found["openvino u1"] = compiled(binary(model, shape), x, threads, "f32")
    return found
