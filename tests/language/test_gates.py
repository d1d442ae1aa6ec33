"""Gates: found in every architecture, calibrated exactly, folded."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.language.models import MORE, tiny
from torch import nn

from htaf import HTAF, Heaviside, harden
from htaf.language import (
    LanguageError,
    calibrate,
    fit_gate,
    gated_mlps,
    gates_of,
    open_gates,
)
from htaf.language.gates import replace_gates

TOKENS = torch.randint(3, 64, (6, 32), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", MORE)
def test_every_architecture(kind):
    model = tiny(kind)
    before = model(TOKENS).logits
    assert [mlp.layer for mlp in gated_mlps(model)] == [0, 1, 2, 3]
    report = calibrate(model, TOKENS, 2)
    assert list(gates_of(model)) == [2, 3] == [layer.layer for layer in report]
    after = model(TOKENS).logits
    assert torch.isfinite(after).all()
    assert not torch.equal(before, after)
    for layer in report:
        assert layer.after is not None
        assert layer.after <= layer.before
        assert 0 < layer.open < 1
    other = tiny(kind)
    replace_gates(other, 2)
    plain = (other(TOKENS).logits - before).square().mean()
    assert (after - before).square().mean() < plain  # better than the step without thresholds and scales


def seen(model, number):
    """Of the MLP of a layer input and output, and the output of the layer, [tokens, size] each."""
    layer, kept = model.model.layers[number], {}
    with (
        layer.mlp.register_forward_hook(lambda module, args, output: kept.update(into=args[0], made=output)),
        layer.register_forward_hook(lambda module, args, output: kept.update(output=output)),
        torch.no_grad(),
    ):
        model(TOKENS)
    return {name: (x[0] if isinstance(x, tuple) else x).flatten(0, 1).double() for name, x in kept.items()}


@pytest.mark.parametrize("kind", ["llama", "gemma2"])  # the second one has a norm behind its MLPs
def test_down_is_refitted_by_ridge_to_what_the_original_adds(kind):
    model, original = tiny(kind), tiny(kind)
    report = calibrate(model, TOKENS, 2)
    mine, wanted = seen(model, 3), seen(original, 3)
    with torch.no_grad():
        g, u = gated_mlps(model)[3].projections(mine["into"].float())
        z = (gates_of(model)[3](g) * u).double()
    before = original.model.layers[3].mlp.down_proj.weight.double()
    target = wanted["made"] if kind == "gemma2" else wanted["output"] - (mine["output"] - mine["made"])
    gram = z.T @ z
    ridge = report[1].strength * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    change = torch.linalg.solve(gram + ridge, z.T @ (target - z @ before.T)).T
    found = model.model.layers[3].mlp.down_proj.weight.double() - before
    assert change.norm() > 0.01
    torch.testing.assert_close(found, change, atol=1e-3 * change.abs().max().item(), rtol=1e-3)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), rows=st.integers(2, 30), ties=st.booleans())
def test_no_threshold_is_better(seed, rows, ties):
    generator = torch.Generator().manual_seed(seed)
    g, u = torch.randn(2, rows, 3, generator=generator)
    g = (g * 2).round() if ties else g
    a = nn.functional.silu(g)
    t, s, error = fit_gate(a, g, u)
    for neuron in range(3):
        found = _error(a, g, u, neuron, t[neuron], s[neuron])
        torch.testing.assert_close(found, error[neuron], atol=1e-5, rtol=1e-4)
        for threshold in g[:, neuron]:
            bits = (g[:, neuron] >= threshold) * u[:, neuron] ** 2
            scale = ((bits * a[:, neuron]).sum() / bits.sum().clamp_min(1e-30)).clamp_min(0)
            assert found <= _error(a, g, u, neuron, threshold, scale) + 1e-5


def _error(a, g, u, neuron, t, s):
    a, g, u = a[:, neuron], g[:, neuron], u[:, neuron]
    return ((a - s * (g >= t)) * u).square().sum() / (a * u).square().sum().clamp_min(1e-30)


def test_a_smooth_gate_hardens_to_the_exact_one():
    model = tiny("llama")
    replace_gates(model, 2, partial(HTAF, 2.0, 11.0))
    gate = gates_of(model)[3]
    with torch.no_grad():
        gate.threshold.uniform_(-1, 1), gate.scale.uniform_(0.5, 2), gate.width.uniform_(0.5, 2)
    g = torch.randn(50, 24) * 3
    smooth = gate(g)
    gate = gates_of(harden(model))[3]
    assert isinstance(gate.step, Heaviside)
    assert torch.equal(gate(g), torch.where(g >= gate.threshold, gate.scale, 0.0))
    far = ((g - gate.threshold) / gate.width).abs() > 1
    torch.testing.assert_close(smooth[far], gate(g)[far], atol=0.01, rtol=0.01)


def test_bits_of_gates():
    model = tiny("llama")
    with pytest.raises(LanguageError, match="expected a model with gates, got one without"):
        open_gates(model, TOKENS)
    calibrate(model, TOKENS, 2)
    bits = open_gates(model, TOKENS)
    assert list(bits) == [2, 3]
    seen = []
    gates_of(model)[3].register_forward_hook(lambda gate, args, output: seen.append(output.flatten(0, 1) != 0))
    model(TOKENS)
    assert torch.equal(bits[3], seen[0])


def test_calibration_keeps_what_it_can_say_exactly():
    """A model whose activation is a step of known thresholds and scales is found again."""
    model = tiny("llama")
    replace_gates(model, 1)
    gate = gates_of(model)[3]
    with torch.no_grad():
        gate.scale.uniform_(0.5, 2)
    wanted = model(TOKENS).logits
    mlp = gated_mlps(model)[3]
    scale = gate.scale.clone()
    mlp.module.act_fn = _Known(scale)
    report = calibrate(model, TOKENS, 1, calibration="gates")
    assert report[0].gate < 1e-6
    torch.testing.assert_close(model(TOKENS).logits, wanted, atol=1e-5, rtol=1e-4)


class _Known(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = nn.Buffer(scale)

    def forward(self, g):
        return (g >= 0) * self.scale


def test_errors():
    with pytest.raises(LanguageError, match=r"last_k must be in 1 to 4.*got 5"):
        replace_gates(tiny("llama"), 5)
    with pytest.raises(LanguageError, match=r"expected a gated MLP.*GPT2LMHeadModel|list of layers"):
        gated_mlps(tiny("gpt2", n_embd=16, n_layer=2, n_head=2))
    with pytest.raises(LanguageError, match=r"expected a gated MLP.*PhiForCausalLM.*fc1"):
        gated_mlps(tiny("phi"))
    model = tiny("llama")
    replace_gates(model, 2)
    with pytest.raises(LanguageError, match="expected a model without gates"):
        replace_gates(model, 2)
    model = tiny("llama")
    model.model.layers[1].mlp.down_proj = model.model.layers[0].mlp.down_proj
    with pytest.raises(LanguageError, match="down_proj of layer 0 and down_proj of layer 1 share one projection"):
        gated_mlps(model)
    model = tiny("llama")
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[1].mlp.gate_proj.weight
    with pytest.raises(LanguageError, match="gate_proj of layer 1 and up_proj of layer 1 share one projection"):
        gated_mlps(model)
    model = tiny("llama")
    model.model.layers[3].mlp.forward = lambda x: model.model.layers[3].mlp.up_proj(x)[..., :16]
    with pytest.raises(LanguageError, match="computes something else"):
        replace_gates(model, 1)
    with pytest.raises(LanguageError, match=r"two blocks of tokens or more.*\(1, 32\)"):
        calibrate(tiny("llama"), TOKENS[:1], 1)
    with pytest.raises(LanguageError, match="mixtures of experts"):
        gated_mlps(tiny("mixtral", num_local_experts=2))
