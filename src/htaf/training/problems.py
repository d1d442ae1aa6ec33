"""A table or a set of images as a training sees it: what to learn, and parts to measure on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from htaf._ground.errors import option, suggestion
from htaf.data import attributes
from htaf.data.attributes import Attributes
from htaf.data.cautions import cautions
from htaf.data.images import FilePart, ImageDataset, ImagePreprocessor, Images, fit_preprocessor
from htaf.data.images import Part as ImagePart
from htaf.data.images import split as split_images
from htaf.data.notes import Note
from htaf.data.parts import IMAGE_CHUNK, Data, Part, TableBatches, image_part, table_part
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError, listed
from htaf.data.tabular import Split, Table, split
from htaf.training.recipe import ImageData, Recipe, TableData
from htaf.training.runs.metrics import headline
from htaf.transform.grid import columns_grid, fixed_point


@dataclass(frozen=True)
class Problem:
    """What to learn from what.

    task: regression or classification. headline: the metric that tables show.
    inputs, outputs: of the network, as `Recipe.model` takes them.
    train, validation: parts. test: None where it must not be looked at.
    scale: standard deviation of the target.
    statistics: the part on which layer statistics are taken.
    attributes: float32 [classes, concepts], what a supervised bottleneck learns of each class.
    plain: the training part without augmentation, of many images some; None where it has none.
    weights: float64 [rows] by part, how much each row counts in what is measured; without those of the classes, which
        are of the training alone.
    """

    name: str
    task: str
    headline: str
    inputs: dict[str, Any]
    outputs: int
    preprocessor: Preprocessor | ImagePreprocessor
    train: Part
    validation: Part
    test: Part | None
    scale: float = 1.0
    notes: tuple[Note | str, ...] = ()
    statistics: Part | None = None
    attributes: Tensor | None = None
    plain: Part | None = None
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    def fitting(self) -> Part:
        """The training part as closed forms take it: not augmented, in chunks, at most 20,000 images or 65,536 rows."""
        return self.plain or self.train

    def choosing(self) -> Part:
        """The validation part by which closed forms choose: of a table at most 65,536 rows."""
        if not isinstance(self.validation.data, TableBatches) or len(self.validation) <= FITTED_ROWS:
            return self.validation
        return self.validation.spread(FITTED_ROWS)

    def examples(self, most: int) -> Tensor:
        """At most so many inputs of the training part, evenly spread, not augmented."""
        if isinstance(self.train.data, TableBatches) and len(self.train) <= most:
            return self.train.data.x  # as it is held: no second copy
        some = self.fitting().spread(most)
        return some[torch.arange(len(some)), 0][0]

    def measured(self) -> Mapping[str, Part]:
        """The parts on which a finished training is measured."""
        return {"validation": self.validation} | ({} if self.test is None else {"test": self.test})


def data_identity(data: Data, mode: str) -> dict[str, Any]:
    """What makes the data of two trainings the same, beside the seed."""
    if isinstance(data, Images):
        return {"name": data.name, "fingerprint": data.fingerprint, "task": "classification", "split": "official"}
    known = {"name": data.name, "fingerprint": data.fingerprint, "task": data.task, "split": mode}
    weight = {} if data.weights is None and not data.weight else {"weight": data.weight}
    return known | data.parting.identity() | weight


def positive_of(posed: Problem) -> dict[str, str]:
    """{"positive": the class of which AUROC and calibration are} of two classes, else nothing."""
    known = posed.preprocessor
    classes = known.classes if isinstance(known, ImagePreprocessor) else known.target.classes
    return {"positive": str(classes[1])} if len(classes) == 2 else {}


def problem(
    recipe: Recipe,
    data: Data,
    seed: int,
    mode: str,
    *,
    test: bool = True,
    attributes: Attributes | None = None,
    rows: Split | None = None,
) -> Problem:
    """The problem that a recipe poses on data.

    Args:
        recipe, data: a family for tables with a table, one for images with images.
        seed, mode: of the split of a table. Images have their official test part, and the same training and validation
            images for every seed.
        test: also take the test part.
        attributes: of the classes, for a supervised bottleneck.
        rows: the parts of a table; None: by seed and mode.

    Raises:
        DataError: the family does not take such data, or there are too few rows; attributes that nothing reads, or not
            of these classes.
    """
    if attributes is not None and recipe.network.supervised_by is None:
        raise DataError(f"expected no attributes for {recipe.network.title()}, which learns none, got some")
    if isinstance(recipe.data, TableData) and isinstance(data, Table):
        divided = rows or split(data, seed, mode=mode)  # pyright: ignore[reportArgumentType]
        of_parts = divided_notes(data, seed, mode, rows)
        return _table(recipe.data, data, divided, test, of_parts, rounded=recipe.network.on_grid)
    if not isinstance(recipe.data, ImageData) or not isinstance(data, Images):
        raise DataError(f"expected {recipe.data.kind} for a recipe of family {recipe.family}, got {data.name}")
    posed = _images(recipe, recipe.data, data, test)
    if attributes is None:
        return posed
    chosen = torch.from_numpy(attributes.of(data.classes).binary().astype(np.float32))
    return replace(posed, inputs=posed.inputs | {"concepts": chosen.shape[1]}, attributes=chosen)


def supervision(recipe: Recipe, data_dir: str | None = None) -> Attributes | None:
    """The attributes that a supervised bottleneck learns: of cub the 112 of Koh et al. (2020), of a file all.

    Args:
        recipe: says which table, if any. data_dir: a folder with the public sets.

    Raises:
        DataError: the table cannot be had.
    """
    name = recipe.network.supervised_by
    if name is None:
        return None
    return attributes.supervising(name, data_dir=data_dir)


def resolved(recipe: Recipe, data: Data) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe with what it leaves to the data, and in words why: augment "auto" is crop-flip; none over a frozen
    backbone, whose features are then computed once, for grey images, and for classes with names of one character, where
    mirrored images are often others (digits, letters).

    Args:
        recipe, data: as `problem` takes them. Images of three equal channels are grey too; 200 are looked at.
    """
    chosen = recipe.data
    if not isinstance(chosen, ImageData) or chosen.augment != "auto" or not isinstance(data, Images):
        return recipe, ()
    if recipe.network.frozen:
        note = "augment none: the backbone is frozen, and so its features are computed once"
        return recipe.replace(augment="none"), (note,)
    why = ""
    if _grey(data.train):
        why = "grey images"
    elif all(len(name) == 1 for name in data.classes):
        why = "classes with names of one character"
    if not why:
        return recipe.replace(augment="crop-flip"), ()
    note = (
        f"augment none, as is the default for {why}: where mirrored images stay in their class, try augment crop-flip"
    )
    return recipe.replace(augment="none"), (note,)


