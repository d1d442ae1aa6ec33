"""The limits on the error of `htaf`: exit code 1 when one is passed.

    python benchmarks/errors.py [--json FILE]

For the paper's six pairs, rounded to float32, against float64 formulas that the library does not use. float32: a dense
grid in [-20, 20], random points, and points down to the smallest normal number. bfloat16 and float16: every number in
[-20, 20].
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import measuring
import torch
from torch import Tensor

from htaf import functional
from htaf_paper.bounds import PAPER_PAIRS

LIMIT = 20.0
ULP, ABSOLUTE, UNITS = 4.0, 2.5e-7, 0.51
SMALLEST = torch.finfo(torch.float32).tiny


def relative_limit(alpha1: float) -> float:
    """The exponent alpha1 t is rounded, so the error grows with alpha1."""
    return 1e-5 if alpha1 <= 44 else 3e-5


def truth(x: Tensor, alpha0: float, alpha1: float) -> tuple[Tensor, Tensor]:
    """Value and gradient in float64 by a route that cancels nowhere: e = exp(-2 alpha0 |x|), f = exp(-alpha1 t)."""
    x = x.double()
    z = alpha0 * x.abs()
    e = torch.exp(-2 * z)
    f = torch.exp(alpha1 * torch.expm1(-2 * z) / (1 + e))
    value = torch.where(x >= 0, 1.0, f) / (1 + f)
    return value, alpha0 * alpha1 * (f / (1 + f) ** 2) * (4 * e / (1 + e) ** 2)


def gradient(function: Callable[..., Tensor], x: Tensor, *alphas: float) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    y = function(leaf, *alphas)
    (found,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
    return found


def rounding_unit(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of the dtype at each value, also below its normal numbers."""
    _, exponent = torch.frexp(values.abs().clamp(min=torch.finfo(dtype).tiny))
    return torch.ldexp(torch.full_like(values, torch.finfo(dtype).eps), exponent - 1)


def rounded(pair: tuple[float, float]) -> tuple[float, float]:
    """As float32 arithmetic sees the pair."""
    alpha0, alpha1 = torch.tensor(pair, dtype=torch.float32).tolist()
    return alpha0, alpha1


def points(dtype: torch.dtype) -> Tensor:
    """Where the errors are looked for."""
    if dtype != torch.float32:
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        return every[every.abs() <= LIMIT]  # drops NaN as well
    draw = torch.Generator().manual_seed(0)
    grid = torch.linspace(-LIMIT, LIMIT, 400_001, dtype=torch.float64)
    random = LIMIT * (2 * torch.rand(200_000, generator=draw, dtype=torch.float64) - 1)
    near_0 = torch.randn(200_000, generator=draw, dtype=torch.float64)
    small = torch.logspace(-37.9, 1.3, 50_000, dtype=torch.float64)
    return torch.cat([grid, random, near_0, small, -small, torch.tensor([0.0, -0.0, LIMIT, -LIMIT])]).float()


def single(pair: tuple[float, float]) -> dict[str, Any]:
    """float32: errors of the value and of the gradient, each beside its limit."""
    x, alphas = points(torch.float32), rounded(pair)
    value, slope = truth(x, *alphas)
    error = (functional.htaf(x, *alphas).double() - value).abs()
    found, mirrored = gradient(functional.htaf, x, *alphas), gradient(functional.htaf, -x, *alphas)
    normal = slope >= SMALLEST
    relative = ((found.double() - slope).abs() / slope)[normal].max().item()
    figures = {
        "forward_ulp": (error[x >= 0].max() * 2**24).item(),  # values are in [1 / 2, 1) there
        "forward_absolute": error.max().item(),
        "gradient_relative": relative,
        "gradient_zeros": (found[normal] == 0).double().mean().item(),
    }
    limits = {
        "forward_ulp": ULP,
        "forward_absolute": ABSOLUTE,
        "gradient_relative": relative_limit(pair[1]),
        "gradient_zeros": 0.0,
    }
    even = torch.equal(found, mirrored)
    passed = even and all(figures[name] <= limit for name, limit in limits.items())  # a NaN fails
    return {**figures, "even": even, "limits": limits, "points": x.numel(), "passed": passed}


def half(pair: tuple[float, float], dtype: torch.dtype) -> dict[str, Any]:
    """bfloat16 and float16: errors in units of their rounding, 1 / 2 at best."""
    x, alphas = points(dtype), rounded(pair)
    value, slope = truth(x, *alphas)
    found, mirrored = gradient(functional.htaf, x, *alphas), gradient(functional.htaf, -x, *alphas)
    y, held = functional.htaf(x, *alphas), value >= SMALLEST  # below, float32 arithmetic is not exact either
    normal = slope >= SMALLEST
    figures = {
        "forward_units": ((y.double() - value).abs() / rounding_unit(value, dtype))[held].max().item(),
        "gradient_units": ((found.double() - slope).abs() / rounding_unit(slope, dtype))[normal].max().item(),
    }
    even = torch.equal(found, mirrored)
    passed = even and all(figure <= UNITS for figure in figures.values())
    limits = dict.fromkeys(figures, UNITS)
    return {**figures, "even": even, "limits": limits, "points": x.numel(), "passed": passed}


def measure() -> list[dict[str, Any]]:
    warnings.filterwarnings("ignore", "float16 gradients underflow")  # errors are measured there too, on purpose
    rows = []
    for pair in PAPER_PAIRS:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            found = single(pair) if dtype == torch.float32 else half(pair, dtype)
            case = {"alpha0": pair[0], "alpha1": pair[1], "dtype": str(dtype).removeprefix("torch.")}
            rows.append({"table": "limits", **case, **found})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    found = []
    for row in rows:
        limits, cells = row["limits"], [f"({row['alpha0']:g}, {row['alpha1']:g})", row["dtype"]]
        if row["dtype"] == "float32":
            cells.append(f"{row['forward_ulp']:.2f} / {limits['forward_ulp']:g} ulp, x >= 0")
            cells += [f"{row[n]:.1e} / {limits[n]:.1e}" for n in ("forward_absolute", "gradient_relative")]
            cells.append(f"{row['gradient_zeros']:.0%}")
        else:
            value, slope = (f"{row[n]:.4f} / {limits[n]:g} ulp" for n in ("forward_units", "gradient_units"))
            cells += [value, "", slope, ""]
        found.append((*cells, "yes" if row["even"] else "no", "pass" if row["passed"] else "[red]FAIL[/red]"))
    columns = ("pair", "dtype", "forward", "forward, absolute", "gradient", "zeros", "even", "")
    title = f"htaf against float64 in [-{LIMIT:g}, {LIMIT:g}]; each cell: largest error / limit"
    measuring.show(title, columns, found, ["dtype"])


def run() -> tuple[list[dict[str, Any]], bool]:
    """Measure and show; the rows, and whether all are within their limits."""
    rows = measure()
    show(rows)
    failed = sum(not row["passed"] for row in rows)
    if failed:
        print(f"{failed} of {len(rows)} rows are over a limit")
    return rows, not failed


def main() -> None:
    arguments = measuring.begin(measuring.parser(__doc__))
    rows, passed = run()
    measuring.end(arguments, rows)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
