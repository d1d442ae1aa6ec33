"""`ConceptBottleneck`: a scikit-learn classifier over a feature matrix, whose decisions are sums over bits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
import pandas as pd
import safetensors.numpy
import torch
from jaxtyping import Float64, Int64, Shaped, UInt8
from safetensors import SafetensorError
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from htaf._ground.errors import first_line
from htaf._ground.files import expect_folder, read_record, sealed, write_atomic
from htaf.concepts.codes import PARTS, Codes, ConceptError, PartName, codes_of
from htaf.concepts.explorer.build import Pixels, build_page
from htaf.concepts.explorer.shown import Heading, Items
from htaf.concepts.finding import Found, find_concept
from htaf.concepts.heads import Head, edited, sparse_heads
from htaf.concepts.reasons import SHOWN, reasons_of
from htaf.models.icbm import ICBM
from htaf.training.families.icbm import ICBMNetwork, frozen

MANY = 256  # features: of fewer, which repeat each other less, fewer are dropped
ROUNDING = 1e-6  # deviation of a column, as a share of its mean
ROWS = 8192  # whose bits are computed at once
RECORD, TENSORS, FORMAT = "bottleneck.json", "bottleneck.safetensors", 1
ARGUMENTS = ("n_concepts", "rate", "neighbours", "concepts_per_class", "epochs")
FIT = "fit"  # ids of the rows of `fit`: fit/0, fit/1, ...


@dataclass(frozen=True, eq=False)
class Bits:
    """Bit j of features x is 1 where directions_j . x + offsets_j >= 0.

    Attributes:
        directions: float64 [C, F]. offsets: float64 [C].
    """

    directions: Float64[np.ndarray, "concepts features"]
    offsets: Float64[np.ndarray, " concepts"]

    def pre_activations(self, x: Shaped[np.ndarray, "rows features"]) -> Float64[np.ndarray, "rows concepts"]:
        """In float64, so that a bit does not depend on the rows beside it."""
        made = np.empty((len(x), len(self.offsets)))
        for first in range(0, len(x), ROWS):
            rows = slice(first, first + ROWS)
            made[rows] = x[rows].astype(np.float64) @ self.directions.T + self.offsets
        return made

    def of(self, x: Shaped[np.ndarray, "rows features"]) -> UInt8[np.ndarray, "rows concepts"]:
        """0 and 1."""
        return (self.pre_activations(x) >= 0).astype(np.uint8)


def learn(
    x: Shaped[np.ndarray, "rows features"],
    y: Int64[np.ndarray, " rows"],
    *,
    concepts: int,
    rate: float | Literal["auto"],
    neighbours: float,
    epochs: int | None,
    seed: int,
    group_share: float = 0.0,
) -> Bits:
    """Bits for classification: standardised features, linear layer, batch norm, sharpened HTAF, linear head.

    The network, its loss, optimizer, batches and sharpening are those of the recipe `frozen` of an ICBM. What
    `htaf.training.fit` has beside these (a run folder, checkpoints, processes, loggers) a minute on a matrix does not
    need. The head is thrown away: one is fitted to the exact bits afterwards.

    Args:
        x: of the training rows, whose means and deviations standardise. y: class numbers from 0.
        concepts: C. rate: wanted share of the rows in which a bit is on, 0: as it comes; "auto": see `shared_rate`.
        neighbours: weight, 0: none.
        epochs: None: 60, or as many as make 600 steps, at most 150.
        seed: of weights, batches and dropout. group_share: of the bits, see `ICBM.begin_groups`.
    """
    from htaf.training.fit import long_enough
    from htaf.training.module import EpochBatches, Training

    recipe = frozen().replace(concept_rate=rate, neighbours=neighbours, group_share=group_share)
    recipe = long_enough(recipe, len(x))[0] if epochs is None else recipe.replace(epochs=epochs)
    network = recipe.network
    assert isinstance(network, ICBMNetwork)
    means, scales = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    scales[scales <= ROUNDING * np.abs(means)] = np.inf  # constant but for rounding: such a column tells nothing
    z, labels = torch.from_numpy(((x - means) / scales).astype(np.float32)), torch.from_numpy(y)
    dropout = network.feature_dropout * min(1.0, z.shape[1] / MANY)
    batches = EpochBatches(len(z), recipe.optimization.batch_size, seed)
    steps = recipe.optimization.epochs * len(batches)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        example = z[:2, :, None, None]
        net = ICBM(nn.Flatten(), int(y.max()) + 1, example=example, concepts=concepts, norm=True, dropout=dropout)
        net.projection = nn.Linear(z.shape[1], concepts, bias=False)  # also where there are as many features
        network.begin_at_rate(net)
        net.begin_groups(z, group_share)
        module = Training(net, recipe, "classification", steps)
        made = module.configure_optimizers()
        optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
        for epoch in range(recipe.optimization.epochs):
            batches.set_epoch(epoch)
            for step, (rows, _, _) in enumerate(batches, epoch * len(batches)):
                module.sharpen(step / steps)
                optimizer.zero_grad()
                module.objective(z[rows], labels[rows]).backward()
                optimizer.step()
                schedule.step()
    assert isinstance(net.norm, nn.BatchNorm1d)
    return _folded(net.projection, net.norm, z, means, scales)


@torch.no_grad()
def _folded(linear: nn.Linear, norm: nn.BatchNorm1d, z: torch.Tensor, means: np.ndarray, scales: np.ndarray) -> Bits:
    """The layers as one affine map of raw features, with the statistics of all training rows in the norm."""
    weight, gain, shift = (p.double().numpy() for p in (linear.weight, norm.weight, norm.bias))
    pre = Bits(weight, np.zeros(len(weight))).pre_activations(z.numpy())
    slope = gain / np.sqrt(pre.var(0) + norm.eps)
    directions = slope[:, None] * weight / scales
    return Bits(directions, shift - slope * pre.mean(0) - directions @ means)


@final
class ConceptBottleneck(ClassifierMixin, BaseEstimator):
    """A concept bottleneck on any embedding: bits of features [N, F], and a linear head on the bits.

        bit_j = [directions_j . x + offset_j >= 0],    logits = weight @ bits + bias

    The features come from elsewhere: a sentence encoder, an audio or protein model, tf-idf with an SVD, an image
    backbone. They are standardised with the training rows.

    Args:
        n_concepts: C, how many bits.
        rate: the share of the rows in which a bit is wanted to be on; None: 15%, of fewer than 20 classes the share of
            three, at most half. 0: as it comes, about half.
        neighbours: weight of the term that makes the bits of a row like those of its 5 nearest rows; 0: none.
        concepts_per_class: most concepts that a class draws on, such as 5 or 10; None: all.
        epochs: of the training; None: 60, or as many as make 600 steps, at most 150.
        random_state: of the validation rows, the weights and the batches; None draws.

    Attributes:
        classes_: the labels, sorted.
        n_features_in_, feature_names_in_: of X in `fit`; names where its columns are text.
        bits_: `directions` [C, F] and `offsets` [C], of raw features.
        head_: `weight` [K, C] and `bias` [K].
        fitted_: codes of the rows of `fit`: the bits and labels of its train and validation parts, C / 8 bytes a row.

    Raises:
        ValueError: by `fit`, for arguments out of range, missing values, one class, or shapes that do not fit.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_concepts": [Interval(Integral, 1, None, closed="left")],
        "concepts_per_class": [Interval(Integral, 1, None, closed="left"), None],
        "epochs": [Interval(Integral, 1, None, closed="left"), None],
        "rate": [Interval(Real, 0, 1, closed="left"), None],
        "neighbours": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        n_concepts: int = 128,
        rate: float | None = None,
        neighbours: float = 0.5,
        concepts_per_class: int | None = None,
        epochs: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.n_concepts = n_concepts
        self.rate = rate
        self.neighbours = neighbours
        self.concepts_per_class = concepts_per_class
        self.epochs = epochs
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any, validation: float = 0.1) -> ConceptBottleneck:
        """Learn bits from features X [N, F] and labels y [N] of any kind that sorts, then a head on the exact bits.

        Args:
            validation: share of the rows of each class that are not trained on and choose the strength of the head.
        """
        self._validate_params()
        checked: Any = validate_data(self, X, y, dtype=(np.float64, np.float32), ensure_min_samples=2)
        x, y = checked
        _expect_labels(y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least 2 classes, got 1 class: {self.classes_.tolist()[0]!r}"
            )
        labels = labels.astype(np.int64)
        random = check_random_state(self.random_state)
        seed = int(self.random_state) if isinstance(self.random_state, int | np.integer) else random.randint(2**31 - 1)
        parts = _parts(labels, validation, np.random.default_rng(seed))
        train = parts == 0
        self.bits_ = learn(
            x[train], labels[train], concepts=int(self.n_concepts), neighbours=float(self.neighbours),
            rate="auto" if self.rate is None else float(self.rate), epochs=self.epochs, seed=seed,
        )  # fmt: skip
        none = Head(np.zeros((len(self.classes_), int(self.n_concepts))), np.zeros(len(self.classes_)))
        ids = [f"{FIT}/{row}" for row in range(len(x))]
        codes = self._codes(self.bits_.of(x), labels, parts, ids, none)
        found = sparse_heads(_with_validation(codes), (self.concepts_per_class,))[0].head
        self.head_ = Head(*(values.astype(np.float32).astype(np.float64) for values in (found.weight, found.bias)))
        self.fitted_ = self._codes(codes.unpack(), labels, parts, ids, self.head_)
        return self

    def _features(self, X: Any) -> Shaped[np.ndarray, "rows features"]:
        x: Any = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        return x

    def _numbers(self, y: Any) -> Int64[np.ndarray, " rows"]:
        """Class numbers, -1 for labels that were not in `fit`."""
        return np.asarray(pd.Index(self.classes_).get_indexer(pd.Index(np.asarray(y))), dtype=np.int64)

    def _codes(self, bits: np.ndarray, labels: np.ndarray, parts: np.ndarray, ids: Sequence[str], head: Head) -> Codes:
        names = [str(label) for label in self.classes_.tolist()]
        return codes_of(bits, labels, head.weight, head.bias, classes=names, parts=parts, ids=ids)

    def pre_activations(self, X: Any) -> Float64[np.ndarray, "rows concepts"]:
        """What the steps are taken of: bit j is 1 where value j is >= 0."""
        check_is_fitted(self)
        return self.bits_.pre_activations(self._features(X))

    def concepts(self, X: Any) -> UInt8[np.ndarray, "rows concepts"]:
        """The bits: 0 and 1."""
        return (self.pre_activations(X) >= 0).astype(np.uint8)

    def _logits(self, X: Any) -> Float64[np.ndarray, "rows classes"]:
        return self.concepts(X) @ self.head_.weight.T + self.head_.bias

    def decision_function(self, X: Any) -> Float64[np.ndarray, "..."]:
        """The logits in the order of `classes_`; of two classes the second minus the first [rows]."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> Float64[np.ndarray, "rows classes"]:
        """Probabilities, in the order of `classes_`: the softmax of the logits."""
        return softmax(self._logits(X), axis=1)

    def predict(self, X: Any) -> Shaped[np.ndarray, " rows"]:
        """The class with the highest logit."""
        places = self._logits(X).argmax(1)
        return self.classes_[places]

    def reasons(self, X: Any, most: int = SHOWN) -> pd.DataFrame:
        """Why each row is taken for its class: the bits that hold the prediction most, against the runner-up.

        Returns:
            row by row, the strongest first: "row", "prediction", "runner_up", "margin" (the logit of the one less that
            of the other), "concept", "on" and "worth", what the margin loses if this bit is flipped. As the head is
            linear, this is exact. A bit that is off can be a reason too.
        """
        found = reasons_of(bits := self.concepts(X), self.head_.weight, self.head_.bias)
        lines = [
            (row, self.classes_[found.predicted[row]], self.classes_[found.runner_up[row]], found.margin[row],
             concept, bool(bits[row, concept]), found.worth[row, concept])
            for row in range(len(bits)) for concept in found.strongest(row, most)
        ]  # fmt: skip
        return pd.DataFrame(lines, columns=["row", "prediction", "runner_up", "margin", "concept", "on", "worth"])

    def edited(self, off: Sequence[tuple[Any, int | np.integer]]) -> ConceptBottleneck:
        """A new classifier of the same bits, of which some classes no longer draw on some: head weights of 0.

        Args:
            off: (label, concept) pairs.

        Raises:
            ConceptError: a label or a concept that is not there.
        """
        check_is_fitted(self)
        numbers = self._numbers([label for label, _ in off]).tolist()
        if -1 in numbers:
            unknown = off[numbers.index(-1)][0]
            raise ConceptError(f"expected a label of {self.classes_.tolist()[:10]}, got {unknown!r}")
        made = copy(self)
        made.fitted_ = edited(self.fitted_, [(n, concept) for n, (_, concept) in zip(numbers, off, strict=True)])
        made.head_ = Head(np.asarray(made.fitted_.weight, np.float64), self.head_.bias)
        return made

    def codes(self, X: Any = None, y: Any = None, *, ids: Sequence[str] = (), part: PartName = "test") -> Codes:
        """The bits of the rows of `fit` as parts train and validation, and of these rows: what `htaf.concepts` takes.

        Args:
            X: further rows; None: none. y: their labels; None, and labels that `fit` had not: not known.
            ids: their names; default: test/0, test/1, ...
            part: what they are to the training.

        Raises:
            ConceptError: numbers of rows, labels and ids that differ.
        """
        check_is_fitted(self)
        if X is None:
            return self.fitted_
        bits = self.concepts(X)
        names = list(ids) or [f"{part}/{row}" for row in range(len(bits))]
        labels = np.full(len(bits), -1, np.int64) if y is None else self._numbers(y)
        if not len(names) == len(labels) == len(bits):
            raise ConceptError(
                f"expected as many labels and ids as rows, got {len(labels):,} and {len(names):,} for {len(bits):,}"
            )
        own = self._codes(bits, labels, np.full(len(bits), PARTS.index(part), np.uint8), names, self.head_)
        whole = {name: np.concatenate([getattr(self.fitted_, name), getattr(own, name)]) for name in Codes.arrays}
        return replace(self.fitted_, **whole, ids=[*self.fitted_.ids, *names])

    def page(
        self,
        out: str | PathLike[str],
        X: Any,
        y: Any,
        *,
        items: Sequence[str] | np.ndarray | None = None,
        ids: Sequence[str] = (),
        title: str = "Concepts",
    ) -> Path:
        """The page of `htaf explore` for these rows: open the file that is returned.

        Args:
            out: a new or empty folder, or that of an earlier page.
            X, y, ids: as of `codes`, of rows that were not trained on.
            items: what each row is of: texts or links; pictures uint8 [N, C, H, W], C 1 or 3; None: ids alone.
            title: of the page.

        Raises:
            ConceptError: another number of items, arrays that are no pictures, or equal ids; and as `codes` and
                `htaf.concepts.explorer.build.build_page`.
        """
        if items is not None and len(items) != len(X):
            raise ConceptError(f"expected an item for each of {len(X):,} rows, got {len(items):,}")
        codes = self.codes(X, y, ids=ids)
        names = [*codes.ids][len(self.fitted_) :]
        place = {name: row for row, name in enumerate(names)}
        if len(place) < len(names):
            twice = next(name for row, name in enumerate(names) if place[name] != row)
            raise ConceptError(f"expected ids that differ, got {twice!r} twice")
        margins = np.zeros((len(codes), codes.concepts), np.float32)  # of the rows of X alone they are read
        margins[len(self.fitted_) :] = self.pre_activations(X)
        pixels: Pixels | None = None
        if isinstance(items, np.ndarray) and items.dtype.kind not in "OUST":
            if items.dtype != np.uint8 or items.ndim != 4 or items.shape[1] not in (1, 3):
                got = f"{items.dtype} {[*items.shape]}"
                raise ConceptError(f"expected pictures uint8 [N, C, H, W] with C 1 or 3, or texts, got {got}")
            pixels, what = (lambda some: items[[place[name] for name in some]]), Items()
        elif items is None:
            what = Items("row")
        else:
            texts = [str(item) for item in items]
            what = Items("text", dict(zip(names, texts, strict=True)))
        made = build_page(
            codes,
            Path(out),
            pixels=pixels,
            margins=margins,
            items=what,
            heading=Heading(title, [("Features", f"{self.bits_.directions.shape[1]:,}")]),
        )
        return Path(made["page"])

    def find(self, with_: Any, without: Any, *, paired: bool = False) -> Found:
        """The bit and the direction that follow a concept of your own, whether that can be chance, and whether the
        classifier uses them: see `htaf.concepts.finding.find_concept`.

        Args:
            with_, without: features of rows that have the concept and of rows that do not, such as 20 of each.
            paired: row i of both is of one thing, with the concept and without.
        """
        check_is_fitted(self)
        sides = self._features(with_), self._features(without)
        return find_concept(*sides, self.bits_.pre_activations, self.head_, paired=paired)

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write bottleneck.json and bottleneck.safetensors; no pickle is in them.

        Args:
            folder: new, empty, or that of an earlier `save`, which is written over.

        Raises:
            NotFittedError: before `fit`. ConceptError: other files in the folder, or labels that JSON has not.
        """
        check_is_fitted(self)
        folder = Path(folder)
        expect_folder(folder, "the classifier", ConceptError)
        others = [p.name for p in folder.iterdir() if p.name not in (RECORD, TENSORS)] if folder.exists() else []
        if others:
            raise ConceptError(f"expected a new or empty folder, {folder} holds {others[0]!r}: choose another one")
        kind = self.classes_.dtype.kind
        if kind not in "biufUO" or (kind == "O" and not all(isinstance(label, str) for label in self.classes_)):
            raise ConceptError(f"expected labels that are texts, numbers or truth values, got {self.classes_.dtype}")
        arrays = {
            "directions": self.bits_.directions, "offsets": self.bits_.offsets, "weight": self.head_.weight,
            "bias": self.head_.bias, "bits": self.fitted_.bits, "labels": self.fitted_.labels,
            "parts": self.fitted_.parts,
        }  # fmt: skip
        data = safetensors.numpy.save({name: np.ascontiguousarray(values) for name, values in arrays.items()})
        plain = {name: _plain(getattr(self, name)) for name in ARGUMENTS}
        seed = self.random_state
        record = {
            "format": FORMAT,
            "arguments": plain | {"random_state": None if isinstance(seed, np.random.RandomState) else _plain(seed)},
            "classes": self.classes_.tolist(),
            "dtype": self.classes_.dtype.str,
            "names": None if (names := getattr(self, "feature_names_in_", None)) is None else [*names],
            "tensors": hashlib.sha256(data).hexdigest(),
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD).unlink(missing_ok=True)  # a folder without it is none
        write_atomic(folder / TENSORS, data)
        write_atomic(folder / RECORD, sealed(record))
        return folder

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> ConceptBottleneck:
        """The classifier that `save` wrote; nothing in the folder is run as code.

        Raises:
            ConceptError: no such folder, another format, or damaged files.
        """
        folder = Path(folder)
        record = read_record(folder / RECORD, FORMAT, ConceptError)
        if record is None:
            raise ConceptError(f"expected a folder of ConceptBottleneck.save with {RECORD}, found none at {folder}")
        try:
            data = (folder / TENSORS).read_bytes()
            if hashlib.sha256(data).hexdigest() != record["tensors"]:
                raise ConceptError(f"{folder / TENSORS} is damaged: its SHA-256 differs from the one in {RECORD}")
            arrays = safetensors.numpy.load(data)
            made = cls(**record["arguments"])
            kind = np.dtype(record["dtype"])
            if kind.kind not in "biufUO":
                raise ValueError(f"expected labels of a type that save writes, got {kind}")
            # texts are as long as they are, whatever is said of them
            made.classes_ = np.array(record["classes"], dtype=None if kind.kind == "U" else kind)
            made.bits_ = Bits(arrays["directions"], arrays["offsets"])
            made.head_ = Head(arrays["weight"], arrays["bias"])
            expected = len(made.classes_), len(made.bits_.offsets)
            if made.head_.weight.shape != expected or made.head_.bias.shape != expected[:1]:
                raise ValueError(f"expected a head of {expected} classes and bits, got {made.head_.weight.shape}")
            vars(made)["n_features_in_"] = made.bits_.directions.shape[1]
            if record["names"] is not None:
                vars(made)["feature_names_in_"] = np.array(record["names"], dtype=object)
            bits = np.unpackbits(arrays["bits"], axis=1, count=len(made.bits_.offsets), bitorder="little")
            ids = [f"{FIT}/{row}" for row in range(len(bits))]
            made.fitted_ = made._codes(bits, arrays["labels"], arrays["parts"], ids, made.head_)
        except (OSError, KeyError, TypeError, ValueError, OverflowError, SafetensorError) as error:
            raise ConceptError(f"{folder} does not fit a classifier of this version: {first_line(error)}") from None
        return made


