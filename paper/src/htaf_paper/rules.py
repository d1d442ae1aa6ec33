"""Do short rules say what bits do? `htaf paper run rules --scale full --out DIR`.

For each table and network: train, then describe each bit of the last hidden layer by a tree of depth 1 to 3 over the
original columns, and measure on test rows how often tree and bit agree (`htaf.rules`). Three networks: the default of
`htaf train tabular`, whose last layer is its third; one hidden layer of 32 bits; and, on four sets, recipe
`tabular-members`, eight networks of 256 bits on a thermometer, of whose bits those 256 are described that do most.

Planted: a made table of eight columns whose target is a known rule of two of them (5% of the labels are turned), with a
network of 16 bits. Precision is the share of the columns in the rules, weighted by the effect of their bits, that are
the planted two.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from htaf.data import tabular
from htaf.tables import rules
from htaf.tables.rules import Explanation
from htaf.training.families.mlp import tabular_exact, tabular_members
from htaf.training.fit import fit
from htaf.training.recipe import Recipe
from htaf.training.runs import Run
from htaf_paper.computing import Place
from htaf_paper.experiments import Experiment
from htaf_paper.many_tables import NAMED, loaded
from htaf_paper.more_tables import TABLES
from htaf_paper.protocol import Outcome, Scale, Setting, Table

SETS = (*NAMED, "diamonds", "ames", "credit", "email", "hpc", "chile")
NETWORKS: dict[str, Recipe] = {
    "256-256-128": tabular_exact(),
    "32": tabular_exact().replace(hidden=(32,)),
    "members": tabular_members(),
}
TITLES = {"256-256-128": "Hidden layers 256-256-128", "32": "One hidden layer of 32 bits", "members": "Eight members"}
OF_MEMBERS = ("wine", "churn", "bikeshare", "weather")  # sets of the members, which take long to train
EVERY = tuple(dict.fromkeys((*SETS, *OF_MEMBERS)))
MOST = 256  # bits of a network that are described
SEEDS = (0, 1, 2)  # of the planted table
ROWS, TURNED = 3000, 0.05
PLANTED = ("income", "region")
Record = dict[str, Any]


def trained(name: str, network: str, out: Path, data_dir: str | None) -> Run:
    """A run of a set, split 0."""
    target = next((member.target for member in TABLES if member.name == name), None)
    place = name if target is None else f"extra/{name}.csv"
    source = {"name": place, "target": target, "task": None, "data_dir": data_dir}
    return fit(NETWORKS[network], loaded(name, data_dir), out, seed=0, source=source)


def cell(name: str, network: str, run: Run) -> Record:
    """The fidelity of the rules of a run, of the 256 bits that do most."""
    start = time.process_time()
    found = rules.explain(run)
    known = found.rules(MOST)
    about = [one.fidelity for one in known if one.fidelity is not None]
    balanced = np.array([one.balanced for one in about if one.balanced is not None])
    metrics, headline = run.record["metrics"], run.record["headline"]
    return {
        "set": name,
        "network": network,
        "task": run.record["data"]["task"],
        "metric": headline,
        "exact": metrics["exact"]["test"][headline],
        "test_rows": len(found.test),
        "columns": len(found.columns.names),
        "bits": len(found.bits),
        "dead": sum(map(len, found.dead.values())),
        "described": len(known),
        "share_10": found.share(10),
        "balanced": {str(q): float(np.quantile(balanced, q / 100)) for q in (10, 50, 90)},
        "strongest_10": float(np.mean([f.balanced for f in about[:10] if f.balanced is not None])),
        "faithful": float((balanced >= 0.9).mean()),
        "accuracy": float(np.mean([one.accuracy for one in about])),
        "majority": float(np.mean([one.majority for one in about])),
        "depth": float(np.mean([one.depth for one in known])),
        "cpu_seconds": time.process_time() - start,
        "rules": [one.to_json() for one in known[:10]],
    }


def planted_table(seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Eight columns with the target "bought", and what the planted rule says: income > 40 and region north or west."""
    rng = np.random.default_rng([seed, 7])
    frame = pd.DataFrame({"income": rng.gamma(4.0, 12.0, ROWS).round(1), "age": rng.integers(18, 90, ROWS)})
    frame["region"] = rng.choice(["north", "south", "east", "west"], ROWS)
    frame["plan"] = rng.choice(["basic", "plus", "pro"], ROWS)
    for name in ("visits", "balance", "score", "tenure"):
        frame[name] = rng.normal(100, 20, ROWS).round(2)
    says = ((frame["income"] > 40) & frame["region"].isin(["north", "west"])).to_numpy()
    frame["bought"] = np.where(says != (rng.random(ROWS) < TURNED), "yes", "no")
    return frame, says


