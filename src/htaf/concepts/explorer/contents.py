"""What the page says of a network: figures of all its images, and the arrays of those that it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import pdist
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from htaf.concepts.codes import Codes, PartName
from htaf.concepts.counts import (
    class_counts,
    class_sizes,
    correlations,
    pair_counts,
    part_counts,
    same_bits,
    shares,
    taken,
)
from htaf.concepts.explorer.folder import packed
from htaf.concepts.heads import balanced_rows, by_importance
from htaf.concepts.naming.files import seal_of
from htaf.concepts.scores import score

CLUSTERED = 2048  # rows at most: the distances of all pairs are kept
TURNED = 600  # rows up to which neighbouring leaves are turned to each other, which takes long
LOOKED_AT = 500  # images among which an example is looked for
REASONS = 3  # concepts that should explain it

NEIGHBOURED = 1000  # images up to which their map is t-SNE, which takes long
RELATIONS = ("similar", "opposite", "together")
FEW = 10  # images of a class, below which a share says little
BITS, IDS = 2**20, 16_384  # bytes of bits, and ids, in one file
NAMED = ("name", "label_1", "label_0", "justification", "verified", "reason", "held_out", "p_value", "agreement")
NAMED += ("test_a", "test_b", "source", "model", "checked_by", "status", "only_class")


def chosen_rows(codes: Codes, part: PartName, most: int) -> Int64[np.ndarray, " rows"]:
    """Rows of a part, ascending: all, or `most` of them drawn at random, evenly over the classes."""
    rows = codes.rows(part)
    return rows[balanced_rows(np.asarray(codes.labels)[rows], most, 0)]


def clustered_order(profiles: Float64[np.ndarray, "rows columns"]) -> Int64[np.ndarray, " rows"]:
    """An order of rows in which similar ones stand together: the leaves of average linkage of Euclidean distances.

    Args:
        profiles: such as the share of each class's images with a concept; nan counts as 0.5.

    Returns:
        int64 [rows], a permutation; more than 2,048 rows stay as they are.
    """
    values = np.nan_to_num(np.asarray(profiles, dtype=np.float64), nan=0.5)
    rows = len(values)
    if rows < 3 or not values.shape[1] or rows > CLUSTERED:
        return np.arange(rows)
    tree = linkage(pdist(values), method="average", optimal_ordering=rows <= TURNED)
    return leaves_list(tree).astype(np.int64)


def relations(
    codes: Codes, count: int = 6
) -> tuple[Int64[np.ndarray, "3 concepts count"], Float64[np.ndarray, "3 concepts count"]]:
    """For every concept those that are similar, opposite, and together with it beyond what the class explains.

    Similar and opposite: the highest and the lowest correlation phi of two bits over all images. Together: the highest
    correlation within classes, (n_ij / n - sum_k q_k p_ik p_jk) / sqrt(v_i v_j) with v_i = sum_k q_k p_ik (1 - p_ik),
    where q_k is the share of images of class k and p_ik the share of those that have concept i. Two concepts of the
    same birds are similar; two that come and go together among images of one bird are together.

    Args:
        codes: labelled images; others are left out.
        count: how many of each kind at most.

    Returns:
        int64 [3, C, count], concepts in the order of `RELATIONS`, the strongest first, ties by number; -1 where there
        is none: only similar ones above 0, opposite ones below 0, together ones above 0. And float64 of that shape,
        their correlation; nan where there is none.
    """
    concepts, count = codes.concepts, max(1, min(count, codes.concepts - 1))
    numbers = np.full((len(RELATIONS), concepts, count), -1, dtype=np.int64)
    values = np.full(numbers.shape, np.nan)
    rows = np.flatnonzero(np.asarray(codes.labels) >= 0)
    if len(rows) < 2 or not 2 <= concepts <= CLUSTERED:
        return numbers, values
    known = codes.take(rows)
    pairs, sizes = pair_counts(known), class_sizes(known)
    phi = correlations(pairs, len(rows))
    share = class_counts(known) / np.maximum(sizes, 1)
    weighted = share * (sizes / sizes.sum())
    within = pairs / len(rows) - weighted @ share.T
    spread = np.sqrt((weighted * (1 - share)).sum(1))
    scale = np.outer(spread, spread)
    within = np.divide(within, scale, out=np.zeros_like(within), where=scale > 1e-9)
    for kind, strength in enumerate((phi, -phi, within)):
        np.fill_diagonal(strength, -np.inf)
        order = np.argsort(-strength, axis=1, kind="stable")[:, :count]
        found = np.take_along_axis(strength, order, axis=1)
        there = found > 1e-9
        numbers[kind][there] = order[there]
        values[kind][there] = np.clip(found[there], -1, 1) * (-1 if RELATIONS[kind] == "opposite" else 1)
    return numbers, values


def typical_images(
    shown: Codes, shares: Float64[np.ndarray, "concepts classes"], count: int = 8
) -> Int64[np.ndarray, "classes count"]:
    """The images of each class whose bits are nearest to the shares of the class: int64 [K, count], rows, -1 for none.

    Nearest: the smallest sum over concepts of |bit - share|, ties by row. Classes without shares have none.

    Args:
        shown: the images. shares: of the training images of a class that have a concept; nan without any.
    """
    found = np.full((len(shown.classes), count), -1, dtype=np.int64)
    for k in range(len(found)):
        rows = np.flatnonzero(np.asarray(shown.labels) == k)
        if len(rows) and not np.isnan(shares[:, k]).any():
            far = np.abs(shown.unpack(rows) - shares[:, k]).sum(1)
            best = rows[np.argsort(np.round(far, 9), kind="stable")[:count]]
            found[k, : len(best)] = best
    return found


def sample_images(shown: Codes, count: int = 8, seed: int = 0) -> Int64[np.ndarray, "concepts count"]:
    """Images with each concept, drawn at random: int64 [C, count], rows, -1 for none."""
    found = np.full((shown.concepts, count), -1, dtype=np.int64)
    for concept in range(shown.concepts):
        on = np.flatnonzero(shown.has(concept))
        chosen = np.random.default_rng([seed, concept]).permutation(on)[:count]
        found[concept, : len(chosen)] = chosen
    return found


def strongest_images(shown: Codes, margins: np.ndarray, count: int = 8) -> Int64[np.ndarray, "3 concepts count"]:
    """By the margin of a bit: images that have the concept most strongly, barely, and those that barely lack it.

    Args:
        shown: the images. margins: [images, C] float, how far above its threshold a bit's pre-activation lies.

    Returns:
        int64 [3, C, count], rows, ties by row; -1 for none.
    """
    found = np.full((3, shown.concepts, count), -1, dtype=np.int64)
    for concept in range(shown.concepts):
        values = np.asarray(margins[:, concept], dtype=np.float32)
        on = shown.has(concept)
        for kind, (members, key) in enumerate(((on, -values), (on, values), (~on, -values))):
            order = np.flatnonzero(members & ~np.isnan(values))
            best = order[np.argsort(key[order], kind="stable")[:count]]
            found[kind, concept, : len(best)] = best
    return found


def strengths(margins: np.ndarray, bins: int = 20) -> Int64[np.ndarray, "concepts bins"]:
    """Count images by margin for each concept: bins of one width, half of them below 0, up to the largest margin.

    Args:
        margins: [images, C] float.
    """
    values = np.asarray(margins, dtype=np.float32)
    top = np.nanmax(np.abs(values), 0, initial=1e-12)
    place = np.floor(values / top * (bins // 2)).clip(-bins // 2, bins // 2 - 1)
    return np.stack([(place == number - bins // 2).sum(0) for number in range(bins)], 1)


def example_row(shown: Codes, rates: Float64[np.ndarray, " concepts"]) -> int | None:
    """The row of an image whose decision a few concepts explain; None where there is nothing to tell apart.

    Among the first 500 images that are classified right (without any: all): the one in which the three concepts that
    add most to the lead of the predicted class over the second have the largest share of all that speaks for or
    against it. What a concept adds is (bit - its rate) * (difference of its two weights).
    """
    rows = np.arange(len(shown))
    if not len(rows) or len(shown.classes) < 2 or not shown.concepts:
        return None
    right = np.asarray(shown.labels)[rows] == np.asarray(shown.exact)[rows]
    rows = (rows[right] if right.any() else rows)[:LOOKED_AT]
    weight, bits = shown.weight.astype(np.float64), shown.unpack(rows).astype(np.float64)
    order = np.argsort(-(bits @ weight.T + shown.bias), axis=1, kind="stable")
    adds = (bits - rates) * (weight[order[:, 0]] - weight[order[:, 1]])
    top = -np.sort(-np.clip(adds, 0, None), axis=1)[:, :REASONS].sum(1)
    return int(rows[np.round(top / np.abs(adds).sum(1).clip(1e-12), 9).argmax()])


@dataclass(frozen=True, eq=False)
class CodeStatistics:
    """Of all images of the codes.

    part: the part that is scored. scores: of `htaf.concepts.scores.score`, None without labelled images of both parts.
    rates: float64 [C], share of the training images with the concept (of all images where there are no training ones).
    shares: float64 [C, K], of the training images of a class; nan without any.
    trained: int64 [K], training images that have a label.
    counts, sizes: int64 [C, K] and [K], images of the part that have a label.
    """

    part: PartName
    scores: dict[str, Any] | None
    rates: Float64[np.ndarray, " concepts"]
    shares: Float64[np.ndarray, "concepts classes"]
    trained: Int64[np.ndarray, " classes"]
    counts: Int64[np.ndarray, "concepts classes"]
    sizes: Int64[np.ndarray, " classes"]

    @property
    def held(self) -> Float64[np.ndarray, "concepts classes"]:
        """Share of the part's images of a class with the concept; nan without any."""
        return shares(self.counts, self.sizes)

    @property
    def dead(self) -> Bool[np.ndarray, " concepts"]:
        """Always 0 or always 1 in training images."""
        return (self.rates == 0) | (self.rates == 1)


