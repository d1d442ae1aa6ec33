"""Layer statistics and gradient norms against figures worked out by hand, autograd and closed forms."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from htaf.core.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough
from htaf.models.mlp import MLP
from htaf.transform.convert import harden, replace
from htaf.transform.diagnostics import GradientNorms, LayerGradient, layer_statistics, mean_by_layer
from htaf.transform.spiking.neurons import IF

X = torch.tensor([[-3.0, 0.01], [1.0, 0.5], [-2.0, 4.0], [0.0, 2.0]])


def one_layer(**options: bool) -> nn.Sequential:
    return nn.Sequential(HTAF(2.0, 11.0, **options))


def test_by_hand() -> None:
    model = one_layer()
    (layer,) = layer_statistics(model, harden(model), [X])
    assert (layer.path, layer.units) == ("0", 2)
    assert layer.mean == pytest.approx((-3 + 0.01 + 1 + 0.5 - 2 + 4 + 0 + 2) / 8, abs=1e-6)
    assert layer.std == pytest.approx(X.double().std(correction=0).item(), abs=1e-6)
    assert layer.binarity == 6 / 8  # 0.01 and 0 are in the middle of the curve
    assert layer.flip_rate == 0.0  # one layer: both networks see the same pre-activations
    assert layer.dead == 0.5  # the second unit is on for every row, the first is not
    assert layer.firing_rate == 6 / 8  # 0 counts as on


def test_flips_of_a_second_layer() -> None:
    """Smooth 0.5 and exact 1 at x = 0 stand on two sides of the second layer's threshold 0.75."""
    second = nn.Linear(1, 1)
    with torch.no_grad():
        second.weight.fill_(1.0)
        second.bias.fill_(-0.75)
    model = nn.Sequential(HTAF(2.0, 11.0), second, HTAF(2.0, 11.0))
    layers = layer_statistics(model, harden(model), [torch.tensor([[0.0], [5.0], [-5.0], [-4.0]])])
    assert [layer.path for layer in layers] == ["0", "2"]
    assert [layer.flip_rate for layer in layers] == [0.0, 0.25]
    smooth_only = layer_statistics(model, None, [torch.tensor([[0.0], [5.0], [-5.0], [-4.0]])])
    assert [layer.flip_rate for layer in smooth_only] == [None, None]


def test_dead_counts_bits_of_the_exact_network() -> None:
    second = nn.Linear(1, 1)
    with torch.no_grad():
        second.weight.fill_(1.0)
        second.bias.fill_(-0.75)
    model = nn.Sequential(HTAF(2.0, 11.0), second, HTAF(2.0, 11.0))
    rows = [torch.tensor([[0.0], [5.0]])]  # exact: 1 and 1, always on; smooth: 0.5 and 1, off and on
    hardened, smooth = layer_statistics(model, harden(model), rows)[1], layer_statistics(model, None, rows)[1]
    assert (hardened.dead, hardened.firing_rate) == (1.0, 1.0)
    assert (smooth.dead, smooth.firing_rate) == (0.0, 0.5)


def test_many_batches_are_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), HTAF(), nn.Linear(5, 4), HTAF(), nn.Linear(4, 1))
    x = torch.randn(64, 3)
    (first, second), parts = (layer_statistics(model, harden(model), batches) for batches in ([x], x.split(7)))
    for whole, part in zip((first, second), parts, strict=True):
        for name in ("units", "binarity", "flip_rate", "dead", "firing_rate"):
            assert getattr(part, name) == getattr(whole, name)
        assert part.mean == pytest.approx(whole.mean, rel=1e-6)
        assert part.std == pytest.approx(whole.std, rel=1e-6)
    assert second.flip_rate is not None
    assert 0 < second.flip_rate < 1  # otherwise the comparison above says little


def test_bipolar_outputs_are_mapped_to_0_and_1() -> None:
    model = one_layer(bipolar=True)
    (layer,) = layer_statistics(model, harden(model), [X])
    assert layer.binarity == 6 / 8


