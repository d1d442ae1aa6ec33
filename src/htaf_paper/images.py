"""Table "Classification accuracies (%) on CIFAR-10 and CIFAR-100 for SNNs, BNNs and DHNs": `htaf study images`.

Reduced to two cores: 5,000 training and 1,000 validation images of CIFAR-10, its 10,000 test images once at the end.
Three families (WideResNet, Bi-Real Net, SEW-ResNet) times three methods; each method gets four candidates at a third of
the length, chosen on validation, then three seeds. Sharpening is one of the choices of HTAF and of the scaled sigmoid;
straight-through chooses among the slopes of the paper and of the family's own code. The paper's figures beside are full
scale.

`images-quick`: the same families as whitened networks on all of CIFAR-10 but 2,500 validation images, a few epochs,
three seeds. Every row has one recipe, found on the validation images with seed 0 (docs/log.md), and the same epochs.
"""

from __future__ import annotations

from htaf.training.families import ready_recipe
from htaf.training.plan import Grid, Plan, Source

# at most four candidates a method: fields that go together share a key
HTAF_CHOICES = (
    (2.0, 11.0, True, (1.0, 2.0)),
    (1.0, 5.0, True, (0.5, 2.0)),
    (2.0, 11.0, False, None),
    (1.0, 22.0, False, None),
)
SS_CHOICES = ((22.0, True, (2.0,)), (8.0, True, (1.0,)), (22.0, False, None), (10.0, False, None))
SLOPES: dict[str, tuple[str, ...]] = {
    "dhn": ("sigmoid", "tanh", "rectangular", "approx_sign"),
    "bnn": ("sigmoid", "tanh", "rectangular", "approx_sign"),
    "snn": ("sigmoid", "tanh", "rectangular", "atan"),
}
# family -> data -> method -> accuracy in %, full scale, mean of five runs
PAPER = {
    "dhn": {"cifar10": {"htaf": 88.6, "ste": 83.3, "ss": 74.5}, "cifar100": {"htaf": 57.6, "ste": 56.7, "ss": 45.6}},
    "bnn": {"cifar10": {"htaf": 75.8, "ste": 75.3, "ss": 60.6}, "cifar100": {"htaf": 46.1, "ste": 45.2, "ss": 31.3}},
    "snn": {"cifar10": {"htaf": 91.0, "ste": 91.2, "ss": 90.6}, "cifar100": {"htaf": 66.9, "ste": 63.9, "ss": 66.2}},
}


def plan(family: str, data: str = "cifar10") -> Plan:
    """The three methods of one family, reduced."""
    base = ready_recipe(family, "reduced")
    methods: dict[str, Grid] = {
        "htaf": {"alpha0,alpha1,sharpen,start": HTAF_CHOICES},
        "ste": {"slope": SLOPES[family]},
        "ss": {"beta,sharpen,start": SS_CHOICES},
    }
    return Plan(
        name=f"{family}-{data}-reduced",
        sources=(Source(data),),
        methods=methods,
        base=base.replace(sharpen=True),
        candidates=4,
        splits=3,
        search_epochs=max(1, round(base.optimization.epochs / 3)),
        reference={(data, method): (figure / 100, None) for method, figure in PAPER[family][data].items()},
    )


def plans() -> tuple[Plan, ...]:
    """The nine cells on CIFAR-10, family by family."""
    return tuple(plan(family) for family in ("dhn", "bnn", "snn"))


# about 15 minutes of one core
QUICK_EPOCHS = {"dhn": 8, "bnn": 4, "snn": 3}


def quick(family: str, data: str = "cifar10") -> Plan:
    """The three methods of one family by the quick recipe; of `dhn` ReLU too.

    HTAF and SS have the same slope at 0.
    """
    rows: dict[str, Grid] = {"htaf": {}, "ss": {}, "ste": {"harden": ("end",)}}
    if family == "dhn":
        rows["relu"] = {}
    return Plan(
        name=f"{family}-{data}-quick",
        sources=(Source(data),),
        methods=rows,
        base=ready_recipe(family, "quick").replace(epochs=QUICK_EPOCHS[family]),
        candidates=1,
        splits=3,
        reference={(data, row): (PAPER[family][data][row] / 100, None) for row in rows if row != "relu"},
        compare=("ste",),
    )


def quick_plans() -> tuple[Plan, ...]:
    """The quick recipes, family by family."""
    return tuple(quick(family) for family in ("dhn", "bnn", "snn"))


def dhn() -> Plan:
    """Deep Heaviside networks: WRN-16-1."""
    return plan("dhn")


def bnn() -> Plan:
    """Binary networks: Bi-Real-18 at width 16."""
    return plan("bnn")


def snn() -> Plan:
    """Spiking networks: SEW-ResNet-18 at width 16."""
    return plan("snn")
