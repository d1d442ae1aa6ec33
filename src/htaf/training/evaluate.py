"""Measuring a network: the smooth and the exact one side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from htaf.data.images import ImagePreprocessor, Images
from htaf.data.reading import DataError
from htaf.data.tabular import Table, split
from htaf.runs import Run, RunError
from htaf.training.metrics import metrics
from htaf.training.problems import Data, Part, image_part, image_rows, table_part


@torch.no_grad()
def measure(
    smooth: nn.Module,
    exact: nn.Module | None,
    parts: Mapping[str, Iterable[tuple[Tensor, Tensor]]],
    task: str,
    scale: float = 1.0,
) -> dict[str, Any]:
    """Metrics of the smooth and the exact network on each part; "exact" is None where no step exists.

    The networks run where their parameters lie, as they are (eval mode is the caller's).
    """
    device = next(smooth.parameters()).device
    outputs: dict[str, dict[str, Any]] = {"smooth": {}, "exact": {}}
    for name, part in parts.items():
        seen: dict[str, list[Tensor]] = {"smooth": [], "exact": []}
        targets = []
        for x, y in part:
            x = x.to(device)
            seen["smooth"].append(smooth(x).cpu())
            if exact is not None:
                seen["exact"].append(exact(x).cpu())
            targets.append(y)
        for network, chunks in seen.items():
            if chunks:
                outputs[network][name] = metrics(torch.cat(chunks), torch.cat(targets), task, scale)
    return outputs | {"exact": outputs["exact"] if exact is not None else None}


def evaluate(run: Run, data: Data, *, part: str = "test") -> dict[str, Any]:
    """The smooth and the exact network of a run on labelled data, and the gap between them.

    Args:
        run: from `htaf.runs.open_run`.
        data: the data of the run, or others: a table with the same columns, images of the same classes.
        part: "train", "validation" or "test" of the run's own split; "all", for other data.

    Returns:
        {"headline", "part", "rows", "smooth": {...}, "exact": {...} or None, "gap": exact minus smooth or None}.

    Raises:
        RunError: a part is asked for and the data are not those that the run was trained on.
        DataError: another kind of data or task, or classes that the run does not know.
    """
    record, whole = run.record, part_of(run, data, part)
    smooth, exact = run.model(exact=False), run.model() if run.has_step else None
    preprocessor, task = run.preprocessor(), record["data"]["task"]
    scale = 1.0 if isinstance(preprocessor, ImagePreprocessor) else preprocessor.target.std
    results = measure(smooth, exact, {part: whole}, task, scale)
    name = record["headline"]
    of_smooth, of_exact = results["smooth"][part], results["exact"][part] if exact is not None else None
    known = of_exact is not None and of_exact[name] is not None and of_smooth[name] is not None
    gap = of_exact[name] - of_smooth[name] if of_exact is not None and known else None
    return {"headline": name, "part": part, "rows": len(whole), "smooth": of_smooth, "exact": of_exact, "gap": gap}


def part_of(run: Run, data: Data, part: str) -> Joined:
    """The inputs and targets of a part of a run's own data, or of other data, in chunks.

    Args, raises: as `evaluate`.
    """
    if part != "all" and data.fingerprint != run.record["data"].get("fingerprint"):
        raise RunError(
            f"{run.path} was trained on other data than {data.name}: its parts are only known for its own data"
        )
    return Joined(_image_rows(run, data, part) if isinstance(data, Images) else [_table_rows(run, data, part)])


class Joined:
    """Several parts one after the other."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for part in self.parts:
            yield from part


def _table_rows(run: Run, table: Table, part: str) -> Part:
    preprocessor, record = run.preprocessor(), run.record
    if isinstance(preprocessor, ImagePreprocessor):
        raise DataError(f"expected images for {run.path}, got the table {table.name}")
    if table.task != preprocessor.target.task:
        raise DataError(f"expected a table for {preprocessor.target.task}, got one for {table.task}")
    everything = np.arange(len(table.target))
    rows = everything if part == "all" else getattr(split(table, record["seed"], mode=record["data"]["split"]), part)
    return table_part(table, preprocessor, rows)


def _image_rows(run: Run, images: Images, part: str) -> list[Part]:
    preprocessor, recipe = run.preprocessor(), run.record["recipe"]
    if not isinstance(preprocessor, ImagePreprocessor):
        raise DataError(f"expected a table for {run.path}, got the images {images.name}")
    if part == "test":
        return [image_part(images, preprocessor)]
    whole = image_part(images, preprocessor, "train")
    if part == "all":
        return [whole, image_part(images, preprocessor)]
    rows = image_rows(images, recipe["train_images"], recipe["validation_images"])
    return [Part(whole.data, getattr(rows, part), whole.chunk)]