def test_a_real_activation_has_no_binarity() -> None:
    (layer,) = layer_statistics(nn.Sequential(nn.ReLU()), None, [X])
    assert (layer.binarity, layer.flip_rate, layer.dead, layer.firing_rate) == (None, None, 0.5, 0.75)


@pytest.mark.parametrize("act", [nn.ReLU(inplace=True), replace(nn.ReLU(inplace=True), HTAF)])
def test_the_input_is_read_before_it_is_overwritten(act: nn.Module) -> None:
    (layer,) = layer_statistics(nn.Sequential(nn.Identity(), act), None, [X.clone()])
    assert layer.mean == pytest.approx(X.mean().item(), abs=1e-6)
    assert (layer.dead, layer.firing_rate) == (0.5, 0.75)


def test_time_steps_of_a_spiking_neuron() -> None:
    """0.4 a step reaches 1 in the third and the sixth step; 0.6 in every second; 0 never."""
    neuron = IF(Heaviside())
    x = torch.tensor([[0.4, 0.6, 0.0]]).expand(6, 1, 3)
    (layer,) = layer_statistics(neuron, None, [x])
    assert layer.firing_rate == pytest.approx((2 + 3 + 0) / 18)
    assert (layer.path, layer.units, layer.dead) == ("spike", 3, pytest.approx(1 / 3))


def test_networks_that_call_a_layer_differently_often() -> None:
    class Calls(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.act, self.number = HTAF(), number

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.act(x) for _ in range(self.number)]).sum(0)

    for smooth, exact in ((2, 1), (1, 2)):
        with pytest.raises(ValueError, match="as often as the smooth one"):
            layer_statistics(Calls(smooth), Calls(exact), [X])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_more_values_than_fit_one_piece(dtype: torch.dtype, memory: torch.memory_format) -> None:
    x = (100 + torch.randn(5, 3, 80, 90)).to(dtype).to(memory_format=memory)
    (layer,) = layer_statistics(one_layer(), None, [x])
    assert layer.mean == pytest.approx(x.double().mean().item(), rel=1e-12)
    assert layer.std == pytest.approx(x.double().std(correction=0).item(), rel=1e-6)
    assert (layer.units, layer.binarity, layer.firing_rate) == (3, 1.0, 1.0)


def test_exact_modules_are_fully_binary() -> None:
    (layer,) = layer_statistics(nn.Sequential(Heaviside()), None, [X])
    assert layer.binarity == 1.0


@pytest.mark.parametrize(("shape", "units"), [((4, 6, 3, 3), 6), ((4, 5, 7), 7), ((4, 9), 9)])
def test_units_by_shape(shape: tuple[int, ...], units: int) -> None:
    (layer,) = layer_statistics(one_layer(), None, [torch.randn(*shape)])
    assert layer.units == units


