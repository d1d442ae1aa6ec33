"""From raw rows or image files to predictions and their metrics, by any network: of a run, or packed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from htaf._ground.console import progress
from htaf._ground.errors import listed, suggestion
from htaf.data.notes import OF_COLUMNS, Note, together
from htaf.data.reading import DataError, Frame, GivesPandas, TableError
from htaf.training.runs.metrics import decided_by, metrics, probabilities

if TYPE_CHECKING:
    from htaf.data.images import ImagePreprocessor
    from htaf.data.preprocess import Preprocessor

TOLERANCE = 1e-4  # of one output, a regression, in the unit of `Agreement.difference`


def of_rows(
    model: nn.Module, preprocessor: Preprocessor, rows: Frame, *, text_as_missing: bool = False
) -> tuple[pd.DataFrame, list[Note]]:
    """Predict raw rows by a network, and say what was handled in them; see `htaf.runs.Run.predict`.

    Raises:
        DataError: as `Preprocessor.transform`; what comes is no table.
    """
    if not isinstance(rows, pd.DataFrame | GivesPandas):
        file = isinstance(rows, str | Path)
        read = ": read it first, as pandas.read_csv does, or: htaf predict RUN FILE" if file else ""
        raise DataError(f"expected a data frame, got {repr(str(rows)) if file else type(rows).__name__}{read}")
    told = list[Note]()
    rows, told = preprocessor.without_texts(rows) if text_as_missing else (preprocessor.named(rows), told)
    inputs, notes = preprocessor.transform_with_notes(rows)
    outputs = _checked(forward(model, torch.from_numpy(inputs)), len(preprocessor.target.classes) or 1, len(rows))
    frame = predicted(outputs, preprocessor, rows.index)
    for place, name in enumerate(name for name in preprocessor.ids if name in rows and name not in frame):
        frame.insert(place, name, rows[name])
    return frame, [*told, *notes]


class RowPredictions:
    """Predicts tables that come in pieces; the pieces count as one table in notes and in row numbers of errors.

    Args:
        model: [rows, inputs] -> [rows, outputs], exact or smooth, in eval mode.
        preprocessor: of its inputs.
        ids: columns of the rows that stay beside the predictions.
        text_as_missing: as of `htaf.runs.Run.predict`.
    """

    def __init__(
        self, model: nn.Module, preprocessor: Preprocessor, ids: Sequence[str] = (), *, text_as_missing: bool = False
    ) -> None:
        self.model, self.preprocessor, self.ids, self.text_as_missing = model, preprocessor, [*ids], text_as_missing
        self.rows = 0
        self._numbers = {column.name for column in preprocessor.columns if column.kind == "number"}
        self._numbers -= {*preprocessor.ids}
        self._notes: list[Note] = []

    def reads_numbers(self, name: str) -> bool:
        """Say whether a column is read as a number, and not also as it stands; as `read_pieces` asks."""
        return name not in self.ids and name in self._numbers

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Predict the next piece.

        Args:
            rows: raw columns by name, and the ids; other columns are ignored.

        Returns:
            The ids as they are, then the columns of `htaf.runs.Run.predict`.

        Raises:
            DataError: as `htaf.runs.Run.predict`; no column of an id, or one named as a column of predictions.
        """
        for name in self.ids:
            if name not in rows.columns:
                near = suggestion(name, [*map(str, rows.columns)])
                raise DataError(
                    f"--id: expected a column of the input, got {name!r}{near}; it has {listed([*map(str, rows)])}"
                )
        columns = {*(column.name for column in self.preprocessor.columns), *self.preprocessor.ids}
        try:
            beside = [name for name in self.ids if name not in columns]
            found, notes = of_rows(
                self.model, self.preprocessor, rows.drop(columns=beside), text_as_missing=self.text_as_missing
            )
        except TableError as error:
            error.row += self.rows
            raise
        known = {*self.preprocessor.ids} - {"prediction"}  # are there already
        if taken := [name for name in self.ids if name in found.columns and name not in known]:
            raise DataError(f"--id: expected other columns than those of the predictions, got {listed(taken)}")
        self._notes = together([*self._notes, *notes])
        self.rows += len(rows)
        ids = [name for name in self.ids if name not in known]
        made = pd.concat([rows[ids], found], axis=1) if ids else found
        return made.astype({name: object for name, kind in made.dtypes.items() if kind == "category"})

    def notes(self) -> list[Note]:
        """Say what was handled in all rows up to now, in the order of the columns."""
        places = {column.name: place for place, column in enumerate(self.preprocessor.columns)}
        return sorted(self._notes, key=lambda note: (note.kind in OF_COLUMNS, places.get(note.column, -1)))


