"""Trainings as cells: a recipe on data with a seed, keyed by what it is a function of."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from htaf.data import image_sets
from htaf.data.attributes import Attributes
from htaf.data.parts import Data
from htaf.training.fit import fit, run_identity
from htaf.training.problems import supervision
from htaf.training.recipe import ImageData, Recipe, Running, Source, TableData
from htaf.training.runs import are_metrics, content_hash
from htaf_paper.computing import Place, Task, cell_folder

RUN = "run"  # of a cell: its run folder


@dataclass(frozen=True)
class Cell:
    """A recipe, a seed (of split, weights and batches) and where the data come from."""

    recipe: Recipe
    seed: int
    source: Source
    data_dir: str | None = None
    test: bool = True
    device: str = "cpu"

    @property
    def data(self) -> Data:
        """What it trains on, loaded once a process."""
        return data_of(self.source, isinstance(self.recipe.data, TableData), self.data_dir)

    @property
    def attributes(self) -> Attributes | None:
        """Of the classes, where the recipe learns them."""
        return supervision(self.recipe, self.data_dir)

    def key(self) -> str:
        """The key of its run: the data count by their fingerprint, not by where they lie."""
        split, known = self.source.mode, self.attributes
        return content_hash(run_identity(self.recipe, self.data, self.seed, split, test=self.test, attributes=known))

    def task(self, keep: bool = False) -> Task:
        """As a cell of `htaf_paper.computing`. keep: its run folder stays, the network included."""
        payload = {
            "recipe": self.recipe.flat(),
            "seed": self.seed,
            "source": self.source.values(),
            "test": self.test,
            "data": {"fingerprint": self.data.fingerprint},
        }
        title = f"{name_of(self.source)}, {self.recipe.activation.method}, seed {self.seed}"
        train = functools.partial(_trained, self, keep)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pairs that never pass 0.99 are two of the paper's
            return Task(self.key(), payload, title, train, (RUN,) if keep else (), is_record)


def name_of(source: Source) -> str:
    """The name of a data set in tables."""
    return Path(source.name).stem + ("" if source.mode == "random" else f" ({source.mode})")


@functools.lru_cache(maxsize=8)
def data_of(source: Source, table: bool, data_dir: str | None) -> Data:
    """The table or the images of a source."""
    if not table:
        return image_sets.load(source.name, size=source.size, data_dir=data_dir)
    return source.table(data_dir)


def _trained(cell: Cell, keep: bool, place: Place) -> dict[str, Any]:
    """Train in the folder of the cell; a training that was stopped there resumes, one that had ended is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        of_images = isinstance(cell.recipe.data, ImageData)
        named = {"name": cell.source.name, "size": cell.source.size} if of_images else None
        source = cell.source.remembered(cell.data_dir, images=of_images) if keep else named
        return fit(
            cell.recipe, cell.data, place.folder / RUN, seed=cell.seed, split=cell.source.mode, source=source,
            test=cell.test, attributes=cell.attributes, running=Running(cell.device),
        ).record  # fmt: skip


def run_path(out: Path, key: str) -> Path:
    """Where the run folder of a cell is kept, if it is."""
    return cell_folder(out, key) / RUN


def is_record(record: Any) -> bool:
    """Whether it holds what outcomes are made of."""
    names = {"metrics", "headline", "seconds", "commit", "versions", "platform", "threads", "device"}
    if not isinstance(record, dict) or not record.keys() >= names or not isinstance(record["versions"], dict):
        return False
    seconds = (record["seconds"], record.get("cpu_seconds") or 0.0)
    return all(type(value) in (int, float) for value in seconds) and are_metrics(record["metrics"], record["headline"])


def score(record: dict[str, Any], part: str, network: str | None = None) -> float | None:
    """The headline metric of a record; of the exact network unless `network` says otherwise or there is none."""
    metrics = record["metrics"]
    chosen = metrics[network] if network else metrics["exact"] or metrics["smooth"]
    return chosen.get(part, {}).get(record["headline"]) if chosen else None  # a search does not measure the test part