def _expect_labels(y: np.ndarray) -> None:
    """Raises ValueError for objects that are no texts, of which scikit-learn says that they are numbers to predict."""
    if y.dtype != object or all(isinstance(label, str) for label in y):
        return
    if len(missing := np.flatnonzero(pd.isna(y))):
        of = f"{len(missing):,} of {len(y):,} rows, the first is row {missing[0]}"
        raise ValueError(f"expected a label for each row, got none in {of}")
    kinds = " and ".join(sorted({type(label).__name__ for label in y}))
    known = "texts, or an array of numbers or truth values"
    raise ValueError(f"Unknown label type: expected {known}, got objects of {kinds}")  # scikit-learn checks the words


def _parts(labels: Int64[np.ndarray, " rows"], share: float, random: np.random.Generator) -> UInt8[np.ndarray, " rows"]:
    """0 for training rows, 1 for validation rows: this share of each class, one row less than all at most."""
    if not 0 < share < 1:
        raise ValueError(f"validation must be a share in (0, 1), got {share!r}")
    parts = np.zeros(len(labels), np.uint8)
    for label in range(int(labels.max()) + 1):
        rows = random.permutation(np.flatnonzero(labels == label))
        parts[rows[: min(round(share * len(rows) + 0.25), len(rows) - 1)]] = 1
    return parts


def _with_validation(codes: Codes) -> Codes:
    """The codes; where there are no validation rows, as of few rows, with the training rows for them too."""
    if (codes.parts == PARTS.index("validation")).any():
        return codes
    twice = codes.take(np.tile(np.arange(len(codes)), 2))
    return replace(twice, parts=np.repeat(np.array([0, 1], np.uint8), len(codes)))


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value