def _grey(part: ImagePart) -> bool:
    """Whether at least 95% of up to 200 images have no colour; what JPEG does to grey is no colour."""
    if part.channels == 1:
        return True
    rows = torch.linspace(0, len(part) - 1, min(len(part), 200)).long()
    pixels = part.batch(rows).to(torch.int16)
    spread = (pixels.amax(1) - pixels.amin(1)).flatten(1).amax(1)
    return (spread <= 8).double().mean().item() >= 0.95


def divided_notes(data: Data, seed: int, mode: str, rows: Split | None = None) -> tuple[Note | str, ...]:
    """What is to be said of data and their parts before the training; arguments as of `problem`."""
    if isinstance(data, Images):
        return ()
    if rows is not None:
        return (*cautions(data, rows, None),)
    return (*cautions(data, split(data, seed, mode=mode), mode),)  # pyright: ignore[reportArgumentType]


def _table(
    options: TableData, table: Table, parts: Split, test: bool, of_parts: tuple[Note | str, ...], *, rounded: bool
) -> Problem:
    if options.threshold is not None and len(table.classes) != 2:
        got = f"{len(table.classes)} classes" if table.classes else "a number"
        raise DataError(f"threshold: expected a target {table.target_name!r} of two classes, got {got}: leave it out")
    preprocessor = table.fit_preprocessor(parts.train)
    if isinstance(options.threshold, float):
        preprocessor = preprocessor.with_threshold(options.threshold)
    present = np.unique(table.target[parts.validation])
    if isinstance(options.threshold, str) and len(present) < 2:
        only, by_class = listed([table.classes[code] for code in present]), option("--split stratified", "stratified")
        raise DataError(
            f"threshold: expected validation rows of both classes to choose {options.threshold} by, got only those of "
            f"{only}: validate on more rows, divide them by class ({by_class}), or give a number"
        )
    of_classes = class_weights(options, table, parts.train)
    choosing, notes = _choosing_weights(of_classes, table, parts.validation)
    made = {
        name: _weighted(table_part(table, preprocessor, rows, training=name == "train"), table, rows, weights)
        for (name, rows), weights in zip(vars(parts).items(), (of_classes, choosing, choosing), strict=True)
    }
    outputs = 1 if table.task == "regression" else len(table.classes)
    train, plain = made["train"], None
    if len(train) > FITTED_ROWS:  # what these fits hold of a row is many times the row
        plain = train.spread(FITTED_ROWS)
        what = "norms, the last layer, the linear part and the leaves of trees"
        notes.append(f"{what} are fitted on {FITTED_ROWS:,} rows, evenly spread")
    return Problem(
        name=table.name,
        task=table.task,
        headline=headline(table.task, outputs),
        inputs=_columns(made["train"], preprocessor, rounded),
        outputs=outputs,
        preprocessor=preprocessor,
        train=made["train"],
        validation=made["validation"],
        test=made["test"] if test else None,
        scale=preprocessor.target.std,
        notes=(*table.notes, *of_parts, *preprocessor.notes, *notes),
        statistics=made["test"] if test else made["validation"],
        plain=plain,
        weights={
            name: torch.from_numpy(own)
            for name, part in vars(parts).items()
            if (own := table.weights_of(part)) is not None
        },
    )


