"""Tables "HTAF, SS, STE and BM" and "accuracy before and after binarisation" for implicit concept bottleneck models.

Reduced to two cores: WRN-16-1 and ResNet-18 at width 16 on 5,000 training and 1,000 validation images of CIFAR-10 (its
10,000 test images once at the end), ResNet-18 at width 16 on CUB's classes that are at hand, at 112 pixels. Each method
gets six candidates at a third of the length, chosen on validation, then three seeds;
the plain network has nothing to choose. BM is the plain network with its features cut at their medians. The paper's
figures beside are full scale.
"""

from __future__ import annotations

from collections.abc import Mapping

from htaf.training.families import ready_recipe
from htaf.training.recipe import Recipe, Source
from htaf_paper.bounds import PAPER_PAIRS
from htaf_paper.plans import Grid, Plan
from htaf_paper.protocol import Scale

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
# data -> backbone -> (with HTAF, without) in %
ACCURACY = {
    "cifar10": {"resnet": (94.6, 94.6), "wide_resnet": (96.1, 95.7), "vit": (96.6, 96.7)},
    "cifar100": {"resnet": (80.8, 80.0), "wide_resnet": (79.5, 78.2), "vit": (89.0, 88.6)},
    "cub": {"resnet": (74.8, 74.5), "wide_resnet": (77.3, 77.5), "vit": (88.5, 87.1)},
    "tiny-imagenet": {"resnet": (72.2, 72.1), "wide_resnet": (85.4, 85.7), "vit": (86.6, 86.7)},
}
# data -> row -> accuracy, binarity score, concept accuracy in %, of WideResNet
COMPARED = {
    "cifar10": {
        "htaf": (96.1, 98.4, 96.1), "ss-10": (95.5, 3.9, 91.2), "ss-50": (95.7, 40.4, 91.6),
        "ss-100": (95.3, 73.3, 91.5), "ss-1000": (79.3, 99.7, 73.8), "ste": (94.3, 100.0, 89.7),
        "bm": (90.0, None, 88.4),
    },
    "cifar100": {
        "htaf": (79.5, 98.3, 84.6), "ss-10": (77.8, 14.3, 77.0), "ss-50": (78.6, 60.5, 78.7),
        "ss-100": (78.2, 74.0, 78.8), "ss-1000": (56.3, 99.8, 67.8), "ste": (74.8, 100.0, 76.1),
        "bm": (70.7, None, 70.8),
    },
}  # fmt: skip
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
        sources=(Source(data, size=CUB_SIZE if data == "cub" else None),),
        methods=METHODS,
        base=base,
        candidates=6,
        splits=3,
        search_epochs=base.optimization.epochs // 3,
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
FIXED: dict[str, Grid] = {f"ss-{beta:g}": {"beta,sharpen": ((beta, False),)} for beta in BETAS}
# concept bottlenecks with given attributes, Koh et al. 2020
KINDS: dict[str, Grid] = {kind: {"bottleneck": (kind,)} for kind in ("joint", "sequential", "independent")}


def fixed_betas() -> Plan:
    """The scaled sigmoid at the paper's betas, as they are, on WRN-16-1 and CIFAR-10; one seed."""
    return Plan(
        sources=(Source("cifar10"),),
        methods=FIXED,
        variants=dict.fromkeys(FIXED, "ss"),
        base=recipe("wide_resnet", "cifar10"),
        candidates=1,
        splits=1,
    )


def cifar100(backbone: str) -> Plan:
    """HTAF and the plain network on 5,000 images of CIFAR-100, with what was chosen on CIFAR-10; one seed."""
    return Plan(
        sources=(Source("cifar100"),),
        methods={"htaf": {"alpha0,alpha1,sharpen,start": ((1.0, 5.0, True, (0.5, 2.0)),)}, "relu": {}},
        base=recipe(backbone, "cifar100"),
        candidates=1,
        splits=1,
    )


def given_attributes() -> Plan:
    """Concept bottlenecks (Koh et al. 2020) with 112 attributes of CUB on the network of `cub_resnet`; one seed."""
    return Plan(
        sources=(Source("cub", size=CUB_SIZE),),
        methods=KINDS,
        variants=dict.fromkeys(KINDS, "relu"),
        base=recipe("resnet", "cub"),
        candidates=1,
        splits=1,
    )


SMOKE_CONCEPTS = 12
STROKES = "digits"  # attributes of the classes of the images of the same name


def smoke_recipe() -> Recipe:
    """A network that trains in a second."""
    base = ready_recipe("icbm", "reduced").replace(depth=10, epochs=1, batch_size=50, precision="float32")
    return base.replace(train_images=200, validation_images=100)


