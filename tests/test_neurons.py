"""Neurons against a plain loop over numpy, forward-mode derivatives by hand, and closed forms of spike counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import htaf
from htaf import HTAF, Heaviside, ScaledSigmoid, StraightThrough, replace, surrogates
from htaf.core.kernels import native
from htaf.core.sharpening import set_sharpness
from htaf.transform.spiking.neurons import IF, LIF, Neuron

Array = np.ndarray
Curve = Callable[[Array], Array]


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def step(u: Array) -> Array:
    return (u >= 0).astype(float)


def htaf_slope(u: Array) -> Array:
    f = sigmoid(11 * np.tanh(2 * u))
    return 22 * f * (1 - f) / np.cosh(2 * u) ** 2


# name -> (module, its value, its slope), restated
SPIKES: dict[str, tuple[Callable[[], nn.Module], Curve, Curve]] = {
    "htaf": (HTAF, lambda u: sigmoid(11 * np.tanh(2 * u)), htaf_slope),
    "scaled sigmoid": (
        lambda: ScaledSigmoid(7.0),
        lambda u: sigmoid(7 * u),
        lambda u: 7 * sigmoid(7 * u) * sigmoid(-7 * u),
    ),
    "sigmoid": (StraightThrough, step, lambda u: sigmoid(u) * sigmoid(-u)),
    "atan": (lambda: StraightThrough(surrogates.atan), step, lambda u: 1 / (1 + (math.pi * u) ** 2)),
    "tanh": (lambda: StraightThrough(surrogates.tanh), step, lambda u: 1 - np.tanh(u) ** 2),
    "rectangular": (lambda: StraightThrough(surrogates.rectangular), step, lambda u: (abs(u) < 1) * 1.0),
    "triangle": (lambda: StraightThrough(surrogates.approx_sign), step, lambda u: np.maximum(0, 1 - abs(u))),
    "slope of htaf": (lambda: StraightThrough(surrogates.htaf), step, htaf_slope),
    "own slope": (lambda: StraightThrough(lambda u: 1 / (1 + u * u)), step, lambda u: 1 / (1 + u * u)),
    "exact": (Heaviside, step, np.zeros_like),
}
OPTIONS = [
    {"reset": reset, "detach_reset": detach, "exact_reset": exact}
    for reset, detach, exact in itertools.product(("hard", "soft"), (True, False), (False, True))
]
# name -> (class, its arguments, the charge of v by x)
KINDS: dict[str, tuple[Any, dict[str, Any], Callable[[Array, Array], Array]]] = {
    "IF": (IF, {}, lambda v, x: v + x),
    "LIF": (LIF, {"tau": 2.5}, lambda v, x: v + (x - v) / 2.5),
    "LIF, input as it is": (LIF, {"tau": 3.0, "decay_input": False}, lambda v, x: v * (1 - 1 / 3) + x),
}
THRESHOLD = 0.75

kinds = pytest.mark.parametrize("kind", KINDS)
compiled_kernels = pytest.mark.skipif(native.load()[0] is None, reason="without them there is the loop only")
options = pytest.mark.parametrize("option", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))


def oracle(kind: str, spike: str, option: dict[str, Any], x: Array, v: Array) -> tuple[Array, Array, Array, Array]:
    """Spikes, the last potential, and the derivatives of both with respect to x [k]: [t, k, n] and [k, n].

    Forward mode: dv [k] is the derivative of the running potential with respect to x [k].
    """
    _, value, slope = SPIKES[spike]
    charge = KINDS[kind][2]
    leak, gain = charge(np.ones(1), np.zeros(1)).item(), charge(np.zeros(1), np.ones(1)).item()
    steps, n = x.shape
    spikes, d_spikes, dv = [], [], np.zeros((steps, n))
    for t in range(steps):
        h, dh = charge(v, x[t]), leak * dv
        dh[t] += gain
        s, ds = value(h - THRESHOLD), slope(h - THRESHOLD) * dh
        r = step(h - THRESHOLD) if option["exact_reset"] else s
        dr = 0 * ds if option["exact_reset"] or option["detach_reset"] else ds
        if option["reset"] == "hard":
            v, dv = (1 - r) * h, (1 - r) * dh - dr * h
        else:
            v, dv = h - THRESHOLD * r, dh - THRESHOLD * dr
        spikes.append(s)
        d_spikes.append(ds)
    return np.stack(spikes), v, np.stack(d_spikes), dv


def make(kind: str, spike: str, option: dict[str, Any]) -> IF | LIF:
    cls, arguments, _ = KINDS[kind]
    return cls(SPIKES[spike][0](), threshold=THRESHOLD, **arguments, **option)


def far_from_threshold(kind: str, option: dict[str, Any], x: Array, v: Array) -> Array:
    """The columns in which no exact spike hangs on the rounding."""
    moved = [oracle(kind, "exact", option, x + e, v + e)[0] for e in (-1e-5, 0, 1e-5)]
    return ((moved[0] == moved[1]) & (moved[1] == moved[2])).all(0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["loop", "kernel"])
@pytest.mark.parametrize("spike", SPIKES)
@kinds
def test_values_and_gradients(kind: str, spike: str, dtype: torch.dtype) -> None:
    numbers = np.random.default_rng(0)
    x, v, gs, gv = (numbers.normal(0.3, 0.8, shape).astype(np.float32).astype(float)
                    for shape in ((5, 83), (83,), (5, 83), (83,)))  # fmt: skip
    limit = 1e-12 if dtype == torch.float64 else 2e-5
    for option in OPTIONS:
        sure = far_from_threshold(kind, option, x, v)
        assert sure.sum() > 75

        def same(found: Tensor, exact: Array, limit: float, option=option, sure=sure) -> None:
            np.testing.assert_allclose(found.detach()[..., sure], exact[..., sure], atol=limit, err_msg=str(option))

        s, last, ds, dv = oracle(kind, spike, option, x, v)
        tx, tv = torch.tensor(x, dtype=dtype, requires_grad=True), torch.tensor(v, dtype=dtype, requires_grad=True)
        neuron = make(kind, spike, option)
        spikes, end = neuron.run(tx, tv)
        same(spikes, s, limit)
        same(end, last, limit)
        torch.autograd.backward([spikes, end], [torch.tensor(gs, dtype=dtype), torch.tensor(gv, dtype=dtype)])
        expected = np.einsum("tn,tkn->kn", gs, ds) + gv * dv
        assert tx.grad is not None
        assert tv.grad is not None
        same(tx.grad, expected, 10 * limit)
        leak, gain = neuron.weights
        same(tv.grad, leak / gain * expected[0], 10 * limit)


@pytest.mark.parametrize("reset", ["hard", "soft"])
@kinds
def test_gradcheck(kind: str, reset: str) -> None:
    torch.manual_seed(0)
    neuron = make(kind, "htaf", {"reset": reset, "detach_reset": False, "exact_reset": False})
    x, v = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.randn(4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, v: neuron.run(x, v), (x, v.requires_grad_()))
    assert torch.autograd.gradgradcheck(lambda x: neuron.run(x), x)


@options
def test_an_exact_reset_follows_the_exact_network(option: dict[str, Any]) -> None:
    torch.manual_seed(0)
    neuron, x = make("LIF", "htaf", option), torch.randn(4, 100)
    exact = htaf.harden(neuron)
    assert isinstance(exact, LIF)
    assert torch.equal(neuron.run(x)[1], exact.run(x)[1]) == option["exact_reset"]


# ---- closed forms ----

SIXTYFOURTHS = st.integers(1, 64).map(lambda k: k / 64)  # sums of them are exact


@settings(deadline=None)
@given(SIXTYFOURTHS, st.integers(1, 40))
def test_constant_input_fires_at_its_rate(c: float, steps: int) -> None:
    x = torch.full((steps, 1), c)
    assert IF(Heaviside(), reset="soft")(x).sum() == math.floor(c * steps)
    assert IF(Heaviside(), reset="hard")(x).sum() == steps // math.ceil(1 / c)
    assert IF(Heaviside(), reset="soft", threshold=0.5)(x / 2).sum() == math.floor(c * steps)


@settings(deadline=None)
@given(st.lists(st.integers(-64, 128).map(lambda k: k / 64), min_size=1, max_size=20), st.sampled_from([0.5, 1.0, 2.0]))
def test_a_soft_reset_loses_no_charge(sequence: list[float], threshold: float) -> None:
    x = torch.tensor(sequence)[:, None]
    spikes, v = IF(Heaviside(), reset="soft", threshold=threshold).run(x)
    assert v.item() + threshold * spikes.sum().item() == sum(sequence)


@settings(deadline=None)
@given(st.floats(0.3, 3.0), st.floats(1.2, 8.0), st.booleans())
def test_a_leaky_neuron_rises_as_an_exponential(c: float, tau: float, decay_input: bool) -> None:
    """Before its first spike v after n steps is l (1 - (1 - 1 / tau)^n), l = c or c tau."""
    limit, keep = (c if decay_input else c * tau), 1 - 1 / tau
    rises = [limit * (1 - keep**n) for n in range(1, 13)]
    if min(abs(v - 1) for v in rises) < 1e-4:
        return
    first = next((n for n, v in enumerate(rises) if v >= 1), None)
    spikes = LIF(Heaviside(), tau=tau, decay_input=decay_input)(torch.full((12, 1), c))[:, 0]
    assert (spikes.argmax().item() if spikes.any() else None) == first


# ---- state ----


@options
@kinds
def test_state_carried_on_is_one_long_call(kind: str, option: dict[str, Any]) -> None:
    torch.manual_seed(0)
    neuron, x = make(kind, "htaf", option), torch.randn(5, 3, 4, requires_grad=True)
    whole, end = neuron.run(x)
    early, v = neuron.run(x[:2])
    late, last = neuron.run(x[2:], v)
    assert torch.equal(torch.cat([early, late]), whole)
    assert torch.equal(last, end)
    weights = torch.randn_like(whole)
    found = [torch.autograd.grad((weights * s).sum(), x)[0] for s in (torch.cat([early, late]), whole)]
    assert torch.equal(*found)
    spikes, v = [], None
    for now in x:
        spike, v = neuron.step(now, v)
        spikes.append(spike)
    torch.testing.assert_close(torch.stack(spikes), whole, atol=1e-5, rtol=0)
    assert torch.equal(neuron(x), whole)  # nothing was kept


def test_small_inputs_add_up_in_half_precision() -> None:
    """512 times 1 / 512 reach the threshold; a sum in bfloat16 would stop at 1 / 2."""
    x = torch.full((512, 3), 1 / 512, dtype=torch.bfloat16)
    for neuron in (IF(Heaviside()), IF(StraightThrough(lambda u: u))):  # kernel, loop
        spikes, v = neuron.run(x)
        assert spikes.dtype == torch.bfloat16
        assert v.dtype == torch.float32
        assert spikes[-1].tolist() == [1, 1, 1]
        assert spikes[:-1].sum() == 0


# ---- the kernel beside the loop ----


class Doubled(nn.Module):
    """HTAF by another name, which the kernel does not know."""

    def forward(self, x: Tensor) -> Tensor:
        return htaf.functional.htaf(x, 2.0, 11.0)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.randn(4, 2, 3, 5, 7),
    "channels last": lambda: torch.randn(8, 3, 5, 7).to(memory_format=torch.channels_last).unflatten(0, (4, 2)),
    "one image, channels last": lambda: (
        torch.randn(4, 3, 5, 7).to(memory_format=torch.channels_last).unflatten(0, (4, 1))
    ),
    "expanded": lambda: torch.randn(2, 3, 5, 7).expand(4, 2, 3, 5, 7),
    "time last": lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
    "strided": lambda: torch.randn(8, 6, 10)[::2, ::3, 1:9],
    "empty": lambda: torch.randn(4, 0, 3),
    "scalars": lambda: torch.randn(4),
    "long": lambda: torch.randn(2, 40000),
}


@compiled_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_kernel_is_the_loop(layout: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = LAYOUTS[layout]().to(dtype)
    grad, limit = torch.randn_like(x), 2e-5 if dtype == torch.float32 else 0.05
    for option in OPTIONS:
        results = []
        for spike in (HTAF(), Doubled()):
            own = x.detach().requires_grad_()
            y = LIF(spike, **option)(own)
            assert y.shape == x.shape
            assert y.dtype == dtype
            assert ("Fused" in type(y.grad_fn).__name__) == isinstance(spike, HTAF)
            y.backward(grad)
            results.append((y.detach(), own.grad))
        for kernel, loop in zip(*results, strict=True):
            torch.testing.assert_close(kernel, loop, atol=limit, rtol=limit)
            if layout == "channels last":
                assert kernel.stride() == x.stride()


def test_the_kernel_can_be_differentiated_twice() -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(3, 20), torch.randn(2, 3, 20)
    found = []
    for spike in (HTAF(), Doubled()):
        own = x.clone().requires_grad_()
        (first,) = torch.autograd.grad((weights[0] * IF(spike)(own)).sum(), own, create_graph=True)
        found.append((first, *torch.autograd.grad((weights[1] * first).sum(), own)))
    for kernel, loop in zip(*found, strict=True):
        torch.testing.assert_close(kernel, loop, atol=1e-3, rtol=1e-4)


@compiled_kernels
def test_the_same_bits_on_any_number_of_threads() -> None:
    torch.manual_seed(0)
    x, threads = torch.randn(4, 100_003, requires_grad=True), torch.get_num_threads()
    found = []
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            y = LIF()(x)
            found.append((y, *torch.autograd.grad(y.square().sum(), x)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# ---- in the library, and in PyTorch ----


def test_the_spike_is_a_site() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), IF(), nn.Linear(8, 8), LIF()), torch.randn(3, 5, 4)
    assert [(site.path, site.kind, site.calls) for site in htaf.sites(net, x)] == [
        ("1.spike", "htaf", 3), ("3.spike", "htaf", 3)
    ]  # fmt: skip
    exact = htaf.harden(net)
    assert exact.state_dict().keys() == net.state_dict().keys()
    assert isinstance(exact, nn.Sequential)
    assert set(exact[:2](x * 30).unique().tolist()) == {0.0, 1.0}
    replaced = htaf.replace(net, lambda: ScaledSigmoid(5.0), example=x)
    torch.testing.assert_close(replaced.get_submodule("1")(x), IF(ScaledSigmoid(5.0))(x))
    assert not torch.equal(replaced(x), net(x))


@pytest.mark.parametrize("neuron", [IF(), LIF(reset="soft", detach_reset=False)])
def test_transforms(neuron: IF | LIF) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4)
    y = neuron(x)
    torch.testing.assert_close(torch.func.vmap(neuron, 2, 2)(x), y, atol=1e-5, rtol=0)
    own = x.clone().requires_grad_()
    expected = torch.autograd.grad(neuron(own).sum(), own)[0]
    torch.testing.assert_close(torch.func.grad(lambda x: neuron(x).sum())(x), expected, atol=1e-4, rtol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert neuron(x).dtype == torch.float32
        assert neuron(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(neuron(x.bfloat16()).float(), neuron(x.bfloat16().float()), atol=4e-3, rtol=0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("cls", [IF, LIF])
def test_bad_arguments(cls: Any) -> None:
    for arguments, message in (
        ({"spike": HTAF(bipolar=True)}, "0 or 1"),
        ({"spike": Heaviside(bipolar=True)}, "0 or 1"),
        ({"threshold": 0.0}, "threshold must be > 0"),
        ({"threshold": math.nan}, "threshold"),
        ({"reset": "none"}, r"\('hard', 'soft'\), got 'none'"),
    ):
        with pytest.raises(ValueError, match=message):
            cls(**arguments)
    with pytest.raises(TypeError, match="abstract"):
        Neuron()
    with pytest.raises(TypeError, match="module"):
        cls(torch.sigmoid)
    for tau in (1.0, 0.5, math.inf):
        with pytest.raises(ValueError, match="tau must be > "):
            LIF(tau=tau)
    for x in (torch.zeros(()), torch.zeros(0, 3)):
        with pytest.raises(ValueError, match="T >= 1"):
            cls()(x)
    with pytest.raises(TypeError, match="floating-point"):
        cls()(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"shape of a time step, \(3,\), got \(4,\)"):
        cls().run(torch.zeros(2, 3), torch.zeros(4))
    with pytest.raises(ValueError, match=r"got \(1,\)"):
        cls().step(torch.zeros(3), torch.zeros(1))


# ---- what changes after a neuron was made ----


def test_a_bipolar_spike_put_in_later() -> None:
    net = replace(nn.Sequential(IF(Heaviside())), lambda: HTAF(2.0, 11.0, bipolar=True), where="*")
    with pytest.raises(ValueError, match="spike must be 0 or 1"):
        net(torch.randn(2, 3))
    with pytest.raises(ValueError, match="spike must be 0 or 1"):
        net[0].step(torch.randn(3))


def sharpened(width: float) -> StraightThrough:
    return StraightThrough(surrogates.sigmoid, width=width)


@compiled_kernels
def test_the_kernel_knows_the_width_of_a_straight_through() -> None:
    found = []
    for hooked in (False, True):
        neuron, x = (
            LIF(sharpened(3.0)),
            torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_(),
        )
        htaf.sharpen(neuron, 0.0)
        if hooked:
            neuron.spike.register_forward_hook(lambda *args: None)
        y = neuron(x)
        assert ("Fused" in type(y.grad_fn).__name__) != hooked
        found.append(torch.autograd.grad(y.sum(), x)[0])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("spike", [HTAF(1.0, 6.0), ScaledSigmoid(4.0), sharpened(2.0)])
def test_sharpening_between_the_passes(spike: nn.Module) -> None:
    """The gradient is that of the forward pass, whichever way it is taken."""
    neuron, x = IF(spike), torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = torch.autograd.grad(neuron(x).sum(), x)[0]
    out = neuron(x)
    if isinstance(spike, StraightThrough):
        htaf.sharpen(neuron, 1.0)
    else:
        set_sharpness(neuron, (2.0, 11.0) if isinstance(spike, HTAF) else (22.0,))
    again = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
    assert torch.allclose(again, expected, rtol=1e-5, atol=1e-7)
    assert again.requires_grad


def test_a_forward_put_on_the_spike_is_called() -> None:
    neuron = IF(HTAF())
    neuron.spike.forward = lambda x: torch.zeros_like(x)  # pyright: ignore[reportAttributeAccessIssue]
    assert neuron(torch.ones(3, 2)).sum() == 0


def test_several_gradients_at_once() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    out = IF(StraightThrough())(x)
    grads = torch.randn(5, 3, 4)
    batched = torch.autograd.grad(out, x, grads, is_grads_batched=True, retain_graph=True)[0]
    single = torch.stack([torch.autograd.grad(out, x, g, retain_graph=True)[0] for g in grads])
    assert torch.allclose(batched, single, rtol=1e-5, atol=1e-6)


def test_learnable_and_changed_parameters() -> None:
    x = torch.rand(3, 5)
    learnable = IF(HTAF(learnable=True))
    learnable(x).sum().backward()
    assert all(p.grad is not None and p.grad != 0 for p in learnable.parameters())
    assert set(learnable.state_dict()) == {"spike.log_alpha0", "spike.log_alpha1"}
    torch.testing.assert_close(learnable(x), IF()(x))
    channels = IF(HTAF(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])))
    torch.testing.assert_close(channels(x)[:, 1], IF()(x)[:, 1])
    moving = IF()
    moving.spike.alpha0 = 0.5
    torch.testing.assert_close(moving(x), IF(HTAF(0.5))(x))
