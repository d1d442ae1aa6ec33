"""Reads the cells of `htaf_paper.theory`: tables, figures and claims."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from htaf.training.runs.metrics import LOWER_IS_BETTER
from htaf_paper import networks
from htaf_paper.protocol import Claim, Drawing, Outcome, Panel, Scale, Series, Table
from htaf_paper.verdicts import no_worse, true

Record = dict[str, Any]
KINDS = ("square", "product", "relu", "gap", "activation")
METHODS = {
    "relu": "ReLU",
    "tanh": "tanh",
    "htaf-1-4": "HTAF (1, 4)",
    "htaf-2-11": "HTAF (2, 11)",
    "htaf-learned": "HTAF, learned from (1, 4)",
}


def outcome(records: Sequence[Record], scale: Scale) -> Outcome:
    """Tables, figures and claims from the records of `htaf_paper.theory`."""
    found: dict[str, list[Record]] = {kind: [] for kind in KINDS}
    for record in records:
        found[record["cell"]["kind"]].append(record)
    for own in found.values():
        own.sort(key=lambda r: [str(r["cell"].get(k)) for k in ("table", "task", "form")] + [r["cell"].get("alpha0")])
    figures = {
        "square": [square_row(r) for r in found["square"]],
        "product": [product_row(r) for r in found["product"]],
        "relu": [row | _named(r, "alpha0", "alpha1") for r in found["relu"] for row in r["rows"]],
        "steps": [{"neurons": n, **step_row(n)} for n in (1, 4, 9, 49, 499)],
        "gap": [gap_row(r) for r in found["gap"]],
        "activation": activation_rows(found["activation"]),
    }
    return Outcome(
        tuple(_tables(figures, found)),
        tuple(_drawings(found, figures)),
        tuple(_claims(figures, scale)),
        ERRATA,
        DEVIATIONS,
    )


ERRATA = (
    "Appendix B: the sum of the squaring network has the wrong sign, it gives -x^2; its error is of order 1/m, that "
    "of a central difference with two neurons of order 1/m^2.",
    "Appendix C: the bound n1 ||W1|| (1 + C) eps grows with the width; it is far from the measured gap (see the "
    "table).",
)
DEVIATIONS = (
    "The paper prints no figures for these results; all that is measured here is ours.",
    "Minimax rates (Theorem B.3) are statements about n to infinity and are not measured.",
)


def _claims(figures: dict[str, Any], scale: Scale) -> list[Claim]:
    claims = [
        *_squares_claim([row for row in figures["square"] if row["form"] == "paper"], scale),
        *_copies_claim(figures["relu"], scale),
        *_gap_claim([row for row in figures["gap"] if row["depth"] == 1], scale),
    ]
    for task in ("wine", "digits"):
        rows = [row for row in figures["activation"] if row["task"] == task and row["method"].startswith("htaf")]
        claims += _activation_claim(task, [row for row in rows if row["less_relu"]], scale)
    return claims


def _squares_claim(rows: Sequence[Record], scale: Scale) -> list[Claim]:
    if not rows:
        return []
    return [
        true(
            "Three neurons square with an error of order 1/M that does not depend on the pair", "Theorem B.2",
            all(row["ratio"][1] >= 1 for row in rows),
            "with the sign mended the error is below the bound of order 1/M at every M from 1 to 1e7 for "
            f"{len(rows)} pairs; bound over error {min(r['ratio'][1] for r in rows):.3g} to "
            f"{max(r['ratio'][0] for r in rows):.3g}", scale=scale,
        )
    ]  # fmt: skip


def _copies_claim(rows: Sequence[Record], scale: Scale) -> list[Claim]:
    judged = [row for row in rows if row["rounding"] <= row["eps"] / 10]
    if not judged:
        return []
    kept = [row["float64"] <= row["eps"] for row in judged]
    return [
        true(
            "Any ReLU network is copied within any eps by an HTAF network of twice the depth and three times the "
            "width", "Theorem B.1", all(kept),
            f"the measured error is below eps in {sum(kept)} of {len(kept)} copies of one network, eps from 1 to "
            f"{min(row['eps'] for row in judged):.0e}; in float64 smaller eps drown in rounding, as the weights grow "
            "like 1 / eps",
            rule="holds if the error is below eps wherever float64 rounds by less than a tenth of eps", scale=scale,
        )
    ]  # fmt: skip


def _gap_claim(rows: Sequence[Record], scale: Scale) -> list[Claim]:
    if not rows:
        return []
    inside = [row["measured"] <= row["paper"] for row in rows]
    times = sorted(row["times"]["paper"] for row in rows)
    return [
        true(
            "The mean gap of a one-hidden-layer network is at most n1 ||W1|| (1 + C) eps", "Theorem C.1", all(inside),
            f"below the bound in {sum(inside)} of {len(inside)} networks; the bound is {times[0]:.0f} to "
            f"{times[-1]:.0f} times the gap", scale=scale,
        )
    ]  # fmt: skip


def _activation_claim(task: str, rows: Sequence[Record], scale: Scale) -> list[Claim]:
    """rows: of HTAF's pairs. The pair that is best on validation is judged: test rows choose nothing."""
    if not rows:
        return []
    sign = -1.0 if rows[0]["metric"] in LOWER_IS_BETTER else 1.0
    best = max(rows, key=lambda row: sign * row["validation"])
    margin, digits, unit, factor = (0.01, 3, "", 1.0) if task == "wine" else (0.5, 2, " points", 100.0)
    return [
        no_worse(
            f"Smooth HTAF can replace ReLU as a general activation ({task})", "section 3.2",
            [sign * factor * value for value in best["paired"]], scale, margin=margin, digits=digits, unit=unit,
            what=f"{METHODS[best['method']]}, the best on validation, better than ReLU by",
        )
    ]  # fmt: skip


