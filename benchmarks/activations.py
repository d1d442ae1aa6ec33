"""Time and memory of the activations beside `torch.sigmoid`, once their tests pass.

    python benchmarks/activations.py [--sizes 1000000 16777216] [--dtypes float32 bfloat16] [--threads 1 2]
                                     [--rounds 15] [--only NAME ...] [--json FILE] [--no-test]

A sample is one forward and one backward pass, several of them for small sizes, timed apart. Every round takes a sample
of each function, in reversed order every other round; a ratio is the median over the rounds of time / time of
torch.sigmoid in the same round. `torch.sigmoid again` says how far a ratio of equals strays from 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import measuring
import memory
import torch
from measuring import Sample
from torch import Tensor

from htaf import functional
from htaf.core.surrogates import straight_through
from htaf.models.build import SLOPES

BASE = "torch.sigmoid"
CHANNELS = 64
VALUES_PER_SAMPLE = 2**23  # passes are repeated up to about so many values
PARTS = ("forward", "backward", "both")


class Function(NamedTuple):
    """What is timed: a call of x and, where they are learned, of parameters that start at these values."""

    call: Callable[..., Tensor]
    parameters: tuple[float, ...] = ()
    base: str = BASE
    backward: bool = True


class StableEager(torch.autograd.Function):
    """HTAF with its stable gradient in plain PyTorch, operation by operation: what the kernels replace."""

    @staticmethod
    def forward(x, alpha0, alpha1):
        return torch.sigmoid(alpha1 * torch.tanh(alpha0 * x.float())).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.alpha0, ctx.alpha1 = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        z = ctx.alpha0 * x.float()
        k = 2 * half_sech(z) * half_sech(0.5 * (ctx.alpha1 * torch.tanh(z)))
        return (grad.float() * (ctx.alpha0 * ctx.alpha1 * k * k)).to(x.dtype), None, None


def half_sech(z: Tensor) -> Tensor:
    r = torch.exp(-z.abs())
    return r / (1 + r * r)


def per_channel(x: Tensor, alpha0: Tensor, alpha1: Tensor) -> Tensor:
    """Images [N, 64, H, W] of as many values as x, alphas of shape [64, 1, 1]."""
    return functional.htaf(x.view(image_shape(x.numel())), alpha0, alpha1)


def image_shape(size: int) -> tuple[int, int, int, int]:
    pixels, rest = divmod(size, CHANNELS)
    if rest:
        raise SystemExit(f"--sizes: expected multiples of {CHANNELS} (channels of the learnable pairs), got {size}")
    side = max(s for s in range(1, 33) if pixels % (s * s) == 0)
    return pixels // (side * side), CHANNELS, side, side


FUNCTIONS: dict[str, Function] = {
    BASE: Function(torch.sigmoid),
    "torch.sigmoid again": Function(torch.sigmoid),
    "torch.relu": Function(torch.relu),
    "naive composition": Function(lambda x: torch.sigmoid(11.0 * torch.tanh(2.0 * x))),
    "stable formula, eager": Function(lambda x: StableEager.apply(x, 2.0, 11.0)),
    "htaf (2, 11)": Function(lambda x: functional.htaf(x, 2.0, 11.0)),
    "htaf, learned alphas": Function(per_channel, (2.0, 11.0)),
    "scaled_sigmoid 22": Function(lambda x: functional.scaled_sigmoid(x, 22.0)),
    **{f"ste {name}": Function(partial(straight_through, slope=f)) for name, f in SLOPES.items()},
    "torch.relu, forward": Function(torch.relu, base="torch.relu, forward", backward=False),
    "heaviside, forward": Function(functional.heaviside, base="torch.relu, forward", backward=False),
}


class Job:
    """One function on one x, ready to be sampled."""

    def __init__(self, function: Function, x: Tensor, grad: Tensor) -> None:
        self.function, self.repeats = function, max(1, VALUES_PER_SAMPLE // x.numel())
        x = x.detach().requires_grad_(function.backward)  # shares the values
        shape = (CHANNELS, 1, 1)
        parameters = [torch.full(shape, value, requires_grad=True) for value in function.parameters]
        self.leaves, self.grad = [x, *parameters], grad
        if parameters:
            self.grad = grad.view(image_shape(x.numel()))

    def sample(self) -> Sample:
        """Seconds of a forward pass, a backward pass and both; freeing the output is not counted."""
        forward = backward = 0.0
        for _ in range(self.repeats):
            start = time.perf_counter()
            y = self.function.call(*self.leaves)
            middle = time.perf_counter()
            if self.function.backward:
                torch.autograd.grad(y, self.leaves, self.grad)
            end = time.perf_counter()
            forward, backward = forward + (middle - start), backward + (end - middle)
            del y
        return tuple(seconds / self.repeats for seconds in (forward, backward, forward + backward))


def measure(names: Sequence[str], size: int, dtype: torch.dtype, threads: int, rounds: int) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)
    grad = torch.ones_like(x)
    times = measuring.alternate({n: Job(FUNCTIONS[n], x, grad).sample for n in names}, rounds)
    case = {"size": size, "dtype": str(dtype).removeprefix("torch."), "threads": threads, "rounds": rounds}
    return [{"table": "time", "function": n, **case, **figures(FUNCTIONS[n], n, times)} for n in names]


def figures(function: Function, name: str, times: dict[str, list[Sample]]) -> dict[str, Any]:
    found: dict[str, Any] = {"base": function.base}
    for i, part in enumerate(PARTS):
        if part == "forward" or function.backward:
            ratio = measuring.ratio(times[name], times[function.base], i)
            found[part] = {
                "ms": 1e3 * measuring.spread(sample[i] for sample in times[name]).median,
                "ratio": ratio.median,
                "ratio_quartiles": [ratio.low, ratio.high],
            }
    return found


def measure_memory(name: str, dtype: torch.dtype) -> dict[str, Any]:
    function = FUNCTIONS[name]
    x = torch.randn(memory.SIZE, generator=torch.Generator().manual_seed(0)).to(dtype)
    leaves = Job(function, x, torch.ones_like(x)).leaves
    kept = memory.saved(lambda x: function.call(x, *leaves[1:]), leaves[0])
    flat = memory.resident(lambda x: function.call(x, *leaves[1:]).flatten(), leaves)
    case = {"size": memory.SIZE, "dtype": str(dtype).removeprefix("torch.")}
    return {"table": "memory", "function": name, **case, **kept, "resident": flat}


def show_times(rows: list[dict[str, Any]], size: int) -> None:
    rows = [row for row in rows if row["size"] == size and row["table"] == "time"]
    cases = dict.fromkeys((row["dtype"], row["threads"]) for row in rows)
    columns = [f"{dtype}, {threads} thread{'s' * (threads > 1)}" for dtype, threads in cases]
    cells = [
        (name, *(cell(row) for row in rows if row["function"] == name))
        for name in dict.fromkeys(row["function"] for row in rows)
    ]
    title = f"{size:,} values: time over torch.sigmoid's, both passes (forward, backward) and ms of both"
    measuring.show(title, ("function", *columns), cells, ["function"])


def cell(row: dict[str, Any]) -> str:
    if "both" not in row:
        return f"{row['forward']['ratio']:.2f} {row['forward']['ms']:7.2f}"
    forward, backward, both = (row[part] for part in PARTS)
    return f"{both['ratio']:.2f} ({forward['ratio']:.2f}, {backward['ratio']:.2f}) {both['ms']:7.2f}"


def show_memory(rows: list[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        kept, found = ", ".join(row["saved"]) or "nothing", row["resident"]
        numbers = ["-"] * 3 if found is None else [f"{round(v, 2) + 0.0:.2f}" for v in found.values()]  # no "-0.00"
        cells.append((row["function"], row["dtype"], kept, *numbers))
    columns = ("function", "dtype", "saved for backward", "forward peak", "held", "backward peak")
    title = f"Memory at {memory.SIZE:,} values, beside x, output and gradient; 1 is the size of x"
    measuring.show(title, columns, cells, ["function"])


def chosen(only: Sequence[str] | None) -> list[str]:
    """The functions whose name contains one of these, what they are compared to, and the measure of noise."""
    names = [n for n in FUNCTIONS if not only or any(part in n for part in only)]
    if not names:
        raise SystemExit(f"--only: expected part of a name of {list(FUNCTIONS)}, got {only}")
    bases = {BASE, *(FUNCTIONS[n].base for n in names)}
    return [n for n in FUNCTIONS if n in names or n in bases or n.endswith("again")]


def main() -> None:
    parser = measuring.parser(__doc__, rounds=15, sizes=(1_000_000, 2**24), threads=(1, 2))
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="functions whose name contains this")
    parser.add_argument("--no-memory", action="store_true", help="leave out the table of memory")
    arguments = measuring.begin(parser, "test_functional.py", "test_surrogates.py", *measuring.kernel_tests())
    names, dtypes = chosen(arguments.only), [getattr(torch, name) for name in arguments.dtypes]
    for size in arguments.sizes:
        image_shape(size)  # says what is wrong before minutes of measuring
    rows = []
    for size in arguments.sizes:
        for dtype in dtypes:
            for threads in arguments.threads:
                rows += measure(names, size, dtype, threads, arguments.rounds)
        show_times(rows, size)
    if not arguments.no_memory:
        passes = [n for n in names if FUNCTIONS[n].backward and not n.endswith("again")]
        used = [measure_memory(n, dtype) for n in passes for dtype in dtypes]
        show_memory(used)
        rows += used
    measuring.end(arguments, rows)


if __name__ == "__main__":
    main()
