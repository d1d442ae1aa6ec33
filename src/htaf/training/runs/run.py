"""A finished run: its networks, its preprocessing, its data, measured and used; read by `open_run`.

Reading one needs torch, pandas and scikit-learn, never lightning.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from htaf._ground.errors import first_line
from htaf._ground.files import LOCK, expect_folder, parse_json, regular, sealed, to_json, write_atomic
from htaf._ground.names import is_outside
from htaf.core.contract import StepFactory
from htaf.data import image_sets, tabular
from htaf.data.images import ImagePreprocessor, Images, split
from htaf.data.notes import Note
from htaf.data.parts import Data, Part, image_part, table_part
from htaf.data.preprocess import Preprocessor, labels_of, relabelled
from htaf.data.reading import DataError, Frame
from htaf.models.build import activation, at_most, build
from htaf.training.runs.folder import (
    HASHED,
    METRICS,
    MODEL,
    PREPROCESSING,
    RECORD,
    SMOOTH,
    RunError,
    locked,
    read_record,
)
from htaf.training.runs.metrics import confusion, per_class
from htaf.training.runs.predictions import measure, of_images, of_rows
from htaf.transform import convert

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
    """Say whether a run was trained on these data, by their fingerprint."""
    return data.fingerprint == run.record["data"].get("fingerprint")


def rows_of(run: Run, images: Images) -> dict[str, tuple[str, Int64[Tensor, " rows"]]]:
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


def rows_are_known(run: Run) -> bool:
    """Say whether the record says on which rows of a table a run was trained; one on a data frame does not."""
    return run.record["data"].get("split") != "given"


def rows_for_figures(run: Run, table: tabular.Table) -> tabular.Split:
    """Find rows as `table_rows`; where the rows of the training are not known, every part is all rows.

    Such parts show what a network does, not how well: it may have been trained on each of them.
    """
    if rows_are_known(run):
        return table_rows(run, table)
    rows = np.arange(len(table.target))
    return tabular.Split(rows, rows, rows)


def table_rows(run: Run, table: tabular.Table) -> tabular.Split:
    """Find the row numbers of the parts of the table that a run was trained on.

    Raises:
        RunError: the run was trained on other data, or does not say on which rows.
    """
    if not rows_are_known(run):
        raise RunError(f"{run.path} does not say which rows it was trained on: expected part 'all'")
    expect_own(run, table)
    return tabular.split(table, run.record["seed"], mode=run.record["data"]["split"])


def raw_part(run: Run, data: tabular.Table, part: str) -> pd.DataFrame:
    """The raw rows of a part of the table of a run, as `Run.predict` takes them; `part` and raises as `Run.part`."""
    return data.features if part == "all" else data.features.iloc[getattr(table_rows(run, data), part)]


def weights_of(run: Run, data: Data, part: str) -> Tensor | None:
    """Say how much each row of a part of a run's data counts, float64 [rows]; None: all alike."""
    if isinstance(data, Images) or data.weights is None:
        return None
    return torch.from_numpy(data.weights if part == "all" else data.weights[getattr(table_rows(run, data), part)])


def expect_own(run: Run, data: Data) -> None:
    """Raises RunError where a run was trained on other data."""
    if not is_own(run, data):
        raise RunError(
            f"{run.path} was trained on other data than {data.name}: its parts are only known for its own data"
        )