def _weighted(part: Part, table: Table, rows: np.ndarray, of_classes: np.ndarray | None) -> Part:
    """The part with the weights of its rows, times those of their classes."""
    weights = row_weights(table, rows, of_classes)
    if weights is None or not len(rows):
        return part
    return replace(part, weights=torch.from_numpy((weights / weights.mean()).astype(np.float32)))


def row_weights(table: Table, rows: np.ndarray, of_classes: np.ndarray | None) -> np.ndarray | None:
    """How much each of these rows counts in a training, float64 [rows]; None: all alike.

    Args:
        of_classes: float64 [classes], as `class_weights` gives them.
    """
    own = table.weights_of(rows)
    if of_classes is None:
        return own
    return of_classes[table.target[rows]] * (1.0 if own is None else own)


def class_weights(options: TableData, table: Table, train: np.ndarray) -> np.ndarray | None:
    """How much the rows of each class count in a training, float64 [classes]; None: all alike.

    Balanced: rows / (classes * rows of the class) of the training part, rows counted by their weights, as scikit-learn
    has it.

    Raises:
        DataError: a regression, or weights of classes that are none, where others have none.
    """
    from sklearn.utils.class_weight import compute_class_weight

    if not options.class_weight:
        return None
    if not table.classes:
        raise DataError(
            f"class_weight: expected classes in the target {table.target_name!r}, got numbers: leave it out"
        )
    target, found = table.target[train], np.ones(len(table.classes))
    if options.class_weight == ("balanced",):
        present = np.unique(target)
        of = table.weights_of(train)
        found[present] = compute_class_weight("balanced", classes=present, y=target, sample_weight=of)
        return found
    named = options.weights_by_name()
    unknown = [name for name in named if name not in table.classes]
    if unknown and {*table.classes} - {*named}:  # a part of the rows may lack a class, as in a cross-validation
        near = suggestion(unknown[0], table.classes)
        raise DataError(f"class_weight: expected the classes {listed(table.classes)}, got {unknown[0]!r}{near}")
    return np.array([named.get(name, 1.0) for name in table.classes])


def _choosing_weights(
    of_classes: np.ndarray | None, table: Table, validation: np.ndarray
) -> tuple[np.ndarray | None, list[Note | str]]:
    """The weights of classes by which the epoch and the like are chosen, and a note on those that are other ones.

    A class of n < `FEWEST` validation rows has n / `FEWEST` of its weight in the training, but not less than 1: else
    one row could have as much of the loss as all rows of another class, and it would choose.
    """
    if of_classes is None:
        return None, []
    counts = np.bincount(table.target[validation], minlength=len(of_classes))
    lower = np.minimum(of_classes, np.maximum(1.0, of_classes * counts / FEWEST))
    lower = np.where(counts < FEWEST, lower, of_classes)
    fewer = np.flatnonzero((lower < of_classes) & (counts > 0))
    names = tuple(table.classes[code] for code in fewer)
    note = Note("few to choose by", table.target_name, FEWEST, (names, tuple(counts[fewer].tolist())))
    return lower, [note] if names else []


