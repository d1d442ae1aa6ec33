"""Sparse heads on concepts: elastic net along a path, the weights of each class cut to so many, and fitted again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int32
from scipy.optimize import minimize

from htaf._console import markdown_text
from htaf._errors import expect_seed
from htaf.concepts.codes import Codes, ConceptError, PartName
from htaf.concepts.counts import labelled, training_means
from htaf.concepts.heads import Head, accuracy_of, balanced_rows, correct
from htaf.concepts.redundancy import same_bits
from htaf.concepts.sparsity import COVERAGE, effective, sparsity
from htaf.concepts.store import Features

CAP = 20_000  # images that a head is fitted to
MIX = 0.99  # share of the L1 penalty, as the sources have it
POINTS, SMALLEST = 30, 1e-3  # of the path: strengths, and the last one as a share of the first
CANDIDATES = 4  # points of the path whose largest weights are tried at a target
STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4)  # of the L2 penalty of a fit on chosen weights, the strongest first
STEPS = 200  # of a fit, at most
PRECISION = 1e-4  # an elastic net ends where no weight moves by more than this share of the largest
GAIN = 1e-7  # of L-BFGS: the least relative gain of a step
Z = 1.959964  # of a 95% interval
WIDE = 2**22  # numbers that are kept in float64: smaller sets are fitted to more digits
ALGORITHM = (
    "Multinomial logistic regression on standardised concepts of the training part. An elastic net (99% L1) along a "
    "path of strengths, from the one at which all weights are 0, each fit started from the last (accelerated proximal "
    "gradient). For n concepts a class: of the first four points of the path with n or more a class, the n largest "
    "weights of each class are kept and fitted again without the L1 penalty; validation accuracy chooses the point, "
    "then the strength of the L2 penalty. For all concepts: the L2 penalty alone. The test part chooses nothing."
)

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class SparseHead:
    """A head in which each class draws on few concepts.

    Attributes:
        target: most concepts of a class; None: all.
        head: weight float64 [K, C], of bits as they are; bias float64 [K].
        nec: mean number of weights other than 0 of a class.
        strength: of the elastic net whose largest weights it has; None with all concepts.
        ridge: strength of the L2 penalty of the last fit.
        validation: its accuracy on the validation part.
    """

    target: int | None
    head: Head
    nec: float
    strength: float | None
    ridge: float
    validation: float


class StandardBits:
    """The training part as a fit reads it: z = (c - mean) / sd; c are bits, or soft values. Bits that never change and
    those that are one concept with an earlier one (`same_bits`) are all 0: they get no weight.

    Attributes:
        values: float [N, C]. labels: int32 [N]. classes: K.
        means, scales: float64 [C]; a dead concept's scale is 1.
    """

    def __init__(self, train: Codes | Features, cap: int = CAP, seed: int = 0) -> None:
        if cap < 1:
            raise ConceptError(f"cap must be >= 1, got {cap}")
        rows = balanced_rows(train.labels, cap, seed)
        self.labels: Int32[np.ndarray, " images"] = np.asarray(train.labels)[rows]
        self.classes = len(train.classes)
        bits = train.unpack(rows)
        self.means: Float64[np.ndarray, " concepts"] = bits.mean(0, dtype=np.float64)
        spread = (
            bits.std(0, dtype=np.float64) if isinstance(train, Features) else np.sqrt(self.means * (1 - self.means))
        )
        self.scales = np.where(spread > 0, spread, 1.0)
        kind = np.float64 if bits.size <= WIDE else np.float32
        self.values = ((bits - self.means.astype(kind)) / self.scales.astype(kind)).astype(kind)
        if not isinstance(train, Features):
            ones = bits.astype(np.float32)
            self.values[:, ~same_bits((ones.T @ ones).astype(np.int64), len(ones)).distinct] = 0
        self.present = np.unique(self.labels)

    @functools.cached_property
    def curvature(self) -> float:
        """A bound on the largest second derivative of `loss`: half that of (z, 1)'s mean square, in any direction."""
        columns = np.column_stack([self.values, np.ones(len(self.values), self.values.dtype)])
        return 0.5 * float(np.linalg.eigvalsh(columns.T @ columns / len(columns))[-1])

    def head(self, weight: Float64[np.ndarray, "classes concepts"], bias: Float64[np.ndarray, " classes"]) -> Head:
        """A fit of z as a head on bits; a class without training images is never predicted."""
        plain = weight / self.scales
        offset = bias - plain @ self.means
        absent = np.setdiff1d(np.arange(self.classes), self.present)
        plain[absent] = 0
        if len(absent):
            offset[absent] = (offset - np.abs(plain).sum(1))[self.present].min() - 1
        return Head(plain, offset)