def _drawings(found: dict[str, list[Record]], figures: dict[str, Any]) -> list[Drawing]:
    drawings = []
    square = [r for r in found["square"] if (r["cell"]["alpha0"], r["cell"]["alpha1"]) == (2.0, 11.0)]
    if square:
        panels = tuple(
            Panel(
                f"{r['cell']['form']} form, (2, 11)", "M", "largest error over [0, 1]",
                tuple(
                    Series(name, tuple(row["m"] for row in r["rows"]), tuple(max(row[key], 1e-18) for row in r["rows"]))
                    for name, key in (
                        ("bound", "bound"), ("60 digits", "exact"), ("float64", "float64"), ("float32", "float32")
                    )
                ),
                x_log=True, y_log=True,
            )
            for r in square
        )  # fmt: skip
        about = "Error of the squaring network by M: its bound and exact error fall, float64 and float32 rise again."
        drawings.append(Drawing("squares", "The squaring network", about, panels, columns=2))
    if figures["gap"]:
        one = [row for row in figures["gap"] if row["depth"] == 1]
        tables = sorted({row["table"] for row in one})
        panels = tuple(
            Panel(
                table, "pair", "mean |exact - smooth|",
                tuple(
                    Series(
                        name, tuple(float(i) for i in range(len(own))), tuple(max(row[key], 1e-12) for row in own),
                        "points",
                    )
                    for name, key in (
                        ("measured", "measured"), ("triangle", "triangle"), ("by neuron", "by_neuron"),
                        ("paper", "paper"),
                    )
                ),
                y_log=True, ticks=tuple(_pair(row) for row in own),
            )
            for table in tables
            for own in [[row for row in one if row["table"] == table]]
        )  # fmt: skip
        about = "The gap between smooth and exact outputs and its bounds, by pair, one hidden layer."
        drawings.append(Drawing("gap-bounds", "Bounds of the gap", about, panels, columns=2))
    return drawings


def square_row(record: Record) -> Record:
    """Of one pair and form: bound and exact error at m = 100, how tight, and the best m of both float types."""
    rows = record["rows"]
    at = min(rows, key=lambda row: abs(row["m"] - 100))
    found = _named(record, "alpha0", "alpha1", "form") | {"bound": at["bound"], "exact": at["exact"]}
    found["ratio"] = [
        max(row["bound"] / row["exact"] for row in rows),
        min(row["bound"] / row["exact"] for row in rows),
    ]
    for dtype in ("float64", "float32"):
        best = min(rows, key=lambda row: row[dtype])
        found[dtype] = {"best_m": best["m"], "error": best[dtype], "predicted_m": record["best_m"][dtype]}
    return found


def product_row(record: Record) -> Record:
    """Of one pair: bound and error in float64 at m = 100, and the least errors of both float types."""
    rows = record["rows"]
    at = min(rows, key=lambda row: abs(row["m"] - 100))
    found = _named(record, "alpha0", "alpha1") | {"bound": at["bound"], "measured": at["float64"]}
    for dtype in ("float64", "float32"):
        best = min(rows, key=lambda row: row[dtype])
        found[dtype] = {"best_m": best["m"], "error": best[dtype]}
    return found


def step_row(neurons: int) -> Record:
    """The least error of n exact steps for f(x) = x, and that of `networks.step_network` on 10,001 points."""
    thresholds, outer, offset = networks.step_network(neurons)
    points = [j / 10_000 for j in range(10_001)]
    error = max(abs(offset + outer * sum(x >= t for t in thresholds) - x) for x in points)
    return {"bound": networks.step_network_error(neurons), "measured": error}