@dataclass(frozen=True)
class Run:
    """A finished run, read by `open_run`.

    step: the class of its activation where that is a step from outside htaf.
    held: the content of its files but the record, by name, where they are kept in memory instead of at `path`.
    """

    path: Path
    record: dict[str, Any] = field(repr=False)
    step: StepFactory | None = None
    held: Mapping[str, bytes] | None = field(default=None, repr=False)

    def model(self, *, exact: bool = True) -> nn.Module:
        """The network in eval mode: hardened by default, the smooth one with exact=False (or where no step exists).

        Raises:
            RunError: the weights are missing, damaged, or do not fit the network that the record describes.
        """
        name = SMOOTH if self.has_own_smooth and not exact else MODEL
        file, data = self.path / name, self._checked(name)
        try:
            state = safetensors.torch.load(data)
            known = at_most(sum(map(torch.numel, state.values())), len(state))
            with warnings.catch_warnings(), known, torch.random.fork_rng(devices=[]):  # first weights are drawn
                warnings.simplefilter("ignore")  # the training said what there is to say of the pair
                model = build(self.record["model"], self.step)
            model.load_state_dict(state)
            if self.takes_images:  # as it was trained: the same bits, and faster
                model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        except Exception as error:  # networks raise nearly everything on a description that makes no sense
            raise RunError(f"{file} cannot be read: {first_line(error)}") from None
        return (convert.harden(model) if exact and self.has_step and not self.is_readable else model).eval()

    @property
    def is_readable(self) -> bool:
        """Whether the network is a sum of steps and rules, see `htaf.tables.readable`; it is exact as it is."""
        model = self.record["model"]
        return model["kind"] == "mlp" and not (model["hidden"] or model.get("direct"))

    @property
    def has_step(self) -> bool:
        """False for a real-valued network (method relu), which has no exact step."""
        return self.record["recipe"]["method"] != "relu"

    @property
    def has_own_smooth(self) -> bool:
        """Whether the smooth network has weights of its own: the exact one was changed after it was hardened."""
        return HASHED[SMOOTH] in self.record

    @property
    def takes_images(self) -> bool:
        """Whether the network reads images; otherwise it reads rows of a table."""
        return self.record["model"]["kind"] != "mlp" and "in_channels" in self.record["model"]

    def preprocessor(self) -> Preprocessor | ImagePreprocessor:
        """The fitted preprocessing. Raises RunError when its file is missing or damaged."""
        data, model = self._checked(PREPROCESSING), self.record["model"]
        try:
            found = (ImagePreprocessor if self.takes_images else Preprocessor).from_json(parse_json(data))
        except (DataError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self.path / PREPROCESSING} cannot be read: {first_line(error)}") from None
        if isinstance(found, Preprocessor):
            fitting = {"in_features": len(found.feature_names), "out_features": len(found.target.classes) or 1}
        else:
            fitting = {"in_channels": found.channels, "out_features": len(found.classes)}
        size = [*getattr(found, "size", ())]  # of a table none; not every network of images is built for one
        fits = all(model.get(name) == value for name, value in fitting.items())
        if not fits or (model.get("image_size") or size) != size:
            raise RunError(f"{self.path / PREPROCESSING} does not fit the network that {RECORD} describes")
        return found

    def verify(self) -> None:
        """See that weights and preprocessing are there as they were written.

        Raises:
            RunError: one is missing or damaged; the message says what to do.
        """
        for name, entry in HASHED.items():
            if name != SMOOTH or entry in self.record:
                self._checked(name)

    def _checked(self, name: str) -> bytes:
        file = self.path / name
        again = f"put back a copy of it, or delete {self.path} and run the same command again, which trains anew"
        try:
            data = regular(file).read_bytes() if self.held is None else self.held[name]
        except (FileNotFoundError, KeyError):
            raise RunError(f"{file} is missing, and the run is of no use without it: {again}") from None
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror or error}") from None
        if _sha256(data) != self.record[HASHED[name]]:
            raise RunError(f"{file} is damaged: its SHA-256 differs from the one in {RECORD}; {again}")
        return data

    def in_memory(self) -> Run:
        """The same run with its files in memory, so that its folder may go; it can be pickled.

        Raises:
            RunError: a file is missing or damaged.
        """
        held = {name: self._checked(name) for name, entry in HASHED.items() if name != SMOOTH or entry in self.record}
        metrics = self.path / METRICS
        if self.held is not None:
            held |= self.held
        elif metrics.is_file():
            held[METRICS] = metrics.read_bytes()
        return Run(Path("in memory"), self.record, self.step, held)

    def save(self, path: str | Path) -> Run:
        """Write the run into a folder, as a training does: the record comes last.

        Args:
            path: a folder: new, empty, or of this same run, which is written again.

        Returns:
            The run in its new folder.

        Raises:
            RunError: the folder holds another run or other files, another process holds it, or a file of this run is
                missing or damaged. OSError: it cannot be written.
        """
        path = Path(path)
        expect_folder(path, "the run", RunError)
        before = read_record(path)
        if before is not None and before["key"] != self.record["key"]:
            raise RunError(f"expected a new or empty folder, {path} holds another run: choose another one")
        if before is None and path.exists() and any(not one.name.startswith(LOCK) for one in path.iterdir()):
            raise RunError(f"expected a new or empty folder, {path} holds other files: choose another one")
        held = self.in_memory().held or {}
        with locked(path, "another process writes"):
            for name, data in held.items():
                write_atomic(path / name, data)
            write_atomic(path / RECORD, sealed(self.record))
        return Run(path, self.record, self.step)

    def data(self, place: str | PathLike[str] | None = None, *, data_dir: str | PathLike[str] | None = None) -> Data:
        """The data that the run was trained on: a table, or images at the size of the training.

        Args:
            place: their name or path now; None: where they were at the training.
            data_dir: a folder with the public sets; None: that of the training.

        Returns:
            A `htaf.data.tabular.Table` or `htaf.data.images.Images`. Where they have changed, `part` refuses them.

        Raises:
            UnknownSourceError: no place is given, and the record has none. DataError: they cannot be read.
        """
        source: dict[str, Any] = self.record.get("source") or {}
        place = source.get("name") if place is None else place
        if not place:
            what = "images" if self.takes_images else "data"
            raise UnknownSourceError(f"{self.path} does not say where its {what} came from")
        if self.takes_images:
            return self.other_data(place, data_dir=data_dir or source.get("data_dir"))
        known = self.record["data"]
        if not source and not rows_are_known(self):  # it was trained on a data frame
            return self.other_data(place, data_dir=data_dir)
        return tabular.load(
            place,
            target=source.get("target"),
            task=source.get("task"),
            text_as_missing=bool(source.get("text_as_missing")),
            data_dir=data_dir or source.get("data_dir"),
            exclude=source.get("exclude") or (),
            ids=source.get("ids") or (),
            shares=known.get("shares"),
            group=known.get("group"),
            time=known.get("time"),
            weight=known.get("weight") or None,
        )

    def other_data(self, place: str | PathLike[str], *, data_dir: str | PathLike[str] | None = None) -> Data:
        """Other labelled data for this run's networks: a table with the same columns, or images of the same classes.

        Args:
            place: a name or a path. data_dir: a folder with the public sets.

        Returns:
            As `data`; `part("all", ...)` takes them.

        Raises:
            DataError: they cannot be read.
        """
        preprocessor = self.preprocessor()
        if not isinstance(preprocessor, ImagePreprocessor):
            weight = self.record["data"].get("weight", "")
            separators, target = preprocessor.separators, preprocessor.target
            return tabular.load_like(place, target=target, data_dir=data_dir, weight=weight, separators=separators)
        height, width = preprocessor.size
        # images that are not square were taken as they are, and so are those of sets without files
        size = height if height == width and image_sets.of_files(place) else None
        return image_sets.load(place, size=size, data_dir=data_dir)

    def trained_on(self, data: Data, *, data_dir: str | PathLike[str] | None = None) -> list[Note]:
        """A note where rows of other data are, as the network takes them, rows of the training part: more of them than
        among the run's own test rows, where rows of a few categories can be alike by chance.

        Args:
            data: from `other_data`. data_dir: as of `data`.

        Returns:
            No note of images, and where the run's own data are elsewhere by now.
        """
        if isinstance(data, Images) or self.takes_images or not rows_are_known(self):
            return []

        def rows(table: Data) -> list[bytes]:
            found = np.concatenate([np.column_stack([x.numpy(), y.numpy()]) for x, y in self.part("all", table)])
            return np.ascontiguousarray(found, np.float32).view(f"V{4 * found.shape[1]}")[:, 0].tolist()

        try:
            own = self.data(data_dir=data_dir)
            assert isinstance(own, tabular.Table)
            parts, each = table_rows(self, own), rows(own)
        except (RunError, DataError):
            return []
        known, asked = {each[row] for row in parts.train}, rows(data)
        seen, share = sum(row in known for row in asked), float(np.mean([each[row] in known for row in parts.test]))
        by_chance = share * len(asked) + 3 * (share * (1 - share) * len(asked)) ** 0.5
        return [Note("trained on", count=seen, values=(len(asked),))] if seen > by_chance else []

    def part(self, part: PartName = "test", data: Data | None = None) -> RunPart:
        """A part of the run's data as its networks take it: iterating gives (inputs, targets) in chunks.

        Args:
            part: "train", "validation" or "test", as the training split them; "all", of other data too.
            data: from `data` or `other_data`; None: `data()`, which reads them.

        Returns:
            A sized iterable: inputs float32, targets int64 [rows] or float32 [rows, 1]; see `RunPart`.

        Raises:
            RunError: no such part, or a part of data that the run was not trained on.
            DataError: another kind of data or task, or classes that the run does not know.
        """
        data = self.data() if data is None else data
        if part not in get_args(PartName):
            raise RunError(f"expected a part of {', '.join(get_args(PartName))}, got {part!r:.80}")
        if part != "all" and (self.takes_images or rows_are_known(self)):
            expect_own(self, data)
        preprocessor = self.preprocessor()
        if isinstance(data, Images):
            if not isinstance(preprocessor, ImagePreprocessor):
                raise DataError(f"expected a table for {self.path}, got the images {data.name}")
            if part == "all":
                return RunPart((image_part(data, preprocessor, "train"), image_part(data, preprocessor, "test")))
            side, rows = rows_of(self, data)[part]
            whole = image_part(data, preprocessor, side)
            return RunPart((Part(whole.data, rows, whole.chunk),))
        if isinstance(preprocessor, ImagePreprocessor):
            raise DataError(f"expected images for {self.path}, got the table {data.name}")
        if data.task != preprocessor.target.task:
            raise DataError(f"expected a table for {preprocessor.target.task}, got one for {data.task}")
        rows = np.arange(len(data.target)) if part == "all" else getattr(table_rows(self, data), part)
        return RunPart((table_part(data, preprocessor, rows, training=part == "train"),))

    def evaluate(self, part: PartName = "test", data: Data | None = None) -> dict[str, Any]:
        """The metrics of the smooth and the exact network on a part, and the gap between them.

        Args, raises: as `part`.

        Returns:
            {"headline", "part", "rows", "smooth": {...}, "exact": {...} or None, "gap": exact minus smooth or None},
            and "weight", the column by which rows are weighted in these, where there is one; of a classification also
            "classes", the figures of `htaf.runs.metrics.per_class`, and "confusion", the matrix
            [true][predicted] as whole numbers, both of the exact network where there is one, every row counting once;
            of two classes also "positive", the second one, of which AUROC is.
        """
        data = self.data() if data is None else data
        whole = self.part(part, data)
        smooth, exact = self.model(exact=False), self.model() if self.has_step else None
        preprocessor, task = self.preprocessor(), self.record["data"]["task"]
        scale, threshold = 1.0, None
        if not isinstance(preprocessor, ImagePreprocessor):
            scale, threshold = preprocessor.target.std, preprocessor.target.threshold
        kept: dict[str, tuple[Tensor, Tensor]] = {}
        weights = weights_of(self, data, part)
        of = {} if weights is None else {part: weights}
        results = measure(smooth, exact, {part: whole}, task, scale, kept, weights=of, threshold=threshold)
        name = self.record["headline"]
        of_smooth, of_exact = results["smooth"][part], results["exact"][part] if exact is not None else None
        known = of_exact is not None and of_exact[name] is not None and of_smooth[name] is not None
        gap = of_exact[name] - of_smooth[name] if of_exact is not None and known else None
        found = {"headline": name, "part": part, "rows": len(whole), "smooth": of_smooth, "exact": of_exact, "gap": gap}
        if weights is not None and isinstance(data, tabular.Table):
            found["weight"] = data.weight
        if task != "classification":
            return found
        classes = preprocessor.classes if isinstance(preprocessor, ImagePreprocessor) else preprocessor.target.classes
        matrix = confusion(*kept[part], len(classes), threshold)
        if len(classes) == 2:
            found["positive"] = str(classes[1])
        return found | {"classes": per_class(matrix, classes), "confusion": matrix.tolist()}

    def predict(self, rows: Frame, *, exact: bool = True, text_as_missing: bool = False) -> pd.DataFrame:
        """Predictions for raw rows.

        Args:
            rows: the columns that the run was trained on, by name, any order; others are ignored.
            exact: use the exact step (the default) or the smooth network.
            text_as_missing: in a column of numbers or dates a text that is none, such as "unknown", is missing; else it
                is refused.

        Returns:
            For a regression one column `prediction` in the target's units; for a classification `prediction`
            (the class, in the type of the training's target) and one probability column per class,
            `probability_<class>`. The index is that of rows.

        Raises:
            RunError: a damaged run. DataError: rows lack a column or hold values that cannot be used.
        """
        return self.predict_with_notes(rows, exact=exact, text_as_missing=text_as_missing)[0]

    def predict_with_notes(
        self, rows: Frame, *, exact: bool = True, text_as_missing: bool = False
    ) -> tuple[pd.DataFrame, list[Note]]:
        """As `predict`, with what was handled in these rows: unseen categories, missing values, ignored columns."""
        preprocessor = self.preprocessor()
        if isinstance(preprocessor, ImagePreprocessor):
            raise DataError(f"{self.path} was trained on images: expected image files, got a table")
        found, notes = of_rows(self.model(exact=exact), preprocessor, rows, text_as_missing=text_as_missing)
        return relabelled(found, preprocessor.target.classes, labels_of(self.record)), notes

    def predict_images(
        self, paths: Sequence[str | Path | bytes], *, exact: bool = True, strict: bool = True
    ) -> pd.DataFrame:
        """Predictions for image files.

        Args:
            paths: image files of the kinds in `htaf.data.image_reading.FORMATS`, or bytes, the content of one; they
                are scaled as the training images were.
            exact: use the exact step (the default) or the smooth network.
            strict: raise for a file that cannot be read; else its row has only the reason.

        Returns:
            `prediction` (the class) and one probability column per class, `probability_<class>`, indexed by path
            (contents: "image 1", "image 2" and so on); with strict=False also `error`, None where all is well.

        Raises:
            RunError: a damaged run. DataError: a table's run, or, with `strict`, a file that is no image (it is named).
        """
        preprocessor = self.preprocessor()
        if not isinstance(preprocessor, ImagePreprocessor):
            raise DataError(f"{self.path} was trained on a table: expected its rows, got image files")
        return of_images(self.model(exact=exact), preprocessor, paths, strict=strict)


