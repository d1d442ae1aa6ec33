"""The modules are the functions; what they store, refuse, and become when hardened."""

from __future__ import annotations

import copy
import functools
import io
import math
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor, nn

from htaf import HTAF, IF, LIF, Heaviside, ScaledSigmoid, StraightThrough, functional, harden, surrogates

X = torch.linspace(-3, 3, 24).reshape(2, 3, 4)
CHANNELS = torch.tensor([[1.0], [2.0], [3.0]])

Smooth = HTAF | ScaledSigmoid | StraightThrough
# every kind of module that hardens: name -> (maker, names in its state dict)
MODULES: dict[str, tuple[Callable[..., Smooth], set[str]]] = {
    "floats": (HTAF, set()),
    "tensors": (functools.partial(HTAF, CHANNELS, 4 * CHANNELS + 1), {"alpha0", "alpha1"}),
    "mixed": (functools.partial(HTAF, 2.0, 4 * CHANNELS + 1), {"alpha1"}),
    "learnable": (functools.partial(HTAF, 2.0, 11.0, learnable=True), {"log_alpha0", "log_alpha1"}),
    "learnable tensors": (
        functools.partial(HTAF, CHANNELS, 4 * CHANNELS + 1, learnable=True),
        {"log_alpha0", "log_alpha1"},
    ),
    "scaled": (ScaledSigmoid, set()),
    "scaled tensor": (functools.partial(ScaledSigmoid, CHANNELS), {"beta"}),
    "scaled learnable": (functools.partial(ScaledSigmoid, 22.0, learnable=True), {"log_beta"}),
    "straight-through": (StraightThrough, set()),
}


@pytest.fixture(params=MODULES, ids=list(MODULES))
def case(request: pytest.FixtureRequest) -> tuple[Callable[..., Smooth], set[str]]:
    return MODULES[request.param]


@pytest.mark.parametrize("bipolar", [False, True])
def test_modules_are_the_functions(bipolar: bool) -> None:
    expected = [
        (HTAF(1.0, 22.0, bipolar=bipolar), functional.htaf(X, 1.0, 22.0)),
        (HTAF(CHANNELS, 4 * CHANNELS + 1, bipolar=bipolar), functional.htaf(X, CHANNELS, 4 * CHANNELS + 1)),
        (ScaledSigmoid(10.0, bipolar=bipolar), functional.scaled_sigmoid(X, 10.0)),
        (ScaledSigmoid(CHANNELS, bipolar=bipolar), functional.scaled_sigmoid(X, CHANNELS)),
        (StraightThrough(surrogates.atan, bipolar=bipolar), functional.heaviside(X)),
        (Heaviside(bipolar=bipolar), functional.heaviside(X)),
    ]
    for module, y in expected:
        assert torch.equal(module(X), 2 * y - 1 if bipolar else y), module
        assert torch.equal(module.eval()(X), module.train()(X)), "train and eval are the same curve"
    assert torch.equal(HTAF()(X), functional.htaf(X, 2.0, 11.0))
    assert torch.equal(ScaledSigmoid()(X), functional.scaled_sigmoid(X, 22.0))


SHARP = {  # with other numbers than the defaults: the modules, what they hold
    "htaf": (functools.partial(HTAF, 1.0, 22.0), HTAF),
    "scaled": (functools.partial(ScaledSigmoid, 3.0), ScaledSigmoid),
    "if": (functools.partial(IF, threshold=2.0), IF),
    "lif": (functools.partial(LIF, HTAF(1.0, 5.0), tau=3.0, threshold=0.5), LIF),
}


@pytest.mark.parametrize("kind", SHARP)
def test_a_saved_state_dict_carries_the_numbers(kind: str) -> None:
    make, make_default = SHARP[kind]
    x = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
    trained, loaded, exact = (nn.Sequential(m) for m in (make(), make_default(), make_default()))
    assert not torch.equal(loaded(x), trained(x))
    assert trained.state_dict().keys() == set(), "numbers are no keys"
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    assert str(loaded.load_state_dict(torch.load(file, weights_only=True))) == "<All keys matched successfully>"
    assert torch.equal(loaded(x), trained(x))
    assert repr(loaded) == repr(trained)
    exact.load_state_dict(harden(trained).state_dict())  # the exact step keeps them too
    assert repr(exact) == repr(trained)


