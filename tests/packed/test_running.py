"""Runs of packed models: memory that is used again, threads, views, matrix products, copies."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_nets import IMAGES, settled
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import htaf
from htaf.core.kernels import native
from htaf.models.wide_resnet import WideResNet
from htaf.program.packed import PackedError, PackedModel, load, pack, save, verify

compiled = pytest.mark.skipif(not native.available(), reason="needs the compiled extension")


class Held(nn.Module):
    """Sums of layers, all of one size, that outputs and views hold while later layers write theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1) for _ in range(6))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        bits = htaf.functional.heaviside(self.stem(x))
        held = []
        for i, conv in enumerate(self.convs):
            y = conv(bits)
            bits = htaf.functional.heaviside(y - 0.1)
            # itself, a view of one reader, a part, parts, freed, freed
            if i == 0:
                held.append(y)
            elif i == 1:
                held.append(y.transpose(2, 3))
            elif i == 2:
                held.append(y[:, :2])
            elif i == 3:
                held += torch.split(y, 3, 1)
            else:
                held.append(y.mean((2, 3)) + torch.max_pool2d(y, 8).flatten(1))
        return tuple(held)


def _fresh(packed: PackedModel) -> PackedModel:
    return PackedModel(packed.program, packed.report)


def _equal(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True))


@functools.cache
def _held() -> tuple[PackedModel, tuple[int, ...]]:
    torch.manual_seed(0)
    return pack(Held().eval(), torch.randn(2, *IMAGES)), IMAGES


@functools.cache
def _wide() -> tuple[PackedModel, tuple[int, ...]]:
    torch.manual_seed(0)
    return pack(settled(WideResNet(10, 1, 4), torch.randn(8, *IMAGES)), torch.randn(2, *IMAGES)), IMAGES


def _rows() -> tuple[PackedModel, tuple[int, ...]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 40), htaf.Heaviside(), nn.Linear(40, 40), htaf.Heaviside(), nn.Linear(40, 3))
    return pack(net, torch.randn(2, 9)), (9,)


NETS = {"held": _held, "wide": _wide, "rows": _rows}


@pytest.fixture(scope="module", params=NETS)
def made(request: pytest.FixtureRequest) -> tuple[PackedModel, tuple[int, ...]]:
    return NETS[request.param]()


def test_runs_in_turn_are_those_of_a_fresh_model(made: tuple[PackedModel, tuple[int, ...]]) -> None:
    packed, size = made
    inputs = [torch.randn(batch, *size) for batch in (3, 3, 5, 3, 1, 5)]
    wanted = [_fresh(packed)(x) for x in inputs]
    kept, copies = [], []
    for x, right in [*zip(inputs, wanted, strict=True)] * 2:
        kept.append(packed(x))
        copies.append(pytree.tree_map(torch.clone, kept[-1]))
        assert _equal(kept[-1], right)
    assert all(_equal(a, b) for a, b in zip(kept, copies, strict=True)), "a later call wrote over an output"


def test_an_output_may_be_written_to(made: tuple[PackedModel, tuple[int, ...]]) -> None:
    packed, size = made
    x = torch.randn(3, *size)
    right = pytree.tree_map(torch.clone, packed(x))
    for leaf in pytree.tree_leaves(packed(x)):
        leaf.fill_(torch.nan)
    assert _equal(packed(x), right)


@pytest.mark.usefixtures("unchecked")  # the checks of shapes are not made for threads
def test_threads_may_share_a_model(made: tuple[PackedModel, tuple[int, ...]]) -> None:
    packed, size = made
    inputs = [torch.randn(batch, *size) for batch in (2, 2, 3, 4)]
    wanted = [_fresh(packed)(x) for x in inputs]
    wrong: list[object] = []

    def work(x: Tensor, right: object) -> None:
        try:
            for _ in range(40):
                if not _equal(packed(x), right):
                    wrong.append("other values")
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_inputs_share_their_batch() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.layer(htaf.functional.heaviside(a)) + b

    net, a, b = Two().eval(), torch.randn(3, 4), torch.randn(3, 3)
    packed = pack(net, (a, b))
    with torch.no_grad():
        torch.testing.assert_close(packed(a, b), net(a, b))
    for bad in ((a, b[:1]), (a[:1], b), (a,), (a, b, b)):
        with pytest.raises(PackedError, match="expected"):
            packed(*bad)


class Returns(nn.Module):
    """A network whose outputs are what a function makes of its logits and its input."""

    def __init__(self, outputs: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), htaf.Heaviside(), nn.Linear(64, 4))
        self.outputs = outputs

    def forward(self, x: Tensor) -> Any:
        return self.outputs(self.net(x), x)


@pytest.mark.parametrize(("outputs", "words"), [
    (lambda y, x: (y, 3), "expected tensors as outputs, or None, got 3"),
    (lambda y, x: {"y": y, "name": "logits"}, "expected tensors as outputs, or None, got 'logits'"),
    (lambda y, x: (y, x.shape[0]), "expected tensors as outputs, or None, got a size"),
    (lambda y, x: y[y > 0], "expected sizes that do not depend on the data"),
    (lambda y, x: y * x[0, 0].item(), "expected sizes that do not depend on the data"),
    (lambda y, x: y + x.add_(1)[:, :4], "expected a model that leaves its inputs as they are"),
])  # fmt: skip
def test_what_cannot_be_returned_is_said(outputs: Callable[[Tensor, Tensor], Any], words: str) -> None:
    with pytest.raises(PackedError, match=words):
        pack(Returns(outputs), torch.randn(6, 8))


def test_a_dict_keeps_its_order_in_a_file(tmp_path: Path) -> None:
    x = torch.randn(6, 8)
    packed = pack(Returns(lambda y, x: {"z": y, "none": None, "a": (y + 1, y * 2)}), x)
    save(packed, tmp_path / "a.packed")
    read = load(tmp_path / "a.packed")(x)
    assert list(read) == list(packed(x)) == ["z", "none", "a"]
    assert read["none"] is None
    assert torch.equal(read["a"][1], packed(x)["a"][1])


def test_a_packed_model_is_not_traced_packed_or_verified_again(unchecked: None) -> None:
    x = torch.randn(6, 8)
    exact = Returns(lambda y, x: y)
    packed = pack(exact, x)
    for whole in (packed, nn.Sequential(packed)):
        with pytest.raises(PackedError, match="expected a call, got a trace"):
            torch.jit.trace(whole, x)
        with pytest.raises(PackedError, match=r"got a trace, .*: export the hardened model"):
            torch.export.export(whole, (x,))
    with pytest.raises(PackedError, match="got one that is packed already"):
        pack(packed, x)
    with pytest.raises(PackedError, match="expected a packed model, then the hardened one, got Returns first"):
        verify(exact, packed, x)  # pyright: ignore[reportArgumentType]
    with pytest.raises(PackedError, match="got one that is packed"):
        verify(packed, packed, x)
    with pytest.raises(PackedError, match="expected finite inputs"):
        pack(exact, x.index_fill(0, torch.tensor([0]), float("nan")))


def test_sizes_of_constants_are_known(tmp_path: Path) -> None:
    class Chosen(Returns):
        def __init__(self) -> None:
            super().__init__(lambda y, x: y[:, self.chosen.nonzero()[:, 0]])
            self.register_buffer("chosen", torch.tensor([True, False, True, False]))

    exact, x = Chosen(), torch.randn(6, 8)
    packed = pack(exact, x)
    assert torch.allclose(packed(x), exact(x), atol=1e-6)
    save(packed, tmp_path / "a.packed")
    assert torch.equal(load(tmp_path / "a.packed")(x), packed(x))
