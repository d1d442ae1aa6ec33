"""scikit-learn estimators: the training of `htaf train tabular` behind `fit`, `predict` and `score`.

An estimator holds a run whose files are kept in memory; `save` writes them as an ordinary run folder, which
`htaf.load` reads.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data
from torch import nn

from htaf._ground.console import say_notes
from htaf._ground.errors import expect_seed, suggestion
from htaf.data.cautions import cautions, rows_in_time
from htaf.data.dates import has_zone
from htaf.data.notes import UNEXPECTED, UNLIKE, UNLIKE_TRAINING, Note, from_record, told
from htaf.data.order import random_words
from htaf.data.preprocess import Preprocessor, is_by_chance, read_labels, spelled
from htaf.data.reading import (
    DataError,
    Frame,
    TableError,
    in_pandas,
    is_date,
    is_text,
    listed,
    named,
    to_number,
    to_text,
)
from htaf.data.tabular import Parting, Split, Table, Task, amounts_of_rows, from_frame, split
from htaf.models.mlp import MLP, Leaves, LeavesByWords
from htaf.training.families import ready_recipe
from htaf.training.recipe import Recipe
from htaf.training.runs import Run, RunError, forward
from htaf.training.runs.metrics import decided

Fitted = TypeVar("Fitted", bound="_TableEstimator")

# the arguments that are fields of a recipe; None leaves one as the recipe has it
FIELDS = ("hidden", "epochs", "batch_size", "lr", "class_weight", "threshold")
ENTRY = "estimator"  # of a record: what the folder of a saved estimator holds beyond that of a run
LEAST = 3  # rows: batch norm trains on two, one validates
SEEDS = 2**31


class _TableEstimator(BaseEstimator):
    """What classifier and regressor share."""

    _by_name = False  # columns of a frame that were not trained on are ignored: of `fit` and `load` of this module

    def __new__(cls, *args: Any, **options: Any) -> Any:
        known = cls._get_param_names()
        for name in options:
            if name not in known:
                fields = _fields()
                hint = f": a field of a recipe, give recipe={{{name!r}: ...}}" if name in fields else ""
                hint = hint or suggestion(name, [*known, *fields])
                raise TypeError(f"{cls.__name__} got an unexpected keyword argument {name!r}{hint}")
        return super().__new__(cls)

    def __init__(
        self,
        *,
        recipe: Mapping[str, Any] | Recipe | str | None = None,
        hidden: Sequence[int] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        threshold: float | str | None = None,
        validation_fraction: float = 0.1,
        text_as_missing: bool = False,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.recipe = recipe
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.class_weight = class_weight
        self.threshold = threshold
        self.validation_fraction = validation_fraction
        self.text_as_missing = text_as_missing
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    __signature__ = inspect.signature(__init__).replace(
        parameters=[*inspect.signature(__init__).parameters.values()][1:]
    )  # of the class, not of __new__

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.target_tags.required = True
        return tags

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write an ordinary run folder, which `htaf.load` and every verb of the command read; no pickle is in it.

        Args:
            folder: new, empty, or that of the same training, which is written again.

        Returns:
            The folder.

        Raises:
            NotFittedError: before `fit`. RunError: the folder holds another run or other files.
        """
        check_is_fitted(self)
        return self.run_.save(Path(folder)).path

    @property
    def notes_(self) -> tuple[str, ...]:
        """What was handled in the data and in the training, one line each. `fit` warns of dropped columns."""
        check_is_fitted(self)
        return tuple(told(from_record(self.run_.record["notes"])))

    def __getstate__(self) -> dict[str, Any]:
        """Without the network: it is read from the safetensors bytes that the run keeps."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _BUILT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "run_" in self.__dict__:
            self._build()

    def _build(self) -> None:
        """The exact network and the preprocessing from the run's files."""
        preprocessor = self.run_.preprocessor()
        assert isinstance(preprocessor, Preprocessor)  # `of_run` refuses images
        self._preprocessor = preprocessor
        self._network = _head_in_double(self.run_.model())
        of_notes = [note.column for note in from_record(self.run_.record["notes"]) if isinstance(note, Note)]
        of_table = [*(column.name for column in preprocessor.columns), *preprocessor.ids, preprocessor.target.name]
        self._columns = {*of_table, *of_notes}  # of the training, left out or not
        self._warned = set[tuple[str, str]]()  # kinds of notes and columns that `predict` has warned of

    def _adopt(self: Fitted, run: Run) -> Fitted:
        """Be fitted as this run is."""
        self.run_ = run.in_memory()
        self.n_iter_ = int(run.record["epochs_run"])
        self._build()
        return self

    def _recipe(self) -> Recipe:
        """The recipe with the arguments."""
        from htaf.training.families import FAMILIES, family_of
        from htaf.training.recipe import TableData

        given = self.recipe
        fields = dict(given) if isinstance(given, Mapping) else {}
        name = fields.pop("family", "mlp")
        if isinstance(given, Recipe) and isinstance(given.data, TableData):
            name = given.family
        elif isinstance(given, str):
            of_tables = (one for one in FAMILIES.values() if one.network.data is TableData)
            name = next((one.name for one in of_tables if given in one.recipes), "mlp")
        family = family_of(name)
        arguments = {name: getattr(self, name) for name in FIELDS if getattr(self, name) is not None}
        if "class_weight" in arguments:
            arguments["class_weight"] = _class_weight(arguments["class_weight"])
        changes = _plain({**fields, **arguments})
        if isinstance(given, Recipe) and given.family == family.name:
            base = given
        elif given is None or isinstance(given, Mapping):
            base = family.ready(family.suited(changes) or next(iter(family.recipes)))
        else:
            base = family.ready(str(given))
        recipe = base.replace(**changes)
        recipe.refuse_unread(changes.keys())
        return recipe

    def _learn(self: Fitted, table: Table) -> Fitted:
        """Train on a table."""
        from htaf.training.distributed import default_threads, thread_count
        from htaf.training.fit import fit
        from htaf.training.recipe import Running

        recipe = self._recipe()
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(SEEDS - 1)
        given = None if table.parting.times is None else split(table, 0, mode="time")
        if (held := table.parting.test) is not None:
            train, validation = (np.flatnonzero(rows).astype(np.int64) for rows in (~held, held))
            given = Split(train, validation, np.zeros(0, dtype=np.int64))
        table = replace(table, parting=Parting())
        rows = given or parts(table, float(self.validation_fraction), int(seed))
        noted = [] if given else [*rows_in_time(table)]
        before = [*table.notes, *cautions(table, rows, None), *noted]
        if not self.verbose:
            _warn_of_training(before)
        with tempfile.TemporaryDirectory(prefix="htaf-") as folder, thread_count(default_threads(recipe)):
            running = Running(self.device, progress=bool(self.verbose), checkpoint_seconds=1e9)
            run = fit(
                recipe, table, Path(folder) / "run", seed=int(seed), split=rows, test=False, notes=noted,
                running=running,
            )  # fmt: skip
            run.record[ENTRY] = {
                "validation_fraction": float(self.validation_fraction),
                "text_as_missing": bool(self.text_as_missing),
                "names": [*self.feature_names_in_] if hasattr(self, "feature_names_in_") else None,
                "columns": int(self.n_features_in_),
                "by_name": self._by_name,
                **(self._labels_as_json() if isinstance(self, HtafClassifier) else {}),
            }
            self._adopt(run)
        if self.verbose:
            say_notes(self.notes_)
        else:  # what the caller may not have meant is said all the same
            _warn_of_training([note for note in from_record(self.run_.record["notes"]) if note not in before])
        return self

    def _rows(
        self, X: Any, y: np.ndarray, sample_weight: Any
    ) -> tuple[pd.DataFrame, np.ndarray, Float64[np.ndarray, " rows"] | None, list[Note]]:
        """The rows that count, with their targets and weights, and what is to be said of these.

        Raises:
            ValueError: as scikit-learn words it, where they are too few.
        """
        frame = self._frame(X, reset=True)
        check_consistent_length(frame, y)
        weights, notes = _weights(sample_weight, frame, y if isinstance(self, ClassifierMixin) else None)
        if weights is not None:
            frame, y, weights = frame.loc[weights > 0], y[weights > 0], weights[weights > 0]
        if len(frame) < LEAST:
            raise ValueError(
                f"Found array with {len(frame)} sample(s) (shape={frame.shape}) while a minimum of {LEAST} is required "
                f"by {type(self).__name__}."
            )
        return frame, y, weights, notes

    def _held_out(self, eval_set: Any) -> tuple[pd.DataFrame, np.ndarray] | None:
        """The rows of `eval_set` with the columns of X, and their target; None where it is not given."""
        if eval_set is None:
            return None
        if not isinstance(eval_set, tuple | list) or len(eval_set) != 2:
            raise ValueError(f"eval_set: expected a pair (X, y) of validation rows, got {type(eval_set).__name__}")
        X, y = eval_set
        try:
            _refuse_missing(y)
            frame, target = self._frame(X, reset=False), column_or_1d(np.asarray(in_pandas(y)))
            if isinstance(self, RegressorMixin):
                target = check_array(target.astype(np.float64), ensure_2d=False, input_name="y")
            check_consistent_length(frame, target)
        except ValueError as error:
            raise DataError(f"eval_set: {error}") from None
        if not len(frame):
            raise DataError("eval_set: expected at least one row to validate on, got none")
        return frame, target

    def _table(
        self,
        frame: pd.DataFrame,
        target: np.ndarray,
        held: tuple[pd.DataFrame, np.ndarray] | None,
        **named: Any,
    ) -> Table:
        """The table of rows and their target, with those of `eval_set` below as the rows that validate.

        named: as `from_frame` takes it.
        """
        count, parting = len(frame), Parting()
        if held is not None:
            more, of_more = held
            frame = pd.DataFrame({name: _below(frame[name], more[name]) for name in frame})
            target = np.concatenate([target, of_more]).astype(target.dtype)
            if named["weights"] is not None:  # rows that validate weigh as the mean of the others
                named["weights"] = np.concatenate([named["weights"], np.full(len(more), named["weights"].mean())])
            parting = Parting(test=np.arange(len(frame)) >= count)
        missing = bool(self.text_as_missing)
        try:
            task = "regression" if isinstance(self, RegressorMixin) else "classification"
            return from_frame(frame, target, task=task, text_as_missing=missing, parting=parting, **named)
        except TableError as error:
            if error.row > count:
                error.row, error.table = error.row - count, "eval_set"
            raise

    def _restored(self: Fitted, run: Run) -> Fitted:
        """Be fitted as a run that was read from a folder."""
        entry = run.record.get(ENTRY)
        self._adopt(run)
        if not isinstance(entry, dict):
            names = [column.name for column in self._preprocessor.columns if column.kind != "dropped"]
            entry = {"names": names, "columns": len(names), "by_name": True}
        self._by_name = bool(entry.get("by_name"))
        self.n_features_in_ = int(entry["columns"])
        if entry["names"] is not None:
            self.feature_names_in_ = np.array(entry["names"], dtype=object)
        if isinstance(self, HtafClassifier):
            self._restore_labels(entry)
        return self

    def _outputs(self, X: Any) -> Float64[np.ndarray, "rows outputs"]:
        """What the network gives for raw rows."""
        check_is_fitted(self)
        X = in_pandas(X)
        frame, texts = self._frame(X, reset=False), list[Note]()
        if self.text_as_missing:
            frame, texts = self._preprocessor.without_texts(frame)
        inputs, notes = self._preprocessor.transform_with_notes(frame)
        notes = [note for note in notes if note.kind != "ignored" or not self._columns.issuperset(note.values)]
        if isinstance(X, pd.DataFrame) and X.shape[1] > frame.shape[1]:
            others = [str(name) for name in X if str(name) not in self._columns and name not in frame]
            notes += [Note("ignored", values=tuple(others))] if others else []
        trained = self.run_.record["rows"]["train"]
        unlike = [note for note in notes if note.kind in UNLIKE and not is_by_chance(note, len(frame), trained)]
        if new := [note for note in (*texts, *unlike) if (note.kind, note.column) not in self._warned]:
            self._warned |= {(note.kind, note.column) for note in new}
            _warn(UNLIKE_TRAINING + "; ".join(told(new)))
        return forward(self._network, torch.from_numpy(inputs)).double().numpy()

    def _frame(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """X as a data frame: its own, or of an array with the columns x0, x1, ...; checked as scikit-learn does.

        reset: this is the X of `fit`. Else the columns of a frame are found by name, in any order.
        """
        if reset:
            self.__dict__.pop("_by_name", None)
        X = in_pandas(X)
        if self._by_name and isinstance(X, pd.DataFrame):
            X = named(X, self.feature_names_in_)
        if isinstance(X, pd.DataFrame):
            known = None if reset else getattr(self, "feature_names_in_", None)
            absent = [] if known is None else [str(name) for name in known if name not in X.columns]
            if absent and self._by_name:
                raise DataError(f"expected the columns {listed(absent)} too, got only {listed([*map(str, X.columns)])}")
            asked = X.columns if known is None else X.columns[X.columns.isin(known)]
            if not absent and (doubled := [*dict.fromkeys(map(str, asked[asked.duplicated()]))]):
                raise DataError(f"expected each column once, got {listed(doubled)} more than once")
            if known is not None and not absent:
                X = X if X.columns.tolist() == known.tolist() else X.loc[:, list(known)]
            else:
                if not reset and known is None and X.shape[1] == self.n_features_in_:
                    X = X.set_axis(range(X.shape[1]), axis=1)
                given: Any = X
                validate_data(self, given, reset=reset, skip_check_array=True)
            if any(isinstance(dtype, pd.SparseDtype) for dtype in X.dtypes):
                X = X.astype({name: d.subtype for name, d in X.dtypes.items() if isinstance(d, pd.SparseDtype)})
            places = [f"x{place}" for place in range(X.shape[1])]
            return X if hasattr(self, "feature_names_in_") else X.set_axis(places, axis=1)
        array: Any = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite="allow-nan")
        names = getattr(self, "feature_names_in_", None)
        names = [f"x{place}" for place in range(array.shape[1])] if names is None else list(names)
        frame = pd.DataFrame(array, columns=names, copy=True)
        if reset and array.dtype.kind in "US":  # an array has one type for all columns: their values in `fit` decide
            for name in frame:
                values, wrong = to_number(frame[name])
                if not wrong.any():
                    frame[name] = values
        return frame


