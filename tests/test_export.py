"""ONNX files of hardened networks, run by onnxruntime and compared with PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from htaf import HTAF, IF, LIF, Heaviside, functional, harden
from htaf.core.activations import thresholds_of
from htaf.core.binary import BinaryLinear
from htaf.models.bireal import BiRealNet
from htaf.models.build import backbone
from htaf.models.icbm import ICBM
from htaf.models.mlp import MLP
from htaf.models.sew_resnet import SEWResNet
from htaf.models.wide_resnet import WideResNet
from htaf.program.export import ExportError, onnx_network, to_onnx
from htaf.training.runs.predictions import agreement
from quick import slow_but

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

PLAIN = {"kind": "wide_resnet", "depth": 10, "width": 1, "dropout": 0.0}


def digits() -> tuple[Tensor, Tensor]:
    """Images [300, 1, 8, 8] of mean 0 and classes."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:, None]
    return ((x - x.mean()) / x.std())[:300], torch.tensor(found.target)[:300]


class Leaky(nn.Module):
    """Four steps of LIF neurons with a soft reset, joined by "iand"."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 48), nn.Linear(48, 48)
        self.fire, self.again, self.head = LIF(reset="soft"), LIF(tau=3.0, reset="soft"), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        a = self.fire(2 * self.first(x.flatten(1)).expand(4, x.shape[0], 48))
        return self.head((1 - self.again(3 * self.second(a))) * a).mean(0)


FAMILIES: dict[str, Callable[[Tensor], nn.Module]] = {
    "mlp": lambda x: nn.Sequential(nn.Flatten(), MLP(64, 10, (32, 32), batch_norm=True)),
    "wide resnet": lambda x: WideResNet(10, 1, 10, in_channels=1),
    "bireal": lambda x: BiRealNet(18, 10, width=4, in_channels=1),
    "sew resnet": lambda x: SEWResNet(18, 10, IF, steps=2, width=4, stem="cifar", in_channels=1),
    "leaky neurons": lambda x: Leaky(),
    "icbm": lambda x: ICBM(backbone(PLAIN, 1, (8, 8)), 10, HTAF, example=x[:4], concepts=24),
}


def trained(net: nn.Module, x: Tensor, y: Tensor, steps: int = 16) -> nn.Module:
    """A few steps on real data, so that batch norms and decisions are those of a network in use; then hardened."""
    torch.manual_seed(0)
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):  # so that neurons fire
        norm.weight.data, norm.bias.data = 2 + torch.rand(len(norm.weight)), torch.rand(len(norm.weight))
    optimizer = torch.optim.Adam(net.train().parameters(), lr=3e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    return harden(net).eval()


@pytest.mark.parametrize("family", slow_but(FAMILIES, "mlp", "leaky neurons"))
def test_onnxruntime_predicts_the_same_digits(family: str, tmp_path: Path) -> None:
    x, y = digits()
    torch.manual_seed(0)
    net = trained(FAMILIES[family](x), x, y)
    to_onnx(net, x[:2], tmp_path / "net.onnx")
    with torch.no_grad():
        expected = net(x)
    found = agreement(onnx_network(tmp_path / "net.onnx")(x), expected)
    assert found.rows == len(x)
    assert expected.argmax(1).unique().numel() > 2, "a network that says one class for all compares nothing"
    # a pre-activation within rounding of 0 may step the other way in another order of summation
    assert found.predictions >= len(x) - 2
    assert onnx_network(tmp_path / "net.onnx")(x[:1]).shape == (1, 10)
    proto = onnx.load(tmp_path / "net.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert [one.version for one in proto.opset_import] == [18]
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    (input,), (output,) = proto.graph.input, proto.graph.output
    assert (input.name, output.name) == ("input", "output")
    assert [d.dim_param or d.dim_value for d in input.type.tensor_type.shape.dim] == ["batch", 1, 8, 8]
    assert [d.dim_param or d.dim_value for d in output.type.tensor_type.shape.dim] == ["batch", 10]


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step, self.sign, self.neuron = Heaviside(), Heaviside(bipolar=True), LIF(Heaviside(), tau=3.0)
        self.two, self.three = Heaviside(levels=2, spacing=3.0), Heaviside(levels=3, spacing=1.5, bipolar=True)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        bits = functional.pack_bits(x.nan_to_num())
        spikes = self.neuron(x.expand(5, *x.shape))
        return self.step(x), self.sign(x), spikes, bits, self.two(x), self.three(x)


def test_exact_at_the_edges(tmp_path: Path) -> None:
    import onnxruntime

    tiny = torch.finfo(torch.float32).smallest_normal
    row = [0.0, -0.0, torch.nan, torch.inf, -torch.inf, tiny, -tiny, 3.0, 1.5, -3.0, 2.9999998]
    x = torch.tensor([row, row[::-1]])
    net = Steps().eval()
    to_onnx(net, x, tmp_path / "steps.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "steps.onnx")
    assert [one.name for one in session.get_outputs()] == [f"output_{i}" for i in range(6)]
    for found, expected in zip(session.run(None, {"input": x.numpy()}), net(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=0, atol=0, equal_nan=True)
    assert session.run(None, {"input": x.numpy()})[0][0, :3].tolist()[:2] == [1.0, 1.0]


@pytest.mark.parametrize("step", [Heaviside(), Heaviside(levels=3, bipolar=True)])
def test_a_step_of_numbers_is_one_comparison(step: Heaviside, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Identity(), step).eval()
    row = [*thresholds_of(step), 0.0, -0.0, torch.inf, -torch.inf, 3.0, -3.0]
    x = torch.tensor([row, row[::-1]])
    kinds = {}
    for finite in (False, True):
        to_onnx(net, x, tmp_path / "net.onnx", finite=finite)
        kinds[finite] = [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node]
        torch.testing.assert_close(onnx_network(tmp_path / "net.onnx")(x), net(x), rtol=0, atol=0)
    assert {"IsNaN", "Where"} <= {*kinds[False]}
    assert {"IsNaN", "Where"}.isdisjoint(kinds[True])
    assert kinds[True].count("GreaterOrEqual") == step.levels
    assert step.levels > 1 or step.bipolar or kinds[True] == ["GreaterOrEqual", "Cast"]


def test_binary_weights_are_constants(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(BinaryLinear(9, 7), nn.BatchNorm1d(7), Heaviside(), BinaryLinear(7, 3, bias=True)).eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    to_onnx(net, torch.randn(2, 9), tmp_path / "net.onnx")
    proto = onnx.load(tmp_path / "net.onnx")
    assert {"Abs", "ReduceMean"}.isdisjoint({node.op_type for node in proto.graph.node})
    x = torch.randn(50, 9)
    torch.testing.assert_close(onnx_network(tmp_path / "net.onnx")(x), net(x), rtol=1e-5, atol=1e-6)
    assert isinstance(net[0], BinaryLinear)
    assert all(torch.equal(net.state_dict()[k], v) for k, v in before.items())


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.htaf(x)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.new_zeros(len(x), 1)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.Linear(3, 2), HTAF()), r"got Sequential with 1 smooth activations \(HTAF 1\)"),
        (Functional(), "expected a hardened model, got Functional with htaf.htaf"),
        (Branching(), "torch.export does not take Branching: "),
        (nn.Linear(4, 2), "torch.export does not take Linear: "),
        (Counting(), r"write x\.shape\[0\]"),
    ],
)  # fmt: skip
def test_what_cannot_be_written(net: nn.Module, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        to_onnx(net, torch.randn(2, 3), tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"no network")
    with pytest.raises(ExportError, match="onnxruntime does not run"):
        onnx_network(tmp_path / "net.onnx")


def test_agreement() -> None:
    expected = torch.tensor([[1.0, 2.0], [3.0, 0.0], [4.0, 5.0]])
    assert agreement(expected.clone(), expected).predictions == len(expected)
    other = expected.clone()
    other[1] = torch.tensor([1.0, 2.0])
    found = agreement(other, expected)
    assert (found.rows, found.predictions) == (3, 2)
    assert found.difference == pytest.approx(2 / 5)
    assert agreement(torch.tensor([[1.0], [2.1]]), torch.tensor([[1.0], [2.0]])).predictions == 1


class Direct(nn.Module):
    """Steps, bipolar steps, binary weights and neurons, whose sums are exact in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.step, self.second = nn.Linear(16, 32), Heaviside(), BinaryLinear(32, 32)
        self.sign, self.third, self.fire = Heaviside(bipolar=True), nn.Linear(32, 8), IF(Heaviside(), reset="soft")
        for parameter in self.parameters():
            parameter.data = (parameter.data * 64).round() / 4

    def forward(self, x: Tensor) -> Tensor:
        x = self.third(self.sign(self.second(self.step(self.first(x)))))
        return self.fire(torch.stack([x, x / 2])).mean(0)


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_torch_exports_a_hardened_model_itself(tmp_path: Path, dynamo: bool) -> None:
    """By torch.onnx.export, today's and the one before, with the same bits in onnxruntime."""
    net = Direct().eval()
    x = (8 * torch.randn(6, 16)).round() / 4
    torch.onnx.export(net, (x,), str(tmp_path / "net.onnx"), dynamo=dynamo, opset_version=18, verbose=False)
    assert torch.equal(onnx_network(tmp_path / "net.onnx")(x), net(x))


