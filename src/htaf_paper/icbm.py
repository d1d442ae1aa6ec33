"""Tables "HTAF, SS, STE and BM" and "accuracy before and after binarisation" for implicit concept bottleneck models.

Reduced to two cores: WRN-16-1 and ResNet-18 at width 16 on 5,000 training and 1,000 validation images of CIFAR-10 (its
10,000 test images once at the end), ResNet-18 at width 16 on CUB's classes that are at hand, at 112 pixels. Each method
gets six candidates at a third of the length, chosen on validation, then three seeds;
the plain network has nothing to choose. BM is the plain network with its features cut at their medians. The paper's
figures beside are full scale.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from htaf._console import plain_errors
from htaf.data.images import Images
from htaf.runs import Run, open_run, to_json
from htaf.training.families import ready_recipe
from htaf.training.plan import Grid, Plan, Source
from htaf.training.recipe import Recipe
from htaf.training.study import data_of, run_study
from htaf_paper.icbm_report import write
from htaf_paper.icbm_scores import measure, measure_median

# six candidates a method; fields that go together share a key
METHODS: dict[str, Grid] = {
    "htaf": {
        "alpha0,alpha1,sharpen,start": (
            (2.0, 11.0, True, (1.0, 2.0)),
            (1.0, 22.0, True, (0.5, 4.0)),
            (2.0, 11.0, False, None),
            (1.0, 22.0, False, None),
            (1.0, 5.0, True, (0.5, 2.0)),
            (0.7, 11.0, True, (0.35, 3.0)),
        )
    },
    "ste": {"slope": ("sigmoid", "tanh", "rectangular", "approx_sign", "atan", "htaf")},
    "ss": {
        "beta,sharpen,start": (
            (22.0, True, (2.0,)),
            (50.0, True, (4.0,)),
            (22.0, False, None),
            (10.0, False, None),
            (8.0, True, (1.0,)),
            (5.0, True, (1.0,)),
        ),
    },
    "relu": {},
}
# (model, data) -> method -> accuracy in %, full scale, mean of five runs; ss at its best beta, relu the plain network
PAPER = {
    ("wide_resnet", "cifar10"): {"htaf": 96.1, "ste": 94.3, "ss": 95.7, "relu": 95.7, "bm": 90.0},
    ("resnet", "cifar10"): {"htaf": 94.6, "relu": 94.6},
    ("resnet", "cub"): {"htaf": 74.8, "relu": 74.5},
}
CUB_SIZE = 112


def recipe(backbone: str, data: str) -> Recipe:
    """The reduced training of one backbone on one set."""
    base = ready_recipe("icbm", "reduced").replace(epochs=10)
    if backbone == "resnet":
        base = base.replace(backbone="resnet", depth=18, width=16, stem="cifar")
    if data == "cub":
        base = base.replace(stem="imagenet", train_images=0, validation_images=0.1, epochs=30, batch_size=32, lr=0.05)
    return base


def plan(backbone: str, data: str) -> Plan:
    """The four trained methods of one backbone on one set."""
    base = recipe(backbone, data)
    return Plan(
        name=f"icbm-{data}-{backbone}",
        sources=(Source(data, size=CUB_SIZE if data == "cub" else None),),
        methods=METHODS,
        base=base,
        candidates=6,
        splits=3,
        search_epochs=base.optimization.epochs // 3,
        reference={(data, m): (figure / 100, None) for m, figure in PAPER[backbone, data].items() if m != "bm"},
    )


def cifar10_wide_resnet() -> Plan:
    """WRN-16-1 on CIFAR-10."""
    return plan("wide_resnet", "cifar10")


def cifar10_resnet() -> Plan:
    """ResNet-18 at width 16 on CIFAR-10."""
    return plan("resnet", "cifar10")


def cub_resnet() -> Plan:
    """ResNet-18 at width 16 on CUB."""
    return plan("resnet", "cub")


# the paper fixes beta; here beside the tuned and sharpened one
BETAS = (10.0, 50.0, 100.0, 1000.0)


def fixed_betas() -> Plan:
    """The scaled sigmoid at the paper's betas, as they are, on WRN-16-1 and CIFAR-10; one seed."""
    rows = {f"ss-{beta:g}": beta for beta in BETAS}
    return Plan(
        name="icbm-cifar10-wide_resnet-betas",
        sources=(Source("cifar10"),),
        methods={row: {"beta,sharpen": ((beta, False),)} for row, beta in rows.items()},
        variants=dict.fromkeys(rows, "ss"),
        base=recipe("wide_resnet", "cifar10"),
        candidates=1,
        splits=1,
    )