_BUILT = ("_network", "_preprocessor", "_columns", "_warned")


class HtafClassifier(ClassifierMixin, _TableEstimator):
    """A network with 0/1 activations for classification, as a scikit-learn estimator.

    X: an array, or a data frame (of pandas, Polars or pyarrow) whose dtypes decide: numbers are scaled,
    dates are taken apart; text, categories and truth values are categories; NaN and None are missing. Predictions are
    those of the exact network.

    Args:
        recipe: the fields of the recipe that are not arguments, {"leaves": 0, "method": "ste"};
            `htaf train tabular --help-all` lists them; with {"family": "logic"} those of `htaf train logic`. Or a whole
            `htaf.training.recipe.Recipe`, or the name of a ready one, such as "logic", truth tables of six bits. None:
            the default recipe. An argument that is set overrides the recipe.
        hidden: sizes of the hidden layers.
        epochs, batch_size, lr: of the training.
        class_weight: "balanced", so that the rows of each class count as much in the training as those of another, or
            {label: weight}, 1 for labels that are not named; multiplied with `sample_weight`. Probabilities are then
            those of classes with such shares. None: all rows alike. Of classifiers.
        threshold: the probability from which the second of two classes is predicted: a number in (0, 1), or "f1",
            "balanced_accuracy" or "matthews_corrcoef", the one with the best of it on the validation rows. None: the
            likelier class. `predict_proba` and `decision_function` know nothing of it. Of classifiers.
        validation_fraction: share of the rows, of every class alike, that choose the epoch and are not trained on;
            not read where `fit` has an `eval_set`.
        text_as_missing: a text in a column of numbers, such as "unknown", is a missing value, told by a warning; in
            predictions in a column of dates too. False: it is refused. May be changed after `fit`.
        random_state: of the validation rows, the weights and the order of the batches; 0 as the command, None draws.
        device: auto, cpu, cuda or mps, for the training; predictions are made on the CPU.
        verbose: show progress and notes on the error output.

    Attributes:
        classes_: the labels, sorted; the order of the columns of `predict_proba`.
        n_features_in_, feature_names_in_: of X in `fit`; names where its columns are text.
        n_iter_: epochs run.
        threshold_: the threshold by which `predict` decides, None without one.
        notes_: what was handled in the data and the training.
        run_: the finished run (`htaf.runs.Run`), its files in memory: `run_.record`, `run_.model()`.

    Raises:
        ValueError: by `fit`, for arguments that no recipe takes, fewer than 3 rows or 2 classes; DataError, which is
            one, for data that cannot be used.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, eval_set: Any = None) -> HtafClassifier:
        """Train on rows X [rows, columns] and labels y [rows] of any kind that sorts.

        Args:
            sample_weight: [rows] >= 0, how much each row counts in every loss, also that which chooses the epoch; only
                their proportions matter. A row of weight 0 is as if it were not there. The preparation of the columns
                counts every other row once. None: all alike.
            eval_set: (X, y) of other rows, which choose the epoch and are not trained on; None: `validation_fraction`
                of these. Its columns are found as `predict` finds them, its labels are
                among those of y. A pipeline does not prepare it: give `step__eval_set` rows that its earlier steps have
                transformed.
        """
        _refuse_missing(y)
        labels = np.asarray(validate_data(self, "no_validation", y))
        check_classification_targets(labels)
        frame, labels, weights, notes = self._rows(X, labels, sample_weight)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            of = "" if weights is None else " with a weight above 0"
            raise ValueError(f"{type(self).__name__} needs at least 2 classes{of}, got 1 class: {classes[0]!r}")
        notes += _alike(classes, _name_of(y))
        self._set_labels(classes)
        held = self._held_out(eval_set)
        if held is not None:
            found = pd.Index(classes).get_indexer(pd.Index(held[1]))
            if (found < 0).any():
                unknown = list(dict.fromkeys(held[1][found < 0].tolist()))
                raise DataError(
                    f"eval_set: expected labels of y, {listed(classes.tolist())}, got {listed(unknown, 5)} too"
                )
            held = held[0], found
        codes = codes.astype(np.int64)
        of = {"classes": _texts(classes), "target_name": _name_of(y), "weights": weights}
        table = self._table(frame, codes, held, **of)
        return self._learn(replace(table, notes=(*notes, *table.notes)))

    @property
    def threshold_(self) -> float | None:
        """The probability from which the second class is predicted; None: the likelier one is."""
        check_is_fitted(self)
        return self._preprocessor.target.threshold

    def predict(self, X: Any) -> Shaped[np.ndarray, " rows"]:
        """Predict the class with the highest probability for each row of X; by the threshold where there is one."""
        codes = decided(torch.from_numpy(self._outputs(X)), self._preprocessor.target.threshold).numpy()
        return self.classes_[np.argsort(self._order)[codes]]

    def predict_proba(self, X: Any) -> Float64[np.ndarray, "rows classes"]:
        """Probabilities, in the order of `classes_`: the softmax of the network's outputs."""
        return torch.from_numpy(self._outputs(X)[:, self._order]).softmax(1).numpy()

    def decision_function(self, X: Any) -> Float64[np.ndarray, "..."]:
        """The network's outputs in the order of `classes_`; of two classes the second minus the first [rows]."""
        outputs = self._outputs(X)[:, self._order]
        return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs

    def _set_labels(self, labels: np.ndarray) -> None:
        """Take the labels in the order of the network's outputs."""
        self._order = np.argsort(labels, kind="stable")
        self.classes_ = labels[self._order]

    def _labels_as_json(self) -> dict[str, Any]:
        kind, found = self.classes_.dtype, self.classes_[np.argsort(self._order)]
        values = (found.astype(np.int64) if kind.kind in "mM" else found).tolist()  # JSON has no dates: their counts
        plain = kind.kind in "biufmM" or all(isinstance(value, str) for value in values)
        return {"classes": values, "dtype": kind.str if kind.kind in "biufmM" else "O"} if plain else {}

    def _restore_labels(self, entry: Mapping[str, Any]) -> None:
        if "classes" in entry:
            kind = np.dtype(entry["dtype"])
            if kind.kind not in "biufmMO":
                raise ValueError(f"expected labels of a type that save writes, got {kind}")
            labels = np.array(entry["classes"], dtype=kind)
        else:
            labels = read_labels(self._preprocessor.target.classes)
        if len(labels) != len(self._preprocessor.target.classes):
            raise ValueError(f"expected {len(self._preprocessor.target.classes)} classes, got {len(labels)}")
        self._set_labels(labels)


