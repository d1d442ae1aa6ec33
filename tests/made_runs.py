"""Run folders of small networks that nobody trained, on the 8 x 8 digits that come with scikit-learn."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from htaf.data.image_sets import load
from htaf.data.images import Images, fit_preprocessor, split
from htaf.models.build import build
from htaf.training import runs

HTAF = {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}
PLAIN = {"method": "relu"}
BACKBONE = {"kind": "wide_resnet", "depth": 10, "width": 1, "dropout": 0.0}
FEW = {"train_images": 700, "validation_images": 200}
KEPT: list[Path] = []  # a folder of finished runs that all workers share, of which each test takes a copy; or none


def digits() -> Images:
    """1,797 images."""
    return load("digits")


def made_run(
    out: Path,
    images: Images,
    activation: dict[str, Any] = HTAF,
    *,
    concepts: int = 21,
    seed: int = 0,
    kind: str = "icbm",
    shares: dict[str, float] = FEW,
) -> runs.Run:
    """A finished run folder; its batch norms have seen the images, so that bits are neither all 0 nor all 1."""
    shared = {"out_features": len(images.classes), "activation": activation, "in_channels": images.train.channels}
    icbm = {"image_size": list(images.train.size), "backbone": BACKBONE, "concepts": concepts, "norm": None}
    description: dict[str, Any] = {"kind": kind, **shared, **(icbm | {"bottleneck": "implicit", "freeze": False})}
    if kind == "wide_resnet":
        description = {**shared, **BACKBONE}
    made = _made if not KEPT else _copied
    return made(out, images, description, kind, seed, shares)


def _copied(out: Path, images: Images, *settings: Any) -> runs.Run:
    """A copy of the run of these settings, which is made once."""
    key = hashlib.sha256(json.dumps([images.fingerprint, *settings]).encode()).hexdigest()[:16]
    kept = KEPT[0] / key
    with FileLock(KEPT[0] / f"{key}.lock"):
        if not kept.exists():
            _made(kept, images, *settings)
    shutil.copytree(kept, out, dirs_exist_ok=True)
    return runs.open_run(out)


def _made(
    out: Path, images: Images, description: dict[str, Any], kind: str, seed: int, shares: dict[str, float]
) -> runs.Run:
    activation = description["activation"]
    rows = split(images, train=int(shares["train_images"]), validation=int(shares["validation_images"])).train
    preprocessor = fit_preprocessor(images, rows)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = build(description).train()
        with torch.no_grad():
            for _ in range(20):
                net(preprocessor.normalise(images.train.batch(rows[torch.randperm(len(rows))[:100]])))
    family = "dhn" if kind == "wide_resnet" else kind
    identity = {
        "recipe": {"family": family, "method": activation["method"], **shares},
        "seed": seed,
        "data": {"name": images.name, "fingerprint": images.fingerprint, "task": "classification", "split": "official"},
    }
    record = runs.start_run(out, identity)
    record |= {"model": description, "headline": "accuracy", "rows": {}, "best_epoch": 0, "notes": []}
    record |= {"source": {"name": images.name, "data_dir": None, "size": None}}
    zero = {part: {"accuracy": 0.0} for part in ("validation", "test")}
    record |= {"metrics": {"smooth": zero, "exact": None if activation == PLAIN else zero}}
    return runs.finish_run(out, record, net.eval(), preprocessor)
