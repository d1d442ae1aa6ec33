"""Programs that other parts of PyTorch write of a hardened model, read by a process that imported torch and htaf."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from htaf.core.activations import Heaviside
from htaf.core.binary import BinaryLinear

READ = """
program = torch.export.load(FILE).module()
x, y = torch.load(FILE + ".pt")
assert torch.equal(program(x), y)
"""
TRACE = """
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