def test_hooks_go_and_training_flags_come_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), HTAF())
    model.train()
    model[0].eval()
    exact = harden(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [[m.training for m in net.modules()] for net in (model, exact)]
    layer_statistics(model, exact, [X])
    assert [[m.training for m in net.modules()] for net in (model, exact)] == flags
    assert not any(m._forward_hooks or m._forward_pre_hooks for net in (model, exact) for m in net.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())  # eval mode: no update


@pytest.mark.parametrize(("model", "batches"), [(nn.Sequential(HTAF()), []), (nn.Sequential(nn.Linear(2, 1)), [X])])
def test_nothing_to_measure(model: nn.Module, batches: list[torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="found none"):
        layer_statistics(model, None, batches)


# ---- gradient norms against autograd with everything spelled out, and closed forms ----


mse = nn.functional.mse_loss


def data(rows: int = 6, columns: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, columns, generator=generator), torch.randn(rows, 1, generator=generator)


@pytest.mark.parametrize("act", [HTAF, ScaledSigmoid, StraightThrough, Heaviside, nn.ReLU])
def test_against_autograd(act: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), act(), nn.Linear(5, 4), act(), nn.Linear(4, 1))
    x, y = data()
    first = model[0](x)
    second = model[2](model[1](first))
    loss = mse(model[4](model[3](second)), y)
    expected = torch.autograd.grad(loss, (first, second))
    with GradientNorms(model) as norms:
        mse(model(x), y).backward()
        found = norms.read()
    assert list(found) == ["1", "3"]
    for layer, gradient in zip(found.values(), expected, strict=True):
        assert layer.norm == pytest.approx(gradient.double().square().sum().sqrt().item(), rel=1e-6)
        each = [row.double().square().sum().sqrt().item() for row in gradient]
        assert layer.per_sample == pytest.approx(math.fsum(each), rel=1e-6)
    if act is Heaviside:
        assert {layer.norm for layer in found.values()} == {0.0}


def test_per_sample_is_the_norm_of_each_samples_own_loss() -> None:
    torch.manual_seed(0)
    model = MLP(3, 1, (5,), nn.ReLU)
    x, y = data()
    own = []
    for i in range(len(x)):
        pre = model.hidden[0].linear(x[i : i + 1])  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
        (gradient,) = torch.autograd.grad(mse(model.head(pre.relu()), y[i : i + 1]), pre)
        own.append(gradient.norm().item())
    with GradientNorms(model) as norms:
        mse(model(x), y).backward()
        found = norms.read()["hidden.0.act"]
    assert found.per_sample == pytest.approx(sum(own) / len(own), rel=1e-5)
    assert found.norm == pytest.approx(math.sqrt(math.fsum(n * n for n in own)) / len(own), rel=1e-5)


class Twice(nn.Module):
    """One activation, two calls a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(2 * x) + self.act(3 * x)


def test_calls_of_one_pass_add_squares_row_by_row() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]], requires_grad=True)
    model = Twice()
    with GradientNorms(model) as norms:
        model(x).sum().backward()  # gradient 1 at each positive pre-activation, both calls
        found = norms.read()["act"]
    assert found.norm == pytest.approx(math.sqrt(2 * 3))
    assert found.per_sample == pytest.approx(math.sqrt(2 * 2) + math.sqrt(2 * 1))


def test_gradients_over_the_time_steps_of_a_neuron() -> None:
    neuron = IF(HTAF(1.0, 5.0))
    x = torch.randn(4, 3, 2).requires_grad_()  # steps, samples, units
    rows: list[Tensor] = []
    hook = neuron.spike.register_forward_pre_hook(lambda m, args: args[0].register_hook(rows.append) and None)
    neuron(x).square().sum().backward()
    hook.remove()
    assert len(rows) == 4
    expected = torch.stack(rows, 1).flatten(1).norm(dim=1)  # of each sample over steps and units
    with GradientNorms(neuron) as norms:
        neuron(x).square().sum().backward()
        found = norms.read()
    assert found["spike"].norm == pytest.approx(expected.norm().item(), rel=1e-6)
    assert found["spike"].per_sample == pytest.approx(expected.sum().item(), rel=1e-6)


def test_accumulated_batches_are_one_batch() -> None:
    torch.manual_seed(0)
    model = MLP(3, 1, (5, 4), HTAF)
    x, y = data(6)
    with GradientNorms(model) as norms:
        mse(model(x), y).backward()
        whole = norms.read()
        for part in (slice(0, 3), slice(3, 6)):
            (mse(model(x[part]), y[part]) / 2).backward()
        parts = norms.read()
        for part in (slice(0, 2), slice(2, 6)):
            (mse(model(x[part]), y[part], reduction="sum") / 6).backward()
        unequal = norms.read()
    for path, layer in whole.items():
        for other in (parts[path], unequal[path]):
            assert other.norm == pytest.approx(layer.norm, rel=1e-5)
            assert other.per_sample == pytest.approx(layer.per_sample, rel=1e-5)


@pytest.mark.parametrize("size", [1e-35, 1e-22, 1e-13, 1.0, 1e18, 1e25])
def test_norms_whose_squares_leave_float32(size: float) -> None:
    x = torch.ones(2, 50, requires_grad=True)
    model = nn.Sequential(nn.Identity(), nn.ReLU())
    with GradientNorms(model) as norms:
        (model(x) * torch.tensor([[1.0], [1e-3]]) * size).sum().backward()
        found = norms.read()["1"]
    assert found.norm == pytest.approx(size * math.sqrt(50 * (1 + 1e-6)), rel=1e-5, abs=0)
    assert found.per_sample == pytest.approx(size * math.sqrt(50) * 1.001, rel=1e-5, abs=0)


def test_an_activation_in_place() -> None:
    torch.manual_seed(0)
    plain, in_place = (nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=i), nn.Linear(4, 1)) for i in (False, True))
    in_place.load_state_dict(plain.state_dict())
    found = []
    for model in (plain, in_place):
        with GradientNorms(model) as norms:
            model(data()[0]).square().mean().backward()
            found.append(norms.read())
    assert found[0] == found[1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_count_once(reentrant: bool) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(3, 4), HTAF(), nn.Linear(4, 1))
    x = data()[0].requires_grad_()
    with GradientNorms(block) as norms:
        block(x).square().mean().backward()
        expected = norms.read()
        checkpoint(block, x, use_reentrant=reentrant).square().mean().backward()
        assert norms.read() == expected


def test_a_leaf_as_pre_activation_counts_in_its_own_pass_only() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    model = nn.Sequential(nn.ReLU())
    with GradientNorms(model) as norms:
        for _ in range(3):
            model(x).sum().backward()
            found = norms.read()["0"]
            assert (found.norm, found.per_sample) == pytest.approx((2.0, 2 * math.sqrt(2)))
    assert not x._backward_hooks


def test_keyword_input() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    model = nn.ReLU()
    with GradientNorms(model) as norms:
        model(input=x).sum().backward()
        assert norms.read()[""].norm == pytest.approx(2.0)


def test_what_is_off_costs_nothing() -> None:
    torch.manual_seed(0)
    model = MLP(3, 1, (5,), HTAF)
    x, _ = data()
    with GradientNorms(model) as norms:
        with torch.no_grad():
            model(x)
        assert norms.read() == {}
        late = model(x).sum()  # its hooks outlive the recorder
    late.backward()
    assert norms.read() == {}
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_copies_of_the_model_do_not_report() -> None:
    """`harden` copies hooks; the exact network of a validation, or a copy that trains on, must leave no trace."""
    model = MLP(3, 1, (5,), HTAF)
    with GradientNorms(model) as norms, torch.no_grad():
        harden(model)(data()[0])
        assert norms.read() == {}
    with GradientNorms(model) as norms:
        copied = copy.deepcopy(model)
    copied(data()[0]).sum().backward()
    assert norms.read() == {}


def test_models_without_a_gradient_to_record() -> None:
    with pytest.raises(ValueError, match="SmoothStep, Heaviside, ReLU in Linear, got none"):
        GradientNorms(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"before torch\.compile, got a compiled one: give its _orig_mod instead"):
        GradientNorms(torch.compile(nn.Sequential(nn.ReLU())))  # pyright: ignore[reportArgumentType]


def test_means_over_the_batches_of_an_epoch() -> None:
    batches = [{"a": LayerGradient(1.0, 4.0)}, {"a": LayerGradient(2.0, 8.0), "b": LayerGradient(math.inf, 1.0)}]
    found = mean_by_layer(batches)
    assert found["a"] == LayerGradient(1.5, 6.0)
    assert math.isnan(found["b"].norm)
