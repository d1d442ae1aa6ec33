"""Packed models give what the hardened ones give, of every family, for any batch, saved and loaded."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from packed_nets import IMAGES, Residual, columns, packed_beside, packs_as, plain, settled
from torch import nn

import htaf
from htaf._console import progress
from htaf._errors import HtafError
from htaf.kernels import native
from htaf.models.icbm import ICBM
from htaf.models.mlp import MLP
from htaf.packed import PackedError, PackedModel, graph, load, pack, packing, save, trace, verify
from htaf.packed.report import compared
from htaf.packed.verification import compare

NETS = {
    "mlp": (lambda: MLP(9, 3, (70, 20)), (9,), 2),
    "mlp-norm": (lambda: MLP(9, 3, (70, 20), batch_norm=True), (9,), 2),
    "icbm": (lambda: ICBM(nn.Sequential(nn.Conv2d(3, 9, 3), nn.ReLU(), nn.Flatten(), nn.Linear(324, 40), nn.ReLU()),
                          4, example=torch.zeros(2, 3, 8, 8)), IMAGES, 1),
    "plain": (plain, IMAGES, 2),
    "residual": (Residual, IMAGES, 4),
    "columns": (columns, (9,), 2),
}  # fmt: skip


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", NETS)
def test_packed_gives_what_the_hardened_model_gives(name: str, tmp_path: Path) -> None:
    make, size, layers = NETS[name]
    packs_as(make, size, layers, tmp_path / "model.htaf")


class Passing(nn.Module):
    """What is read as it is exported: bits flattened, cast and dropped out in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bits = (self.first(x) >= 0).to(torch.float32)
        return self.last(nn.functional.dropout(bits.flatten(0, 1), 0.5, self.training)).unflatten(0, (-1, 8))


@pytest.mark.parametrize(("make", "functional"), [(Passing, 0), (plain, 0), (Residual, 1)])
def test_graphs_are_made_functional_where_an_operator_changes_its_input(make, functional: int, monkeypatch) -> None:
    made: list[dict] = []
    run = torch.export.ExportedProgram.run_decompositions
    monkeypatch.setattr(
        torch.export.ExportedProgram,
        "run_decompositions",
        lambda self, table: (made.append(table), run(self, table))[1],
    )
    x = torch.randn(6, *IMAGES)
    model = make().eval() if make is Passing else settled(make(), x)
    packed, found = packed_beside(model, x)
    assert len(made) == functional
    assert packed.report.layers
    assert found.ok, found
    if make is Passing:
        torch.testing.assert_close(packed(x), model(x))


@pytest.mark.parametrize(
    ("make", "example", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 4), htaf.HTAF()), torch.zeros(2, 3), "harden"),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.zeros(2, 3), "nothing to pack: expected steps"),
        (
            lambda: nn.Sequential(nn.Conv1d(3, 4, 1), htaf.Heaviside(), nn.AvgPool1d(2), nn.Conv1d(4, 2, 1)),
            torch.zeros(2, 3, 4),
            r"the bits of a step, got what runs in float: 2 \(aten.avg_pool1d.default\): it takes bits as floats",
        ),
        (
            lambda: htaf.harden(nn.Sequential(nn.Conv2d(3, 8, 3), htaf.HTAF(levels=2), nn.Conv2d(8, 8, 3, groups=2))),
            torch.zeros(2, 3, 8, 8),
            r"runs in float: 2 \(aten.conv2d.default\): its groups would be made dense, as its input has several",
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


def test_progress_is_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    for module in (sys.modules[compare.__module__], graph):
        monkeypatch.setattr(module, "shown_progress", partial(progress, every=0))
    net = nn.Sequential(nn.Linear(3, 4), htaf.Heaviside(), nn.Linear(4, 2))
    pack(net, x := torch.randn(2, 3))
    assert capsys.readouterr().err == ""
    packed = pack(net, x, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "exporting the network"
    count = re.fullmatch(r"comparing layer by layer: (\d+) of (\d+) in \S+ s", lines[-1])
    assert count, lines[-1]
    assert count[1] == count[2]
    verify(packed, net, x, progress=True)
    assert "comparing layer by layer" in capsys.readouterr().err


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
    assert found.flips
    assert found.flips[0].distance > 0
    with pytest.raises(PackedError, match="the model that was packed"):
        verify(packed, settled(columns(), torch.randn(8, 9)), torch.randn(8, 9))


def test_sizes_are_compared_in_words() -> None:
    assert compared(100, 300, "in float32") == "3.0 times smaller than in float32 (300 bytes)"
    assert compared(4000, 3000, "that") == "1.3 times as large as that (3,000 bytes)"
    for size in (290, 300, 310):
        assert compared(size, 300, "that") == "about as large as that (300 bytes)"


def test_a_report_of_no_floats_is_shown() -> None:
    assert "bytes" not in str(packing.Report((), 8, 0))


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
