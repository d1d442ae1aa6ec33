"""Networks of other spiking libraries: NIR graphs read, SpikingJelly's neurons exchanged in place.

The libraries themselves run in benchmarks/peers/spiking; here stand the equations of NIR and of SpikingJelly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from htaf import HTAF, IF, LIF, Heaviside, harden
from htaf.export import ExportError, from_nir, to_nir
from htaf.models.sew_resnet import SEWResNet
from htaf.spiking import from_spikingjelly, to_spikingjelly
from quick import slow_but
from test_export_nir import NEURONS, Simulator, dyadic, images

nir = pytest.importorskip("nir")


# ---- NIR ----


@pytest.mark.parametrize("neuron", slow_but(NEURONS, "lif"))
def test_what_to_nir_wrote_is_read_back(neuron: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = images(12).mul(4).round() / 4
    net = dyadic(SEWResNet(18, 10, NEURONS[neuron], width=4, stem="cifar", in_channels=1))
    to_nir(net, x[:2], tmp_path / "net.nir")
    read = from_nir(tmp_path / "net.nir")
    to_nir(read, x[:2], tmp_path / "again.nir")
    with torch.no_grad():
        expected = net(x)
        assert torch.equal(read(x), expected)
        assert torch.equal(from_nir(tmp_path / "again.nir")(x), expected)
    assert len(expected.unique(dim=0)) > 5
    mine, theirs = (next(m for m in one.modules() if isinstance(m, (IF, LIF))) for one in (net, read))
    assert (mine.weights, mine.threshold) == (theirs.weights, theirs.threshold), "to six digits, not those of float32"
    flattened = [node for node in nir.read(tmp_path / "net.nir").nodes.values() if isinstance(node, nir.Flatten)]
    assert [int(node.start_dim) for node in flattened] == [-3], "with a batch before it or none"


def array(*shape: int) -> np.ndarray:
    return (np.random.default_rng(0).integers(-3, 4, shape) / 4).astype(np.float32)


def full(shape: tuple[int, ...], **values: float) -> dict[str, np.ndarray]:
    return {name: np.full(shape, value) for name, value in values.items()}


def lif(shape: tuple[int, ...], **changed: float) -> Any:
    return nir.LIF(
        **full(shape, **{"tau": 4.0, "r": 1.0, "v_leak": 0.0, "v_threshold": 0.25, "v_reset": 0.0} | changed)
    )


def conv(weight: np.ndarray, size: Any, stride: Any, padding: Any) -> Any:
    kind = nir.Conv1d if weight.ndim == 3 else nir.Conv2d
    return kind(size, weight, stride, padding, dilation=1, groups=1, bias=array(len(weight)))


GRAPHS: dict[str, tuple[Callable[[], list[Any]], tuple[int, ...]]] = {
    "leaky, of another gain": (lambda: [nir.Linear(array(8, 6)), lif((8,), r=8.0, v_threshold=0.5)], (6,)),
    "leaky, whole input": (lambda: [nir.Affine(array(8, 6), array(8)), lif((8,), r=4.0)], (6,)),
    "not leaky, of another gain": (
        lambda: [nir.Linear(array(8, 6)), nir.IF(**full((8,), r=2.0, v_threshold=0.75, v_reset=0.0))], (6,),
    ),
    "images": (
        lambda: [
            conv(array(4, 2, 3, 3), (8, 8), (2, 1), (1, 0)), lif((4, 4, 6)),
            nir.AvgPool2d(np.array((2, 2)), np.array((2, 2)), np.array((0, 0))),
            nir.Flatten({"input": np.array((4, 2, 3))}, 0, -1), nir.Affine(array(3, 24), array(3)),
        ],
        (2, 8, 8),
    ),
    "a step and a factor": (
        lambda: [nir.Scale(array(6)), nir.Threshold(np.full(6, 0.25)), nir.Linear(array(2, 6))], (6,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_others_over_time(name: str, tmp_path: Path) -> None:
    layers, shape = GRAPHS[name]
    graph = nir.NIRGraph.from_list(nir.Input({"input": np.array(shape)}), *layers())
    graph.metadata = {"dt": 1.0, "steps": 5}
    nir.write(tmp_path / "net.nir", graph)
    simulator = Simulator(tmp_path / "net.nir")
    x = torch.randint(-2, 6, (5, 9, *shape)) / 4
    simulator.v, outputs = {}, []
    for now in x:
        simulator.now = {}
        outputs.append(simulator.of("output", now))
    read = from_nir(graph)
    found = read.over_time(x)
    assert torch.equal(found, torch.stack(outputs))
    assert found.std() > 0
    assert torch.allclose(read(x[0]), simulator(x[0]), atol=1e-6)


def test_convolutions_in_groups_and_with_holes() -> None:
    """nir's own check of shapes knows no groups, so that it is off here."""
    weight, bias, x = array(4, 2, 3, 3), array(4), torch.rand(2, 4, 8, 8)
    for stride, padding, dilation in (((2, 1), (1, 0), (1, 2)), ((1, 1), "same", (2, 2))):
        node = nir.Conv2d((8, 8), weight, stride, padding, dilation, 2, bias)
        nodes = {"input": nir.Input(np.array([4, 8, 8])), "conv": node, "output": nir.Output(np.array([4, 4, 4]))}
        read = from_nir(nir.NIRGraph(nodes, [("input", "conv"), ("conv", "output")], type_check=False), steps=1)
        told = (torch.from_numpy(one) for one in (weight, bias))
        assert torch.equal(read(x), torch.nn.functional.conv2d(x, *told, stride, padding, dilation, 2))