class HtafRegressor(RegressorMixin, _TableEstimator):
    """A network with 0/1 activations for regression, as a scikit-learn estimator.

    Arguments and attributes are those of `HtafClassifier`, without `classes_`; validation rows are drawn from all.

    Raises:
        ValueError: by `fit`, for arguments that no recipe takes or fewer than 3 rows; DataError, which is one, for data
            that cannot be used, such as a target that does not vary.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, eval_set: Any = None) -> HtafRegressor:
        """Train on rows X [rows, columns] and numbers y [rows]; the others as of `HtafClassifier.fit`."""
        _refuse_missing(y)
        values = np.asarray(validate_data(self, "no_validation", y, y_numeric=True), dtype=np.float64)
        frame, values, weights, notes = self._rows(X, values, sample_weight)
        table = self._table(frame, values, self._held_out(eval_set), target_name=_name_of(y), weights=weights)
        return self._learn(replace(table, notes=(*notes, *table.notes)))

    def predict(self, X: Any) -> Float64[np.ndarray, " rows"]:
        """Predict the number for each row of X, in the unit of y."""
        outputs = self._outputs(X)[:, 0]
        return self._preprocessor.inverse(outputs)


def fit(
    frame: Frame,
    target: str | int,
    *,
    task: Task | None = None,
    time: str | None = None,
    sample_weight: str | Sequence[float] | Float64[np.ndarray, " rows"] | None = None,
    **options: Any,
) -> HtafClassifier | HtafRegressor:
    """Train on a data frame with one column to predict, as `htaf train tabular` does on a file.

        model = htaf.fit(frame, "churned", epochs=10)
        model.predict(new_rows)

    Rows without a target are dropped, and so are columns with one value and text that differs in nearly every row; the
    notes say so (`model.notes_`).

    Args:
        frame: [rows, columns], of pandas, Polars or pyarrow; its dtypes decide what a column is.
        target: the column to predict.
        task: "regression" or "classification"; None: by the column, as for a file.
        time: a column of dates or numbers; the validation rows are the last ones by it, none of them drawn.
        sample_weight: the name of a column of weights, which is no feature, or weights of all rows; see
            `HtafClassifier.fit`.
        options: the arguments of `HtafClassifier`, and fields of its recipe, such as `leaves=0`; beside
            `recipe="readable"` too.

    Returns:
        A fitted `HtafClassifier` or `HtafRegressor`; it ignores columns that it was not trained on.

    Raises:
        TypeError: no such table, or no such option. ValueError: an option out of range. DataError: no such column, or
            data that cannot be used.
    """
    fields = {*options} & {*_fields()} - {*HtafClassifier._get_param_names()}
    if fields:
        recipe, given = options.get("recipe") or {}, {name: options.pop(name) for name in sorted(fields)}
        recipe = ready_recipe("mlp", recipe) if isinstance(recipe, str) else recipe
        options["recipe"] = {**recipe, **given} if isinstance(recipe, Mapping) else recipe.replace(**given)
    frame = in_pandas(frame)
    if not isinstance(frame, pd.DataFrame):
        got = f"{str(frame)!r}: read it first, as pandas.read_csv does" if isinstance(frame, str | PathLike) else ""
        raise TypeError(f"expected a pandas data frame, got {got or type(frame).__name__}")
    if isinstance(target, int) and target in frame.columns:  # columns are found by their names as text
        target = str(target)
    if not isinstance(target, str):
        raise TypeError(f"expected the name of the target column as text, got {target!r}")
    of: Any = sample_weight if isinstance(sample_weight, str) else _weights(sample_weight, frame)[0]
    parting = Parting()
    if time is not None:
        share = _share(float(options.get("validation_fraction", 0.1)))
        parting = Parting(shares=(1 - share, share), time=time)
    missing = bool(options.get("text_as_missing", False))
    table = from_frame(frame, target, task=task, text_as_missing=missing, parting=parting, weights=of)
    made = (HtafClassifier if table.task == "classification" else HtafRegressor)(**options)
    names = [str(name) for name in table.features]
    made.n_features_in_, made.feature_names_in_, made._by_name = len(names), np.array(names, dtype=object), True
    if isinstance(made, HtafClassifier):
        column = named(frame)[table.target_name]
        if is_date(column) or pd.api.types.infer_dtype(column) == "date":
            made._set_labels(pd.to_datetime([*table.classes], utc=True, format="ISO8601").tz_localize(None).to_numpy())
        else:
            spelled = is_text(column) and not pd.api.types.is_bool_dtype(column)
            made._set_labels(np.array(table.classes, dtype=object) if spelled else read_labels(table.classes))
    return made._learn(table)


def _below(column: pd.Series, more: pd.Series) -> pd.Series:
    """Put further rows below a column of the same kind.

    Raises:
        TableError: one is text, or a date, or has a time zone, and the other not.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        return pd.concat([column.astype(object), more.astype(object)], ignore_index=True).astype("category")
    if any(kind(column) != kind(more) for kind in (is_text, is_date, has_zone)):
        raise TableError(f"expected {column.dtype} as in X, got {more.dtype}", str(column.name), 1, "eval_set")
    return pd.concat([column, more], ignore_index=True)


