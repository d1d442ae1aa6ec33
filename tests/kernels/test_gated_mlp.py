"""The kernel of gated MLPs against plain PyTorch, and its 8-bit gate against the float one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.kernels.gated_mlp import cpu
from htaf.kernels.gated_mlp.reference import Weights, gated_mlp, rounded
from htaf.kernels.native import available

pytestmark = pytest.mark.skipif(not available(), reason="needs the compiled kernels")


def weights(neurons, inputs, outputs, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    gate, up = torch.randn(2, neurons, inputs, generator=generator).to(dtype)
    down = torch.randn(neurons, outputs, generator=generator).to(dtype)
    return Weights(gate, up, down, torch.randn(neurons, generator=generator))


@settings(max_examples=40, deadline=None)
@given(
    neurons=st.integers(1, 70), inputs=st.integers(1, 150), outputs=st.integers(1, 70), tokens=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]), eight=st.booleans(), dense=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_it_is_the_formula(neurons, inputs, outputs, tokens, dtype, eight, dense, seed):
    w = weights(neurons, inputs, outputs, dtype, seed)
    x = torch.randn(tokens, inputs, generator=torch.Generator().manual_seed(seed))
    y, opened = cpu.gated_mlp(rounded(w) if eight else w, x, dense=dense)
    wanted, bits = gated_mlp(w, x)
    near = (x @ w.gate.float().T - w.threshold).abs() < 1e-4
    assert ((opened == bits) | near).all()
    if torch.equal(opened, bits):
        torch.testing.assert_close(y, wanted, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eight_bits_change_no_bit_of_the_result(dtype):
    """Thresholds on the very sums: where rounding is most likely to matter."""
    w = weights(500, 300, 40, dtype)
    x = torch.randn(3, 300, generator=torch.Generator().manual_seed(1))
    sums = x[0] @ w.gate.float().T
    for shift in (0.0, 1e-6, -1e-6, 1e-3, -1e-3):
        w = Weights(w.gate, w.up, w.down, sums + shift)
        plain, eight = cpu.gated_mlp(w, x), cpu.gated_mlp(rounded(w), x)
        assert torch.equal(plain[1], eight[1])
        assert torch.equal(plain[0], eight[0])


def test_closed_gates_are_not_read():
    w = weights(40, 64, 16, torch.float32)
    shut = torch.arange(40) % 2 == 0
    up, down = w.up.clone(), w.down.clone()
    up[shut], down[shut] = torch.nan, torch.nan
    w = Weights(w.gate, up, down, torch.where(shut, torch.inf, -torch.inf))
    y, opened = cpu.gated_mlp(w, torch.ones(2, 64))
    assert torch.equal(opened, ~shut.expand(2, 40))
    assert torch.isfinite(y).all()
    assert not torch.isfinite(cpu.gated_mlp(w, torch.ones(2, 64), dense=True)[0]).all()


def test_errors(unchecked):
    w = weights(8, 6, 4, torch.float32)
    with pytest.raises(ValueError, match=r"x must be \[tokens, 6\] on the CPU, got \(1, 5\)"):
        cpu.gated_mlp(w, torch.ones(1, 5))
    with pytest.raises(TypeError, match="all float32 or all bfloat16"):
        Weights(w.gate, w.up.bfloat16(), w.down, w.threshold)
    with pytest.raises(ValueError, match=r"dense weights of shape \(8, 6\)"):
        cpu.gated_mlp(Weights(w.gate, w.up[:7], w.down, w.threshold), torch.ones(1, 6))
