"""Reads the cells of `htaf_paper.vanishing`: tables, figures and claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from htaf_paper.protocol import Claim, Drawing, Outcome, Panel, Scale, Series, Table, Verdict
from htaf_paper.verdicts import untestable

Record = dict[str, Any]
THRESHOLD = 1e-5
PRINTED = ("ReLU", "HTAF (3, 7.3)", "SS 22")
METHODS = (*PRINTED, "HTAF tuned", "SS tuned")
PAIRS = ("HTAF (2, 11)", "HTAF (8, 2.75)", "HTAF (11, 2)", "SS 22", "ReLU")
FIGURE_SHAPE = (256, 256, 128)
# The paper's table: whether the gradient vanishes, ReLU, HTAF (3, 7.3), SS 22
PAPER = {
    (256, 256, 128): (False, False, True),
    (512, 512, 256): (False, False, True),
    (1024, 1024, 512): (False, False, True),
    (256, 256, 256, 128): (False, False, True),
    (512, 512, 512, 256): (False, False, True),
    (1024, 1024, 1024, 512): (False, False, True),
    (256, 256, 256, 256, 256): (False, True, True),
}
# The paper's text on its figure of 256-256-128, in the order of PAIRS
PAPER_PAIRS = (False, True, True, True, False)


Group = dict[tuple[tuple[int, ...], str], list[Record]]
Groups = dict[float, Group]

NOTE = (
    "First layer, median over the last 10% of the epochs of the L2 norm of dL/d(pre-activation) over the batch matrix "
    "(in brackets: of the per-sample norm); with several seeds from least to largest. Vanishes: below 1e-5 in every "
    "seed, or in k of n. In square brackets the paper's verdict; it does not print its learning rate. Tuned: "
    "`tune` with the learning rate, then sharpened; it makes the pre-activations of a layer s times as large, "
    "which divides its norm by s."
)


def outcome(records: Sequence[Record], scale: Scale) -> Outcome:
    """Tables, figures and claims from the records of `htaf_paper.vanishing`."""
    groups = _groups(records)
    tables, drawings = [], []
    for rate, own in groups.items():
        shapes = sorted({hidden for hidden, _ in own}, key=lambda h: (len(h), h))
        shapes = [h for h in PAPER if h in shapes] + [h for h in shapes if h not in PAPER]
        methods = [m for m in METHODS if any((h, m) in own for h in shapes)]
        rows = tuple((_shape(h), *(_entry(own.get((h, m), []), _printed(h, m)) for m in methods)) for h in shapes)
        tables.append(Table(f"First layer, learning rate {rate:g}", ("hidden layers", *methods), rows, NOTE))
        ends = tuple((_shape(h), *(_ended(own.get((h, m), [])) for m in methods)) for h in shapes)
        note = "Training loss of the last epoch (1: as good as the mean); RMSE of validation rows, smooth / exact."
        tables.append(Table(f"Training loss and RMSE, learning rate {rate:g}", ("hidden layers", *methods), ends, note))
        drawings.append(_shapes_drawing(rate, own, shapes, methods))
        if (drawn := _layers_drawing(rate, own)) is not None:
            drawings.append(drawn)
    return Outcome(tuple(tables), tuple(drawings), tuple(_claims(groups, scale)), deviations=DEVIATIONS)


DEVIATIONS = (
    "The paper prints neither its learning rate nor its number of epochs here: Adam, 200 epochs, learning rate 1e-3; "
    "shapes of at most 256 units also at 3e-3 and 1e-2.",
    "`tune` sets both numbers of the pair in every layer by its pre-activations, and sharpens them in the "
    "training; the paper lowers alpha0 at the same product.",
    "The norm is that of the gradient over the batch matrix, mean over the batches of an epoch; the per-sample norm is "
    "beside it, as the paper's wording allows both.",
)


RATES = "holds if {what} at every learning rate, does not hold if at none, else not settled: the paper prints no rate"


def _claims(groups: Groups, scale: Scale) -> list[Claim]:
    known = {rate: found for rate, own in groups.items() if (found := _beside_paper(own))}
    if scale == "smoke" or not known:
        return [untestable("Gradients vanish as Table 7 says", "Table 7", "shapes of the paper were not trained")]
    return [_of_table(known), _of_sigmoid(known), _of_figure(groups), _of_tuning(groups)]


def _beside_paper(own: Group) -> list[tuple[tuple[int, ...], str, bool, bool]]:
    """Networks of Table 7 that were trained: hidden sizes, label, whether the first seed's vanishes; the paper's."""
    return [
        (hidden, method, _vanishes(own, hidden, method), printed)
        for hidden, row in PAPER.items()
        for method, printed in zip(PRINTED, row, strict=True)
        if (hidden, method) in own
    ]


def _vanishes(own: Group, hidden: tuple[int, ...], method: str) -> bool:
    """Of the first seed."""
    return bool(verdict(own[hidden, method][:1])[0])


def _by_rate(text: str, place: str, what: str, held: Sequence[bool], evidence: str) -> Claim:
    """A claim that was tested at several learning rates. held: whether it is so, at each."""
    said: Verdict = "holds" if all(held) else "not settled" if any(held) else "does not hold"
    return Claim(text, place, RATES.format(what=what), said, evidence)


def _of_table(known: Mapping[float, list[tuple[tuple[int, ...], str, bool, bool]]]) -> Claim:
    same = {rate: [ours == printed for *_, ours, printed in rows] for rate, rows in known.items()}
    counts = ", ".join(f"{sum(v)} of {len(v)} networks at rate {rate:g}" for rate, v in same.items())
    first, rows = next(iter(known.items()))
    differ = ", ".join(f"{_shape(h)} {m}: {_said(ours)}, paper {_said(p)}" for h, m, ours, p in rows if ours != p)
    return _by_rate(
        "Gradients vanish as Table 7 says", "Table 7", "the first seed's verdict is the paper's in every network",
        [all(v) for v in same.values()],
        f"the same verdict in {counts}" + (f"; at {first:g} others are {differ}" if differ else ""),
    )  # fmt: skip


def _of_sigmoid(known: Mapping[float, list[tuple[tuple[int, ...], str, bool, bool]]]) -> Claim:
    found = {
        rate: own for rate, rows in known.items() if (own := [ours for _, method, ours, _ in rows if method == "SS 22"])
    }
    return _by_rate(
        "With the scaled sigmoid the gradient always vanishes", "appendix F.2.2", "it vanishes in every shape",
        [all(v) for v in found.values()],
        "it does in " + ", ".join(f"{sum(v)} of {len(v)} shapes at rate {rate:g}" for rate, v in found.items()),
    )  # fmt: skip


def _of_figure(groups: Groups) -> Claim:
    pairs = {
        rate: [_vanishes(own, FIGURE_SHAPE, m) for m in PAIRS]
        for rate, own in groups.items()
        if all((FIGURE_SHAPE, m) in own for m in PAIRS)
    }
    text = (
        "On 256-256-128 the gradient vanishes for (8, 2.75), (11, 2) and the scaled sigmoid, not for (2, 11) and ReLU"
    )
    names = {
        rate: ", ".join(m for m, v in zip(PAIRS, values, strict=True) if v) or "none" for rate, values in pairs.items()
    }
    if not pairs:
        return Claim(text, "Figure 7", RATES.format(what="all five verdicts are the paper's"), "not run", "no network")
    return _by_rate(
        text, "Figure 7", "all five verdicts are the paper's", [tuple(v) == PAPER_PAIRS for v in pairs.values()],
        "it vanishes for " + "; ".join(f"{shown} at rate {rate:g}" for rate, shown in names.items()),
    )  # fmt: skip


def _of_tuning(groups: Groups) -> Claim:
    """The paper lowers alpha0 and keeps the product; `tune` may do more, so it can refute, not confirm."""
    text = "With five hidden layers, tuning the pair does not fully resolve vanishing gradients"
    rule = (
        "does not hold if at no learning rate the gradient vanishes in a network that `tune` prepared; else not "
        "settled: the paper's own tuning, a smaller alpha0 at the same product, was not run"
    )
    deep = {
        rate: {method: verdict(records)[0] for (hidden, method), records in own.items() if len(hidden) == 5}
        for rate, own in groups.items()
    }
    deep = {rate: counts for rate, counts in deep.items() if "HTAF tuned" in counts}
    if not deep:
        return Claim(text, "appendix F.2.2", rule, "not run", "no network of five hidden layers was tuned")
    said: Verdict = "not settled" if any(counts["HTAF tuned"] for counts in deep.values()) else "does not hold"
    shown = [
        f"at rate {rate:g} HTAF (3, 7.3) {_said(bool(counts.get('HTAF (3, 7.3)')))}, tuned it "
        f"{_said(bool(counts['HTAF tuned']))}"
        for rate, counts in deep.items()
    ]
    return Claim(text, "appendix F.2.2", rule, said, "; ".join(shown))


def _said(vanishing: bool) -> str:
    return "vanishes" if vanishing else "does not"


def _printed(hidden: tuple[int, ...], method: str) -> bool | None:
    if hidden not in PAPER or method not in PRINTED:
        return None
    return PAPER[hidden][PRINTED.index(method)]


def _groups(records: Sequence[Record]) -> Groups:
    """Learning rate -> (hidden sizes, label of the activation) -> records, by seed."""
    found: Groups = {}
    for record in records:
        cell = record["cell"]
        key = (tuple(cell["hidden"]), label(cell["activation"], cell.get("tuned", False)))
        found.setdefault(cell["lr"], {}).setdefault(key, []).append(record)
    return {
        rate: {key: sorted(own, key=lambda r: r["cell"]["seed"]) for key, own in found[rate].items()}
        for rate in sorted(found)
    }


def label(activation: Record, tuned: bool) -> str:
    """Of an activation, in tables."""
    match activation:
        case {"method": method} if tuned:
            return f"{method.upper()} tuned"
        case {"method": "htaf", "alpha0": alpha0, "alpha1": alpha1}:
            return f"HTAF ({alpha0:g}, {alpha1:g})"
        case {"method": "ss", "beta": beta}:
            return f"SS {beta:g}"
    return "ReLU"


def verdict(records: list[Record], measure: str = "norm") -> tuple[int, float, float]:
    """Of the first layer: seeds in which the gradient vanishes; least and largest median of the last epochs."""
    curves = [record[measure][0] for record in records]
    medians = [last_median(curve) for curve in curves]
    return sum(median < THRESHOLD for median in medians), min(medians), max(medians)


def last_median(norms: Sequence[float]) -> float:
    """The median over the last tenth of the epochs, at least one."""
    return statistics.median(norms[-max(1, math.ceil(len(norms) / 10 - 1e-9)) :])


def _entry(records: list[Record], paper: bool | None) -> str:
    if not records:
        return "-"
    number, low, high = verdict(records)
    _, low_sample, high_sample = verdict(records, "per_sample")
    of = "vanishes" if number == len(records) else "no" if not number else f"{number} of {len(records)} vanish"
    printed = "" if paper is None else f" [{'vanishes' if paper else 'no'}]"
    return f"{_range(low, high)} ({_range(low_sample, high_sample)}): {of}{printed}"


def _ended(records: list[Record]) -> str:
    if not records:
        return "-"
    return f"{_range(*_ends([r['train_loss'][-1] for r in records]), '.3f')}; RMSE {_rmse(records)}"


def _rmse(records: list[Record]) -> str:
    parts = [[r["validation_rmse"][which] for r in records] for which in ("smooth", "exact")]
    return " / ".join("-" if values[0] is None else _range(*_ends(values), ".2f") for values in parts)


def _ends(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def _range(low: float, high: float, form: str = ".1e") -> str:
    a, b = f"{low:{form}}", f"{high:{form}}"
    return a if a == b else f"{a} to {b}"


def _shape(hidden: tuple[int, ...]) -> str:
    return "-".join(map(str, hidden))


EVERY = 4  # of an epoch's points, one is drawn


def _curve(name: str, values: Sequence[float]) -> Series:
    """A norm by epoch; zeros, which have no logarithm, are left out."""
    kept = [(float(i), v) for i, v in enumerate(values) if v > 0 and (i % EVERY == 0 or len(values) < 20)]
    return Series(name, tuple(i for i, _ in kept), tuple(v for _, v in kept))


def _shapes_drawing(rate: float, own: Group, shapes: Sequence[tuple[int, ...]], methods: Sequence[str]) -> Drawing:
    """The first layer's norm by epoch, a panel a shape."""
    panels = tuple(
        Panel(
            _shape(hidden), "epoch", "norm of the first layer",
            tuple(_curve(m, own[hidden, m][0]["norm"][0]) for m in methods if (hidden, m) in own),
            y_log=True, hline=THRESHOLD,
        )
        for hidden in shapes
    )  # fmt: skip
    about = f"Norm of the first layer's gradient by epoch, learning rate {rate:g}; the line is the threshold 1e-5."
    return Drawing(f"vanishing-shapes-{_plain(rate)}", f"Layer 1, learning rate {rate:g}", about, panels, columns=4)


