"""What may move, free or write over memory of a packed model: nothing of it reaches the addresses that plans keep.

The rows are those of docs/packed.md. `tests/test_packaging.py` runs this file under AddressSanitizer too.
"""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from packed_nets import settled
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import htaf
from htaf.core.kernels import native
from htaf.core.kernels.float_layers import cpu as float_layers
from htaf.core.kernels.layers import Geometry
from htaf.models.mlp import MLP
from htaf.program.packed import PackedError, PackedModel, load, pack, save
from htaf.program.packed.planning import Segment

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the compiled extension")


class Kinds(nn.Module):
    """A layer of each kind whose constants a plan points at, and one that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 70, 3, padding=1)
        self.grouped = nn.Sequential(nn.Conv2d(70, 70, 3, padding=1, groups=7, bias=False), nn.BatchNorm2d(70))
        binary = nn.Conv2d(70, 64, 3, 2, padding=1, bias=False)
        self.binary = nn.Sequential(binary, nn.BatchNorm2d(64))
        self.table = nn.Conv2d(64, 66, 1)
        self.head = nn.Linear(66 * 16, 5)  # of more inputs than a kernel takes
        self.steps = nn.ModuleList(htaf.HTAF() for _ in range(4))
        with torch.no_grad():
            binary.weight.sign_().mul_(0.25)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        bits = self.steps[1](self.grouped(self.steps[0](self.first(x))))
        y = self.table(self.steps[2](self.binary(bits)))
        smooth = torch.nn.functional.gelu(y)
        return self.head(smooth.flatten(1)), self.steps[3](smooth - 0.1)


def on_grid(x: Tensor) -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(3, 20, 3, padding=1), nn.BatchNorm2d(20), htaf.HTAF(), nn.Conv2d(20, 64, 3, padding=1),
        nn.BatchNorm2d(64), htaf.HTAF(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip
    return settled(htaf.on_grid(net, x, bits=8), x)


IMAGES = (3, 8, 8)
NETS: dict[str, tuple[Callable[[Tensor], nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "rows": (lambda x: settled(MLP(9, 3, (70, 64), batch_norm=True), x), (9,), {}),
    "kinds": (lambda x: settled(Kinds(), x), IMAGES, {}),
    "grid": (on_grid, IMAGES, {}),
}


@pytest.fixture(scope="module", params=NETS)
def made(request: pytest.FixtureRequest) -> tuple[PackedModel, tuple[int, ...]]:
    make, size, options = NETS[request.param]
    torch.manual_seed(0)
    x = torch.randn(8, *size)
    return pack(make(x), x[:4], **options), size


class Held(NamedTuple):
    """A model whose program lies in arrays, so that what it no longer points at is still there to be spoilt."""

    model: PackedModel
    arrays: dict[str, np.ndarray]
    inputs: list[Tensor]  # of batches that ran, so that they have a plan, and of one that did not
    wanted: list[Any]


@pytest.fixture
def held(made: tuple[PackedModel, tuple[int, ...]]) -> Held:
    packed, size = made
    arrays = {name: x.numpy().copy() for name, x in packed.program.tensors.items()}
    program = replace(packed.program, tensors={name: torch.from_numpy(a) for name, a in arrays.items()})
    model = PackedModel(program, packed.report, {"classes": ["a"]})
    inputs = [torch.randn(batch, *size) for batch in (4, 1, 7)]
    for x in inputs[:2]:
        model(x)
        model(x)
    return Held(model, arrays, inputs, [packed(x) for x in inputs])


def spoil(held: Held) -> list[Tensor]:
    """Write over what the program's tensors were, and take memory that was freed."""
    for a in held.arrays.values():
        a.fill(np.nan if a.dtype.kind == "f" else 85)
    return [torch.full((a.size,), 1e9) for a in held.arrays.values() for _ in range(4)]


def right(model: PackedModel, held: Held) -> None:
    for x, wanted in zip(held.inputs, held.wanted, strict=True):
        for found in (model(x), model(x), model.with_bits(x)[0] if x.ndim == 2 else model.watch((x,), _nothing)):
            for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
                assert torch.equal(a, b)


def _nothing(instruction: Any, values: Any) -> None: ...


def each(change: Callable[[Tensor], Any]) -> Callable[[PackedModel], None]:
    def act(model: PackedModel) -> None:
        for x in model.program.tensors.values():
            change(x)

    return act


def freed(model: PackedModel) -> None:
    for name, x in model.program.tensors.items():
        model.program.tensors[name] = x.clone()
    each(lambda x: x.untyped_storage().resize_(0))(model)