def test_names_with_dots_and_steps_that_the_graph_does_not_say() -> None:
    nodes = {"input": nir.Input(np.array([6])), "0.fc": nir.Linear(array(8, 6)), "0.lif": lif((8,), tau=4e-4)}
    nodes["output"] = nir.Output(np.array([8]))
    graph = nir.NIRGraph(nodes, [("input", "0.fc"), ("0.fc", "0.lif"), ("0.lif", "output")])
    with pytest.raises(ExportError, match="steps=T"):
        from_nir(graph)
    assert from_nir(graph, steps=3).layers["0_lif"].tau == 4.0, "dt is 1e-4 where nobody says"


@pytest.mark.parametrize("names", [("a.b", "a_b"), ("pop", "keys"), ("training", "_modules")])
def test_names_that_modules_cannot_have(names: tuple[str, str]) -> None:
    first, second = names
    nodes = {"input": nir.Input(np.array([6])), first: nir.Linear(array(6, 6)), second: nir.Linear(array(3, 6))}
    edges = [("input", first), (first, second), (second, "output")]
    x = torch.rand(4, 6)
    read = from_nir(nir.NIRGraph(nodes | {"output": nir.Output(np.array([3]))}, edges), steps=1)
    assert len(read.layers) == 2
    wanted = torch.nn.functional.linear(x, torch.from_numpy(array(6, 6)))
    torch.testing.assert_close(read(x), torch.nn.functional.linear(wanted, torch.from_numpy(array(3, 6))))


def test_where_a_potential_lies_on_the_threshold() -> None:
    neuron = nir.IF(**full((1,), r=1e4, v_threshold=0.5, v_reset=0.0))
    graph = nir.NIRGraph.from_list(nir.Input(np.array([1])), neuron)
    x = torch.tensor([[0.5], [0.5000001]])
    assert from_nir(graph, steps=1)(x).flatten().tolist() == [0, 1]
    assert from_nir(graph, steps=1, inclusive=True)(x).flatten().tolist() == [1, 1]