# ---- programs that other parts of PyTorch write of a hardened model ----


READ = """
program = torch.export.load(FILE).module()
x, y = torch.load(FILE + ".pt")
assert torch.equal(program(x), y)
"""
TRACE = """
from htaf import Heaviside
from htaf.core.binary import BinaryLinear
net = torch.nn.Sequential(BinaryLinear(16, 4), htaf.HTAF(), torch.nn.Linear(4, 2), htaf.Heaviside(bipolar=True))
for model in (net, htaf.harden(net).eval()):
    traced = torch.fx.symbolic_trace(model)
    assert torch.equal(traced(x), model(x))
"""


def network() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(BinaryLinear(16, 8), Heaviside(), nn.Linear(8, 3)).eval(), torch.randn(4, 16)


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_a_program_is_read_after_the_two_imports(tmp_path: Path) -> None:
    net, x = network()
    file = str(tmp_path / "net.pt2")
    torch.export.save(torch.export.export(net, (x,)), file)
    torch.save((x, net(x)), file + ".pt")
    exec(f"FILE = {file!r}\n{READ}", {"torch": torch})
    # shape checks of pytest would meet the proxies of a trace, so it is made there
    run(f"import htaf, sys; assert 'torch' not in sys.modules; import torch\nFILE = {file!r}\n{READ}{TRACE}")


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True], ids=["with htaf", "alone"])
def test_a_compiled_package(alone: bool, tmp_path: Path) -> None:
    """AOTInductor: its package asks for htaf's operators; of a decomposed program it needs torch alone."""
    net, x = network()
    file = str(tmp_path / "net.pt2")
    program = torch.export.export(net, (x,))
    if alone:
        from htaf.program.export import DECOMPOSITIONS

        program = program.run_decompositions({**DECOMPOSITIONS})
    torch._inductor.aoti_compile_and_package(program, package_path=file)
    torch.save((x, net(x)), file + ".pt")
    read = READ.replace("torch.export.load(FILE).module()", "torch._inductor.aoti_load_package(FILE)")
    run(f"import torch{'' if alone else ', htaf'}\nFILE = {file!r}\n{read}")


def test_a_decomposed_program_needs_no_htaf(tmp_path: Path) -> None:
    from htaf.program.export import COMPARISONS

    net = nn.Sequential(nn.Linear(16, 8), Heaviside(levels=2), nn.Linear(8, 8), Heaviside(), nn.Linear(8, 3)).eval()
    x, file = torch.randn(4, 16), str(tmp_path / "net.pt2")
    program = torch.export.export(net, (x,)).run_decompositions({**COMPARISONS})
    assert not [node for node in program.graph.nodes if "htaf" in str(node.target) or "isnan" in str(node.target)]
    torch.export.save(program, file)
    torch.save((x, net(x)), file + ".pt")
    run(f"import sys; sys.modules['htaf'] = None; import torch\nFILE = {file!r}\n{READ}")
