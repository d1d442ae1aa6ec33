"""Do bits say more of an image than its class? Folders of few and of many classes, with groups of images that look
alike beside the bits for the classes (the recipe `frozen`), and without, both on standardised features.

    htaf concepts extract RUN --keep backbone --out FEATURES
    python benchmarks/concepts_beyond_classes.py FEATURES --attributes cub

A folder of K classes is the first K of the set. "inside": the share of bits with 0.3 bits of entropy or more inside
classes, sum_k p_k H(bit | class k). Agreement is the mean |correlation| of the test bits of two seeds, matched one to
one; "of other images": of two halves of the training images. Accuracies are those of heads fitted to training bits,
the groups left out, chosen by validation images.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import measuring
import numpy as np
import torch

from htaf.concepts import embeddings
from htaf.concepts.codes import Codes, codes_of
from htaf.concepts.counts import class_counts, class_sizes, pair_counts, same_bits, shares
from htaf.concepts.heads import correct, sparse_heads
from htaf.concepts.store import Features, open_folder
from htaf.data import attributes
from htaf.models.concept_terms import LEAST_OF_GROUP
from htaf_paper.bench import attribute_auroc, matched

LEAST = 0.3
PARTS = ("train", "validation", "test")
SIDES: dict[str, dict[str, Any]] = {
    "with groups": {"concepts": 208, "neighbours": 0.5, "group_share": 0.4},
    "without": {"concepts": 128, "neighbours": 0.5, "group_share": 0.0},
}


def of_classes(features: Features, classes: int) -> Features:
    """The images of the first classes."""
    kept = features.take(np.flatnonzero((features.labels >= 0) & (features.labels < classes)))
    return replace(kept, classes=kept.classes[:classes])


def inside_classes(codes: Codes) -> np.ndarray:
    """Entropy of each bit given the class, in bits."""
    sizes = class_sizes(codes)
    share = np.clip(shares(class_counts(codes), sizes), 1e-12, 1 - 1e-12)
    entropy = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    return np.nansum(entropy * sizes, axis=1) / sizes.sum()


def groups_of(fields: dict[str, Any], images: int) -> int:
    """How many of the last bits are groups."""
    return min(int(fields["group_share"] * fields["concepts"]), images // LEAST_OF_GROUP)


def bits_of(features: Features, rows: np.ndarray, seed: int, fields: dict[str, Any]) -> Codes:
    """The bits of all images, learned from these rows."""
    values, labels = np.asarray(features.values), np.asarray(features.labels, np.int64)
    found = embeddings.learn(values[rows], labels[rows], rate="auto", epochs=None, seed=seed, **fields)
    bits = found.of(values)
    weight = np.ones((len(features.classes), bits.shape[1]))
    weight[:, bits.shape[1] - groups_of(fields, len(rows)) :] = 0  # no class draws on groups
    return codes_of(bits, labels, weight, weight[:, 0], classes=features.classes, parts=features.parts)


def figures(codes: Codes, targets: Sequence[int | None], table: attributes.Attributes | None) -> dict[str, float]:
    """Figures of one training."""
    train, test = codes.part("train"), codes.part("test")
    found = {"distinct": float(same_bits(pair_counts(train), len(train)).distinct.sum())}
    found |= {f"inside, {name}": float((inside_classes(codes.part(name)) >= LEAST).mean()) for name in PARTS[::2]}
    for head in sparse_heads(codes, targets):
        found[f"accuracy, {head.target or 'all'}"] = float(correct(test, head.head).mean())
    if table is not None and len(codes.classes) > 10:
        values = table.of(codes.classes).values
        found["attributes"] = attribute_auroc(class_counts(test), class_sizes(test), values) or float("nan")
    return found


def agreement(many: Sequence[Codes]) -> float:
    """Mean over pairs of trainings."""
    bits = [codes.part("test").unpack() for codes in many]
    return float(np.mean([matched(one, other) or 0.0 for one, other in combinations(bits, 2)]))


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    every = open_folder(args.features).features()
    table = attributes.load(args.attributes) if args.attributes else None
    rows: list[dict[str, Any]] = []
    for classes in args.folders:
        features = of_classes(every, classes)
        learned = features.rows("train")
        halves = [learned[0::2], learned[1::2]]
        for side, fields in SIDES.items():
            made = [bits_of(features, learned, seed, fields) for seed in range(args.seeds)]
            each = [figures(codes, (5, 10, None), table) for codes in made]
            row = {key: (np.mean([one[key] for one in each]), np.std([one[key] for one in each])) for key in each[0]}
            row = {key: [round(float(value), 4) for value in pair] for key, pair in row.items()}
            row["agreement"] = round(agreement(made), 3)
            row["of other images"] = round(agreement([bits_of(features, half, 0, fields) for half in halves]), 3)
            rows.append({"classes": classes, "side": side, "test images": len(features.rows("test")), **row})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = measuring.parser(__doc__, folders=(2, 3, 5, 10, 50))
    parser.add_argument("features", help="a folder of htaf concepts extract --keep backbone")
    parser.add_argument("--attributes", help="cub, or a table of classes and attributes")
    parser.add_argument("--seeds", type=measuring.at_least_one, default=3, help="default: 3")
    args = parser.parse_args()
    torch.set_num_threads(1)
    measuring.end(args, run(args))


if __name__ == "__main__":
    main()