def planted_cell(seed: int, folder: Path, *, hidden: tuple[int, ...] = (16,), epochs: int = 30) -> Record:
    """Train on a planted table; what of the rule is found."""
    frame, says = planted_table(seed)
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"planted-{seed}.csv"
    frame.to_csv(place, index=False)
    table = tabular.load(place, target="bought")
    source = {"name": str(place), "target": "bought", "task": None, "data_dir": None}
    recipe = tabular_exact().replace(hidden=hidden, epochs=epochs)
    run = fit(recipe, table, folder / f"planted-{seed}", seed=seed, source=source)
    return {"seed": seed, "exact": run.record["metrics"]["exact"]["test"]["accuracy"], **_found(run, says)}


def _found(run: Run, says: np.ndarray) -> Record:
    found: Explanation = rules.explain(run)
    known = found.rules()
    weight: dict[str, float] = {}
    bounds: list[float] = []
    for one in known:
        assert one.rule is not None
        for name in one.rule.columns:
            weight[name] = weight.get(name, 0.0) + one.effect
        conditions = [c for every in one.rule.alternatives for c in every if c.column == "income"]
        bounds += [b for c in conditions for b in (c.above, c.upto) if b is not None]
    truth = says[found.test.index]
    values = found.columns.read(found.test)
    agreement = []
    for one in known:
        assert one.rule is not None
        said = one.rule.predict(values, len(truth))
        agreement.append(max(float((said == truth).mean()), float((said != truth).mean())))
    best = int(np.argmax(agreement))
    order = rules.importance(run, repeats=5).columns.index.tolist()
    return {
        "precision": sum(weight.get(name, 0.0) for name in PLANTED) / sum(weight.values()),
        "important": sorted(order[:2]) == sorted(PLANTED),
        "nearest_bound": float(min(bounds, key=lambda b: abs(b - 40))) if bounds else None,
        "best_agreement": agreement[best],
        "constant": max(float(truth.mean()), 1 - float(truth.mean())),
        "best_rule": str(known[best].rule),
        "strongest_rule": str(known[0].rule),
        "bits": len(known),
        "faithful": float(np.mean([bool(one.fidelity and one.fidelity.faithful) for one in known])),
    }


def compute(settings: Record, place: Place) -> Record:
    """A network of a table, or a planted table."""
    if settings["part"] == "planted":
        found = planted_cell(settings["seed"], place.folder)
    else:
        name, network = settings["set"], settings["network"]
        found = cell(name, network, trained(name, network, place.folder, place.data_dir))
    return {"part": settings["part"], **found}


def fingerprint(settings: Mapping[str, Any], data_dir: str | None) -> str | None:
    """Of a table."""
    return None if settings["part"] == "planted" else loaded(settings["set"], data_dir).fingerprint


def outcome(records: Sequence[Record], _: Scale) -> Outcome:
    """A table of each network, and one of the planted rule."""
    cells = [each for each in records if each["part"] == "sets"]
    tables = [
        _table(network, [each for each in cells if each["network"] == network])
        for network in dict.fromkeys(each["network"] for each in cells)
    ]
    if planted := [each for each in records if each["part"] == "planted"]:
        tables.append(_planted_table(planted))
    return Outcome(tuple(tables), notes=ABOUT)