def cifar100(backbone: str) -> Plan:
    """HTAF and the plain network on 5,000 images of CIFAR-100, with what was chosen on CIFAR-10; one seed."""
    return Plan(
        name=f"icbm-cifar100-{backbone}",
        sources=(Source("cifar100"),),
        methods={"htaf": {"alpha0,alpha1,sharpen,start": ((1.0, 5.0, True, (0.5, 2.0)),)}, "relu": {}},
        base=recipe(backbone, "cifar100"),
        candidates=1,
        splits=1,
    )


def given_attributes() -> Plan:
    """Concept bottlenecks (Koh et al. 2020) with 112 attributes of CUB on the network of `cub_resnet`; one seed."""
    kinds = ("joint", "sequential", "independent")
    return Plan(
        name="cbm-cub-resnet",
        sources=(Source("cub", size=CUB_SIZE),),
        methods={kind: {"bottleneck": (kind,)} for kind in kinds},
        variants=dict.fromkeys(kinds, "relu"),
        base=recipe("resnet", "cub"),
        candidates=1,
        splits=1,
    )


def plans() -> tuple[Plan, ...]:
    """All three."""
    return cifar10_wide_resnet(), cifar10_resnet(), cub_resnet()


def networks(report: dict[str, Any], folder: Path) -> dict[str, list[Run]]:
    """The kept run folders of a study, by method, in the order of the seeds."""
    there = [open_run(path) for path in sorted((folder / "runs").iterdir())]
    found: dict[str, list[Run]] = {}
    for row in report["rows"]:
        own = [run for run in there if to_json(run.record["recipe"]) == to_json(row["recipe"])]
        found[row["method"]] = sorted(own, key=lambda run: run.record["seed"])
    return found


def table(out: Path, chosen: tuple[Plan, ...], *, data_dir: str | None, workers: int, threads: int) -> Path:
    """Train what is not there yet, measure it, write the report; goes on where it was."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    studies: dict[str, dict[str, Any]] = {}
    for one in chosen:
        folder = out / one.name
        studies[one.name] = run_study(
            one, folder, data_dir=data_dir, workers=workers, threads=threads, progress=True, keep_runs=True
        )
        runs, images = networks(studies[one.name], folder), data_of(one.sources[0], False, data_dir)
        assert isinstance(images, Images)
        found[one.name] = {method: [] for method in ("htaf", "ste", "ss", "bm")}
        for seed, plain in enumerate(runs.pop("relu")):
            for method, own in runs.items():
                found[one.name][method].append(measure(own[seed], images, plain, folder))
            found[one.name]["bm"].append(measure_median(plain, images, folder))
            print(f"{one.name}: seed {seed} measured", flush=True)
    return write(found, studies, {one.name: _paper(one) for one in chosen}, out)


def _paper(one: Plan) -> dict[str, float]:
    return PAPER.get((one.base.flat()["backbone"], one.sources[0].label), {})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m htaf_paper.icbm", description="ICBMs, reduced to two cores.")
    names = [one.name for one in plans()]
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; continues where it stopped")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="which of the studies")
    parser.add_argument("--data-dir", help="folder of the data sets (else HTAF_DATA or a download)")
    parser.add_argument("--workers", type=int, default=1, help="processes that train")
    parser.add_argument("--threads", type=int, default=1, help="of each")
    given = parser.parse_args()
    chosen = tuple(one for one in plans() if one.name in given.only)
    with plain_errors():
        path = table(given.out, chosen, data_dir=given.data_dir, workers=given.workers, threads=given.threads)
    print(path.read_text(), end="")


if __name__ == "__main__":
    main()
