"""The registered operators: PyTorch's own checks, compiling, exporting, and which implementation runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import htaf
from htaf import functional, surrogates
from htaf.core.kernels import native, operators, registration
from htaf.core.kernels.registration import choose

ops = torch.ops.htaf


ROOT = Path(__file__).parents[2]


def leaf(*shape: int, dtype: torch.dtype = torch.float32, like: str = "") -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    if like == "channels last":
        x = x.to(memory_format=torch.channels_last)
    if like == "transposed":
        x = x.t()
    return x.requires_grad_()


def positive(*shape: int) -> Tensor:
    return (1 + torch.rand(*shape, generator=torch.Generator().manual_seed(1))).requires_grad_()


def calls_of(smooth: operators.Smooth) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The operators of a smooth activation: with floats, and with a tensor for each parameter."""
    name, x = smooth.name, leaf(2, 3, 4)
    floats, tensors = (2.0, 11.0, 3.0)[: smooth.count], (positive(3, 1),) * smooth.count
    return {
        name: (smooth.floats.op, (x, *floats, False)),
        f"{name} per channel": (smooth.tensors.op, (x, *tensors, True)),
        f"{name} backward": (smooth.backward.op, (leaf(2, 3, 4), x, *floats, True)),
        f"{name} backward per channel": (smooth.backward_tensors.op, (leaf(2, 3, 4), x, *tensors, False)),
        f"{name} backward of all": (smooth.backward_all.op, (leaf(2, 3, 4), x, *tensors, False)),
    }


CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    **{name: call for smooth in operators.SMOOTH for name, call in calls_of(smooth).items()},
    "htaf bfloat16": (ops.htaf.default, (leaf(5, 3, dtype=torch.bfloat16), 2.0, 11.0, True)),
    "htaf transposed": (ops.htaf.default, (leaf(5, 3, like="transposed"), 2.0, 11.0, True)),
    "htaf channels last": (
        ops.htaf.tensor, (leaf(2, 3, 4, 4, like="channels last"), positive(3, 1, 1), positive(3, 1, 1), True),
    ),
    "heaviside": (ops.heaviside.default, (leaf(5, 3), False)),
    "lookup": (ops.lookup.default, (leaf(4, 3, 2).detach().sigmoid().requires_grad_(), leaf(3, 4))),
    "sign": (ops.heaviside.default, (leaf(5, 3, like="transposed"), True)),
    "levels": (ops.levels.default, (leaf(5, 3, like="transposed"), [-0.7, 0.0, 0.7], True)),
    "straight through": (ops.straight_through.default, (leaf(5, 3), "atan", [2.0], False)),
    "straight through backward": (
        ops.straight_through_backward.default, (leaf(5, 3), leaf(5, 3), "htaf", [2.0, 11.0], True),
    ),
    "surrogate": (ops.surrogate.default, (leaf(5, 3, dtype=torch.bfloat16), leaf(5, 3).detach(), True)),
    "spikes": (ops.spikes.default, (leaf(3, 2, 5), 0.5, 0.5, 0.3, False)),
    "spikes double, channels last": (
        ops.spikes.default, (leaf(6, 3, 4, 4, dtype=torch.float64, like="channels last").unflatten(0, (3, 2)).detach(),
                             1.0, 1.0, 1.0, True),
    ),
    "spikes of one input": (ops.spikes.default, (leaf(2, 5).detach().expand(3, 2, 5), 1.0, 1.0, 0.7, True)),
    "pack": (ops.pack_bits.default, (leaf(5, 13).detach(),)),
    "transpose bits": (ops.transpose_bits.default, (torch.randint(0, 255, (5, 2), dtype=torch.uint8), 13)),
    "count common bits": (
        ops.count_common_bits.default,
        (torch.randint(0, 255, (5, 3), dtype=torch.uint8), torch.randint(0, 255, (4, 3), dtype=torch.uint8)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    op, inputs = CALLS[name]
    first = next(one for one, (other, _) in CALLS.items() if other is op)
    schema: Any = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(op, inputs, test_utils=(*schema, "test_aot_dispatch_dynamic") if name == first else schema)


def test_every_operator_is_checked() -> None:
    checked = {op.name() for op, _ in CALLS.values()}
    assert {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("htaf::")} == checked


def test_second_derivatives_with_the_kernels_are_those_of_the_reference() -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        x = leaf(4, 6).detach().to(dtype).requires_grad_()
        p = [positive(6).detach().to(dtype).requires_grad_() for _ in range(2)]
        y = functional.htaf(x, *p, bipolar=True) + functional.scaled_sigmoid(x, p[0])
        y = y + surrogates.straight_through(x, surrogates.tanh) + functional.htaf(x, 1.0, 3.0)
        first = torch.autograd.grad((y * torch.arange(6, dtype=dtype)).sum(), [x, *p], create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), [x, *p], create_graph=True)
        third = torch.autograd.grad(sum(g.sum() for g in second), [x, *p])
        found.append([g.double() for g in (*first, *second, *third)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_cuda_tensors_get_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"triton": ModuleType("triton"), "reference": ModuleType("reference")}
    kinds["triton"].supports = lambda *inputs: True  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(registration, "implementation", lambda operator, kind: kinds[kind])
    with FakeTensorMode():
        x = torch.empty(3, device="cuda")
    for there, kind in ((True, "triton"), (False, "reference")):
        monkeypatch.setattr(registration, "has_triton", lambda there=there: there)
        assert choose("htaf", x, 2.0, 11.0) is kinds[kind]


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONWARNINGS": "default", **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=300)


def test_without_the_extension_the_reference_runs_and_one_warning_says_so() -> None:
    code = (
        "import sys, torch, htaf.core.functional as f; torch.ops.htaf.htaf; print('imported', file=sys.stderr); "
        "x = torch.randn(3); [f.htaf(x) for _ in range(3)]; f.sign(x)"
    )
    done = python(code, HTAF_NO_EXTENSION="1")
    assert done.returncode == 0, done.stderr
    before, after = done.stderr.split("imported")
    assert "compiled kernels" not in before  # importing says nothing
    assert after.count("htaf runs without its compiled kernels (HTAF_NO_EXTENSION is set)") == 1


@pytest.mark.skipif(native.load()[0] is None, reason="no compiled kernels")
@pytest.mark.slow
def test_the_instruction_set_can_be_chosen() -> None:
    done = python(
        "import torch; from htaf.core.kernels import native; print(native.extension().instruction_set())",
        HTAF_INSTRUCTION_SET="portable",
    )
    assert done.stdout.strip() == "portable"
    done = python("import htaf.core.functional as f, torch; f.htaf(torch.zeros(1))", HTAF_INSTRUCTION_SET="mmx")
    assert "HTAF_INSTRUCTION_SET must be one of [" in done.stderr
    assert "got 'mmx'" in done.stderr


REFERENCE = """
import torch
from htaf.core.kernels.formulas import functions

def value(x, beta):
    return 0.5 + torch.atan(beta * x) / torch.pi

def gradients(x, beta):
    s = 1 / (torch.pi * (1 + (beta * x) ** 2))
    return beta * s, x * s

forward, backward, backward_all = functions(value, gradients)
"""


def test_an_operator_with_a_reference_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither cpu.py nor triton.py must be there: the reference runs, whatever the machine has."""
    folder = tmp_path / "arctan"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "reference.py").write_text(REFERENCE)
    monkeypatch.setattr(htaf.core.kernels, "__path__", [*htaf.core.kernels.__path__, str(tmp_path)])
    arctan = operators.Smooth("arctan", "beta")
    x = leaf(5, 3)
    y = arctan.floats(x, 3.0, False)
    y.sum().backward()
    torch.testing.assert_close(y, 0.5 + torch.atan(3 * x) / torch.pi)
    torch.testing.assert_close(x.grad, 3 / (torch.pi * (1 + 9 * x.detach() ** 2)))
    assert choose("arctan", x, 3.0).__name__ == "htaf.core.kernels.arctan.reference"
    assert not registration.has("arctan", "triton")


@pytest.mark.slow
def test_the_tests_pass_without_the_extension() -> None:
    files = [str(ROOT / "tests" / name) for name in ("test_functional.py", "test_surrogates.py", "test_activations.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *files, str(ROOT / "tests/test_convert.py"), __file__],
        capture_output=True, text=True, env={**os.environ, "HTAF_NO_EXTENSION": "1"}, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
