"""Transposed convolutions over bits: the phases of their outputs, and networks that hold them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_nets import packs_as
from torch import Tensor, nn
from torch.nn import functional as F

import htaf
from htaf.packed import PackedError, load, pack, save
from htaf.packed.checking import check
from htaf.packed.instructions import Transposed, by_opcode
from htaf.packed.instructions.transposed import phases
from htaf.packed.writing import program_from_json, program_to_json


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers as small as those of tests are packed."""
    monkeypatch.setattr("htaf.packed.layers.FEWEST_PRODUCTS", 0)


@pytest.mark.parametrize("kernel", range(1, 7))
def test_phases_give_a_transposed_convolution(kernel: int) -> None:
    generator = torch.Generator().manual_seed(kernel)
    for stride, padding, more, length in itertools.product((1, 2, 3), (0, 1, 2, 4), (0, 1, 2), (1, 2, 5)):
        if more >= stride or (length - 1) * stride - 2 * padding + kernel + more < 1:
            continue
        found = phases(kernel, stride, padding, more)
        if found is None:
            assert kernel < stride
            continue
        if any(length + phase.more < 1 for phase in found):
            continue  # padding cuts off all of a phase
        x = torch.randn(1, 1, length, generator=generator, dtype=torch.float64)
        w = torch.randn(1, 1, kernel, generator=generator, dtype=torch.float64)
        wanted = F.conv_transpose1d(x, w, None, stride, padding, more)
        got = torch.full_like(wanted, torch.nan)
        for phase in found:
            sums = F.conv1d(x, w[..., list(phase.taps)], None, 1, phase.padding)
            got[..., phase.first :: stride] = sums[..., phase.start : phase.start + length + phase.more]
        torch.testing.assert_close(got, wanted)


class Binary(nn.ConvTranspose2d):
    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        padding: Any = self.padding
        return F.conv_transpose2d(input, self.weight.sign() / 4, None, self.stride, padding, self.output_padding)


def image(*layers: nn.Module, bipolar: bool = False, levels: int = 1) -> nn.Module:
    """Layers with norms and steps between them, the first over bits too."""
    made: list[nn.Module] = [nn.Conv2d(3, 12, 3, padding=1)]
    for layer in layers:
        size = made[-1].out_channels  # pyright: ignore
        made += [nn.BatchNorm2d(size), htaf.HTAF(bipolar=bipolar, levels=levels), layer]  # pyright: ignore
    return nn.Sequential(*made)