def of_run(run: Run) -> HtafClassifier | HtafRegressor:
    """Make a fitted estimator from a finished run on a table.

    Its argument `recipe` is the whole recipe of the training, so that a clone trains by the same.

    Raises:
        RunError: a damaged run. DataError: a run on images.
    """
    from htaf.training.families import make_recipe

    preprocessor = run.preprocessor()
    if not isinstance(preprocessor, Preprocessor):
        raise DataError(f"{run.path} was trained on images: expected a run on a table")
    kind = HtafClassifier if preprocessor.target.task == "classification" else HtafRegressor
    try:
        entry = run.record.get(ENTRY) or {}
        kept: Any = {name: entry[name] for name in ("validation_fraction", "text_as_missing") if name in entry}
        recipe = make_recipe(**{"family": "mlp"} | run.record["recipe"])
        return kind(recipe=recipe, random_state=run.record["seed"], **kept)._restored(run)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{run.path}: its record does not fit an estimator of this version: {error}") from None


def parts(table: Table, share: float, seed: int) -> Split:
    """Training and validation rows, the same for a seed on every machine; of classes each in proportion.

    One row of every class is always trained on, and three rows or more of all. Where no row is left to validate on, the
    training rows are taken for it too.

    Args:
        share: of the validation rows, in (0, 1).
        seed: >= 0.

    Raises:
        ValueError: a share or a seed out of range. DataError: fewer than 3 rows.
    """
    count = len(table.target)
    _share(share)
    expect_seed(seed, ValueError, "random_state")
    if count < LEAST:
        raise DataError(f"expected at least {LEAST} samples to train and validate on, got n_samples={count}")
    words = random_words(count, seed)
    group = table.target if table.task == "classification" else np.zeros(count, dtype=np.int64)
    order = np.lexsort((words, group))
    sizes = np.bincount(group)
    place = np.empty(count, dtype=np.int64)  # of a row within its class
    place[order] = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    quantile = (place + 0.5) / sizes[group]  # so that the first rows by it are of every class alike
    quantile[place == sizes[group] - 1] = np.inf
    free = min(int(np.isfinite(quantile).sum()), count - (LEAST - 1))
    held = np.lexsort((words, quantile))[: min(max(round(share * count), 1), free)]
    validation = np.sort(held).astype(np.int64)
    train = np.setdiff1d(np.arange(count), validation).astype(np.int64)
    return Split(train, validation if len(validation) else train, np.zeros(0, dtype=np.int64))


