"""Parts of a table or of images as networks take them: batches by row numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from htaf.data.images import ImageDataset, ImagePreprocessor, Images
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError
from htaf.data.tabular import Table

Data = Table | Images
Keyed = tuple[Tensor, int] | tuple[Tensor, int, int]  # row numbers, the key of what is random in their batch, epoch
IMAGE_CHUNK = 250  # images at once where nothing is learned: small enough to stay in cache, as it is fastest


@runtime_checkable
class Batches(Protocol):
    """Data indexed by (rows, key): a whole batch at once."""

    def __getitem__(self, batch: Keyed, /) -> tuple[Tensor, Tensor]: ...

    def targets(self, rows: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Part(Dataset):
    """Rows of a set. `part[rows, key]` is a batch, rows counted from 0 within the part; iterating gives chunks.

    weights: float32 [rows] of mean 1, how much each counts in a loss; then they come third in a batch. None: all alike.
    """

    data: Batches
    rows: Tensor
    chunk: int = 8192
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Keyed) -> tuple[Tensor, ...]:
        rows, key, *epoch = index
        x, y = self.data[self.rows[rows], key, *epoch]  # pyright: ignore[reportArgumentType]
        return (x, y) if self.weights is None else (x, y, self.weights[rows])

    def spread(self, most: int) -> Part:
        """Return at most so many of the rows, evenly spread."""
        chosen = torch.linspace(0, len(self) - 1, min(most, len(self)), dtype=torch.float64).long()
        of = None if self.weights is None else self.weights[chosen]
        return Part(self.data, self.rows[chosen], self.chunk, of)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in self.rows.split(self.chunk):
            yield self.data[rows, 0]

    def targets(self) -> Tensor:
        """Return the targets of all rows, without reading inputs."""
        return self.data.targets(self.rows)

    def inputs(self) -> Iterator[Tensor]:
        """Return the chunks without their targets."""
        return (x for x, _ in self)


@dataclass(frozen=True)
class TableBatches:
    """A table's rows after preprocessing, indexed as images are; the key does nothing.

    beside: float32 [rows, outputs], what comes as more columns of x in a batch; None: nothing.
    """

    x: Tensor
    y: Tensor
    beside: Tensor | None = None

    def __getitem__(self, index: Keyed) -> tuple[Tensor, Tensor]:
        x = self.x[index[0]]
        return x if self.beside is None else torch.cat([x, self.beside[index[0]]], 1), self.y[index[0]]

    def targets(self, rows: Tensor) -> Tensor:
        return self.y[rows]


def table_part(table: Table, preprocessor: Preprocessor, rows: np.ndarray, *, training: bool = False) -> Part:
    """Return rows of a table: inputs float32 [rows, columns]; targets float32 [rows, 1], standardised, or int64 [rows].

    training: they are the rows that the preprocessing was fitted on, see `Preprocessor.transform`.

    Raises:
        DataError: columns or values that the preprocessing cannot use, or classes that it does not know.
    """
    y, known = table.target[rows], preprocessor.target.classes
    if table.classes != known:  # codes follow the classes that a table holds, and other data may lack some
        if unknown := set(table.classes) - set(known):
            raise DataError(f"expected the classes {', '.join(known)}, got {', '.join(sorted(unknown))} too")
        y = np.array([known.index(name) for name in table.classes])[y]
    features = table.features
    x = preprocessor.transform(features, rows, trained=y if training else None)
    target = torch.from_numpy(preprocessor.encode_target(y))
    target = target.float().unsqueeze(1) if preprocessor.target.task == "regression" else target.long()
    return Part(TableBatches(torch.from_numpy(x), target), torch.arange(len(rows)))


def image_part(images: Images, preprocessor: ImagePreprocessor, part: str = "test") -> Part:
    """Return all images of a side of a set, "train" or "test", not augmented.

    Raises:
        DataError: other classes, channels or sizes than the preprocessing knows.
    """
    chosen = getattr(images, part)
    if images.classes != preprocessor.classes:
        unknown = sorted(set(images.classes) - set(preprocessor.classes))
        raise DataError(f"expected the {len(preprocessor.classes)} classes of the run, got {unknown[:5] or 'fewer'}")
    return Part(ImageDataset(chosen, preprocessor), torch.arange(len(chosen)), IMAGE_CHUNK)