def open_run(path: str | Path, *, method: StepFactory | None = None) -> Run:
    """Read a finished run folder. Nothing that a file names is imported.

    Args:
        method: the class of the run's step where it was trained with one from outside htaf
            (`htaf train --method package.module:Class`), whose code no file may have run.

    Raises:
        RunError: no such folder, no run in it, a damaged record, another format, a training that has not finished, or
            weights or preprocessing that are missing or damaged; or `method` is missing, or not for this run.
    """
    path = Path(path)
    record = read_record(path)
    if record is None:
        of_demo = path / "icbm"
        hint = f"; {of_demo} has one" if (of_demo / RECORD).is_file() else ""
        raise RunError(f"expected a run folder with {RECORD}, found none at {path}{hint}")
    if record["status"] != "finished":
        raise RunError(f"{path} holds a training that has not finished: run the same train command again to resume it")
    return finished_run(path, record, method)


def finished_run(path: Path, record: dict[str, Any], method: StepFactory | None = None) -> Run:
    """The run of a record that says finished, once its files are seen to be whole; raises as `open_run`."""
    trained = record["recipe"]["method"]
    if is_outside(trained):
        try:
            activation(record["model"]["activation"], method)()
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: {first_line(error)}") from None
    elif method is not None:
        raise RunError(f"{path} was trained with method {trained}, which is htaf's own: leave method out")
    run = Run(path, record, method)
    run.verify()
    return run