def smoke(
    rows: Mapping[str, Grid],
    variants: Mapping[str, str] | None = None,
    *,
    splits: int = 1,
    concepts: int = SMOKE_CONCEPTS,
) -> Plan:
    """Rows of one candidate on the bundled digits."""
    first = {row: {key: values[:1] for key, values in grid.items()} for row, grid in rows.items()}
    base = smoke_recipe().replace(concepts=concepts)
    return Plan(
        (Source("digits"),), first, base=base, candidates=1, splits=splits, search_epochs=1,
        variants=variants or {},
    )  # fmt: skip


# backbone -> the network that the paper fine-tunes from a hub where it does not train WideResNets from scratch
HUB = {"resnet": "resnet18", "wide_resnet": "wide_resnet50_2", "vit": "vit_base_patch32_224.augreg_in21k"}
HUB_SIZE = 224
FULL_SEEDS = 5
DATA = ("cifar10", "cifar100", "cub")  # the paper has Tiny-ImageNet too, whose layout htaf does not read
BACKBONES = ("resnet", "wide_resnet", "vit")
PAIRS = {"alpha0,alpha1,sharpen": tuple((a, b, False) for a, b in PAPER_PAIRS)}


def full_recipe(backbone: str, data: str) -> Recipe:
    """The training at the paper's size: WRN-40-6 and WRN-28-6 from scratch, else weights of ImageNet, fine-tuned."""
    if backbone == "wide_resnet" and data.startswith("cifar"):
        return ready_recipe("icbm", data)
    small = HUB_SIZE if data.startswith("cifar") else 0
    return ready_recipe("icbm", "finetune").replace(backbone=HUB[backbone], enlarge=small)


def full(backbone: str, data: str, rows: Mapping[str, Grid], variants: Mapping[str, str] | None = None) -> Plan:
    """Rows of one backbone on one set, at the paper's size."""
    return Plan(
        sources=(Source(data, size=HUB_SIZE if data == "cub" else None),),
        methods=rows,
        variants=variants or {},
        base=full_recipe(backbone, data),
        candidates=6,
        splits=FULL_SEEDS,
    )


Pair = tuple[str, str]  # of data and backbone


def with_and_without(scale: Scale) -> dict[Pair, Plan]:
    """With HTAF and without, of every backbone on every set that a scale has."""
    match scale:
        case "smoke":
            return {("digits", "wide_resnet"): smoke(METHODS, splits=2)}
        case "full":
            return {(d, b): full(b, d, {"htaf": PAIRS, "relu": {}}) for d in DATA for b in BACKBONES}
        case _:
            return {
                ("cifar10", "resnet"): cifar10_resnet(),
                ("cifar10", "wide_resnet"): cifar10_wide_resnet(),
                ("cifar100", "resnet"): cifar100("resnet"),
                ("cifar100", "wide_resnet"): cifar100("wide_resnet"),
                ("cub", "resnet"): cub_resnet(),
            }


def all_methods(scale: Scale) -> dict[Pair, tuple[Plan, ...]]:
    """HTAF, straight-through, scaled sigmoid (tuned, and at fixed betas) and the plain network."""
    match scale:
        case "smoke":
            return {("digits", "wide_resnet"): (smoke(METHODS, splits=2), smoke(FIXED, dict.fromkeys(FIXED, "ss")))}
        case "full":
            rows = {"htaf": PAIRS, "ste": METHODS["ste"], "ss": {"beta,sharpen": ((22.0, False),)}, "relu": {}}
            return {
                (d, "wide_resnet"): (
                    full("wide_resnet", d, rows), full("wide_resnet", d, FIXED, dict.fromkeys(FIXED, "ss"))
                )
                for d in ("cifar10", "cifar100")
            }  # fmt: skip
        case _:
            return {
                ("cifar10", "wide_resnet"): (cifar10_wide_resnet(), fixed_betas()),
                ("cifar10", "resnet"): (cifar10_resnet(),),
                ("cub", "resnet"): (cub_resnet(),),
            }


def bottlenecks(scale: Scale) -> dict[Pair, tuple[Plan, Plan]]:
    """The plan of ICBMs, and that of bottlenecks with given attributes on the same network."""
    match scale:
        case "smoke":
            kinds = {kind: {**grid, "attributes": (STROKES,)} for kind, grid in KINDS.items()}
            given = smoke(kinds, dict.fromkeys(KINDS, "relu"), concepts=0)
            return {("digits", "wide_resnet"): (smoke(METHODS, splits=2), given)}
        case "full":
            given = full("wide_resnet", "cub", KINDS, dict.fromkeys(KINDS, "relu"))
            return {("cub", "wide_resnet"): (full("wide_resnet", "cub", {"htaf": PAIRS, "relu": {}}), given)}
        case _:
            return {("cub", "resnet"): (cub_resnet(), given_attributes())}
