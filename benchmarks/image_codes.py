"""Search in codes of photographs: what do the ten nearest images of a query have, at equal bytes for each image?

    htaf concepts extract RUN --keep backbone --out FEATURES
    python benchmarks/image_codes.py FEATURES

The base are the training and validation images, the queries are the test images. "recall": the share of the ten
nearest by the cosine of the real features that are among the ten found. "same class": the share of the ten found that
are of the query's class. Bits are compared by Hamming distance. PQ is faiss's, behind PCA and a random rotation to 128
dimensions; its queries stay real. LDA sees the classes, as the bits of htaf do. Needs faiss-cpu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import faiss  # pyright: ignore[reportMissingImports]
import measuring
import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import htaf
from htaf.concepts.store import open_folder
from htaf_paper.other_bits import Backbone, itq

NEAREST = 10


class Photographs:
    """Features of a base and of queries, of length 1, with their classes."""

    def __init__(self, folder: str) -> None:
        self.features = open_folder(folder).features()
        self.raw = np.asarray(self.features.values, np.float32)
        self.labels = np.asarray(self.features.labels)
        self.base = np.concatenate([self.features.rows("train"), self.features.rows("validation")])
        self.query = self.features.rows("test")
        standard = Backbone(self.features).standard
        self.unit = standard / np.linalg.norm(standard, axis=1, keepdims=True)
        self.true = self.nearest(-self.unit[self.query] @ self.unit[self.base].T)

    def nearest(self, distances: np.ndarray) -> np.ndarray:
        """The ten nearest of the base, the first among equals."""
        return np.argsort(distances, axis=1, kind="stable")[:, :NEAREST]

    def by_bits(self, bits: np.ndarray) -> np.ndarray:
        signs = np.where(bits, 1.0, -1.0).astype(np.float32)
        return self.nearest(-signs[self.query] @ signs[self.base].T)

    def by_pq(self, values: np.ndarray, size: int) -> np.ndarray:
        values = np.ascontiguousarray(values, np.float32)
        index = faiss.index_factory(values.shape[1], f"PCAR{min(128, values.shape[1] // size * size)},PQ{size}")
        index.train(values[self.base])
        index.add(values[self.base])
        return index.search(values[self.query], NEAREST)[1]

    def row(self, found: np.ndarray) -> dict[str, float]:
        shared = [len(np.intersect1d(one, true)) for one, true in zip(found, self.true, strict=True)]
        same = self.labels[self.base][found] == self.labels[self.query][:, None]
        return {"recall": float(np.mean(shared)) / NEAREST, "same class": float(same.mean())}


def ways(photos: Photographs, size: int, seed: int) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Codes of so many bytes, by name."""

    def bits() -> np.ndarray:
        model = htaf.ConceptBottleneck(n_concepts=8 * size, random_state=seed)
        return model.fit(photos.raw[photos.base], photos.labels[photos.base]).concepts(photos.raw)

    def discriminant() -> np.ndarray:
        model = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto")
        model.fit(photos.raw[photos.base], photos.labels[photos.base])
        projected = model.transform(photos.raw)
        return projected / np.linalg.norm(projected, axis=1, keepdims=True)

    yield "htaf", lambda: photos.by_bits(bits())
    yield "ITQ", lambda: photos.by_bits(itq(Backbone(photos.features), 8 * size, seed))
    if seed == 0:
        yield "PQ", lambda: photos.by_pq(photos.unit, size)
        yield "LDA, PQ", lambda: photos.by_pq(discriminant(), size)


def run(photos: Photographs, sizes: list[int], seeds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"codes": "real features", "bytes": 4 * photos.raw.shape[1], **photos.row(photos.true)}
    ]
    for size in sizes:
        found: dict[str, list[dict[str, float]]] = {}
        for seed in range(seeds):
            for name, search in ways(photos, size, seed):
                found.setdefault(name, []).append(photos.row(search()))
        for name, each in found.items():
            row = {key: float(np.mean([one[key] for one in each])) for key in each[0]}
            spread = {f"{key}, std": float(np.std([one[key] for one in each])) for key in each[0]}
            rows.append({"codes": name, "bytes": size, "seeds": len(each), **row, **spread})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = measuring.parser(__doc__, bytes=(4, 8, 16))
    parser.add_argument("features", help="a folder of htaf concepts extract --keep backbone")
    parser.add_argument("--seeds", type=measuring.at_least_one, default=3, help="default: 3")
    args = measuring.begin(parser)
    rows = run(Photographs(args.features), args.bytes, args.seeds)
    measuring.show(
        "Ten nearest photographs",
        ("codes", "bytes", "recall", "same class"),
        [(row["codes"], str(row["bytes"]), f"{row['recall']:.3f}", f"{row['same class']:.3f}") for row in rows],
        left=("codes",),
    )
    measuring.end(args, rows)


if __name__ == "__main__":
    main()
