"""Plans: a network as few calls of the extension, which give what the instructions give one by one, to the last bit."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from packed_nets import settled
from tests.kernels.instruction_sets import INSTRUCTION_SETS, threads, using
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import htaf
from htaf.core.kernels import native
from htaf.models.bireal import BiRealNet
from htaf.models.mlp import MLP
from htaf.models.sew_resnet import SEWResNet
from htaf.models.wide_resnet import WideResNet
from htaf.program.packed import PackedModel, pack
from htaf.program.packed.planning import places
from htaf.transform.spiking.neurons import LIF

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the compiled extension")


class Mixed(nn.Module):
    """Operators with a kernel and without, views that outlive a plan, outputs in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 70, 3, stride=2, padding=1)
        self.second = nn.Conv2d(70, 20, 3, padding=1)
        self.third = nn.Conv2d(20, 20, 1)
        self.head = nn.Linear(20, 5)
        self.steps = nn.ModuleList(htaf.HTAF() for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        bits = self.steps[0](torch.max_pool2d(self.stem(x), 3, 2, 1))
        y = self.second(bits)
        smooth = torch.nn.functional.gelu(y)
        more = self.steps[2](self.third(self.steps[1](y - 0.1)) + smooth - 0.2)
        pooled = torch.max_pool2d(more, 2)
        averages = torch.nn.functional.avg_pool2d(y, 2, ceil_mode=True)[:, :, :2, :2]
        return {
            "head": self.head((pooled + averages).mean((2, 3))), "y": y[:, 3:], "smooth": smooth.transpose(2, 3),
            "pooled": pooled.flatten(1),
        }  # fmt: skip


class Bits(nn.Module):
    """What the others lack: maxima of bits, steps after an operator without a kernel, sums of many bits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 70, 3, padding=1), nn.Conv2d(70, 70, 3, padding=1)
        self.last = nn.Linear(70, 4)
        self.steps = nn.ModuleList(htaf.HTAF() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        bits = torch.max_pool2d(self.steps[0](self.first(x)), 3, 2, 1)
        y = self.second(bits)
        more = self.steps[1](torch.nn.functional.gelu(y) - 0.1)
        counts = (bits + more) + (self.steps[2](y) + bits)
        return self.last(self.second(counts).mean((2, 3)))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: MLP(9, 3, (70, 64, 33), batch_norm=True), (9,)),
    "bireal": (lambda: BiRealNet(18, 7, width=16), (3, 64, 64)),
    "wide": (lambda: WideResNet(10, 1, 6), (3, 16, 16)),
    "sew": (lambda: SEWResNet(18, 4, lambda: LIF(tau=2.0), steps=3, stem="cifar", width=8), (3, 12, 12)),
    "mixed": (Mixed, (3, 17, 19)),
    "bits": (Bits, (2, 9, 10)),
}


@pytest.fixture(scope="module")
def packed(request: pytest.FixtureRequest) -> tuple[PackedModel, tuple[int, ...]]:
    make, size = NETS[request.param]
    torch.manual_seed(0)
    model = settled(make(), torch.randn(8, *size))
    return pack(model, torch.randn(4, *size)), size


def by_instructions(packed: PackedModel, x: Tensor):
    return packed._execution((x,), after=lambda at, values: None)


def equal(found, wanted) -> bool:
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True)
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


RUNS = [*((name, 1) for name in INSTRUCTION_SETS), *((name, 2) for name in INSTRUCTION_SETS[:1])]


@pytest.mark.parametrize(("instruction_set", "number"), RUNS)
@pytest.mark.parametrize("packed", NETS, indirect=True)
def test_a_plan_gives_what_the_instructions_give(packed, instruction_set: str, number: int) -> None:
    model, size = packed
    with using(instruction_set), threads(number):
        for batch in (1, 2, 5):
            for x in (torch.randn(batch, *size), torch.randn(*size, batch).movedim(-1, 0)):
                wanted = by_instructions(model, x)
                found = [model(x) for _ in range(3)]  # by instructions where the sizes are new, then by the plan
                assert all(equal(one, wanted) for one in found)
                assert all(a.stride() == b.stride() for a, b in zip(*map(pytree.tree_leaves, found[:2]), strict=True))


@pytest.mark.parametrize("packed", ["mlp"], indirect=True)
def test_outputs_are_fresh_and_sizes_are_few(packed) -> None:
    model, size = packed
    x = torch.randn(2, *size)
    first = model(x).clone()
    kept, other = model(x), model(x + 1)
    assert torch.equal(kept, first)
    assert kept.data_ptr() != other.data_ptr()
    for batch in range(1, 60):
        model(torch.randn(batch, *size))
    assert len(model._execution.plans) <= 16
    with pytest.raises(htaf.packed.PackedError, match=r"in torch\.float32"):
        model(x.double())
    with pytest.raises(htaf.packed.PackedError, match="of shape"):
        model(torch.randn(2, size[0] + 1))
    again = copy.deepcopy(model)
    assert torch.equal(again(x), first)


def test_places_do_not_overlap() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        n = 12
        sizes = torch.randint(1, 300, (n,), generator=generator).tolist()
        ends = [(at, at + int(torch.randint(0, 6, (), generator=generator))) for at in range(n)]
        begins, size = places(dict(enumerate(ends)), dict(enumerate(sizes)))
        for a in range(n):
            assert begins[a] % 64 == 0
            assert begins[a] + sizes[a] <= size
            for b in range(a):
                together = ends[a][0] <= ends[b][1] and ends[b][0] <= ends[a][1]
                apart = begins[a] + sizes[a] <= begins[b] or begins[b] + sizes[b] <= begins[a]
                assert apart or not together
