"""Run folders of tables whose network is planted by hand, so that what it says is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from htaf.data import tabular
from htaf.models.build import build
from htaf.training import runs
from htaf.training.problems import data_identity
from htaf.training.runs import Run
from htaf.training.runs.metrics import headline

HTAF = {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}
COLORS = ("blue", "green", "red", "white")
Kind = Literal["two", "three", "number"]


def table(kind: Kind = "two", rows: int = 600, seed: int = 0) -> pd.DataFrame:
    """size 0 to 100 (some are missing), color, weight, mark (constant); the target is of size and color."""
    rng = np.random.default_rng([seed, 99])  # not the words by which rows are split
    size = np.round(rng.uniform(0, 100, rows), 1)
    color = rng.choice(COLORS, rows)
    frame = pd.DataFrame({"size": size, "color": color, "weight": rng.normal(size=rows).round(3), "mark": 1.0})
    planted = (size > 40) & np.isin(color, ["blue", "red"])
    if kind == "number":
        frame["y"] = 10.0 * planted + rng.normal(size=rows).round(3)
    else:
        frame["y"] = np.where(planted, "yes", np.where(size > 80, "maybe", "no") if kind == "three" else "no")
    frame.loc[::37, "size"] = np.nan
    return frame


def made_run(folder: Path, kind: Kind = "two", activation: dict[str, Any] = HTAF, *, linear: bool = False) -> Run:
    """Five bits: size > 40; color is blue or red; both; always on; always off. linear: beside them a linear part that
    reads `weight` alone, and zeros in the head."""
    place = folder / f"{kind}.csv"
    table(kind).to_csv(place, index=False)
    data = tabular.load(place, target="y")
    parts = tabular.split(data, 0)
    preprocessor = data.fit_preprocessor(parts.train)
    names = preprocessor.feature_names
    outputs = len(data.classes) or 1
    model = {"kind": "mlp", "in_features": len(names), "out_features": outputs, "hidden": [2, 5], "batch_norm": False}
    model |= {"activation": activation} | ({"direct": True} if linear else {})
    net: Any = build(model).eval()
    column = next(c for c in preprocessor.columns if c.name == "size")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        first, second, head = net.hidden[0].linear, net.hidden[1].linear, net.head
        first.weight[0, names.index("size")] = 1.0
        first.bias[0] = -(40.05 - column.low) / (column.high - column.low)
        first.weight[1, names.index("color=blue")] = first.weight[1, names.index("color=red")] = 1.0
        first.bias[1] = -0.5
        second.weight[0, 0] = second.weight[1, 1] = 1.0
        second.weight[2] = 1.0
        second.bias[:] = torch.tensor([-0.5, -0.5, -1.5, 0.5, -0.5])
        torch.manual_seed(0)
        head.weight[:] = torch.randn(outputs, 5) * torch.tensor([0.2, 0.2, 3.0, 1.0, 1.0])
        head.bias[:] = torch.randn(outputs)
        if linear:
            head.weight.zero_()
            head.bias.zero_()
            slope = torch.tensor([8.0, -8.0, 1.0])[:outputs]
            net.direct.weight[:, names.index("weight")], net.direct.bias[:] = slope, -0.5 * slope
    identity = {"recipe": {"method": activation["method"], "family": "mlp"}, "seed": 0}
    record = runs.start_run(folder / kind, identity | {"data": data_identity(data, "random")})
    record |= {
        "model": model,
        "metrics": {},
        "headline": headline(data.task, len(data.classes)),
        "rows": {},
        "best_epoch": 0,
        "notes": [],
    }
    source = {"name": str(place), "data_dir": None, "target": "y", "task": None}
    return runs.finish_run(folder / kind, record | {"source": source}, net, preprocessor)