def loss(
    data: StandardBits, weight: Float64[np.ndarray, "classes concepts"], bias: Float64[np.ndarray, " classes"]
) -> tuple[float, Float64[np.ndarray, "classes concepts"], Float64[np.ndarray, " classes"]]:
    """Mean cross-entropy of softmax(z w^T + b), and its gradients."""
    n, rows, kind = len(data.labels), np.arange(len(data.labels)), data.values.dtype
    share = data.values @ weight.astype(kind).T  # logits, then probabilities: with many classes the largest array
    share += bias.astype(kind)
    share -= share.max(1, keepdims=True)
    own = share[rows, data.labels].astype(np.float64)
    np.exp(share, out=share)
    total = share.sum(1, dtype=np.float64)
    share /= total[:, None].astype(kind)
    share[rows, data.labels] -= 1
    slope = (share.T @ data.values).astype(np.float64) / n
    return float((np.log(total) - own).mean()), slope, share.sum(0, dtype=np.float64) / n


def start_of(data: StandardBits) -> tuple[Float64[np.ndarray, "classes concepts"], Float64[np.ndarray, " classes"]]:
    """The best head without weights: a class's bias is the log of its share, of an absent one that of half an image."""
    share = np.bincount(data.labels, minlength=data.classes) / len(data.labels)
    bias = np.log(np.maximum(share, 0.5 / len(data.labels)))
    return np.zeros((data.classes, data.values.shape[1])), bias - bias.mean()


def elastic_net(
    data: StandardBits,
    strength: float,
    weight: Float64[np.ndarray, "classes concepts"],
    bias: Float64[np.ndarray, " classes"],
    *,
    mix: float = MIX,
    precision: float = PRECISION,
    steps: int = STEPS,
) -> tuple[Float64[np.ndarray, "classes concepts"], Float64[np.ndarray, " classes"]]:
    """argmin of mean cross-entropy + strength (mix |W|_1 + (1 - mix) / 2 |W|_2^2), from a start.

    Accelerated proximal gradient: a step of 1 / L down the slope at a point ahead, where L bounds the curvature, then
    every weight is brought nearer to 0 by strength mix / L. The point ahead starts anew where it leads back.

    Args:
        data: N standardised bits. strength: > 0. mix: in [0, 1].
        weight: [K, C], bias: [K]: the start, such as the fit of the strength before.
        precision: ends once no weight moves by more than this share of the largest; steps: at most.

    Source: Beck and Teboulle 2009 (FISTA); O'Donoghue and Candes 2015 (the new start).
    """
    rate = 1 / data.curvature
    ahead, pace = (weight, bias), 1.0
    for _ in range(steps):
        _, slope, of_bias = loss(data, *ahead)
        nearer = np.abs(down := ahead[0] - rate * slope) - rate * strength * mix
        new = np.sign(down) * np.maximum(nearer, 0) / (1 + rate * strength * (1 - mix)), ahead[1] - rate * of_bias
        change = new[0] - weight, new[1] - bias
        back = float(((ahead[0] - new[0]) * change[0]).sum() + (ahead[1] - new[1]) @ change[1]) > 0
        faster = 1.0 if back else (1 + np.sqrt(1 + 4 * pace * pace)) / 2
        momentum = 0.0 if back else (pace - 1) / faster
        ahead = new[0] + momentum * change[0], new[1] + momentum * change[1]
        (weight, bias), pace = new, faster
        moved = max(float(np.abs(part).max(initial=0)) for part in change)
        if moved <= precision * max(1.0, float(np.abs(weight).max(initial=0))):
            break
    return weight, bias


def path(
    data: StandardBits, *, points: int = POINTS
) -> Iterator[tuple[float, Float64[np.ndarray, "classes concepts"], Float64[np.ndarray, " classes"]]]:
    """(strength, W, b) along falling strengths, evenly spaced in their logarithm, each fit started from the last.

    The first strength is the smallest one at which every weight is 0.

    Args:
        points: how many.
    """
    weight, bias = start_of(data)
    largest = float(np.abs(loss(data, weight, bias)[1]).max()) / MIX
    if largest == 0:  # every concept is dead, or there is one class
        yield 0.0, weight, bias
        return
    for strength in np.geomspace(largest, largest * SMALLEST, points).tolist():
        weight, bias = elastic_net(data, strength, weight, bias)
        yield strength, weight, bias


