"""Packed models give what the hardened ones give, of every family, for any batch, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_nets import IMAGES, Residual, columns, packed_beside, packs_as, plain, settled
from torch import nn

import htaf
from htaf._ground.errors import HtafError
from htaf.core.kernels import native
from htaf.models.icbm import ICBM
from htaf.models.mlp import MLP
from htaf.program.packed import PackedError, PackedModel, load, pack, save, trace, verify
from htaf.program.packed.graph import interval
from quick import slow_but

NETS = {
    "mlp": (lambda: MLP(9, 3, (70, 20)), (9,), 2),
    "mlp-norm": (lambda: MLP(9, 3, (70, 20), batch_norm=True), (9,), 2),
    "icbm": (lambda: ICBM(nn.Sequential(nn.Conv2d(3, 9, 3), nn.ReLU(), nn.Flatten(), nn.Linear(324, 40), nn.ReLU()),
                          4, example=torch.zeros(2, 3, 8, 8)), IMAGES, 1),
    "plain": (plain, IMAGES, 2),
    "residual": (Residual, IMAGES, 2),
    "columns": (columns, (9,), 2),
}  # fmt: skip


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", NETS)
def test_packed_gives_what_the_hardened_model_gives(name: str, tmp_path: Path) -> None:
    make, size, layers = NETS[name]
    packs_as(make, size, layers, tmp_path / "model.htaf")


@pytest.mark.parametrize(
    ("make", "example", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 4), htaf.HTAF()), torch.zeros(2, 3), "harden"),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.zeros(2, 3), "nothing to pack: expected steps"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 4, 1), htaf.Heaviside(), nn.AvgPool2d(2), nn.Conv2d(4, 2, 1)),
            torch.zeros(2, 3, 4, 4),
            r"the bits of a step, got what runs in float: 2 \(aten.avg_pool2d.default\): it takes bits as floats",
        ),
        (
            lambda: htaf.harden(nn.Sequential(nn.Conv2d(3, 8, 3), htaf.HTAF(levels=2), nn.Conv2d(8, 8, 3, groups=2))),
            torch.zeros(2, 3, 8, 8),
            r"runs in float: 2 \(aten.conv2d.default\): its channels are in groups",
        ),
        (
            lambda: nn.Sequential(nn.Linear(3, 4), htaf.Heaviside()),
            torch.zeros(2, 3),
            "with layers behind them, got none",
        ),
        (lambda: nn.Sequential(nn.Linear(3, 4), htaf.Heaviside(), nn.Linear(4, 2)), [1, 2], "a tensor"),
        (lambda: nn.Sequential(nn.Linear(3, 4), htaf.Heaviside(), nn.Linear(4, 2)), torch.zeros(2, 5), "torch.export"),
        (lambda: nn.Linear(3, 4).double(), torch.zeros(2, 3), "float32"),
    ],
)
def test_what_cannot_be_packed_is_said(make, example, message: str) -> None:
    with pytest.raises(PackedError, match=message):
        pack(make(), example)


def test_inputs_and_devices_that_do_not_fit_are_said() -> None:
    packed = pack(nn.Sequential(nn.Linear(3, 4), htaf.Heaviside(), nn.Linear(4, 2)), torch.randn(2, 3))
    for bad in (torch.zeros(2, 4), torch.zeros(3), torch.zeros(2, 3).double(), torch.full((2, 3), torch.inf)):
        with pytest.raises(PackedError, match="expected"):
            packed(bad)
    with pytest.raises(PackedError, match="CPU"):
        packed.to("meta")
    with pytest.raises(PackedError, match="float32"):
        packed.half()


def test_a_packed_model_that_differs_is_found_out() -> None:
    x = torch.randn(32, *IMAGES)
    model = settled(plain(), x)
    traced = trace(model, x)
    packed = pack(traced, x)
    name = next(n for n in packed.program.tensors if n.endswith(".lower"))
    packed.program.tensors[name] += 0.05
    found = verify(PackedModel(packed.program, packed.report), traced, x)
    assert not found.ok
    assert found.count > 0
    assert max(layer.farthest for layer in found.layers) > 0
    with pytest.raises(PackedError, match="the model that was packed"):
        verify(packed, settled(columns(), torch.randn(8, 9)), torch.randn(8, 9))


@pytest.mark.parametrize(("level", "said"), [(torch.nan, "NaN in 2.weight"), (torch.inf, "the kernels take: .*finite")])
def test_weights_that_are_not_finite_are_refused(level: float, said: str) -> None:
    net = nn.Sequential(nn.Linear(8, 16), htaf.Heaviside(), nn.Linear(16, 2)).eval()
    with torch.no_grad():
        net[2].weight[0, 0] = level  # pyright: ignore[reportIndexIssue]
    with pytest.raises(PackedError, match=said):
        pack(net, torch.randn(2, 8))


def test_another_instruction_set_is_no_matter_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 16), htaf.Heaviside(), nn.Linear(16, 2)).eval()
    save(pack(net, torch.randn(2, 8)), tmp_path / "net")
    monkeypatch.setenv("HTAF_INSTRUCTION_SET", "mmx")
    monkeypatch.setattr(native, "load", native.load.__wrapped__)
    with pytest.raises(HtafError, match=r"^HTAF_INSTRUCTION_SET must be one of .*got 'mmx'"):
        load(tmp_path / "net")


# ---- batch norms and steps as intervals; stacks of layers of any shape ----


numbers = st.floats(-4, 4, width=32)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8), st.booleans())
def test_intervals_decide_as_float64_does(maps, integer: bool) -> None:
    scale, shift = torch.tensor(maps, dtype=torch.float64).T
    lower, upper = interval(scale, shift, integer=integer)
    y = torch.arange(-40.0, 41) if integer else torch.linspace(-9, 9, 301)
    z = y.double()[:, None] * scale + shift
    wanted = z >= 0
    got = (lower <= y[:, None]) & (y[:, None] <= upper)
    near = z.abs() < 1e-7 * (1 + y.abs()[:, None]) * (1 + scale.abs())  # where float64 itself cannot tell
    assert torch.equal(got | near, wanted | near)


def test_a_bound_at_an_integer_counts_it() -> None:
    scale = torch.tensor([0.1, -0.1], dtype=torch.float64)
    lower, upper = interval(scale, -3 * scale, integer=True)
    assert (lower[0], upper[1]) == (2.5, 3.5)
    assert torch.isneginf(lower[1])
    lower, upper = interval(torch.zeros(3).double(), torch.tensor([1.0, 0.0, -1.0]).double(), integer=True)
    assert ((lower <= 5) & (upper >= 5)).tolist() == [True, True, False]
    lower, upper = interval(torch.full((1,), torch.nan).double(), torch.zeros(1).double(), integer=False)
    assert not ((lower <= 0) & (upper >= 0)).any()


@pytest.mark.parametrize("seed", slow_but(range(6), 0, 1))
def test_stacks_of_any_shape_agree(seed: int) -> None:
    torch.manual_seed(seed)

    def pick(*choices: int) -> int:
        return choices[int(torch.randint(len(choices), ()))]

    channels, layers = 3, []
    for _ in range(3):
        outputs, bipolar = pick(5, 64, 66), bool(pick(0, 1))
        conv = htaf.BinaryConv2d if pick(0, 1) else nn.Conv2d
        sizes = {"stride": pick(1, 2), "padding": pick(0, 1, 2), "dilation": pick(1, 2), "bias": bool(pick(0, 1))}
        layers += [conv(channels, outputs, pick(1, 3), **sizes), nn.BatchNorm2d(outputs), htaf.HTAF(bipolar=bipolar)]
        channels = outputs
    x = torch.randn(6, 3, 23, 19)
    layers += [nn.Flatten()]
    with torch.no_grad():
        size = nn.Sequential(*layers)(x).shape[1]
    model = nn.Sequential(*layers, nn.Linear(size, 3))
    hard = settled(model, x)
    for norm in hard.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.weight.data[:2] = 0  # one bit always
    _, found = packed_beside(hard, x)
    assert found.ok, found
    assert found.count <= 4, found