def measure(codes: Codes, part: PartName) -> CodeStatistics:
    """Counts and scores; raises ConceptError for a label that is no class."""
    (train, trained), (counts, sizes) = part_counts(codes, "train"), part_counts(codes, part)
    scores = score(codes, scored=part) if trained.any() and sizes.any() else None
    if scores is None:
        rows = codes.rows("train") if (codes.parts == 0).any() else np.arange(len(codes))
        rates = np.diagonal(pair_counts(taken(codes, rows))) / len(rows)
    else:
        rates = np.array(scores["rates"]["fitted"])
    return CodeStatistics(part, scores, rates, shares(train, trained), trained, counts, sizes)


def concept_objects(
    codes: Codes, found: CodeStatistics, names: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """data/concepts.js: an object for each concept."""
    weight = codes.weight.astype(np.float64)
    order = by_importance(codes.weight, found.rates)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(1, len(order) + 1)
    spread = np.sqrt(found.rates * (1 - found.rates)) * weight.std(0)
    of_each = None if found.scores is None else found.scores["concept_accuracy"]["per_concept"]
    objects = []
    for number in range(codes.concepts):
        name = {"verified": False, **names[number]} if number in names else {}
        objects.append(
            {
                "rate": float(found.rates[number]),
                "importance": float(np.abs(weight[:, number]).max()),
                "spread": float(spread[number]),
                "rank": int(rank[number]),
                "dead": bool(found.dead[number]),
                "accuracy": None if of_each is None else of_each["accuracy"][number],
                "balanced": None if of_each is None else of_each["balanced"][number],
                **{key: name.get(key) for key in NAMED},
                "checked_on": "pictures" if name.get("pictures") else None,
                "seal": seal_of(name),
            }
        )
    return objects


def rows_of(shown: Codes) -> dict[str, np.ndarray]:
    """data/rows.js, before packing."""
    return {name: getattr(shown, name) for name in ("labels", "exact", "smooth")} | {"places": places_of(shown)}


def places_of(shown: Codes) -> Float32[np.ndarray, "images 2"]:
    """Places of images on a map: those whose bits are alike lie together.

    Up to 1,000 images by t-SNE; of more the first two principal components of the bits, which is classical scaling of
    their Hamming distances. Images with equal bits lie beside each other.

    Returns:
        float32 [images, 2] in 0 to 1.
    """
    bits = shown.unpack().astype(np.float32)
    bits -= bits.mean(0)
    random = np.random.default_rng(0)
    if len(bits) < 3 or not bits.any():
        return random.random((len(bits), 2)).astype(np.float32)
    with threadpool_limits(1):  # sums of several threads differ in their last digits
        if len(bits) <= NEIGHBOURED:
            size = min(30.0, (len(bits) - 1) / 3)
            found = TSNE(perplexity=size, init="random", random_state=0).fit_transform(bits)
        else:
            vectors = np.linalg.eigh(bits.T @ bits)[1]
            found = bits @ vectors[:, -2:] if bits.shape[1] > 1 else bits[:, [0, 0]]
    found = (found - found.min(0)) / np.ptp(found, axis=0).clip(1e-9)
    return (0.98 * found + random.uniform(0, 0.02, found.shape)).astype(np.float32)


def chunk_sizes(shown: Codes, texts: Sequence[str] | None) -> dict[str, int]:
    """How many images one file of bits, of ids and of texts holds: about a megabyte of each."""
    length = sum(map(len, texts or ())) // max(1, len(texts or ())) + 1
    return {"bits": max(64, BITS // max(1, shown.bits.shape[1])), "ids": IDS, "texts": max(1, BITS // length)}


def chunks_of(shown: Codes, texts: Sequence[str] | None) -> Iterator[tuple[str, Any]]:
    """Names and values of data/bits-0000.js, data/ids-0000.js, data/texts-0000.js and so on: what a view of single
    images loads."""
    sizes = chunk_sizes(shown, texts)
    for number, start in enumerate(range(0, len(shown), sizes["bits"])):
        yield f"bits-{number:04d}", packed({"bits": shown.bits[start : start + sizes["bits"]]})
    for name, values in (("ids", shown.ids), ("texts", texts or ())):
        for number, start in enumerate(range(0, len(values), sizes[name])):
            yield f"{name}-{number:04d}", list(values[start : start + sizes[name]])


def discovery_of(
    codes: Codes, shown: Codes, found: CodeStatistics, margins: np.ndarray | None
) -> dict[str, np.ndarray]:
    """data/arrays.js, before packing: of the network, and what leads to its concepts.

    Args:
        codes: of all images. shown: of the page.
        margins: [images shown, C], of the pre-activations above their thresholds; None: there are none.
    """
    train = codes.rows("train")
    related, strength = relations(codes.take(train) if len(train) else codes)
    arrays = {
        "weight": codes.weight,
        "bias": codes.bias,
        "shares": found.shares.astype(np.float32),
        "held": found.held.astype(np.float32),
        "concept_order": clustered_order(found.shares),
        "class_order": clustered_order(found.shares.T),
        "related": related,
        "related_by": strength.astype(np.float32),
        "typical": typical_images(shown, found.shares),
        "samples": sample_images(shown),
        "confusion": confusion_counts(codes, found.part),
    }
    if margins is not None:
        arrays["strongest"] = strongest_images(shown, margins)
        arrays["strengths"] = strengths(margins)
    return arrays


def class_objects(codes: Codes, found: CodeStatistics) -> list[dict[str, Any]]:
    """For each class images and accuracy of the exact and of the smooth network, of the whole part, and its training
    images."""
    rows = codes.rows(found.part)
    labels, exact, smooth = (np.asarray(values)[rows] for values in (codes.labels, codes.exact, codes.smooth))
    classes, known = len(codes.classes), bool((smooth >= 0).all())
    right = np.bincount(labels[(labels >= 0) & (labels == exact)], minlength=classes)
    before = np.bincount(labels[(labels >= 0) & (labels == smooth)], minlength=classes)
    return [
        {
            "images": int(size),
            "trained": int(found.trained[number]),
            "accuracy": float(right[number] / size) if size else None,
            "smooth": float(before[number] / size) if size and known else None,
        }
        for number, size in enumerate(found.sizes.tolist())
    ]


def confusion_counts(codes: Codes, part: PartName) -> Int64[np.ndarray, "pairs 3"]:
    """Of the exact network: class, predicted class, images of the part; all that occur, right ones too, ascending."""
    rows = codes.rows(part)
    labels, exact = np.asarray(codes.labels)[rows], np.asarray(codes.exact)[rows]
    known = labels >= 0
    pairs, counts = np.unique(np.stack([labels[known], exact[known]], axis=1), axis=0, return_counts=True)
    return np.concatenate([pairs.reshape(-1, 2), counts[:, None]], axis=1).astype(np.int64)


def notes_of(
    codes: Codes,
    shown: Codes,
    found: CodeStatistics,
    names: Mapping[int, Mapping[str, Any]] | None,
    kind: str,
) -> list[str]:
    """Return what a reader should know before believing the page. kind: of the items."""
    notes = [str(note) for note in codes.info.get("notes", ())]
    if len(codes.rows("train")):
        training = codes.part("train")
        if alike := same_bits(pair_counts(training), len(training)).about(kind):
            notes.insert(0, alike)
    part, classes = found.part, len(codes.classes)
    whole = len(codes.rows(part))
    if len(shown) < whole:
        notes.append(
            f"{len(shown):,} of the {whole:,} {part} {kind}s are shown, drawn at random, evenly over the classes; "
            f"accuracies count all {kind}s"
        )
    unknown = whole - int(found.sizes.sum())
    if unknown:
        notes.append(f"{unknown:,} of the {whole:,} {part} {kind}s have no label: scores leave them out")
    trained = ~np.isnan(found.shares).any(0)
    held, few = found.sizes > 0, (found.sizes > 0) & (found.sizes < FEW)
    of_classes = [
        (few, f"have fewer than {FEW} {part} {kind}s: their shares say little"),
        (~held, f"have no {part} {kind}s: their shares, if any, are of training {kind}s only"),
        (held & ~trained, f"have no training {kind}s: nothing to compare their shares with"),
    ]
    if part == "train":
        notes.append(f"these are training {kind}s, to which the network was fitted: shares of other {kind}s differ")
    notes += [f"{int(which.sum()):,} of {classes:,} classes {what}" for which, what in of_classes if which.any()]
    if found.scores is not None and classes > 1:
        accuracy, chance = found.scores["accuracy"][part]["exact"], float(found.sizes.max() / found.sizes.sum())
        luck = 2 * np.sqrt(chance * (1 - chance) / found.sizes.sum())  # two standard deviations
        if accuracy is not None and accuracy < max(0.3, chance + max(0.2 * (1 - chance), luck)):
            notes.append(
                f"the network is right for {accuracy:.1%} of {kind}s (always the most frequent class: {chance:.1%}): "
                "do not trust names of such a model's concepts"
            )
    if names is None:
        notes.append("concepts have numbers, not names: htaf concepts name finds names, --names reads them")
    return notes


def about_run(record: Mapping[str, Any], name: str, size: Sequence[int]) -> list[tuple[str, str]]:
    """Labels and values for a page: what the record of a run says of its making.

    Args:
        record: of the run. name: of its folder; the path would say where it lies.
        size: height and width in pixels of the images that the network is given.
    """
    model = record["model"]
    backbone = model.get("backbone") or {}
    return [
        ("Run", name),
        ("Data", str(record["data"]["name"])),
        ("Method", str(record["recipe"]["method"])),
        ("Network", str(backbone.get("name") or backbone.get("kind") or model["kind"])),
        ("Images as the network sees them", f"{size[1]} x {size[0]} pixels"),
        ("Seed", str(record["seed"])),
    ]
