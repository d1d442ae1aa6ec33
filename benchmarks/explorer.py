"""How long the explorer's page takes to open at 100,000 images x 512 concepts, from disk, in Chromium.

    python benchmarks/explorer.py --json runs/bench/explorer.json

Made data: images of 50 classes, bits with 30% noise, no pictures. Each view is opened three times in a new document;
the time is from the request to the moment when what the view is about stands there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import measuring
import numpy as np
from playwright.sync_api import sync_playwright

from htaf.concepts.codes import codes_of
from htaf.concepts.explorer.build import build_page
from htaf.concepts.explorer.shown import Shown

VIEWS = {
    "overview, its map": ("#/", ".heat canvas"),
    "overview, its decision": ("#/", "[data-lead]"),
    "concepts": ("#/concepts", "[data-concept]"),
    "classes": ("#/classes", "table.classes"),
    "confusion": ("#/confusion", ".heat canvas"),
    "pair": ("#/pair", "[data-separation]"),
    "concept": ("#/concept/3", "#weights"),
    "class": ("#/class/1", "#wrong"),
    "images": ("#/images", ".thumb"),
    "image": ("#/image/?row=7", "[data-logit]"),
    "image, nearest": ("#/image/?row=7", "#nearest ~ .grid .thumb"),
    "a concept off": ("#/off?off=3", "[data-after]"),
}


def main() -> None:
    """Build the page, open its views, print a table."""
    parser = measuring.parser(__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--concepts", type=int, default=512)
    parser.add_argument("--classes", type=int, default=50)
    given = measuring.begin(parser)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, given.classes, given.images)
    centres = rng.random((given.classes, given.concepts)) < 0.5
    bits = centres[labels] ^ (rng.random((given.images, given.concepts), dtype=np.float32) < 0.3)
    weight = centres - 0.5 + rng.normal(0, 0.2, (given.classes, given.concepts))
    names = [f"{k:03d}.Class_number_{k}" for k in range(given.classes)]
    ids = [f"{names[label]}/image_{row:06d}.jpg" for row, label in enumerate(labels)]
    codes = codes_of(bits, labels, weight, np.zeros(given.classes), classes=names, parts="test", ids=ids)
    rows: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        began = time.perf_counter()
        made = build_page(codes, place, shown=Shown(images=given.images))
        built = time.perf_counter() - began
        path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        home = Path(made["page"]).as_uri()
        for name, (address, what) in VIEWS.items():
            rows[name] = []
            for _ in range(3):
                page.goto("about:blank")
                page.goto(home + address, wait_until="commit")
                page.wait_for_selector(what, state="attached")
                rows[name].append(page.evaluate("performance.now()"))
        sizes = {file.name: file.stat().st_size for file in sorted((Path(place) / "data").iterdir())}
        browser.close()
    start = sum(sizes[name] for name in ("page.js", "concepts.js", "arrays.js"))
    print(f"{given.images:,} images x {given.concepts} concepts x {given.classes} classes: built in {built:.1f} s,")
    print(f"{made['bytes'] / 1e6:.1f} MB in all, {start / 1e6:.2f} MB of data at the start")
    for name, times in rows.items():
        print(f"  {name:24s} {min(times):6.0f} to {max(times):6.0f} ms")
    views = [{"view": name, "milliseconds": times} for name, times in rows.items()]
    measuring.end(given, [{"built_seconds": built, "bytes": made["bytes"], "bytes_at_start": start}, *views])


if __name__ == "__main__":
    main()