def predicted(outputs: Tensor, preprocessor: Preprocessor, index: pd.Index) -> pd.DataFrame:
    """Outputs [rows, outputs] of a network of a table as numbers in the unit of its target, or as classes."""
    if preprocessor.target.task == "regression":
        values = preprocessor.inverse(outputs[:, 0].double().numpy())
        return pd.DataFrame({"prediction": values}, index=index)
    return _probabilities(outputs, preprocessor.target.classes, index, preprocessor.target.threshold)


def of_images(
    model: nn.Module, preprocessor: ImagePreprocessor, paths: Sequence[str | Path | bytes], *, strict: bool = True
) -> pd.DataFrame:
    """Predict image files by a network; see `htaf.runs.Run.predict_images`."""
    files = [path if isinstance(path, bytes) else Path(path) for path in paths]
    names = [f"image {i}" if isinstance(file, bytes) else str(file) for i, file in enumerate(files, start=1)]
    outputs, problems = [], []
    with progress("predicting", len(files), shown=None) as more:
        for i in range(0, len(files), 64):
            some = slice(i, i + 64)
            pixels, found = preprocessor.read_each(files[some])
            for file, name, error in zip(files[some], names[some], found, strict=True):
                why = error and str(error).removeprefix("image: " if isinstance(file, bytes) else f"{name}: ")
                if strict and error is not None:
                    raise DataError(f"{name}: {why}") from error
                problems.append(why)
            outputs.append(forward(model, preprocessor.normalise(pixels)))
            more(len(found))
    joined = torch.cat(outputs) if outputs else torch.zeros(0, len(preprocessor.classes))
    joined = _checked(joined, len(preprocessor.classes), len(files))
    frame = _probabilities(joined, preprocessor.classes, pd.Index(names, name="image"))
    if not strict:
        frame["error"] = pd.Series(problems, index=frame.index, dtype=object)
        frame.loc[frame["error"].notna().to_numpy(), frame.columns != "error"] = None
    return frame


def _checked(outputs: Tensor, columns: int, rows: int) -> Tensor:
    """The outputs, once there is one for each row and class: a network and its preprocessing may be of two files."""
    if outputs.shape != (rows, columns):
        wanted = f"outputs [{rows} rows, {columns}], as its preprocessing has"
        raise DataError(f"expected a network with {wanted}, got {[*outputs.shape]}")
    return outputs


def _probabilities(
    outputs: Tensor, classes: Sequence[str], index: pd.Index, threshold: float | None = None
) -> pd.DataFrame:
    """Logits [rows, classes] as the class and a column of probabilities for each."""
    probability = probabilities(outputs)
    columns = {"prediction": np.array(classes, dtype=object)[decided_by(probability, threshold).numpy()]}
    columns |= {f"probability_{name}": probability[:, i].numpy() for i, name in enumerate(classes)}
    return pd.DataFrame(columns, index=index)


@torch.no_grad()
def forward(model: nn.Module, x: Tensor, chunk: int = 8192) -> Tensor:
    """Compute the model's outputs for many rows, in chunks; the training flag stays as it is."""
    if not len(x):  # not every network takes an empty batch
        return model(x.new_zeros(1, *x.shape[1:]))[:0]
    found = Joined(len(x))
    for part in x.split(chunk):
        found.add(model(part))
    return found.whole()


