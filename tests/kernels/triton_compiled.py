"""The Triton kernels compiled for a Hopper GPU that need not be there; run by test_triton.py."""

from __future__ import annotations

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from htaf.core.kernels.heaviside import triton as heaviside
from htaf.core.kernels.htaf import triton as htaf
from htaf.core.kernels.scaled_sigmoid import triton as scaled_sigmoid
from htaf.core.kernels.straight_through import triton as straight_through


class NoGpu:
    """A driver for Hopper that only says what to compile for."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def assembly(monkeypatch: pytest.MonkeyPatch):
    """PTX of what was launched, nothing being run."""
    found: list[str] = []
    run = JITFunction.run

    def compile_only(self, *args, grid, warmup, **options):
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        found.append(kernel.asm["ptx"])

    monkeypatch.setattr(JITFunction, "run", compile_only)
    triton.runtime.driver.set_active(NoGpu())
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_wide_loads(dtype: torch.dtype, assembly: list[str]) -> None:
    x, image, tokens = (torch.zeros(s, dtype=dtype) for s in ((1 << 16,), (8, 16, 32, 32), (512, 256)))
    c, p = torch.ones(16, 1, 1), torch.ones(256)
    htaf.forward(x, 2.0, 11.0)
    htaf.backward(x, x, 2.0, 11.0)
    scaled_sigmoid.backward(x, x, 22.0)
    heaviside.forward(x)
    straight_through.backward(x, x, "atan", [2.0])
    htaf.forward(tokens, p, p)
    htaf.backward_all(image, image, c, c)
    scaled_sigmoid.backward_all(tokens, tokens, p)
    assert len(assembly) == 8
    for ptx in assembly:
        assert "ld.global.v4.b32" in ptx
        assert ".f64" not in ptx


def test_odd_shapes(assembly: list[str]) -> None:
    x, one = torch.zeros(5, 77), torch.ones(1)
    htaf.forward(x, 2.0, 11.0)
    htaf.backward_all(x, x, one, one)
    scaled_sigmoid.forward(x[:1, :1], one)
    straight_through.backward(x, x, "rectangular", [])
    straight_through.backward(x, x, "approx_sign", [])
    assert len(assembly) == 5
