"""Ways to read a column with many categories, compared on validation rows.

python benchmarks/many_categories.py --out compared.csv        # three sets, two splits, about 10 minutes

The target's mean alone; one input for each frequent category and one for all others; both; with the number of rows of
the category. RMSE of the exact network of `--recipe`, and of scikit-learn's histogram boosting on the same inputs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

from htaf.data import tabular
from htaf.data.preprocess import Column, Preprocessor, category_values
from htaf.training.families.mlp import FAMILY
from htaf.training.fit import fit

SETS = {"restaurants": "inspection_score", "ames": "Sale_Price", "hotel": "avg_price_per_room"}
Way = Callable[[Column, pd.Series], Column]


@dataclass(frozen=True)
class Changed(tabular.Table):
    """A table whose encoded columns are read in another way."""

    way: Way = lambda column, _: column

    def fit_preprocessor(self, rows: np.ndarray) -> Preprocessor:
        made = super().fit_preprocessor(rows)
        columns = [
            self.way(column, self.features[column.name].iloc[rows]) if column.kind == "encoded" else column
            for column in made.columns
        ]
        return Preprocessor(columns, made.target, made.special_codes, made.notes, made.ids)


def counts(column: Column, raw: pd.Series) -> pd.Series:
    """Training rows by category."""
    return pd.Series(category_values(raw)).value_counts().reindex(column.categories, fill_value=0)


def mean_alone(column: Column, raw: pd.Series) -> Column:
    k = 1
    return replace(
        column, outputs=column.outputs[:k], values=tuple(row[:k] for row in column.values),
        otherwise=column.otherwise[:k], lows=column.lows[:k], highs=column.highs[:k],
    )  # fmt: skip


def chosen(column: Column, raw: pd.Series, least: float, most: int) -> list[str]:
    found = counts(column, raw)
    found = found[found >= (least * len(raw) if least < 1 else least)].sort_values(ascending=False, kind="stable")
    return sorted(found.index[:most])


def frequent(least: float, most: int) -> Way:
    """One input for each frequent category, one for the others."""
    return lambda column, raw: Column(
        column.name, "category", categories=tuple(chosen(column, raw, least, most)), other=True
    )


def beside(least: float, most: int, counted: bool = False) -> Way:
    """The mean, one input for each frequent category, and the number of rows as its logarithm."""

    def way(column: Column, raw: pd.Series) -> Column:
        column = mean_alone(column, raw)
        names = chosen(column, raw, least, most)
        table = np.array(column.values)
        more = [np.array([name == one for one in column.categories], dtype=float) for name in names]
        more += [np.log1p(counts(column, raw).to_numpy(float))] * counted
        table = np.stack([*table.T, *more], axis=1)
        return replace(
            column, outputs=(*column.outputs, *(f"is {name}" for name in names), *["rows"] * counted),
            values=tuple(map(tuple, table.tolist())), otherwise=(*column.otherwise, *[0.0] * len(more)),
            lows=(*column.lows, *[0.0] * len(more)), highs=tuple(table.max(0).tolist()),
        )  # fmt: skip

    return way


WAYS: dict[str, Way] = {
    "mean": mean_alone,
    "one-hot 10 rows, 50": frequent(10, 50),
    "one-hot 1%": frequent(0.01, 100),
    "mean, one-hot 10 rows, 50": beside(10, 50),
    "mean, one-hot 1%": beside(0.01, 100),
    "mean, rows": beside(0.01, 0, counted=True),
    "mean, one-hot 10 rows, 50, rows": beside(10, 50, counted=True),
    "one-hot all": frequent(1, 10**9),
}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    words.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    words.add_argument("--splits", type=int, default=2)
    words.add_argument("--recipe", choices=FAMILY.recipes, default="tabular-members")
    words.add_argument("--out", type=Path, required=True)
    given = words.parse_args()
    found = []
    for name in given.sets:
        table = tabular.load(Path(os.environ["HTAF_DATA"]) / "extra" / f"{name}.csv", target=SETS[name])
        for seed in range(given.splits):
            parts = tabular.split(table, seed)
            for way in given.ways:
                changed = Changed(**vars(table), way=WAYS[way])
                made = changed.fit_preprocessor(parts.train)
                x = made.transform(table.features.iloc[parts.train], trained=table.target[parts.train])
                held = made.transform(table.features.iloc[parts.validation])
                boosted = HistGradientBoostingRegressor(random_state=seed).fit(x, table.target[parts.train])
                error = boosted.predict(held) - table.target[parts.validation]
                with tempfile.TemporaryDirectory() as folder:
                    run = fit(FAMILY.recipes[given.recipe](), changed, Path(folder) / "run", seed=seed)
                    metrics = run.record["metrics"]
                found.append({
                    "set": name, "split": seed, "way": way, "inputs": x.shape[1],
                    "exact": metrics["exact"]["validation"]["rmse"], "smooth": metrics["smooth"]["validation"]["rmse"],
                    "boosting": float(np.sqrt(np.mean(error**2))), "seconds": run.record["seconds"],
                })  # fmt: skip
                print(found[-1], flush=True)
                pd.DataFrame(found).to_csv(given.out, index=False)
    frame = pd.DataFrame(found)
    means = frame.groupby(["set", "way"])[["exact", "boosting"]].mean()
    print(
        (means / means.xs("mean", level="way").reindex(means.index, level="set") - 1).mul(100).round(2).unstack("set")
    )


if __name__ == "__main__":
    main()