def largest_of_each(weight: Float[np.ndarray, "classes concepts"], most: int) -> Bool[np.ndarray, "classes concepts"]:
    """Which weights are among the `most` largest of their class and not 0; of equal ones the first."""
    order = np.argsort(-np.abs(weight), axis=1, kind="stable")[:, :most]
    kept = np.zeros(weight.shape, dtype=bool)
    np.put_along_axis(kept, order, values=True, axis=1)
    return kept & (weight != 0)


def refit(
    data: StandardBits,
    support: Bool[np.ndarray, "classes concepts"],
    strength: float,
    weight: Float64[np.ndarray, "classes concepts"],
    bias: Float64[np.ndarray, " classes"],
) -> tuple[Float64[np.ndarray, "classes concepts"], Float64[np.ndarray, " classes"]]:
    """argmin of mean cross-entropy + strength / 2 |W|^2 over the weights of a support, all others 0, from a start."""
    size, full = int(support.sum()), np.zeros(support.shape)

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        full[support] = x[:size]
        cost, slope, of_bias = loss(data, full, x[size:])
        cost += strength / 2 * float(x[:size] @ x[:size])
        return cost, np.concatenate([slope[support] + strength * x[:size], of_bias])

    x = np.concatenate([weight[support], bias])
    options = {"maxiter": STEPS, "ftol": GAIN, "gtol": 0}
    found: Any = minimize(value, x, jac=True, method="L-BFGS-B", options=options)
    result = np.zeros(support.shape)
    result[support] = found.x[:size]
    return result, found.x[size:]


