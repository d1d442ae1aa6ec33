"""How much of the gradient survives floating point: `htaf` beside autograd on sigmoid(alpha1 tanh(alpha0 x)).

    python benchmarks/gradients.py [--json FILE]

For the paper's six pairs and two ranges of x: the largest relative error against float64 (bfloat16: in units of its
rounding, 1 / 2 at best), the share of exact zeros where the true gradient is a normal number, and even symmetry.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import htaf
from htaf import functional
from htaf.theory import PAPER_PAIRS

PAIRS = PAPER_PAIRS
LIMITS = [6.0, 20.0]
POINTS = 4001


def naive(x: Tensor, alpha0: float, alpha1: float) -> Tensor:
    return torch.sigmoid(alpha1 * torch.tanh(alpha0 * x))


def true_slope(x: Tensor, alpha0: float, alpha1: float) -> Tensor:
    """The gradient in float64, by a formula that cancels nowhere and that the library does not use."""
    z = alpha0 * x.double().abs()
    e = torch.exp(-2 * z)
    f = torch.exp(alpha1 * torch.expm1(-2 * z) / (1 + e))
    return alpha0 * alpha1 * (f / (1 + f) ** 2) * (4 * e / (1 + e) ** 2)


def gradient(function: Callable[..., Tensor], x: Tensor, *alphas: float) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    function(leaf, *alphas).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def rounding_unit(truth: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of the dtype at each true value."""
    exponent = torch.floor(torch.log2(truth.clamp(min=torch.finfo(dtype).tiny)))
    return torch.finfo(dtype).eps * torch.exp2(exponent)


def measure(function: Callable[..., Tensor], pair: tuple[float, float], limit: float, dtype: torch.dtype) -> dict:
    alpha0, alpha1 = torch.tensor(pair, dtype=torch.float32).tolist()  # as float32 arithmetic sees them
    x = torch.linspace(-limit, limit, POINTS).to(dtype)
    found, mirrored = gradient(function, x, alpha0, alpha1), gradient(function, -x, alpha0, alpha1)
    truth = true_slope(x, alpha0, alpha1)
    normal = truth >= torch.finfo(dtype).tiny
    error = (found.double() - truth).abs()[normal]
    return {
        "relative_error": (error / truth[normal]).max().item(),
        "units": (error / rounding_unit(truth[normal], dtype)).max().item(),
        "zeros": (found[normal] == 0).double().mean().item(),
        "symmetric": torch.equal(found, mirrored),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Gradient accuracy of htaf and of its naive composition")
    parser.add_argument("--json", type=Path, help="write the figures and versions here")
    arguments = parser.parse_args()

    rows = [
        {
            "alpha0": pair[0],
            "alpha1": pair[1],
            "limit": limit,
            "dtype": str(dtype).removeprefix("torch."),
            "function": name,
            **measure(function, pair, limit, dtype),
        }
        for limit in LIMITS
        for pair in PAIRS
        for dtype in (torch.float32, torch.bfloat16)
        for name, function in (("htaf", functional.htaf), ("naive", naive))
    ]
    show(rows)
    if arguments.json:
        versions = {"htaf": htaf.__version__, "torch": torch.__version__, "python": platform.python_version()}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"versions": versions, "points": POINTS, "rows": rows}, indent=1) + "\n")


def show(rows: list[dict]) -> None:
    table = Table(title=f"Gradient against float64, {POINTS:,} points; each cell: htaf / naive")
    for name in ("pair", "|x| <=", "float32 error", "zeros", "even", "bfloat16 units", "zeros", "even"):
        table.add_column(name, justify="right")
    for i in range(0, len(rows), 4):
        good32, bad32, good16, bad16 = rows[i : i + 4]
        cells = [f"({good32['alpha0']:g}, {good32['alpha1']:g})", f"{good32['limit']:g}"]
        cells.append(f"{good32['relative_error']:.1e} / {bad32['relative_error']:.1e}")
        cells += shared(good32, bad32)
        cells.append(f"{good16['units']:.2f} / {bad16['units']:.0f}")
        cells += shared(good16, bad16)
        table.add_row(*cells)
    Console(width=120).print(table)


def shared(good: dict, bad: dict) -> list[str]:
    yes = {True: "yes", False: "no"}
    return [f"{good['zeros']:.0%} / {bad['zeros']:.0%}", f"{yes[good['symmetric']]} / {yes[bad['symmetric']]}"]


if __name__ == "__main__":
    main()