def _layers_drawing(rate: float, own: Group) -> Drawing | None:
    """Norms of every layer, and the training loss, of one shape."""
    panels = []
    for method in PAIRS:
        if (FIGURE_SHAPE, method) in own:
            record = own[FIGURE_SHAPE, method][0]
            series = tuple(_curve(f"layer {j + 1}", curve) for j, curve in enumerate(record["norm"]))
            panels.append(Panel(method, "epoch", "norm of dL/d(pre-activation)", series, y_log=True, hline=THRESHOLD))
    if not panels:
        return None
    losses = tuple(_curve(m, own[FIGURE_SHAPE, m][0]["train_loss"]) for m in PAIRS if (FIGURE_SHAPE, m) in own)
    panels.append(Panel("training loss", "epoch", "mean squared error", losses))
    about = (
        f"{_shape(FIGURE_SHAPE)}, learning rate {rate:g}: the gradient's norm in each layer, then the training loss."
    )
    return Drawing(
        f"vanishing-layers-{_plain(rate)}",
        f"Layers of {_shape(FIGURE_SHAPE)}, learning rate {rate:g}",
        about,
        tuple(panels),
    )


def _plain(rate: float) -> str:
    """A learning rate in the name of a file: 0.003 is 3e-3."""
    return f"{rate:.0e}".replace("e-0", "e-")