def test_a_graph_read_to_be_trained() -> None:
    graph = nir.NIRGraph.from_list(nir.Input(np.array([6])), nir.Linear(array(8, 6)), lif((8,), tau=4e-4))
    net, x = from_nir(graph, steps=4, spike=partial(HTAF, 2, 11)), torch.rand(3, 6)
    net(x).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())
    assert torch.equal(harden(net)(x), from_nir(graph, steps=4)(x))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (lambda: [lif((6,), v_reset=0.5)], r"lif \(LIF\): expected v_reset = 0"),
        (lambda: [lif((6,), v_leak=0.5)], "expected v_leak = 0"),
        (lambda: [lif((6,), r=-1.0)], "gain > 0"),
        (lambda: [lif((6,), tau=0.5)], r"lif \(LIF\): tau must be > 1, got 0.5"),
        (lambda: [lif((6,), tau=0.0)], r"lif \(LIF\): "),
        (lambda: [lif((6,), v_threshold=0.0)], r"lif \(LIF\): threshold must be"),
        (lambda: [nir.IF(array(6), array(6), np.zeros(6))], "one v_threshold for all neurons"),
        (lambda: [nir.I(array(6))], r"i \(I\): expected Affine, .*no layer for"),
    ],
)
def test_what_htafs_neurons_are_not(nodes: Callable[[], list[Any]], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        from_nir(nir.NIRGraph.from_list(nir.Input(np.array([6])), *nodes()), steps=2, dt=1.0)


def test_what_is_no_graph_to_read(tmp_path: Path) -> None:
    for given, message in ((tmp_path / "none.nir", "which is none"), (nn.Linear(1, 1), "got Linear")):
        with pytest.raises(ExportError, match=message):
            from_nir(given)
    (tmp_path / "text.nir").write_text("no")
    with pytest.raises(ExportError, match="expected a NIR file"):
        from_nir(tmp_path / "text.nir")
    nodes = {"input": nir.Input(np.array([6])), "w": nir.Linear(array(6, 6)), "lif": lif((6,))}
    edges = [("input", "lif"), ("lif", "w"), ("w", "lif"), ("lif", "output")]
    graph = nir.NIRGraph(nodes | {"output": nir.Output(np.array([6]))}, edges)
    with pytest.raises(ExportError, match="without loops"):
        from_nir(graph, steps=2)
    graph.edges.remove(("w", "lif"))
    bad: list[dict[str, Any]] = [{"steps": 0}, {"steps": 2, "dt": 0.0}, {"steps": "x"}, {"steps": 2, "dt": "x"}]
    bad += [{"steps": 2.5}, {"steps": float("nan")}]
    for wrong in bad:
        with pytest.raises(ExportError, match=r"steps=T|dt must be"):
            from_nir(graph, **wrong)


# ---- SpikingJelly ----


class BaseNode(nn.Module):
    """SpikingJelly 2.0's equations of its multi-step neurons from rest (activation_based/functional/neuron.py)."""

    def __init__(
        self, v_threshold: float = 1.0, v_reset: float | None = 0.0, tau: float = 2.0, decay_input: bool = True,
        step_mode: str = "s", detach_reset: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.v_threshold, self.v_reset, self.tau, self.decay_input = v_threshold, v_reset, tau, decay_input
        self.step_mode, self.detach_reset = step_mode, detach_reset

    def forward(self, x: Tensor) -> Tensor:
        v, spikes = torch.zeros_like(x[0]), []
        for now in x:
            v = self.charge(now, v)
            spike = (v - self.v_threshold >= 0).to(x)
            v = v - spike * self.v_threshold if self.v_reset is None else (1.0 - spike) * v
            spikes.append(spike)
        return torch.stack(spikes)

    def charge(self, x: Tensor, v: Tensor) -> Tensor:
        tau = self.tau
        return v + (x - v) / tau if self.decay_input else v * (1.0 - 1.0 / tau) + x


class LIFNode(BaseNode):
    pass


class ParametricLIFNode(BaseNode):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.w = nn.Parameter(torch.tensor(-1.0986123))  # sigmoid is 1 / 4
        self.tau = 4.0


class IFNode(BaseNode):
    def charge(self, x: Tensor, v: Tensor) -> Tensor:
        return v + x


class IzhikevichNode(BaseNode):
    pass


THEIRS = (IFNode, LIFNode, ParametricLIFNode, IzhikevichNode)


@pytest.fixture
def _spikingjelly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins where SpikingJelly has its own."""
    import sys
    from types import ModuleType

    name, module = "spikingjelly.activation_based.neuron", ModuleType("neuron")
    for kind in THEIRS:
        monkeypatch.setattr(kind, "__module__", name)
        setattr(module, kind.__name__, kind)
    for path in ("spikingjelly", "spikingjelly.activation_based"):
        monkeypatch.setitem(sys.modules, path, ModuleType(path))
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("_spikingjelly")
@pytest.mark.parametrize("v_reset", [0.0, None])
@pytest.mark.parametrize(
    "node", [IFNode, LIFNode, partial(LIFNode, tau=4.0, decay_input=False), ParametricLIFNode], ids=str
)
def test_neurons_both_ways(node: Callable[..., nn.Module], v_reset: float | None) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), node(v_threshold=0.5, v_reset=v_reset, step_mode="m")).eval()
    net[0].weight.data = torch.randint(-4, 5, (8, 6)) / 8
    x = torch.randint(-4, 9, (6, 50, 6)) / 4
    ours = from_spikingjelly(net)
    back = to_spikingjelly(ours)
    assert isinstance(net[1], BaseNode), "the model is not changed"
    assert isinstance(ours[1], IF if node is IFNode else LIF)
    assert isinstance(back[1], BaseNode)
    with torch.no_grad():
        expected = net(x)
        assert torch.equal(ours(x), expected)
        assert torch.equal(back(x), expected)
    assert 0.05 < expected.mean() < 0.95
    assert isinstance(from_spikingjelly(net[1]), (IF, LIF)), "a neuron alone"
    for detach in (False, True):
        net[1].detach_reset = detach
        ours = from_spikingjelly(net)
        assert ours[1].detach_reset == to_spikingjelly(ours)[1].detach_reset == detach
    assert type(from_spikingjelly(net, HTAF)[1].spike) is HTAF


@pytest.mark.usefixtures("_spikingjelly")
def test_neurons_that_are_not_taken() -> None:
    class Own(LIFNode):
        pass

    shared = IFNode(step_mode="m")
    for net, message in (
        (nn.Sequential(IFNode(step_mode="m"), Own(step_mode="m")), "1: expected an IFNode, LIFNode or .*, got Own"),
        (nn.Sequential(shared, shared), "1: expected its own neuron, got that of 0, which"),
        (IFNode(), r'the model: expected step_mode "m", got "s": functional.set_step_mode'),
        (IFNode(v_reset=0.5, step_mode="m"), "v_reset=0 or None"),
        (nn.Sequential(IzhikevichNode(step_mode="m")), "0: expected an IFNode, LIFNode or .*, got IzhikevichNode"),
        (nn.Linear(2, 2), "expected neurons of SpikingJelly in Linear, got none"),
    ):
        with pytest.raises(ValueError, match=message):
            from_spikingjelly(net)
    for net, message in ((nn.Sequential(IF()), "0: expected exact spikes"), (nn.Linear(2, 2), "neurons of htaf")):
        with pytest.raises(ValueError, match=message):
            to_spikingjelly(net)
    assert isinstance(to_spikingjelly(IF(Heaviside())), IFNode)
    one = IF(Heaviside())
    two = to_spikingjelly(nn.Sequential(one, one))
    assert all(isinstance(node, IFNode) for node in two)
    assert two[0] is not two[1], "each keeps a potential"