def _share(share: float) -> float:
    """A share in (0, 1); else ValueError."""
    if not 0 < share < 1:
        raise ValueError(f"validation_fraction must lie in (0, 1), got {share}")
    return float(share)


def _fields() -> list[str]:
    """The fields of a recipe for tables."""
    from htaf.training.families.mlp import tabular_residual

    return [*tabular_residual().fields]


def _warn_of_training(notes: Sequence[Note | str]) -> None:
    """Warn of what the caller of `fit` may not have meant."""
    for note in notes:
        if isinstance(note, Note) and note.kind in UNEXPECTED:
            _warn(str(note))


def _warn(text: str) -> None:
    """Warn at the line outside htaf that called it."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


_HERE = str(Path(__file__).parents[1]) + os.sep


def _head_in_double(net: nn.Module) -> nn.Module:
    """The network, changed in place: what gives its outputs in float64, so that they depend on a row alone; its leaves
    by words.

    In float32 they depend on the number of rows too, in the last digits.
    """
    of_leaves = getattr(getattr(net, "leaves", None), "head", None)
    for layer in (getattr(net, "head", None), getattr(net, "direct", None), of_leaves):
        if isinstance(layer, nn.Linear):
            layer.double().register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    if isinstance(net, MLP) and isinstance(net.leaves, Leaves):
        net.leaves = LeavesByWords(net.leaves)
    return net


def _plain(value: Any) -> Any:
    """NumPy numbers, as a search gives them, become Python's, and sequences of them tuples; also within a mapping."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _refuse_missing(y: Any) -> None:
    """Raises DataError where labels or numbers are missing."""
    missing = np.asarray(pd.isna(y if isinstance(y, pd.Series) else np.asarray(in_pandas(y), dtype=object)))
    if y is not None and missing.ndim == 1 and missing.any():
        raise DataError(
            f"Input y contains NaN: expected a value in each of {len(missing):,} rows, got none in "
            f"{missing.sum():,}, the first is row {missing.argmax() + 1} (from 1): leave these rows out of X and y"
        )


