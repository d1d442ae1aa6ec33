"""Which rows of its data are which part of a run, by its record, and a part as its networks take it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor

from htaf.data import tabular
from htaf.data.images import Images, split
from htaf.data.parts import Data, Part
from htaf.training.runs.folder import RunError

PartName = Literal["train", "validation", "test", "all"]
Place = str | PathLike[str]


@runtime_checkable
class Trained(Protocol):
    """What says on which rows a network was trained: a run, from its record."""

    @property
    def path(self) -> Path: ...
    @property
    def record(self) -> dict[str, Any]: ...


class UnknownSourceError(RunError):
    """A run whose record does not say where its data came from. `said` is the message without what to do."""

    def __init__(self, said: str) -> None:
        super().__init__(f"{said}: give their place")
        self.said = said


@dataclass(frozen=True)
class RunPart:
    """A part of the data of a run. Iterating gives (inputs, targets) in chunks, as the run's networks take them.

    Inputs: float32 [rows, columns] or [rows, C, H, W], preprocessed. Targets: int64 [rows] of a classification, else
    float32 [rows, 1], standardised. Images in files are read as they are asked for.
    """

    pieces: tuple[Part, ...]

    def __len__(self) -> int:
        """Rows."""
        return sum(map(len, self.pieces))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for piece in self.pieces:
            yield from piece


def is_own(run: Trained, data: Data) -> bool:
    """Say whether a run was trained on these data, by their fingerprint."""
    return data.fingerprint == run.record["data"].get("fingerprint")


def rows_of(run: Trained, images: Images) -> dict[str, tuple[str, Int64[Tensor, " rows"]]]:
    """List each part of the images of a run: a side of the set, "train" or "test", and row numbers in it.

    Returns:
        "train", "validation", "test" and "other": training images that the recipe left out.

    Raises:
        RunError: the run was trained on other images.
    """
    expect_own(run, images)
    recipe, count = run.record["recipe"], len(images.train)
    rows = split(images, train=recipe["train_images"], validation=recipe["validation_images"])
    left = torch.ones(count, dtype=torch.bool)
    left[torch.cat([rows.train, rows.validation])] = False
    return {
        "train": ("train", rows.train),
        "validation": ("train", rows.validation),
        "test": ("test", torch.arange(len(images.test))),
        "other": ("train", left.nonzero()[:, 0]),
    }


def rows_are_known(run: Trained) -> bool:
    """Say whether the record says on which rows of a table a run was trained; one on a data frame does not."""
    return run.record["data"].get("split") != "given"


def rows_for_figures(run: Trained, table: tabular.Table) -> tabular.Split:
    """Find rows as `table_rows`; where the rows of the training are not known, every part is all rows.

    Such parts show what a network does, not how well: it may have been trained on each of them.
    """
    if rows_are_known(run):
        return table_rows(run, table)
    rows = np.arange(len(table.target))
    return tabular.Split(rows, rows, rows)


def table_rows(run: Trained, table: tabular.Table) -> tabular.Split:
    """Find the row numbers of the parts of the table that a run was trained on.

    Raises:
        RunError: the run was trained on other data, or does not say on which rows.
    """
    if not rows_are_known(run):
        raise RunError(f"{run.path} does not say which rows it was trained on: expected part 'all'")
    expect_own(run, table)
    return tabular.split(table, run.record["seed"], mode=run.record["data"]["split"])


def raw_part(run: Trained, data: tabular.Table, part: str) -> pd.DataFrame:
    """The raw rows of a part of the table of a run, as `Run.predict` takes them; `part` and raises as `Run.part`."""
    return data.features if part == "all" else data.features.iloc[getattr(table_rows(run, data), part)]


def weights_of(run: Trained, data: Data, part: str) -> Tensor | None:
    """Say how much each row of a part of a run's data counts, float64 [rows]; None: all alike."""
    if isinstance(data, Images) or data.weights is None:
        return None
    return torch.from_numpy(data.weights if part == "all" else data.weights[getattr(table_rows(run, data), part)])


def expect_own(run: Trained, data: Data) -> None:
    """Raises RunError where a run was trained on other data."""
    if not is_own(run, data):
        raise RunError(
            f"{run.path} was trained on other data than {data.name}: its parts are only known for its own data"
        )