def gap_row(record: Record) -> Record:
    """Of one network: its bounds and how many times the measured gap each is."""
    cell, bounds = record["cell"], record["bounds"]
    found = _named(record, "table", "alpha0", "alpha1") | {"depth": len(cell["hidden"]), **bounds}
    names = [name for name, value in bounds.items() if value is not None and name != "measured"]
    found["times"] = {name: bounds[name] / bounds["measured"] if bounds["measured"] else math.inf for name in names}
    last = record["layers"][-1]
    return found | {key: last[key] for key in ("eps", "density", "flipped", "undecided")}


def activation_rows(records: Sequence[Record]) -> list[Record]:
    """By task and method: test metric of the rate that the validation part chose, seed by seed, and less ReLU's."""
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        cell = record["cell"]
        groups.setdefault((cell["task"], cell["method"], cell["seed"]), []).append(record)
    chosen: dict[tuple[str, str], dict[int, Record]] = {}
    for (task, method, seed), own in groups.items():
        sign = 1 if own[0]["metric"] in LOWER_IS_BETTER else -1
        best = min(own, key=lambda r: (sign * r["validation"], r["cell"]["lr"]))
        chosen.setdefault((task, method), {})[seed] = best
    rows = []
    for (task, method), by_seed in chosen.items():
        tests = {seed: record["test"] for seed, record in by_seed.items()}
        relu = {seed: record["test"] for seed, record in chosen.get((task, "relu"), {}).items()}
        paired = [tests[seed] - relu[seed] for seed in tests if seed in relu]
        first = next(iter(by_seed.values()))
        row = {"task": task, "method": method, "metric": first["metric"], "seeds": len(tests)}
        row["validation"] = statistics.fmean(record["validation"] for record in by_seed.values())
        row |= {"test": _mean(tests.values()), "less_relu": _mean(paired) if method != "relu" and paired else None}
        row["paired"] = paired
        row["rates"] = {f"{k:g}": n for k, n in sorted(Counter(r["cell"]["lr"] for r in by_seed.values()).items())}
        if learned := [r["learned"] for r in by_seed.values() if "learned" in r]:
            row["learned"] = [[v for own in learned for v in own[i]] for i in range(2)]
            row["learned"] = [[min(values), max(values)] for values in row["learned"]]
        rows.append(row)
    order = list(METHODS)
    return sorted(rows, key=lambda row: (row["task"], order.index(row["method"])))


def _mean(values: Iterable[float]) -> list[float | None]:
    """Mean and its standard error, None of one value."""
    values = list(values)
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return [statistics.fmean(values), error]


def _named(record: Record, *keys: str) -> Record:
    return {key: record["cell"][key] for key in keys}


def _tables(figures: dict[str, Any], found: dict[str, list[Record]]) -> list[Table]:
    one, deep = ([row for row in figures["gap"] if (row["depth"] > 1) == several] for several in (False, True))
    parts: tuple[tuple[list[Record], Callable[[list[Record]], Table]], ...] = (
        (figures["square"], _squares_table),
        (figures["product"], _products_table),
        (figures["relu"], lambda copies: _copies_table(copies, found["relu"])),
        (figures["steps"], _steps_table),
        (one, _gap_table),
        (deep, _deep_gap_table),
        (figures["activation"], _activation_table),
    )
    return [table(rows) for rows, table in parts if rows]


def _squares_table(found: Sequence[Record]) -> Table:
    rows = []
    for row in found:
        ends = [
            f"{row[d]['best_m']:.1e} ({row[d]['predicted_m']:.1e}), {row[d]['error']:.1e}"
            for d in ("float64", "float32")
        ]
        ratio = f"{row['ratio'][1]:.3g} to {row['ratio'][0]:.3g}"
        rows.append((row["form"], _pair(row), f"{row['bound']:.2e}", f"{row['exact']:.2e}", ratio, *ends))
    return Table(
        "The squaring network: largest error over [0, 1]",
        ("form", "pair", "bound, M = 100", "exact", "bound / exact", "float64: best M, error", "float32: the same"),
        tuple(rows),
        "Bound: `htaf_paper.networks.square_network`; exact: in 60 digits. Best M: of the grid (in brackets as "
        "`best_m` says), and the least error there.",
    )


def _products_table(found: Sequence[Record]) -> Table:
    rows = [
        (_pair(row), f"{row['bound']:.2e}", f"{row['measured']:.2e}",
         *(f"{row[d]['best_m']:.1e}, {row[d]['error']:.1e}" for d in ("float64", "float32")))
        for row in found
    ]  # fmt: skip
    columns = ("pair", "bound, M = 100", "float64, M = 100", "float64: best M, error", "float32: best M, error")
    return Table("The product network: largest error over [-1, 1]^2, three neurons", columns, tuple(rows))


