"""Time the Triton kernels on a CUDA GPU as a share of the device's copy bandwidth, once they agree with float64.

    python benchmarks/cuda_bandwidth.py [--sizes 67108864 268435456] [--rounds 30] [--json FILE] [--no-test]

A kernel is memory-bound when it moves its bytes (each value read and written once) as fast as `torch.Tensor.copy_`
moves the same number: a share of 1. Both are timed with CUDA events, in turn in every round; the share is the median
over rounds. Without a CUDA GPU it says so and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import measuring
import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHANNELS = 1024
FLUSH = 2**30  # bytes written before every timing: more than the caches hold, and longer than a launch takes


def operations(x: Tensor, grad: Tensor) -> dict[str, tuple[Callable[[], object], float]]:
    """What to time, and how many bytes a value each moves."""
    from htaf.core.kernels.heaviside import triton as heaviside
    from htaf.core.kernels.htaf import triton as htaf
    from htaf.core.kernels.scaled_sigmoid import triton as scaled_sigmoid
    from htaf.core.kernels.straight_through import triton as straight_through

    size, tokens = x.element_size(), x.view(-1, CHANNELS)
    image, image_grad = x.view(-1, CHANNELS, 256), grad.view(-1, CHANNELS, 256)
    a0, a1 = (torch.full((CHANNELS,), value, device=x.device) for value in (2.0, 11.0))
    b0, b1 = a0.view(-1, 1), a1.view(-1, 1)

    def both(forward: Callable[[], object], backward: Callable[[], object]) -> Callable[[], object]:
        return lambda: (forward(), backward())

    found: dict[str, tuple[Callable[[], object], float]] = {}
    smooth = {
        "htaf": (lambda: htaf.forward(x, 2.0, 11.0), lambda: htaf.backward(grad, x, 2.0, 11.0)),
        "scaled_sigmoid": (lambda: scaled_sigmoid.forward(x, 22.0), lambda: scaled_sigmoid.backward(grad, x, 22.0)),
        "htaf, parameters [C], x [N, C]": (
            lambda: htaf.forward(tokens, a0, a1),
            lambda: htaf.backward_all(grad.view(-1, CHANNELS), tokens, a0, a1),
        ),
        "htaf, parameters [C, 1], x [N, C, 256]": (
            lambda: htaf.forward(image, b0, b1),
            lambda: htaf.backward_all(image_grad, image, b0, b1),
        ),
    }
    for slope, parameters in (("sigmoid", [1.0]), ("rectangular", []), ("atan", [2.0]), ("approx_sign", [])):
        smooth[f"straight_through {slope}"] = (
            lambda: heaviside.forward(x),
            lambda slope=slope, parameters=parameters: straight_through.backward(grad, x, slope, parameters),
        )
    for name, (forward, backward) in smooth.items():
        found[f"{name}: forward"] = forward, 2 * size
        found[f"{name}: backward"] = backward, 3 * size
        found[f"{name}: both"] = both(forward, backward), 5 * size
    return found


def check() -> None:
    """A million values of every dtype against float64; leaves with a message when one is wrong."""
    from htaf.core.kernels.htaf import triton as htaf
    from htaf.core.kernels.scaled_sigmoid import triton as scaled_sigmoid

    x = torch.linspace(-20, 20, 1_000_003, dtype=torch.float64, device="cuda")
    for name, dtype in DTYPES.items():
        some = x.to(dtype)
        z, ones = some.double(), torch.ones_like(some)
        absolute, relative = (2.5e-7, 3e-5) if dtype == torch.float32 else (2**-9 + 1e-5, 2**-8 + 1e-4)
        for pair in ((0.1, 220.0), (2.0, 11.0), (5.0, 4.4), (22.0,)):
            rounded = [torch.tensor(p, dtype=torch.float32).item() for p in pair]
            kernels = htaf if len(pair) == 2 else scaled_sigmoid
            u = rounded[-1] * (torch.tanh(rounded[0] * z) if len(pair) == 2 else z)
            e, f = torch.exp(-2 * rounded[0] * z.abs()), torch.exp(-u.abs())
            slope = rounded[0] * f / (1 + f) ** 2
            if len(pair) == 2:
                slope = slope * rounded[1] * 4 * e / (1 + e) ** 2
            normal = slope >= 2.0**-126
            far = (kernels.forward(some, *pair).double() - torch.sigmoid(u)).abs().max().item()
            off = ((kernels.backward(ones, some, *pair).double() - slope).abs() / slope)[normal].max().item()
            print(f"{name} {pair}: forward off by {far:.2g} (<= {absolute:.2g}), gradient by {off:.2g} of it")
            if far > absolute or off > relative:
                sys.exit("the kernels are wrong: nothing is timed")


def timed(operation: Callable[[], object], flush: Tensor) -> Callable[[], measuring.Sample]:
    """Seconds on the device, from caches that hold something else."""

    def sample() -> measuring.Sample:
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        operation()
        end.record()
        end.synchronize()
        return (start.elapsed_time(end) / 1e3,)

    return sample


def measure(size: int, dtype: str, rounds: int) -> list[dict]:
    x = torch.randn(size, device="cuda", dtype=DTYPES[dtype])
    grad = torch.randn(size, device="cuda", dtype=DTYPES[dtype])
    source, target = (torch.empty(5 * size * x.element_size() // 2, dtype=torch.uint8, device="cuda") for _ in "ab")
    flush = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
    rows = []
    for name, (operation, bytes_each) in operations(x, grad).items():
        moved = int(bytes_each * size)
        half = moved // 2 // 16 * 16  # a copy reads and writes
        copy = timed(lambda half=half: target[:half].copy_(source[:half]), flush)
        times = measuring.alternate({"copy": copy, "kernel": timed(operation, flush)}, rounds)
        share = measuring.ratio(times["copy"], times["kernel"])
        seconds = measuring.spread(t[0] for t in times["kernel"])
        copied = measuring.spread(t[0] for t in times["copy"])
        rows.append(
            {
                "operation": name, "size": size, "dtype": dtype, "rounds": rounds, "bytes": moved,
                "seconds": seconds._asdict(), "copy_seconds": copied._asdict(), "share_of_copy": share._asdict(),
            }
        )  # fmt: skip
    return rows


def show(rows: list[dict]) -> None:
    cells = []
    for row in rows:
        seconds, copied = row["seconds"]["median"], row["copy_seconds"]["median"]
        speeds = (f"{row['bytes'] / t / 1e9:.0f}" for t in (seconds, copied))
        share = str(measuring.Spread(**row["share_of_copy"]))
        cells.append((row["operation"], f"{row['size']:,}", row["dtype"], f"{1e3 * seconds:.3f}", *speeds, share))
    columns = ("operation", "values", "dtype", "ms", "GB/s", "copy GB/s", "share")
    title = "Bandwidth as a share of a copy of the same bytes: median (quartiles)"
    measuring.show(title, columns, cells, ["operation", "dtype"])
    print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")


def main() -> None:
    parser = measuring.parser(__doc__, rounds=30, sizes=(2**26, 2**28))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA GPU: nothing to time")
        return
    if any(size % (CHANNELS * 256) for size in arguments.sizes):
        parser.error(f"--sizes must be multiples of {CHANNELS * 256}")
    if not arguments.no_test:
        check()
    rows = []
    for size in arguments.sizes:
        for dtype in DTYPES:
            rows += measure(size, dtype, arguments.rounds)
            torch.cuda.empty_cache()
    show(rows)
    measuring.end(arguments, rows)


if __name__ == "__main__":
    main()