def test_a_state_dict_without_numbers_leaves_them() -> None:
    module = nn.Sequential(HTAF(1.0, 22.0), LIF(tau=3.0))
    shown = repr(module)
    for state in (
        {},
        nn.Sequential(nn.ReLU(), nn.ReLU()).state_dict(),
        nn.Sequential(Heaviside(), nn.Tanh()).state_dict(),
    ):
        assert str(module.load_state_dict(state)) == "<All keys matched successfully>"
    tensors = nn.Sequential(HTAF(CHANNELS, 4 * CHANNELS + 1))
    with pytest.raises(RuntimeError, match="alpha0"):
        module.load_state_dict(tensors.state_dict())
    with pytest.raises(RuntimeError, match="alpha0"):
        tensors.load_state_dict(nn.Sequential(HTAF()).state_dict())
    assert repr(module) == shown


def test_settings_that_differ_are_refused() -> None:
    state = nn.Sequential(HTAF(bipolar=True)).state_dict()
    for other in (HTAF(), ScaledSigmoid(), StraightThrough(), Heaviside()):
        with pytest.raises(RuntimeError, match="0: expected bipolar=False, got a state dict with bipolar=True"):
            nn.Sequential(other).load_state_dict(state)
    with pytest.raises(RuntimeError, match="expected reset=hard, got a state dict with reset=soft"):
        IF().load_state_dict(IF(reset="soft").state_dict())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bad", [-1.0, math.nan, "2", None, [1.0]])
def test_numbers_in_a_state_dict_are_checked(bad: object) -> None:
    state = nn.Sequential(HTAF()).state_dict()
    state._metadata["0"]["htaf"]["alpha0"] = bad
    module = nn.Sequential(HTAF(1.0, 22.0))
    with pytest.raises(RuntimeError, match=r"0\.alpha0 in the state dict must be"):
        module.load_state_dict(state)
    assert module[0].alphas[0] == 1.0


def told(model: nn.Module, x: Tensor) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model(x)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("make", [HTAF, IF, functools.partial(IF, exact_reset=True)])
def test_an_exact_step_in_training_is_told_once(make: Callable[[], nn.Module]) -> None:
    net = nn.Sequential(nn.Linear(4, 4), make())
    assert told(net, X) == []
    exact = harden(net)
    with torch.no_grad():
        assert told(exact, X) == []
    assert told(exact.eval(), X) == []
    (message,) = told(exact.train(), X)
    assert message.startswith("the exact step has gradient 0, so the layers before it will not be trained: train the")
    assert told(harden(net).requires_grad_(False), X) == []
    assert len(told(harden(net), X)) == 1, "one more network, one more word"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bipolar", [False, True])
