"""The data of a run, opened again where the training found them, and its parts as its networks take them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64
from torch import Tensor

from htaf.data import images as image_sets
from htaf.data import tabular
from htaf.data.images import ImagePreprocessor, Images
from htaf.data.parts import Data, Part, image_part, image_rows, table_part
from htaf.data.reading import DataError
from htaf.runs.folder import RunError

if TYPE_CHECKING:
    from htaf.runs.folder import Run

PartName = Literal["train", "validation", "test", "all"]
Place = str | PathLike[str]


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


def is_own(run: Run, data: Data) -> bool:
    """Whether a run was trained on these data, by their fingerprint."""
    return data.fingerprint == run.record["data"].get("fingerprint")


def own_data(run: Run, place: Place | None = None, *, data_dir: Place | None = None) -> Data:
    """The data that a run was trained on; see `htaf.runs.Run.data`."""
    source: dict[str, Any] = run.record.get("source") or {}
    place = source.get("name") if place is None else place
    if not place:
        what = "images" if run.takes_images else "data"
        raise UnknownSourceError(f"{run.path} does not say where its {what} came from")
    if run.takes_images:
        return other_data(run, place, data_dir=data_dir or source.get("data_dir"))
    known = run.record["data"]
    if not source and not rows_are_known(run):  # it was trained on a data frame
        return other_data(run, place, data_dir=data_dir)
    return tabular.load(
        place,
        target=source.get("target"),
        task=source.get("task"),
        drop_empty=bool(source.get("drop_empty")),
        data_dir=data_dir or source.get("data_dir"),
        exclude=source.get("exclude") or (),
        ids=source.get("ids") or (),
        test=source.get("test"),
        shares=known.get("shares"),
        group=known.get("group"),
        time=known.get("time"),
        plain=known.get("columns", 1) == 1,
    )


def other_data(run: Run, place: Place, *, data_dir: Place | None = None) -> Data:
    """Other labelled data for the networks of a run; see `htaf.runs.Run.other_data`."""
    preprocessor = run.preprocessor()
    if not isinstance(preprocessor, ImagePreprocessor):
        return tabular.load_like(place, target=preprocessor.target, data_dir=data_dir)
    height, width = preprocessor.size
    # images that are not square were taken as they are, and so are those of sets without files
    size = height if height == width and image_sets.of_files(place) else None
    return image_sets.load(place, size=size, data_dir=data_dir)


def rows_of(run: Run, images: Images) -> dict[str, tuple[str, Int64[Tensor, " rows"]]]:
    """Of the images of a run each part: a side of the set, "train" or "test", and row numbers in it.

    Returns:
        "train", "validation", "test" and "other": training images that the recipe left out.

    Raises:
        RunError: the run was trained on other images.
    """
    _expect_own(run, images)
    recipe, count = run.record["recipe"], len(images.train)
    rows = image_rows(images, recipe["train_images"], recipe["validation_images"])
    left = torch.ones(count, dtype=torch.bool)
    left[torch.cat([rows.train, rows.validation])] = False
    return {
        "train": ("train", rows.train),
        "validation": ("train", rows.validation),
        "test": ("test", torch.arange(len(images.test))),
        "other": ("train", left.nonzero()[:, 0]),
    }


def rows_are_known(run: Run) -> bool:
    """Whether the record says on which rows of a table a run was trained; one on a data frame does not."""
    return run.record["data"].get("split") != "given"


def rows_for_looking(run: Run, table: tabular.Table) -> tabular.Split:
    """As `table_rows`; where the rows of the training are not known, any labelled rows, divided anew.

    Such parts show what a network does, not how well: it may have been trained on each of them.
    """
    return table_rows(run, table) if rows_are_known(run) else tabular.split(table, run.record["seed"])


def table_rows(run: Run, table: tabular.Table) -> tabular.Split:
    """The row numbers of the parts of the table that a run was trained on.

    Raises:
        RunError: the run was trained on other data, or does not say on which rows.
    """
    if not rows_are_known(run):
        raise RunError(f"{run.path} does not say which rows it was trained on: expected part 'all'")
    _expect_own(run, table)
    return tabular.split(table, run.record["seed"], mode=run.record["data"]["split"])


def part_of(run: Run, data: Data, part: str) -> RunPart:
    """A part of the data of a run, or of other data; see `htaf.runs.Run.part`."""
    if part not in get_args(PartName):
        raise RunError(f"expected a part of {', '.join(get_args(PartName))}, got {part!r:.80}")
    if part != "all" and (run.takes_images or rows_are_known(run)):
        _expect_own(run, data)
    preprocessor = run.preprocessor()
    if isinstance(data, Images):
        if not isinstance(preprocessor, ImagePreprocessor):
            raise DataError(f"expected a table for {run.path}, got the images {data.name}")
        if part == "all":
            return RunPart((image_part(data, preprocessor, "train"), image_part(data, preprocessor, "test")))
        side, rows = rows_of(run, data)[part]
        whole = image_part(data, preprocessor, side)
        return RunPart((Part(whole.data, rows, whole.chunk),))
    if isinstance(preprocessor, ImagePreprocessor):
        raise DataError(f"expected images for {run.path}, got the table {data.name}")
    if data.task != preprocessor.target.task:
        raise DataError(f"expected a table for {preprocessor.target.task}, got one for {data.task}")
    if part == "all":
        return RunPart((table_part(data, preprocessor, np.arange(len(data.target))),))
    rows = getattr(table_rows(run, data), part)
    return RunPart((table_part(data, preprocessor, rows, training=part == "train"),))


def raw_part(run: Run, data: tabular.Table, part: str) -> pd.DataFrame:
    """The raw rows of a part of the table of a run, as `Run.predict` takes them; `part` and raises as `Run.part`."""
    return data.features if part == "all" else data.features.iloc[getattr(table_rows(run, data), part)]


def _expect_own(run: Run, data: Data) -> None:
    if not is_own(run, data):
        raise RunError(
            f"{run.path} was trained on other data than {data.name}: its parts are only known for its own data"
        )