def _columns(train: Part, preprocessor: Preprocessor, rounded: bool) -> dict[str, Any]:
    """Of the inputs of a table: in_features; rows of the training part; levels, how many different values each has
    there, rounded as thermometers on a grid read them or not; discrete, which ones are to be told by each single value:
    parts of a date but its hour and elapsed days, and whole numbers that repeat, as the number of a firm."""
    assert isinstance(train.data, TableBatches)
    x = train.data.x.numpy()
    read = fixed_point(train.data.x, *columns_grid(None)).numpy() if rounded else x
    levels = [len(np.unique(read[:, j])) for j in range(x.shape[1])]
    repeated = [(place, span) for place, span in preprocessor.spans() if levels[place] * REPEATED <= len(x)]
    whole = [place for place, span in repeated if _whole(x[:, place], span)]
    if sum(levels[place] for place in whole) > MOST_WHOLE:
        whole = []
    discrete = sorted({*preprocessor.calendar, *whole})
    return {"in_features": x.shape[1], "rows": len(x), "levels": levels, "discrete": discrete}


def _whole(scaled: Float32[np.ndarray, " rows"], span: float) -> bool:
    """Whether the values of a number column differ by whole numbers; span: what is scaled to 1."""
    steps = scaled.astype(np.float64) * span
    return span < 2**20 and bool((np.abs(steps - steps.round()) < 0.1).all())  # beyond it float32 does not tell


def _images(recipe: Recipe, options: ImageData, images: Images, test: bool) -> Problem:
    rows = split_images(images, train=options.train_images, validation=options.validation_images)
    preprocessor = _for_weights(recipe, images) or fit_preprocessor(images, rows.train)
    settled = resolved(recipe, images)[0].data
    assert isinstance(settled, ImageData)
    augment = settled.augment
    assert augment != "auto"
    held = images.train if recipe.network.frozen and augment == "none" else _decoded_once(images.train)
    plain = ImageDataset(held, preprocessor)
    train = Part(ImageDataset(held, preprocessor, augment), rows.train)
    validation = Part(plain, rows.validation, IMAGE_CHUNK)
    return Problem(
        name=images.name,
        task="classification",
        headline="accuracy",
        inputs={"in_channels": preprocessor.channels, "image_size": list(images.train.size)},
        outputs=len(images.classes),
        preprocessor=preprocessor,
        train=train,
        validation=validation,
        test=image_part(images, preprocessor) if test else None,
        notes=(*images.notes, *preprocessor.notes),
        statistics=validation,
        plain=Part(plain, rows.train, IMAGE_CHUNK).spread(FITTED),
    )


def _for_weights(recipe: Recipe, images: Images) -> ImagePreprocessor | None:
    """The preprocessing for which the first weights of a recipe are made; None where nothing says it."""
    part = images.train
    found = recipe.network.normalisation(part.channels)
    if found is None:
        return None
    shown = ", ".join(f"{m:g}" for m in found[0]), ", ".join(f"{s:g}" for s in found[1])
    note = f"mean {shown[0]} and deviation {shown[1]} of the pixels, as the pretrained weights have them"
    return ImagePreprocessor(*found, part.size, part.channels, images.classes, (note,))


def _decoded_once(part: ImagePart) -> ImagePart:
    """Images from files that are few enough are decoded once, not in every epoch."""
    pixels = len(part) * part.channels * part.size[0] * part.size[1]
    return part.in_memory() if isinstance(part, FilePart) and pixels <= IN_MEMORY else part


IN_MEMORY = 2**30  # bytes
REPEATED = 4  # rows for each value of a whole number that is told by each value
MOST_WHOLE = 1024  # such values of all columns; of more all are measures
FEWEST = 10  # validation rows of a class by which something is chosen
FITTED = 20_000  # images for norms and last layer
FITTED_ROWS = 65_536  # of a table