class Shared(nn.Module):
    """The sums are wanted too; a shortcut, pooled bits and sums of spikes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Conv2d(3, 12, 3, padding=1),
            nn.ConvTranspose2d(12, 5, 3, 2, 1, 1),
            nn.Conv2d(5, 4, 1),
        )
        self.s, self.t = nn.Sequential(nn.BatchNorm2d(12), htaf.HTAF()), nn.Sequential(nn.BatchNorm2d(5), htaf.HTAF())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        bits = self.s(self.a(x))
        y = self.b(bits + F.max_pool2d(bits, 3, 1, 1))
        z = self.b(bits) + F.interpolate(x[:, :1], scale_factor=2.0)
        return y.mean((2, 3)), self.c(self.t(y)).mean((2, 3)), self.c(self.t(z)).mean((2, 3))


def line() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(2), nn.Conv1d(3, 12, 3, padding=1), nn.BatchNorm1d(12), htaf.HTAF(),
        nn.ConvTranspose1d(12, 70, 4, 2, 1), nn.BatchNorm1d(70), htaf.HTAF(), nn.ConvTranspose1d(70, 3, 5, 3, 2, 1),
    )  # fmt: skip


NETS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "decoder": (lambda: image(nn.ConvTranspose2d(12, 70, 4, 2, 1, bias=False), nn.ConvTranspose2d(70, 3, 2, 2)), 2),
    "other sizes each way": (
        lambda: image(nn.ConvTranspose2d(12, 9, (3, 2), (2, 1), (1, 0), (1, 0)), nn.ConvTranspose2d(9, 3, 3, 1, 1)), 2
    ),
    "binary": (lambda: image(Binary(12, 9, 4, 2, 1), nn.Conv2d(9, 4, 1)), 2),
    "bipolar, binary": (lambda: image(Binary(12, 9, 4, 2, 1), nn.Conv2d(9, 4, 1), bipolar=True), 2),
    "levels": (lambda: image(nn.ConvTranspose2d(12, 9, 4, 2, 1), nn.ConvTranspose2d(9, 3, 2, 2), levels=3), 2),
    "binary, levels": (lambda: image(Binary(12, 9, 4, 2, 1), nn.Conv2d(9, 4, 1), levels=2), 2),
    "shared": (Shared, 4),
    "line": (line, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_packed_gives_what_the_hardened_model_gives(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, layers = NETS[name]
    packed = packs_as(make, (3, 6, 5), layers, tmp_path / "model.htaf")
    assert any(isinstance(i, Transposed) for i in packed.program.instructions)


@pytest.mark.parametrize(("layer", "bipolar", "why"), [
    (nn.ConvTranspose2d(12, 12, 4, 2, 1, groups=2), False, "in groups or with dilation"),
    (nn.ConvTranspose2d(12, 12, 2, 3), False, "a stride beyond 4 or beyond its kernel"),
    (nn.ConvTranspose2d(12, 12, 2, 2), True, "a transposed convolution of -1 and 1"),
    (nn.ConvTranspose2d(12, 12, 3, 2, padding=5), False, "whose padding cuts off more"),
])  # fmt: skip
def test_others_run_in_float(layer: nn.Module, bipolar: bool, why: str) -> None:
    torch.manual_seed(0)
    net, x = htaf.harden(image(layer, nn.Conv2d(12, 3, 1), bipolar=bipolar).eval()), torch.randn(2, 3, 6, 5)
    packed = pack(net, x)
    assert any(why in row.how for row in packed.report.rows), packed.report
    torch.testing.assert_close(packed(x), net(x))


def test_small_ones_run_in_float(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("htaf.packed.layers.FEWEST_PRODUCTS", 12 * 5 * 4 * 30 + 1)
    net = htaf.harden(image(nn.ConvTranspose2d(12, 5, 2, 2), nn.Conv2d(5, 3, 1)).eval())
    packed = pack(net, torch.randn(2, 3, 6, 5))
    assert any("fewer than 7,201 products for each image" in row.how for row in packed.report.rows), packed.report


BAD: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "groups": (lambda i: i["geometry"].__setitem__(6, 3), "one group, no dilation"),
    "dilation": (lambda i: i["geometry"].__setitem__(5, [2, 2]), "one group, no dilation"),
    "a large stride": (lambda i: i["geometry"].__setitem__(3, [65, 65]), "a stride and kernel of at most 64"),
    "gaps": (lambda i: i["geometry"].__setitem__(3, [5, 5]), "a kernel that reaches every output"),
    "another kernel": (lambda i: i["geometry"].__setitem__(2, [3, 4]), r"weights with a kernel of \(3, 4\)"),
    "padding": (lambda i: i["geometry"].__setitem__(4, [60, 60]), "expected images that give an output|at most"),
    "output padding": (lambda i: i.__setitem__("more", [0, 2**40]), "expected an integer from 0"),
    "much output padding": (
        lambda i: i.__setitem__("more", [0, 60]),
        "an output padding below the stride",
    ),
    "channels": (lambda i: i["geometry"].__setitem__(0, 200), "expected bits|expected torch"),
    "rows": (lambda i: i.__setitem__("form", "row"), "expected one of image, line"),
    "a line": (lambda i: i.__setitem__("form", "line"), "expected bits"),
}


def test_bad_files_are_refused() -> None:
    net = htaf.harden(image(nn.ConvTranspose2d(12, 9, 4, 2, 1), nn.Conv2d(9, 3, 1)).eval())
    packed = pack(net, torch.randn(2, 3, 6, 5))
    for change, words in BAD.values():
        written = json.loads(json.dumps(program_to_json(packed.program)))
        (one,) = [step for step in written["steps"] if step["step"] == "transposed"]
        change(one)
        with pytest.raises(PackedError, match=words):
            check(program_from_json(written, packed.program.tensors, by_opcode()))


def test_a_file_of_another_kernel_is_not_loaded(tmp_path: Path) -> None:
    """What a file says is checked before anything runs."""
    net = htaf.harden(image(nn.ConvTranspose2d(12, 9, 4, 2, 1), nn.Conv2d(9, 3, 1)).eval())
    packed = pack(net, torch.randn(2, 3, 6, 5))
    changed = [
        replace(i, geometry=i.geometry._replace(kernel=(3, 3))) if isinstance(i, Transposed) else i
        for i in packed.program.instructions
    ]
    object.__setattr__(packed.program, "instructions", tuple(changed))
    save(packed, tmp_path / "bad.htaf")
    with pytest.raises(PackedError, match=r"weights with a kernel of \(3, 3\)"):
        load(tmp_path / "bad.htaf")