class Joined:
    """Tensors one below the other, as `torch.cat` of a list of them, each copied as it comes.

    A small result that is kept stands in memory between the large ones that a network makes and frees, so that the C
    library cannot use their room again: lists of the results of a million rows held gigabytes.

    Args:
        rows: of all together; where they are more, memory is taken anew.
    """

    def __init__(self, rows: int) -> None:
        self.rows, self.at = rows, 0
        self.found: Tensor | None = None

    def add(self, part: Tensor) -> None:
        """Add the next rows, [some, ...]."""
        end = self.at + len(part)
        if self.found is None:
            self.found = part.new_empty(max(self.rows, end), *part.shape[1:])
        elif end > len(self.found):
            larger = self.found.new_empty(2 * end, *part.shape[1:])
            larger[: self.at] = self.found[: self.at]
            self.found = larger
        self.found[self.at : end] = part
        self.at = end

    def whole(self) -> Tensor:
        """All rows that were added, one or more."""
        assert self.found is not None, "no rows"
        return self.found[: self.at]


@torch.no_grad()
def measure(
    smooth: nn.Module,
    exact: nn.Module | None,
    parts: Mapping[str, Iterable[tuple[Tensor, Tensor]]],
    task: str,
    scale: float = 1.0,
    kept: dict[str, tuple[Tensor, Tensor]] | None = None,
    *,
    weights: Mapping[str, Tensor] | None = None,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Compute the metrics of the smooth and the exact network on each part; "exact" is None where no step exists.

    kept: gets the outputs and targets of each part, of the exact network where there is one.
    weights: [rows] by part, where rows do not all count the same. threshold: see `htaf.runs.metrics.decided`.

    The networks run where their parameters lie, as they are (eval mode is the caller's).
    """
    device = next(smooth.parameters()).device
    outputs: dict[str, dict[str, Any]] = {"smooth": {}, "exact": {}}
    for name, part in parts.items():
        rows = len(part) if isinstance(part, Sized) else 0
        networks = {"smooth": smooth} | ({} if exact is None else {"exact": exact})
        seen = {network: Joined(rows) for network in (*networks, "targets")}
        with progress(f"measuring {name}", rows, shown=None if rows else False) as more:
            for x, y in part:
                x = x.to(device)
                for network, model in networks.items():
                    seen[network].add(model(x).cpu())
                seen["targets"].add(y)
                more(len(y))
        targets = seen.pop("targets").whole()
        if kept is not None:
            kept[name] = seen["smooth" if exact is None else "exact"].whole(), targets
        for network, found in seen.items():
            of = (weights or {}).get(name)
            outputs[network][name] = metrics(found.whole(), targets, task, scale, weights=of, threshold=threshold)
    return outputs | {"exact": outputs["exact"] if exact is not None else None}


@dataclass(frozen=True)
class Agreement:
    """How the outputs of a network in another form agree with those of the network itself.

    Attributes:
        rows: compared.
        predictions: rows whose highest output is the same; of one output, rows within the tolerance.
        difference: largest |difference| of outputs, over the largest |output| of the network.
    """

    rows: int
    predictions: int
    difference: float


def agreement(found: Tensor, expected: Tensor) -> Agreement:
    """Compare outputs [rows, outputs] of a network in another form with its own."""
    difference = (found.double() - expected.double()).abs()
    scale = (expected.abs().max().item() if expected.numel() else 0.0) or 1.0
    if expected.shape[1] == 1:
        same = (difference <= TOLERANCE * scale).flatten()
    else:
        same = found.argmax(1) == expected.argmax(1)
    worst = difference.max().item() / scale if difference.numel() else 0.0
    return Agreement(len(expected), int(same.sum()), worst)