def sparse_heads(
    codes: Codes | Features,
    targets: Sequence[int | None] = (5, 10, None),
    *,
    cap: int = CAP,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[SparseHead]:
    """Heads in which no class draws on more than so many concepts. `ALGORITHM` says how they are found.

    Args:
        codes: with labelled training and validation parts; or the numbers that a soft bottleneck has in place of bits.
        targets: most concepts of a class; None: all of them.
        cap: most training images to fit to; beyond it an even share of each class, drawn with the seed.
        seed: of that draw.
        progress: called with a line on each fit.

    Returns:
        a head for each target, in their order.

    Raises:
        ConceptError: a part is missing, or a target below 1.

    Source: Wong et al. 2021 (sparse heads along a path); Srivastava et al. 2024 (accuracy at NEC 5).
    """
    expect_seed(seed, ConceptError)
    if not targets or any(target is not None and target < 1 for target in targets):
        raise ConceptError(f"expected numbers of concepts >= 1, got {list(targets)}")
    validation = labelled(codes, "validation")
    data = StandardBits(labelled(codes, "train"), cap, seed)
    wanted = sorted({target for target in targets if target is not None})
    points = _points(data, wanted, progress)
    found = {target: _at(data, validation, target, points, progress) for target in dict.fromkeys(targets)}
    return [found[target] for target in targets]


Point = tuple[float, Float64[np.ndarray, "classes concepts"], Float64[np.ndarray, " classes"]]


def _points(data: StandardBits, wanted: Sequence[int], progress: Progress | None) -> list[Point]:
    if not wanted:
        return []
    points: list[Point] = []
    for point in path(data):
        points.append(point)
        if progress is not None:
            progress(f"elastic net of strength {point[0]:.2g}: {effective(point[1]):.1f} concepts a class")
        if sum(effective(weight) >= wanted[-1] for _, weight, _ in points) == CANDIDATES:
            break  # no later point is looked at
    return points


def _at(
    data: StandardBits,
    validation: Codes | Features,
    target: int | None,
    points: Sequence[Point],
    progress: Progress | None,
) -> SparseHead:
    """The head for one target."""

    def measured(weight: np.ndarray, bias: np.ndarray) -> float:
        return accuracy_of(validation, slice(None), data.head(weight, bias))

    chosen: float | None = None
    if target is None:
        support = np.ones((data.classes, data.values.shape[1]), dtype=bool)
        weight, bias = start_of(data)
    else:
        reaching = [point for point in points if effective(point[1]) >= target][:CANDIDATES] or [points[-1]]
        tried = []
        for strength, w, b in reaching:
            support = largest_of_each(w, target)
            fitted = refit(data, support, STRENGTHS[2], w * support, b)
            tried.append((measured(*fitted), strength, support, *fitted))
        _, chosen, support, weight, bias = max(tried, key=lambda row: row[0])  # the first of equals: the sparser
    heads = []
    for ridge in STRENGTHS:
        weight, bias = refit(data, support, ridge, weight, bias)
        heads.append((measured(weight, bias), ridge, data.head(weight, bias)))
    accuracy, ridge, head = max(heads, key=lambda row: row[0])  # the first of equals: the strongest penalty
    if progress is not None:
        progress(f"{'all' if target is None else target} concepts a class: validation accuracy {accuracy:.4f}")
    return SparseHead(target, head, effective(head.weight), chosen, ridge, accuracy)


def wilson(hits: int, images: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share: hits of images, >= 1."""
    share, z2 = hits / images, Z * Z / images
    middle = (share + z2 / 2) / (1 + z2)
    half = Z * np.sqrt(share * (1 - share) / images + z2 / (4 * images)) / (1 + z2)
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def measured(
    codes: Codes | Features, head: Head, means: Float64[np.ndarray, " concepts"]
) -> tuple[Bool[np.ndarray, " images"], dict[str, Any]]:
    """Which images a head gets right, and its figures.

    Args:
        codes: labelled images. head: weight [K, C] and bias [K]. means: of the training images.

    Returns:
        whether it is right on each image, and "accuracy", "interval" (Wilson, 95%), "nec", "ncc" and "ncc_predicted".
    """
    right = correct(codes, head)
    small = replace(codes, weight=head.weight.astype(np.float32), bias=head.bias.astype(np.float32))
    found = sparsity(small, means)
    figures = {name: found[name] for name in ("nec", "ncc", "ncc_predicted")}
    interval = list(wilson(int(right.sum()), len(right)))
    return right, {"accuracy": float(right.mean()), "interval": interval, **figures}


def scored_heads(
    codes: Codes,
    targets: Sequence[int | None] = (5, 10, None),
    *,
    part: PartName = "test",
    cap: int = CAP,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[SparseHead]]:
    """Sparse heads of a network's bits, and what they get right beside its own head.

    Args:
        codes: of the network, with labelled train, validation and `part`.
        targets, cap, seed, progress: as `sparse_heads`.
        part: that is scored. The accuracy of train or validation, which fit and choose the heads, is too high.

    Returns:
        plain values: the sizes, "own_head" and "rows" (of each target) with the figures of `measured`; and the heads.
    """
    scored, means = labelled(codes, part), training_means(codes)
    own = Head(codes.weight.astype(np.float64), codes.bias.astype(np.float64))
    heads = sparse_heads(codes, targets, cap=cap, seed=seed, progress=progress)
    rows = []
    for each in heads:
        chosen = {"validation": each.validation, "strength": each.strength, "ridge": each.ridge}
        rows.append({"target": each.target} | measured(scored, each.head, means)[1] | chosen)
    result = {
        "concepts": codes.concepts,
        "classes": len(codes.classes),
        "part": part,
        "images": {name: len(labelled(codes, name)) for name in dict.fromkeys(("train", "validation", part))},
        "targets": list(targets),
        "coverage": COVERAGE,
        "cap": cap,
        "seed": seed,
        "own_head": measured(scored, own, means)[1],
        "rows": rows,
        "algorithm": ALGORITHM,
    }
    return result, heads


def table(result: Mapping[str, Any], *, title: str = "Sparse heads") -> str:
    """The result of `scored_heads` as Markdown."""
    part = result["part"]
    lines = [
        f"# {markdown_text(title)}",
        "",
        f"{result['concepts']} concepts, {result['classes']} classes, {result['images'][part]:,} images of the part "
        f"{part!r}. At most so many concepts a class; *all*: no limit.",
        "",
        "| Head | concepts a class | accuracy, % (95%) | NEC | NCC |",
        "|---|---|---|---|---|",
    ]
    for name, row in (("the network's own", result["own_head"]), *(("sparse", row) for row in result["rows"])):
        low, high = (f"{100 * value:.1f}" for value in row["interval"])
        lines.append(
            f"| {name} | {row.get('target') or 'all'} | {100 * row['accuracy']:.1f} ({low} to {high}) | "
            f"{row['nec']:.1f} | {row['ncc']:.1f} |"
        )
    return "\n".join([*lines, "", READING, "", result["algorithm"], ""])


READING = (
    "How to read it. *NEC*: weights other than 0 of a class. *NCC*: concepts that make up 95% of what is added to a "
    "logit, mean over images and classes. Accuracy has Wilson's 95% interval, which knows of no other trainings."
)