ABOUT = (
    "Split 0 of each set; recipe `tabular-exact` with its own layers and with one of 32 bits, and `tabular-members`. "
    "Each bit of the last hidden layer is described by a tree of depth 1 to 3 over the original columns; of 2,048 bits "
    "the 256 that do most.",
    "Balanced: balanced accuracy of tree against bit on test rows, 10%, 50% and 90% quantile over the bits that are "
    "not dead; 0.5 is guessing. Strongest 10: its mean over the ten bits that do most, in brackets their share of the "
    "effect of all. Faithful: share of the bits that change in the test rows with at least 0.9. Accuracy: mean over "
    "bits, in brackets that of always guessing the more frequent value.",
)


def _table(network: str, own: Sequence[Record]) -> Table:
    rows = []
    for one in own:
        share = f"{100 * one['share_10']:.{0 if one['share_10'] >= 0.1 else 1}f}%"
        rows.append(
            (
                one["set"], f"{one['metric']} {one['exact']:.3f}", f"{one['bits']} ({one['dead']})",
                " / ".join(f"{one['balanced'][q]:.2f}" for q in ("10", "50", "90")),
                f"{one['strongest_10']:.2f} ({share})", f"{100 * one['faithful']:.0f}%",
                f"{one['accuracy']:.2f} ({one['majority']:.2f})", f"{one['depth']:.1f}",
            )
        )  # fmt: skip
    median = np.median([each["balanced"]["50"] for each in own])
    mean = 100 * np.mean([each["faithful"] for each in own])
    columns = (
        "set", "exact", "bits (dead)", "balanced 10 / 50 / 90%", "strongest 10", "faithful", "accuracy", "depth"
    )  # fmt: skip
    note = f"Median over the sets: balanced {median:.2f}. Faithful, mean over the sets: {mean:.0f}%"
    return Table(TITLES[network], columns, tuple(rows), note)


def _planted_table(own: Sequence[Record]) -> Table:
    rows = [
        (
            str(one["seed"]), f"{one['exact']:.3f}", f"{one['precision']:.2f}",
            "the planted" if one["important"] else "others",
            f"{one['best_agreement']:.3f}" + (f" ({one['constant']:.3f})" if "constant" in one else ""),
            one["best_rule"],
        )
        for one in own
    ]  # fmt: skip
    note = (
        f"Target: income > 40 and region in {{north, west}}, {100 * TURNED:.0f}% of {ROWS:,} labels turned; six other "
        "columns; one layer of 16 bits. Precision: share of the columns in all rules, weighted by the effect of their "
        "bits, that are income or region. Agreement: of the rule that is nearest to the planted one, or to its "
        "opposite, on test rows, by which it is chosen; in brackets that of always saying the same"
    )
    columns = ("seed", "exact", "precision", "most important two", "agreement", "its rule")
    return Table("A planted rule", columns, tuple(rows), note)


def plan(scale: Scale) -> list[Record]:
    """Planted tables, then every network of its sets."""
    planted: list[Record] = [{"part": "planted", "seed": seed} for seed in (SEEDS[:1] if scale == "smoke" else SEEDS)]
    if scale == "smoke":
        return planted
    return planted + [
        {"part": "sets", "set": name, "network": network}
        for network in NETWORKS
        for name in EVERY
        if name in (OF_MEMBERS if network == "members" else SETS)
    ]


STUDY = Experiment(
    "rules",
    "Do short rules say what bits do?",
    {
        "smoke": Setting("one planted table", 6.0),
        "full": Setting("three networks on up to ten tables, three planted ones", 1500.0, data=EVERY),
    },
    plan,
    compute,
    outcome,
    fingerprint,
)