def other_sizes(model: PackedModel) -> None:
    shape = [size or 1 for size in model.program.inputs[0].sizes]
    for batch in range(8, 26):  # of more sizes than are kept
        model(torch.zeros(batch, *shape[1:]))


def for_another_process(model: PackedModel) -> None:
    ForkingPickler.dumps(model)


def loaded(model: PackedModel) -> None:
    model.load_state_dict(model.state_dict())


def collected(model: PackedModel) -> None:
    model.extra.clear()
    gc.collect()


def by_torch(model: PackedModel) -> PackedModel:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def moved(model: PackedModel) -> PackedModel:
    return model.to("cpu").float().eval().train().requires_grad_(False).share_memory()


ACTS: dict[str, Callable[[PackedModel], Any]] = {
    "pickled for another process": for_another_process,
    "shared, tensor by tensor": each(lambda x: x.share_memory_()),
    "to, share_memory, train": moved,
    "load_state_dict": loaded,
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
    "saved and loaded by torch": by_torch,
    "set to other storages": each(lambda x: x.set_(torch.zeros_like(x).untyped_storage())),
    "freed": freed,
    "written over": each(lambda x: x.zero_()),
    "taken out": lambda model: model.program.tensors.clear(),
    "extra and garbage": collected,
    "other sizes": other_sizes,
}


@pytest.mark.parametrize("act", ACTS)
def test_what_moves_or_frees_tensors_does_not_reach_a_plan(held: Held, act: str) -> None:
    other = ACTS[act](held.model)
    taken = spoil(held)
    right(held.model, held)
    if other is not None:
        right(other, held)
    assert taken


def test_a_plan_and_an_output_outlive_their_model(held: Held) -> None:
    found = held.model._execution.plans
    plans = [part.plan for p in found.values() for part in p.parts if isinstance(part, Segment)]
    gone = [weakref.ref(held.model), *(weakref.ref(plan) for plan in plans)]
    assert len(gone) > 1
    x, wanted = held.inputs[0], held.wanted[0]
    y = held.model(x)
    planned = found[((x.shape, x.stride()),)]
    del held.model._execution, found, plans
    spoil(held)
    again = planned([x, *[None] * 99], len(x))
    assert all(torch.equal(a, b) for a, b in zip(*map(pytree.tree_leaves, (y, wanted)), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*map(pytree.tree_leaves, (again, wanted)), strict=True))
    del planned
    assert [ref() for ref in gone[1:]] == [None] * len(gone[1:])  # at once, without the garbage collector


def test_threads_call_while_others_pickle_and_forget_plans(held: Held) -> None:
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            if i == 0:
                ForkingPickler.dumps(held.model)
                other_sizes(held.model)
            else:
                for k in range(6):
                    x, wanted = held.inputs[(i + k) % 3], held.wanted[(i + k) % 3]
                    pairs = zip(pytree.tree_leaves(held.model(x)), pytree.tree_leaves(wanted), strict=True)
                    assert all(torch.equal(a, b) for a, b in pairs)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


LAZY: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "sign": (torch.ops.aten._neg_view, torch.neg),
    "zeros": (lambda x: torch.ops.aten._efficientzerotensor(x.shape), torch.zeros_like),
    "sign in part": (lambda x: torch.view_as_complex(torch.stack((x, x), -1)).conj().imag, torch.neg),
}


@pytest.mark.parametrize("kind", LAZY)
def test_numbers_that_do_not_lie_in_memory_are_made(held: Held, kind: str) -> None:
    lazy, plain = LAZY[kind]
    x = held.inputs[0]
    for _ in range(2):
        for a, b in zip(*(pytree.tree_leaves(held.model(y(x))) for y in (lazy, plain)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    with pytest.raises(PackedError, match="expected a dense input, got one with the layout"):
        held.model(x.to_sparse())


def test_a_bias_that_lies_apart_is_read_as_it_is() -> None:
    geometry, x = Geometry(3, 40, (1, 1)), torch.randn(2, 3, 4, 4)
    weight, bias = torch.randn(40, 3, 1, 1), torch.randn(80)[::2]
    found = float_layers.convolution(x, float_layers.prepare(weight), bias, geometry)
    torch.testing.assert_close(found, torch.nn.functional.conv2d(x, weight, bias), rtol=1e-5, atol=1e-5)


def test_the_file_may_be_written_over(held: Held, tmp_path: Path) -> None:
    save(held.model, tmp_path / "net")
    again = load(tmp_path / "net")
    again(held.inputs[0])
    with (tmp_path / "net").open("r+b") as file:
        file.truncate(0)
    right(again, held)