def _copies_table(copies: Sequence[Record], found: Sequence[Record]) -> Table:
    cell = found[0]["cell"]
    rows = [
        (_pair(row), *(f"{row[key]:.1e}" for key in ("eps", "bound", "float64", "float32", "largest")))
        for row in copies
    ]
    return Table(
        "A ReLU network copied by an HTAF network",
        ("pair", "eps", "bound", "float64", "float32", "largest weight"),
        tuple(rows),
        f"{cell['table'].capitalize()}, hidden layers {'-'.join(map(str, cell['hidden']))}; the copy has "
        "twice as many, of up to three times the width. Errors in standard deviations of the target, the "
        "largest over test rows and 5,000 uniform ones.",
    )


def _steps_table(found: Sequence[Record]) -> Table:
    rows = [(str(r["neurons"]), f"{r['bound']:.4g}", f"{r['measured']:.4g}") for r in found]
    return Table(
        "Exact steps: f(x) = x on [0, 1]",
        ("n", "least error", "`step_network`, measured"),
        tuple(rows),
        "The least error of a network with n exact steps in its first layer is 1 / (2 (n + 1)).",
    )


def _gap_table(found: Sequence[Record]) -> Table:
    rows = [
        (row["table"], _pair(row), f"{row['eps']:.3f}", f"{row['density']:.2f}", f"{row['measured']:.4f}",
         *(_bound(row, name) for name in ("triangle", "by_neuron", "paper")))
        for row in found
    ]  # fmt: skip
    return Table(
        "The gap, one hidden layer",
        ("table", "pair", "eps", "C", "gap", "triangle", "by neuron", "paper"),
        tuple(rows),
        "Mean |exact - smooth output| over test rows and outputs (standardised target, logits). In brackets: "
        "times the gap. Bounds as in `htaf_paper.gap_bound.GapBound`; eps and C of the paper's condition, "
        "measured. " + _median(found, ("triangle", "by_neuron", "paper")),
    )


def _deep_gap_table(found: Sequence[Record]) -> Table:
    rows = [
        (row["table"], _pair(row), f"{row['measured']:.4f}", _bound(row, "triangle"), _bound(row, "certified"),
         f"{row['flipped']:.4f}", f"{row['undecided']:.4f}")
        for row in found
    ]  # fmt: skip
    return Table(
        "The gap, two hidden layers",
        ("table", "pair", "gap", "triangle", "certified", "flipped", "undecided"),
        tuple(rows),
        "Flipped: share of second-layer bits that differ; undecided: that `certified` cannot exclude to "
        "differ. " + _median(found, ("triangle", "certified")),
    )


def _activation_table(found: Sequence[Record]) -> Table:
    rows = []
    for row in found:
        scale, digits = (100, 2) if row["metric"] in ("accuracy", "auroc") else (1, 4)
        rates = ", ".join(f"{rate}: {n}" for rate, n in row["rates"].items())
        values = [_with_error(row[key], scale, digits) for key in ("test", "less_relu")]
        rows.append((row["task"], METHODS[row["method"]], *values, rates))
    learned = [
        f"Learned on {row['task']}: "
        + "; ".join(f"{k} {a:.2f} to {b:.2f}" for k, (a, b) in zip(("alpha0", "alpha1"), row["learned"], strict=True))
        for row in found
        if row.get("learned")
    ]
    return Table(
        "HTAF as a general activation",
        ("task", "activation", "test", "less ReLU", "rates chosen"),
        tuple(rows),
        "Smooth networks, never hardened. Wine: 64-64 and batch norm, RMSE; digits: two convolutions and batch "
        "norm, accuracy in %. The learning rate is chosen for each seed by the validation part, from the same "
        "three for all. Mean (standard error) over the seeds; less ReLU: paired by seed. " + ". ".join(learned),
    )


def _median(rows: Sequence[Record], names: Sequence[str]) -> str:
    shown = [
        f"{name.replace('_', ' ')} {statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})"
        for name in names
        for times in [[row["times"][name] for row in rows]]
    ]
    return f"Times the gap, median (least to largest): {', '.join(shown)}."


def _bound(row: Record, name: str) -> str:
    return f"{row[name]:.4f} ({row['times'][name]:.1f})"


def _with_error(value: Sequence[float | None] | None, scale: float, digits: int) -> str:
    if value is None or value[0] is None:
        return "-"
    error = "" if value[1] is None else f" ({scale * value[1]:.{digits}f})"
    return f"{scale * value[0]:.{digits}f}{error}"


def _pair(row: Record) -> str:
    return f"({row['alpha0']:g}, {row['alpha1']:g})"
