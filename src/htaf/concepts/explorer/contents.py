"""What the page says of a network: figures of all its images, and the arrays of those that it shows."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    in_turn,
    pair_counts,
    part_counts,
    same_bits,
    shares,
)
from htaf.concepts.explorer.folder import packed
from htaf.concepts.heads import by_importance
from htaf.concepts.naming.files import seal_of
from htaf.concepts.scores import score, specificity

CLUSTERED = 2048  # rows at most: the distances of all pairs are kept
TURNED = 600  # rows up to which neighbouring leaves are turned to each other, which takes long
LOOKED_AT = 2000  # images among which an example is looked for
REASONS = 3  # concepts that should explain it

NEIGHBOURED = 1000  # images up to which their map is t-SNE, which takes long
RELATIONS = ("similar", "opposite", "together")
CONFUSIONS = 20
FEW = 10  # images of a class, below which a share says little
BITS, IDS = 2**20, 16_384  # bytes of bits, and ids, in one file
NAMED = ("name", "label_1", "label_0", "justification", "verified", "reason", "held_out", "p_value", "agreement")
NAMED += ("test_a", "test_b", "source", "model", "checked_by", "status", "only_class")


def chosen_rows(
    codes: Codes, part: PartName, most: int, *, seed: int = 0
) -> tuple[Int64[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Rows of a part: all, or `most` of them, half of which at least are drawn at random, evenly over the classes.

    The random ones know nothing of what the network predicts. Then come those that the exact network gets wrong, up
    to the other half, evenly over the classes too; further ones fill up where these are few.

    Args:
        codes: with the part.
        most: >= 1.
        seed: of the choice.

    Returns:
        int64, ascending; and which of them were drawn at random: a function of labels, `most` and seed alone. All,
        where all rows are chosen.
    """
    rows = codes.rows(part)
    if len(rows) <= most:
        return rows, np.ones(len(rows), dtype=bool)
    labels, exact = np.asarray(codes.labels)[rows], np.asarray(codes.exact)[rows]
    wrong = (labels >= 0) & (labels != exact)
    order = in_turn(np.random.default_rng(seed).permutation(len(rows)), labels)
    drawn, left = np.split(order, [most - most // 2])
    missed = in_turn(left[wrong[left]], labels)
    added = np.concatenate([missed, left[~wrong[left]]])[: most // 2]
    chosen = np.sort(np.concatenate([drawn, added]))
    return rows[chosen], np.isin(chosen, drawn)


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
    labels = np.asarray(shown.labels)
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(len(found) + 1))
    for k in range(len(found)):
        rows = order[starts[k] : starts[k + 1]]
        if len(rows) and not np.isnan(shares[:, k]).any():
            far = np.abs(shown.unpack(rows) - shares[:, k]).sum(1)
            best = rows[np.argsort(np.round(far, 9), kind="stable")[:count]]
            found[k, : len(best)] = best
    return found


def sample_images(
    shown: Codes, drawn: Bool[np.ndarray, " images"], count: int = 8, seed: int = 0
) -> Int64[np.ndarray, "concepts count"]:
    """Images with each concept, drawn at random: int64 [C, count], rows, -1 for none.

    Args:
        shown: the images. drawn: those that may be chosen. seed: of the choice.
    """
    found = np.full((shown.concepts, count), -1, dtype=np.int64)
    rows = np.flatnonzero(drawn)
    for concept in range(shown.concepts):
        on = rows[shown.has(concept, rows)]
        if len(on):
            rng = np.random.default_rng([seed, concept])
            chosen = on[rng.choice(len(on), min(count, len(on)), replace=False)]
            found[concept, : len(chosen)] = chosen
    return found


def strongest_images(
    shown: Codes, margins: np.ndarray, drawn: Bool[np.ndarray, " images"], count: int = 8
) -> Int64[np.ndarray, "3 concepts count"]:
    """By the margin of a bit: images that have the concept most strongly, barely, and those that barely lack it.

    Args:
        shown: the images. margins: [images, C] float, how far above its threshold a bit's pre-activation lies.
        drawn: those images that may be chosen.

    Returns:
        int64 [3, C, count], rows, ties by row; -1 for none.
    """
    found = np.full((3, shown.concepts, count), -1, dtype=np.int64)
    rows = np.flatnonzero(drawn)
    for concept in range(shown.concepts):
        values = np.asarray(margins[rows, concept], dtype=np.float32)
        on = shown.has(concept, rows)
        for kind, (members, key) in enumerate(((on, -values), (on, values), (~on, -values))):
            order = np.flatnonzero(members & ~np.isnan(values))
            best = rows[order[np.argsort(key[order], kind="stable")[:count]]]
            found[kind, concept, : len(best)] = best
    return found


def strengths(
    margins: np.ndarray, drawn: Bool[np.ndarray, " images"], bins: int = 20
) -> Int64[np.ndarray, "concepts bins"]:
    """Count images by margin for each concept: bins of one width, half of them below 0, up to the largest margin.

    Args:
        margins: [images, C] float. drawn: those images that count.
    """
    values = np.asarray(margins, dtype=np.float32)[drawn]
    top = np.nanmax(np.abs(values), 0, initial=1e-12)
    place = np.floor(values / top * (bins // 2)).clip(-bins // 2, bins // 2 - 1)
    return np.stack([(place == number - bins // 2).sum(0) for number in range(bins)], 1)


def example_row(
    shown: Codes,
    drawn: Bool[np.ndarray, " images"],
    rates: Float64[np.ndarray, " concepts"],
    named: Collection[int] = (),
) -> int | None:
    """The row of an image whose decision a few concepts explain; None where there is nothing to tell apart.

    Among the images that were drawn and are classified right (without any: all drawn ones), 2,000 at most: the one in
    which the three concepts that add most to the lead of the predicted class over the second have the largest share of
    all that speaks for or against it, counting those with a name four times. What a concept adds is
    (bit - its rate) * (difference of its two weights). Ties go to the first.
    """
    rows = np.flatnonzero(drawn)
    if not len(rows) or len(shown.classes) < 2 or not shown.concepts:
        return None
    right = np.asarray(shown.labels)[rows] == np.asarray(shown.exact)[rows]
    rows = (rows[right] if right.any() else rows)[:LOOKED_AT]
    weight = shown.weight.astype(np.float64)
    gain = np.ones(shown.concepts)
    gain[list(named)] = 4
    best, most = int(rows[0]), -1.0
    for start in range(0, len(rows), 256):
        some = rows[start : start + 256]
        bits = shown.unpack(some).astype(np.float64)
        order = np.argsort(-(bits @ weight.T + shown.bias), axis=1, kind="stable")
        adds = (bits - rates) * (weight[order[:, 0]] - weight[order[:, 1]])
        top = -np.sort(-np.clip(adds, 0, None) * gain, axis=1)[:, :REASONS].sum(1)
        share = np.round(top / np.maximum(np.abs(adds).sum(1), 1e-12), 9)
        if share.max() > most:
            best, most = int(some[share.argmax()]), float(share.max())
    return best


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
        rows = codes.rows("train")
        rows = rows if len(rows) else np.arange(len(codes))
        rates = np.zeros(codes.concepts)
        for start in range(0, len(rows), 65_536):
            rates += codes.unpack(rows[start : start + 65_536]).sum(0, dtype=np.int64)
        rates /= len(rows)
    else:
        rates = np.array(scores["rates"]["fitted"])
    return CodeStatistics(part, scores, rates, shares(train, trained), trained, counts, sizes)


def content_key(codes: Codes) -> str:
    """16 hexadecimal digits that other bits, labels, classes or another head change."""
    digest = hashlib.sha256(repr((codes.concepts, codes.classes)).encode("utf-8", "backslashreplace"))
    for array in (codes.weight, codes.bias, codes.bits, codes.labels, codes.parts):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


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


def arrays_of(found: CodeStatistics, codes: Codes) -> dict[str, np.ndarray]:
    """data/arrays.js, before packing: of the network."""
    of_classes = {"shares": found.shares.astype(np.float32), "held": found.held.astype(np.float32)}
    return {"weight": codes.weight, "bias": codes.bias, **of_classes}


def rows_of(shown: Codes, drawn: Bool[np.ndarray, " images"]) -> dict[str, np.ndarray]:
    """data/rows.js, before packing; `drawn`: which images were drawn at random, whatever the network predicts."""
    made = {name: getattr(shown, name) for name in ("labels", "exact", "smooth")}
    return made | {"random": drawn.astype(np.uint8), "places": places_of(shown)}


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
    codes: Codes, shown: Codes, drawn: Bool[np.ndarray, " images"], found: CodeStatistics, margins: np.ndarray | None
) -> dict[str, np.ndarray]:
    """More arrays for data/arrays.js: see `htaf.concepts.explorer.contents`.

    Args:
        codes: of all images. shown, drawn: as for `rows_of`.
        margins: [images shown, C], of the pre-activations above their thresholds; None: there are none.
    """
    train = codes.rows("train")
    related, strength = relations(codes.take(train) if len(train) else codes)
    arrays = {
        "concept_order": clustered_order(found.shares),
        "class_order": clustered_order(found.shares.T),
        "related": related,
        "related_by": strength.astype(np.float32),
        "typical": typical_images(shown, found.shares),
        "samples": sample_images(shown, drawn),
        "confusion": confusion_counts(codes, found.part),
    }
    if margins is not None:
        arrays["strongest"] = strongest_images(shown, margins, drawn)
        arrays["strengths"] = strengths(margins, drawn)
    return arrays


def class_objects(codes: Codes, found: CodeStatistics) -> list[dict[str, Any]]:
    """For each class images, accuracy of the exact and of the smooth network and a histogram, of the whole part, and
    its training images."""
    rows = codes.rows(found.part)
    labels, exact, smooth = (np.asarray(values)[rows] for values in (codes.labels, codes.exact, codes.smooth))
    classes = len(codes.classes)
    right = np.bincount(labels[(labels >= 0) & (labels == exact)], minlength=classes)
    before = np.bincount(labels[(labels >= 0) & (labels == smooth)], minlength=classes)
    known = bool((smooth >= 0).all())
    bins: list[Any] = specificity(found.counts, found.sizes)["per_class"] if found.sizes.any() else [None] * classes
    return [
        {
            "images": int(size),
            "trained": int(found.trained[number]),
            "accuracy": float(right[number] / size) if size else None,
            "smooth": float(before[number] / size) if size and known else None,
            "histogram": None if bins[number] is None else _tenths(bins[number]),
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


def confusions(codes: Codes, part: PartName) -> list[list[int]]:
    """The most frequent mistakes of the exact network: [class, predicted class, images of the part], 20 at most."""
    counts = confusion_counts(codes, part)
    wrong = counts[counts[:, 0] != counts[:, 1]]
    return wrong[np.argsort(-wrong[:, 2], kind="stable")[:CONFUSIONS]].tolist()


def histogram(found: CodeStatistics, kind: str) -> dict[str, Any]:
    """Over (concept, class) pairs of the part."""
    if not found.sizes.any():
        return {"series": []}
    counts = _tenths(specificity(found.counts, found.sizes)["histogram"])
    return {"series": [{"name": f"{found.part} {kind}s", "counts": counts}]}


def _tenths(twentieths: Sequence[int]) -> list[int]:
    return [int(a + b) for a, b in zip(twentieths[::2], twentieths[1::2], strict=True)]


def notes_of(
    codes: Codes,
    shown: Codes,
    drawn: Bool[np.ndarray, " images"],
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
            f"{len(shown):,} of the {whole:,} {part} {kind}s are shown: {int(drawn.sum()):,} drawn at random, evenly "
            f"over the classes, then misclassified ones, not all of them; accuracies count all {kind}s"
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
    elif classes == 1:
        notes.append("there is one class: nothing to tell apart")
    if (dead := int(found.dead.sum())) > 0:
        notes.append(f"{dead:,} of {codes.concepts:,} concepts are dead: always 0 or always 1 in training {kind}s")
    named = [entry for entry in (names or {}).values() if entry.get("name")]
    if names is None:
        notes.append("concepts have numbers, not names: htaf concepts name finds names, --names reads them")
    elif len(named) < codes.concepts:
        notes.append(f"{codes.concepts - len(named):,} of {codes.concepts:,} concepts have no name")
    verified = sum(bool(entry.get("verified")) for entry in named)
    if verified < len(named):
        notes.append(
            f"{verified:,} of {len(named):,} names passed their check; the others are guesses, marked with a ?"
        )
    if given := sum(bool(entry.get("verified") and entry.get("checked_by")) for entry in named):
        notes.append(
            f"{given:,} of {len(named):,} names were given, then verified by a model: a name that was made by looking "
            f"at these {kind}s scores too high"
        )
    return notes


def about_run(record: Mapping[str, Any], name: str, size: Sequence[int]) -> list[tuple[str, str]]:
    """Labels and values for a page: what the record of a run says of its making.

    Args:
        record: of the run. name: of its folder; the path would say where it lies.
        size: height and width in pixels of the images that the network is given.
    """
    model = record["model"]
    backbone = model.get("backbone") or {}
    shape = ", ".join(f"{key} {backbone[key]}" for key in ("depth", "width") if key in backbone)
    network = str(backbone.get("name") or backbone.get("kind") or model["kind"])
    activation = model.get("activation", {"method": record["recipe"]["method"]})
    curve = ", ".join(f"{key} {value:g}" for key, value in activation.items() if isinstance(value, float))
    bottleneck = str(model.get("bottleneck", "implicit"))
    return [
        ("Run", name),
        ("Data", str(record["data"]["name"])),
        ("Method", f"{activation['method']} ({curve})" if curve else str(activation["method"])),
        ("Network", f"{network} ({shape})" if shape else network),
        ("Images as the network sees them", f"{size[1]} x {size[0]} pixels"),
        ("Bottleneck", bottleneck),
        ("Seed", str(record["seed"])),
    ]
