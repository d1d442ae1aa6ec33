"""How much of the gradient survives floating point: `htaf` beside autograd on sigmoid(alpha1 tanh(alpha0 x)).

    python benchmarks/gradients.py [--json FILE]

For the paper's six pairs and two ranges of x: the largest relative error against float64 (bfloat16: in units of its
rounding, 1 / 2 at best), the share of exact zeros where the true gradient is a normal number, and even symmetry. Then
the errors of `htaf` beside their limits (errors.py); exit code 1 when one is passed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import errors
import measuring
import torch
from torch import Tensor

from htaf import functional
from htaf_paper.bounds import PAPER_PAIRS

LIMITS = [6.0, 20.0]
POINTS = 4001


def naive(x: Tensor, alpha0: float, alpha1: float) -> Tensor:
    return torch.sigmoid(alpha1 * torch.tanh(alpha0 * x))


def measure(function: Callable[..., Tensor], pair: tuple[float, float], limit: float, dtype: torch.dtype) -> dict:
    alphas = errors.rounded(pair)
    x = torch.linspace(-limit, limit, POINTS).to(dtype)
    found, mirrored = errors.gradient(function, x, *alphas), errors.gradient(function, -x, *alphas)
    _, truth = errors.truth(x, *alphas)
    normal = truth >= torch.finfo(dtype).tiny
    error = (found.double() - truth).abs()[normal]
    return {
        "relative_error": (error / truth[normal]).max().item(),
        "units": (error / errors.rounding_unit(truth[normal], dtype)).max().item(),
        "zeros": (found[normal] == 0).double().mean().item(),
        "symmetric": torch.equal(found, mirrored),
        "points": POINTS,
    }


def main() -> None:
    arguments = measuring.begin(measuring.parser(__doc__))
    rows = [
        {
            "table": "comparison",
            "alpha0": pair[0],
            "alpha1": pair[1],
            "limit": limit,
            "dtype": str(dtype).removeprefix("torch."),
            "function": name,
            **measure(function, pair, limit, dtype),
        }
        for limit in LIMITS
        for pair in PAPER_PAIRS
        for dtype in (torch.float32, torch.bfloat16)
        for name, function in (("htaf", functional.htaf), ("naive", naive))
    ]
    show(rows)
    more, passed = errors.run()
    measuring.end(arguments, rows + more)
    sys.exit(not passed)


def show(rows: list[dict]) -> None:
    found = []
    for i in range(0, len(rows), 4):
        good32, bad32, good16, bad16 = rows[i : i + 4]
        cells = [f"({good32['alpha0']:g}, {good32['alpha1']:g})", f"{good32['limit']:g}"]
        cells.append(f"{good32['relative_error']:.1e} / {bad32['relative_error']:.1e}")
        cells += shared(good32, bad32)
        cells.append(f"{good16['units']:.2f} / {bad16['units']:.0f}")
        found.append(cells + shared(good16, bad16))
    columns = ("pair", "|x| <=", "float32 error", "zeros", "even", "bfloat16 units", "zeros", "even")
    measuring.show(f"Gradient against float64, {POINTS:,} points; each cell: htaf / naive", columns, found)


def shared(good: dict, bad: dict) -> list[str]:
    yes = {True: "yes", False: "no"}
    return [f"{good['zeros']:.0%} / {bad['zeros']:.0%}", f"{yes[good['symmetric']]} / {yes[bad['symmetric']]}"]


if __name__ == "__main__":
    main()