def _class_weight(given: Any) -> tuple[str, ...]:
    """Weights of classes as a recipe has them; ValueError for what they cannot be."""
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Mapping):
        raise ValueError(f"class_weight must be 'balanced', {{label: weight}} or None, got {given!r}")
    names = _texts(np.array([*given], dtype=object)) if given else []
    return tuple(f"{name}={weight}" for name, weight in zip(names, given.values(), strict=True))


def _weights(
    given: Any, frame: pd.DataFrame, labels: np.ndarray | None = None
) -> tuple[Float64[np.ndarray, " rows"] | None, list[Note]]:
    """Weights of the rows of a frame, and what is to be said of them; None for none.

    Raises:
        ValueError: another shape or length. DataError: as `amounts_of_rows`.
    """
    if given is None:
        return None, []
    each = np.asarray(given)
    if each.shape != (len(frame),):
        raise ValueError(f"sample_weight: expected one for each of {len(frame):,} rows, got the shape {each.shape}")
    noted = list[Note]()
    values = amounts_of_rows("fit", pd.Series(each, name="sample_weight"), np.ones(len(frame), dtype=bool), noted)
    notes = [note for note in noted if note.kind == "no weight"]
    if labels is not None and (lost := np.setdiff1d(labels, labels[values > 0])).size:
        notes.append(Note("class without weight", "y", values=tuple(_texts(lost))))
    return values, notes


def _name_of(y: Any) -> str:
    """The target's name, where it has one."""
    name = getattr(y, "name", None)
    return name if isinstance(name, str) and name else "target"


def _texts(classes: np.ndarray) -> list[str]:
    """Distinct names of classes: 2 for 2.0."""
    texts = [text or str(value) for text, value in zip(to_text(pd.Series(classes)), classes, strict=True)]
    return texts if len({*texts}) == len(texts) else [repr(value) for value in classes.tolist()]


def _alike(classes: np.ndarray, target: str) -> list[Note]:
    """A note on labels that differ in case or blanks around them alone, which `htaf.fit` and the command make one."""
    groups: dict[str, list[str]] = {}
    for label in classes.tolist():
        if isinstance(label, str):
            groups.setdefault(spelled(label.strip()), []).append(label)
    several = tuple(tuple(group) for group in groups.values() if len(group) > 1)
    return [Note("classes alike", target, values=several)] if several else []