def test_hardened_keeps_the_state_dict(
    case: tuple[Callable[..., Smooth], set[str]], bipolar: bool, training: bool
) -> None:
    make, names = case
    module = make(bipolar=bipolar).train(training)
    step = module.hardened()
    assert isinstance(step, Heaviside)
    assert step.bipolar is bipolar
    assert step.training is training
    assert list(step.state_dict()) == list(module.state_dict())
    assert set(step.state_dict()) == names
    for mine, theirs in zip(step.state_dict().values(), module.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    step.load_state_dict(module.state_dict())
    assert isinstance(module, (HTAF, ScaledSigmoid, StraightThrough)), "the module itself is left as it was"
    assert step(X).unique().tolist() == ([-1, 1] if bipolar else [0, 1])


@given(hnp.arrays("float32", hnp.array_shapes(max_dims=3, max_side=6), elements=st.floats(width=32)), st.booleans())
def test_hardened_output_is_the_step(values, bipolar: bool) -> None:
    x = torch.from_numpy(values)
    expected = functional.sign(x) if bipolar else functional.heaviside(x)
    for module in (HTAF(bipolar=bipolar), ScaledSigmoid(bipolar=bipolar), StraightThrough(bipolar=bipolar)):
        torch.testing.assert_close(module.hardened()(x), expected, rtol=0, atol=0, equal_nan=True)


@given(
    hnp.arrays("float32", hnp.array_shapes(max_dims=2, max_side=6), elements=st.floats(width=32, allow_nan=False)),
    st.floats(0.125, 8),
    st.floats(5, 100),
)
def test_smooth_and_exact_lie_on_the_same_side_of_a_half(values, alpha0: float, alpha1: float) -> None:
    x = torch.from_numpy(values)
    module = HTAF(alpha0, alpha1)
    smooth, exact = module(x), module.hardened()(x)
    assert (torch.where(exact == 1, smooth, 1 - smooth) >= 0.5).all()


@pytest.mark.parametrize("alpha1", [4.4, 2.0, math.log(99), torch.tensor([11.0, 4.5, 22.0])])
def test_warns_when_no_output_can_pass_99_percent(alpha1: float | Tensor) -> None:
    with pytest.warns(UserWarning, match=r"is not above ln 99 = 4.595: no output passes 0.99") as caught:
        module = HTAF(5.0, alpha1)
    assert len(caught) == 1
    if isinstance(alpha1, float):
        assert module(torch.tensor([math.inf])).item() <= 0.99 + 1e-6
        assert f"alpha1 = {alpha1:g}" in str(caught[0].message)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("learnable", [False, True])
def test_parameters_must_be_positive_and_finite(bad: float, learnable: bool) -> None:
    for value in (bad, torch.tensor([2.0, bad, 1.0]), torch.tensor(bad)):
        with pytest.raises(ValueError, match=rf"^alpha0 must be > 0 and finite, got {bad}$"):
            HTAF(value, 11.0, learnable=learnable)
        with pytest.raises(ValueError, match=rf"^alpha1 must be > 0 and finite, got {bad}$"):
            HTAF(2.0, value, learnable=learnable)
        with pytest.raises(ValueError, match=rf"^beta must be > 0 and finite, got {bad}$"):
            ScaledSigmoid(value, learnable=learnable)


def test_copy_and_pickle(case: tuple[Callable[..., Smooth], set[str]]) -> None:
    module = case[0](bipolar=True)
    for original in (module, module.hardened()):
        for twin in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
            assert repr(twin) == repr(original)
            assert torch.equal(twin(X), original(X))
            for mine, theirs in zip(twin.state_dict().values(), original.state_dict().values(), strict=True):
                assert mine.data_ptr() != theirs.data_ptr()


COMPILED = """
import functools, torch
from htaf import HTAF, ScaledSigmoid, StraightThrough, surrogates

narrow = functools.partial(surrogates.sigmoid, beta=4.0)
slopes = (surrogates.sigmoid, surrogates.htaf, surrogates.approx_sign, narrow, lambda x: torch.exp(-x * x))
alphas = torch.tensor([[1.0], [2.0], [3.0]])
modules = [HTAF(), HTAF(alphas, 11.0), HTAF(learnable=True, bipolar=True), ScaledSigmoid(alphas),
           StraightThrough(bipolar=True), HTAF(alphas, 11.0).hardened(), *map(StraightThrough, slopes)]
x = torch.linspace(-3, 3, 24).reshape(2, 3, 4)
for module in modules:
    found = []
    for f in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        y = f(leaf)
        found.append((y.detach(), *torch.autograd.grad(y.sum(), [leaf, *module.parameters()], allow_unused=True)))
    torch.testing.assert_close(*found)
print("compiled equals eager")
"""


@pytest.mark.slow
def test_compile_fullgraph() -> None:
    # in its own process: Dynamo cannot trace through the type checks that conftest.py installs
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "compiled equals eager", done.stderr
