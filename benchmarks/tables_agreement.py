"""On how many rows do files predict otherwise than the run? Every row of several tables; nothing is timed.

    python benchmarks/tables_agreement.py [SET ...] [--recipes tabular-mlp tabular-members] [--epochs 2]
                                          [--data-dir DIR] [--json FILE]

SET: of htaf, or a table of `htaf_paper.more_tables` in DIR/extra; DIR is the folder in HTAF_DATA where it is left out.
Each is trained for a few epochs, packed and exported. Compared with `Run.predict` on all rows at once: the packed file,
the ONNX file in onnxruntime, `Run.predict` on pieces of seven rows, and the same network in float64. A row differs
where an output is away by more than 1e-5 of the largest: so little does the order of a sum change where no bit flips.
`nearest`: of those rows the largest |pre-activation| that is the smallest of its row, over the largest of its layer, in
float64: how near to 0 a flipped bit was.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch
from measuring import at_least_one, begin, end, parser

from htaf.core.activations import Heaviside
from htaf.data import tabular
from htaf.data.tabular import Table
from htaf.program.export import onnx_table
from htaf.training.families.mlp import FAMILY
from htaf.training.fit import fit
from htaf.training.runs import Run, export_run, open_packed, pack_run
from htaf.training.runs.predictions import forward, of_rows
from htaf_paper.more_tables import TABLES, UNSEEN

SETS = (
    "wine",
    "abalone",
    "weather",
    "concrete",
    "juice",
    "chile",
    "ames",
    "email",
    "credit",
    "churn",
    "fico",
    "bikeshare",
)
AWAY = 1e-5
PIECE = 7


def table(name: str, data_dir: str | None) -> Table:
    """A set by its name."""
    targets = {member.name: member.target for member in (*TABLES, *UNSEEN)}
    if name not in targets:
        return tabular.load(name, data_dir=data_dir)
    folder = Path(data_dir or os.environ.get("HTAF_DATA", "."))
    return tabular.load(folder / "extra" / f"{name}.csv", target=targets[name])


class InFloat64(torch.nn.Module):
    """A network of float32 inputs that computes in float64."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.double())


def nearest(model: torch.nn.Module, inputs: torch.Tensor) -> np.ndarray:
    """[rows] the smallest |pre-activation| of a row, over the largest of its layer; model: in float64."""
    found = torch.full((len(inputs),), torch.inf, dtype=torch.float64)

    def note(_: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        size = given[0].abs()
        found.copy_(torch.minimum(found, size.amin(1) / size.max()))

    hooks = [
        m.register_forward_pre_hook(note)
        for n, m in model.named_modules()
        if isinstance(m, Heaviside) and "thermometer" not in n
    ]
    forward(model, inputs, chunk=len(inputs))
    for hook in hooks:
        hook.remove()
    return found.numpy()


def differing(found: pd.DataFrame, expected: pd.DataFrame) -> tuple[np.ndarray, int]:
    """Rows whose outputs differ, and how many of them have another class."""
    numbers = expected.select_dtypes("number")
    scale = float(numbers.abs().to_numpy().max())
    away = np.abs(found[numbers.columns].to_numpy() - numbers.to_numpy()).max(1) / scale
    classes = int((found["prediction"] != expected["prediction"]).sum()) if "prediction" not in numbers else 0
    return np.flatnonzero(away > AWAY), classes


def compared(run: Run, data: Table, folder: Path) -> list[dict[str, Any]]:
    """A row for each way to predict."""
    rows, known, model = data.features, run.preprocessor(), run.model()
    inputs = known.transform(rows)  # pyright: ignore[reportAttributeAccessIssue]
    expected = run.predict(rows)
    every = len(rows)
    pack_run(run, folder / "run.packed", data=data, differing=every)
    export_run(run, folder / "run.onnx", to="onnx", data=data, differing=every)
    pieces = [of_rows(model, known, rows.iloc[i : i + PIECE])[0] for i in range(0, every, PIECE)]  # pyright: ignore
    double = InFloat64(run.model())
    ways = {
        "packed": open_packed(folder / "run.packed").predict(rows),
        "onnxruntime": onnx_table(folder / "run.onnx", threads=1)(rows),
        f"pieces of {PIECE} rows": pd.concat(pieces),
        "float64": of_rows(double, known, rows)[0],  # pyright: ignore[reportArgumentType]
    }
    close = nearest(double, torch.from_numpy(inputs))
    found = []
    for way, frame in ways.items():
        wrong, classes = differing(frame, expected)
        near = float(close[wrong].max()) if len(wrong) else None
        found.append(
            {
                "way": way,
                "rows": every,
                "differ": len(wrong),
                "other_class": classes,
                "nearest": near,
                "first": wrong[:10].tolist(),
            }
        )
    return found


def main() -> None:
    made = parser(__doc__)
    made.add_argument("sets", nargs="*", default=SETS, metavar="SET", help=f"default: {' '.join(SETS)}")
    made.add_argument("--recipes", nargs="+", default=["tabular-mlp", "tabular-members"], choices=FAMILY.recipes)
    made.add_argument("--epochs", type=at_least_one, default=2, help="default: 2")
    made.add_argument("--data-dir", help="default: the folder in HTAF_DATA")
    given = begin(made)
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    for name in given.sets:
        data = table(name, given.data_dir)
        for recipe in given.recipes:
            with tempfile.TemporaryDirectory() as folder:
                chosen = FAMILY.recipes[recipe]().replace(epochs=given.epochs)
                run = fit(chosen, data, Path(folder) / "run", seed=0)
                for row in compared(run, data, Path(folder)):
                    found.append({"set": name, "recipe": recipe, "epochs": given.epochs} | row)
                    print(
                        f"{name:10} {recipe:16} {row['way']:18} {row['differ']} of {row['rows']:,} rows differ, "
                        f"{row['other_class']} classes, nearest {row['nearest']}",
                        flush=True,
                    )
    for recipe in given.recipes:
        for way in dict.fromkeys(row["way"] for row in found):
            some = [row for row in found if (row["recipe"], row["way"]) == (recipe, way)]
            rows, differ, classes = (sum(row[key] for row in some) for key in ("rows", "differ", "other_class"))
            print(f"{recipe}, {way}: {differ} of {rows:,} rows, {classes} with another class")
    end(given, found)


if __name__ == "__main__":
    main()