def finish_run(
    path: Path,
    record: dict[str, Any],
    model: nn.Module,
    preprocessor: Preprocessor | ImagePreprocessor,
    method: StepFactory | None = None,
    *,
    smooth: nn.Module | None = None,
) -> Run:
    """Write weights and preprocessing, then the record as finished: a reader sees all of it or an unfinished run.

    Args:
        model: whose weights the exact network has.
        smooth: the smooth network where its weights are others; None: they share them.
    """
    for name in (RECORD, MODEL, SMOOTH, PREPROCESSING, METRICS):
        for left in path.glob(f".{name}.*"):  # temporary files of a process that was killed while it wrote
            left.unlink(missing_ok=True)
    files = {MODEL: _weights(model)} | ({} if smooth is None else {SMOOTH: _weights(smooth)})
    files[PREPROCESSING] = to_json(preprocessor.to_json()).encode()
    if smooth is None:
        (path / SMOOTH).unlink(missing_ok=True)
    for name, data in files.items():
        write_atomic(path / name, data)
    hashes = {HASHED[name]: _sha256(data) for name, data in files.items()}
    record = {**record, "status": "finished", **hashes}
    write_atomic(path / RECORD, sealed(record))
    return Run(path, record, method)


def _weights(model: nn.Module) -> bytes:
    """Its state dict as a file of tensors."""
    return safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()})


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
