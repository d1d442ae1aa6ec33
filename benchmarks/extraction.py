"""A million images through a network into packed bits on disk, then every score, on one core: time and peak memory.

An ICBM over WRN-10-1 with 512 concepts, trained for one epoch on the 8 x 8 digits, reads them over and over. The time
of the network alone on the same batches stands beside, and what the float32 features would take.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import measuring
import memory
import torch

from htaf.concepts.extract import extract
from htaf.concepts.scores import score
from htaf.data.image_parts import MemoryPart, as_images
from htaf.data.images import load
from htaf.models.icbm import ICBM
from htaf.training.families import ready_recipe
from htaf.training.fit import fit

BATCH = 250


def run(rows: int, concepts: int, folder: Path) -> dict[str, Any]:
    """Times in seconds, memory in MiB."""
    digits = load("digits")
    recipe = ready_recipe("icbm", "small").replace(depth=10, concepts=concepts, epochs=1)
    trained = fit(recipe, digits, folder / "run")
    place = torch.arange(rows) % len(digits.train)
    part = MemoryPart(digits.train.batch(place), digits.train.labels[place])
    images = as_images("digits, repeated", digits.classes, part, digits.test, [])
    model, preprocessor = trained.model(exact=False), trained.preprocessor()
    assert isinstance(model, ICBM)

    def network(count: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            for chosen in torch.arange(count).split(BATCH):
                x = preprocessor.normalise(part.batch(chosen))  # pyright: ignore[reportAttributeAccessIssue]
                model.pre_activations(x)
        return time.perf_counter() - start

    network(BATCH)
    alone = network(min(rows, 20_000)) * rows / min(rows, 20_000)
    memory._trim()
    before = memory._status("VmRSS")
    memory._reset_peak()
    start = time.perf_counter()
    codes = extract(trained, images, folder / "codes", batch=BATCH).codes()
    extraction, peak = time.perf_counter() - start, memory._status("VmHWM") - before
    codes = replace(codes, parts=(codes.parts * 0 + (torch.arange(len(codes)) % 5 == 0).numpy() * 2).astype("uint8"))
    memory._trim()
    before = memory._status("VmRSS")
    memory._reset_peak()
    start = time.perf_counter()
    score(codes)
    scoring, scoring_peak = time.perf_counter() - start, memory._status("VmHWM") - before
    return {
        "benchmark": "extraction",
        "images": len(codes),
        "concepts": concepts,
        "network_seconds": round(alone, 2),
        "extraction_seconds": round(extraction, 2),
        "extraction_over_network": round(extraction / alone, 3),
        "extraction_peak_mib": round(peak / 2**20, 1),
        "scoring_seconds": round(scoring, 2),
        "scoring_peak_mib": round(scoring_peak / 2**20, 1),
        "bits_mib": round(codes.bits.nbytes / 2**20, 1),
        "float32_mib": round(4 * len(codes) * concepts / 2**20, 1),
        **measuring.versions(),
    }


def main() -> None:
    parser = measuring.parser(__doc__, rounds=1)
    parser.add_argument("--rows", type=measuring.at_least_one, default=1_000_000, help="images; default: 1,000,000")
    parser.add_argument("--concepts", type=measuring.at_least_one, default=512, help="default: 512")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.no_test:
        measuring.test_first("concepts/test_extract.py", "concepts/test_scores.py")
    measuring.warn_when_busy()
    with tempfile.TemporaryDirectory() as folder:
        row = run(args.rows, args.concepts, Path(folder))
    print(json.dumps(row, indent=1))
    measuring.write(args.json, [row])


if __name__ == "__main__":
    main()
