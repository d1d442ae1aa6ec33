"""Many categories as means of the target: scikit-learn's TargetEncoder, cross-fitted on the training rows."""

import warnings

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from htaf.data.columns import Target

FOLDS = 5


def outputs(
    values: Float64[np.ndarray, " rows"] | Int64[np.ndarray, " rows"], target: Target
) -> tuple[tuple[str, ...], Float64[np.ndarray, "rows outputs"]]:
    """What categories are encoded by, with a name for each: the standardised target, or 0 and 1 for each class that has
    rows; of two classes only the second."""
    if target.task == "regression":
        return (f"mean {target.name}",), ((values - target.mean) / target.std)[:, None].astype(np.float64)
    codes = range(1, 2) if len(target.classes) == 2 else np.unique(values).tolist()
    return tuple(f"share of {target.classes[code]}" for code in codes), np.stack(
        [(values == code).astype(np.float64) for code in codes], axis=1
    )


def encodings(
    categories: Shaped[np.ndarray, " rows"], wanted: Float64[np.ndarray, "rows outputs"], names: tuple[str, ...]
) -> Float64[np.ndarray, "names outputs"]:
    """The encoding of each of `names` by all rows: its mean, drawn towards the mean of all rows where it has few."""
    return _by(categories, wanted, np.array(names, dtype=object))


def cross_fitted(
    categories: Shaped[np.ndarray, " rows"], wanted: Float64[np.ndarray, "rows outputs"]
) -> Float64[np.ndarray, "rows outputs"]:
    """The encoding of each row by the four fifths of the rows that it is not in, so that it does not hold its own
    target. The fifths are drawn by a fixed seed."""
    from sklearn.model_selection import KFold

    found = np.empty_like(wanted)
    folds = KFold(min(FOLDS, len(wanted)), shuffle=True, random_state=0)
    for known, held in folds.split(wanted):
        found[held] = _by(categories[known], wanted[known], categories[held])
    return found


def _by(known: np.ndarray, wanted: np.ndarray, asked: np.ndarray) -> np.ndarray:
    from sklearn.preprocessing import TargetEncoder

    columns = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a mean over one row, which the encoder handles
        for values in wanted.T:
            if values.min() == values.max():
                columns.append(np.full(len(asked), values[0]))
                continue
            encoder = TargetEncoder(target_type="continuous", smooth="auto").fit(known[:, None], values)
            columns.append(np.asarray(encoder.transform(asked[:, None]))[:, 0])
    return np.stack(columns, axis=1)
