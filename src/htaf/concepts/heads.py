"""Linear heads on a few of the concepts, fitted by multinomial logistic regression."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from htaf.concepts.codes import CHUNK, Codes, ConceptError
from htaf.concepts.counts import in_turn
from htaf.concepts.store import Features

STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4)


@dataclass(frozen=True, eq=False)
class Head:
    """A linear head: weight float64 [K, kept], bias float64 [K]."""

    weight: Float64[np.ndarray, "classes kept"]
    bias: Float64[np.ndarray, " classes"]


class Fit:
    """Fits heads to a training part. Bits are centred, which halves the steps of the solver; the bias takes it back."""

    def __init__(self, train: Codes, means: Float64[np.ndarray, " concepts"], cap: int, seed: int) -> None:
        if cap < 1:
            raise ConceptError(f"cap must be >= 1, got {cap}")
        self.classes, self.means = len(train.classes), means
        rows = balanced_rows(train.labels, cap, seed)
        self.labels: Int32[np.ndarray, " images"] = np.asarray(train.labels)[rows]
        self.values: Float32[np.ndarray, "images concepts"] = train.unpack(rows).astype(np.float32)
        self.values -= means.astype(np.float32)
        self.present = np.unique(self.labels)

    def head(self, kept: Int64[np.ndarray, " kept"], strength: float, start: Head | None = None) -> Head:
        """Multinomial logistic regression; a class without training images is never predicted."""
        if len(self.present) == 1 or not len(kept):
            return self._constant(len(kept))
        two = len(self.present) == 2
        solver: Any = LogisticRegression(
            C=1 / (strength * len(self.labels)), max_iter=300, warm_start=start is not None
        )
        if start is not None:
            weight, bias = start.weight[self.present], (start.bias + start.weight @ self.means[kept])[self.present]
            solver.coef_ = (weight[1:] - weight[:1] if two else weight).astype(np.float32)
            solver.intercept_ = (bias[1:] - bias[:1] if two else bias).astype(np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what counts is the accuracy measured afterwards
            solver.fit(self.values[:, kept], self.labels)
        weight, bias = solver.coef_.astype(np.float64), solver.intercept_.astype(np.float64)
        if two:
            weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
        result = self._constant(len(kept))
        result.weight[self.present] = weight
        result.bias[self.present] = bias - weight @ self.means[kept]
        return self._absent_last(result)

    def _constant(self, concepts: int) -> Head:
        share = np.bincount(self.labels, minlength=self.classes) / len(self.labels)
        head = Head(np.zeros((self.classes, concepts)), np.log(np.maximum(share, 1 / len(self.labels))))
        return self._absent_last(head)

    def _absent_last(self, head: Head) -> Head:
        absent = np.setdiff1d(np.arange(self.classes), self.present)
        lowest = (head.bias - np.abs(head.weight).sum(1))[self.present].min()
        head.bias[absent] = lowest - 1
        return head

    def choose(self, kept: Int64[np.ndarray, " kept"], validation: Codes) -> tuple[float, Head]:
        """The L2 strength of best validation accuracy, the strongest of equals, and its head."""
        tried, head = [], None
        for strength in STRENGTHS:
            head = self.head(kept, strength, head)
            tried.append((accuracy_of(validation, kept, head), strength, head))
        _, strength, head = max(tried, key=lambda row: row[0])  # the first of equals
        return strength, head


def correct(
    codes: Codes | Features, head: Head, kept: Int64[np.ndarray, " kept"] | slice = slice(None)
) -> Bool[np.ndarray, " images"]:
    """Whether a head on some concepts gets each of some labelled images right."""
    hits = np.zeros(len(codes), dtype=bool)
    weight, bias = head.weight.T.astype(np.float32), head.bias.astype(np.float32)
    for start in range(0, len(codes), CHUNK):
        rows = slice(start, start + CHUNK)
        logits = codes.unpack(rows)[:, kept].astype(np.float32) @ weight + bias
        hits[rows] = logits.argmax(1) == np.asarray(codes.labels)[rows]
    return hits


def accuracy_of(codes: Codes | Features, kept: Int64[np.ndarray, " kept"] | slice, head: Head) -> float:
    """Share of labelled images that a head on some concepts gets right."""
    return float(correct(codes, head, kept).mean())


def balanced_rows(labels: Int32[np.ndarray, " images"], cap: int, seed: int) -> Int64[np.ndarray, " rows"]:
    """At most `cap` rows, classes as even as they can be, ascending."""
    if len(labels) <= cap:
        return np.arange(len(labels))
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    return np.sort(in_turn(shuffled, np.asarray(labels))[:cap])
