"""A recipe says everything about a training but its data and seed. Variants by `dataclasses.replace`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from typing import Any, Literal, get_args

from htaf.contract import is_outside
from htaf.data.augment import Augment
from htaf.functional import check_positive
from htaf.models.build import SLOPES, Method, SlopeName, backbone_description, backbone_fields, is_own_backbone
from htaf.models.icbm import Bottleneck
from htaf.sharpening import Geometric, soft_start

Family = Literal["mlp", "dhn", "bnn", "snn", "icbm"]
Optimizer = Literal["adamw", "adam", "sgd"]
Schedule = Literal["one_cycle", "cosine", "linear", "constant"]
AugmentChoice = Augment | Literal["auto"]

# Which activation fields a method reads: the others do not belong to its identity.
ACTIVATION_FIELDS: dict[str, tuple[str, ...]] = {
    "htaf": ("alpha0", "alpha1", "sharpen", "start", "sharpen_fraction"),
    "ss": ("beta", "sharpen", "start", "sharpen_fraction"),
    "ste": ("slope",),
    "relu": (),
    "outside": ("sharpness", "sharpen", "start", "sharpen_fraction"),  # of every method that is an import path
}
# Which fields of the network and its data a family reads.
_IMAGES = ("augment", "train_images", "validation_images")
_NEURON = ("steps", "neuron", "tau", "reset", "detach_reset", "exact_reset")
_SUPERVISED = ("attributes", "concept_weight")
_CONCEPTS = (
    "backbone", "concepts", "concept_norm", "pretrained", "freeze", "backbone_lr", "bottleneck", *_SUPERVISED
)  # fmt: skip
FAMILY_FIELDS: dict[str, tuple[str, ...]] = {
    "mlp": ("hidden", "batch_norm"),
    "dhn": ("depth", "width", "dropout", *_IMAGES),
    "bnn": ("depth", "width", "stem", *_IMAGES),
    "snn": ("depth", "width", "stem", "connect", *_NEURON, *_IMAGES),
    "icbm": ("depth", "width", "stem", "dropout", *_CONCEPTS, *_IMAGES),
}
# Fields that came after the first records: at their default they do not change the key of a training of an MLP.
_LATER = ("family", "optimizer", "momentum", "nesterov", "lr_end", "label_smoothing", "clip", "precision", "compile")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "family": get_args(Family),
    "slope": tuple(SLOPES),
    "schedule": get_args(Schedule),
    "optimizer": get_args(Optimizer),
    "precision": ("float32", "bfloat16"),
    "stem": ("cifar", "imagenet"),
    "connect": ("add", "and", "iand"),
    "neuron": ("if", "lif"),
    "reset": ("hard", "soft"),
    "augment": (*get_args(Augment), "auto"),
    "concept_norm": ("auto", "batch", "none"),
    "bottleneck": get_args(Bottleneck),
}


LIMIT = 2**31  # of whole numbers: PyTorch's kernels take no larger sizes
MOST_STEPS = 4096  # time steps, all of which a training holds in memory
DEEPEST = 1204  # of 6 n + 4; WideResNet's paper ends at 40, ResNet's at 1202


@dataclass(frozen=True)
class Recipe:
    """How to train a network with 0/1 activations.

    family: mlp (tables); dhn (WideResNet with the step for its activation), bnn (Bi-Real Net), snn (SEW-ResNet), icbm
        (implicit concept bottleneck: the last features of a backbone are bits).
    method: htaf; ste (straight-through); ss (scaled sigmoid); relu (real-valued, no exact step; for snn the network of
        the same shape with ReLU and one time step; not for bnn; for icbm the plain backbone with its own activation);
        or "package.module:Class", a smooth step from outside htaf, whose class is given beside the recipe.
    alpha0, alpha1: HTAF's pair at the end of training.
    beta: the scaled sigmoid's at the end of training.
    slope: the straight-through's.
    sharpness: of a step from outside, its sharpness parameters at the end of training; None: as the class sets them.
    sharpen: move the pair or beta geometrically from a soft start to its final value (not ste and relu).
    start: where sharpening starts, a pair or one beta; None: half of alpha0 with alpha0 alpha1 = 2, or beta = 2; a
        step from outside is then not moved.
    sharpen_fraction: share of the epochs over which it moves.
    hidden, batch_norm: mlp.
    depth: dhn 6 n + 4; bnn 18 or 34; snn 18, 34 or 50; icbm as its backbone.
    width: dhn the widening factor k; bnn and snn the channels of the first stage; icbm as its backbone.
    dropout: dhn, icbm over wide_resnet.
    stem: bnn, snn, icbm over resnet: cifar (3x3, stride 1, no pooling) or imagenet.
    steps, connect, neuron, tau, reset, detach_reset, exact_reset: snn, see `htaf.spiking.neurons` and `SEWResNet`.
    backbone: icbm: wide_resnet or resnet (depth, width, stem as above), a timm model's name, or transformers:NAME.
    concepts: icbm: C; 0: as many as the backbone has features.
    concept_norm: icbm: batch normalisation of the pre-activations; auto: see `ICBM`.
    pretrained: icbm: where the backbone's first weights come from: "" nowhere, "hub" (timm's or transformers'), or a
        local file of weights or run folder.
    freeze: icbm: leave the backbone as it is. backbone_lr: its learning rate, as a share of lr.
    bottleneck: icbm: implicit; or with the classes' attributes as concepts (Koh et al. 2020): joint (the head learns
        on the predicted concepts, its gradient reaches them), sequential (it does not), independent (it learns on the
        true ones). The concept loss is the sum over attributes of the binary cross-entropy of the pre-activations.
    attributes: the table for that: cub, or a file, see `htaf.data.attributes`. concept_weight: of the concept loss.
    augment: of the training images, see `htaf.data.augment`; auto: by the data, see `htaf.training.problems.resolved`.
    train_images, validation_images: so many, balanced over the classes, out of the training part; train_images = 0
        takes all that validation leaves, and validation_images below 1 is a share.
    epochs, batch_size, lr, weight_decay: lr is the highest of the schedule.
    optimizer: adamw, adam (weight decay as L2), or sgd with momentum and nesterov.
    schedule: one_cycle, cosine or linear (down to lr_end), constant; moved every step.
    label_smoothing: of the cross-entropy. clip: largest L2 norm of the gradient, 0 for none.
    precision: bfloat16 is mixed precision (autocast) for the training steps; the weights, the validation after each
        epoch and the finished network are float32, since a rounding to bfloat16 flips bits of the exact network.
    compile: run the training steps through torch.compile.
    patience: stop after so many epochs without a lower validation loss of the exact network, counted from the end of
        sharpening; 0 never stops. The weights of the best epoch are kept in any case.
    """

    method: Method | str = "htaf"
    alpha0: float = 2.0
    alpha1: float = 11.0
    beta: float = 22.0
    slope: SlopeName = "sigmoid"
    sharpen: bool = True
    start: tuple[float, ...] | None = None
    sharpen_fraction: float = 0.7
    hidden: tuple[int, ...] = (256, 256, 128)
    batch_norm: bool = True
    epochs: int = 100
    batch_size: int = 128
    lr: float = 3e-3
    weight_decay: float = 0.0
    schedule: Schedule = "one_cycle"
    patience: int = 25
    family: Family = "mlp"
    depth: int = 18
    width: int = 64
    dropout: float = 0.0
    stem: Literal["cifar", "imagenet"] = "cifar"
    steps: int = 4
    connect: Literal["add", "and", "iand"] = "add"
    neuron: Literal["if", "lif"] = "if"
    tau: float = 2.0
    reset: Literal["hard", "soft"] = "hard"
    detach_reset: bool = True
    exact_reset: bool = False
    augment: AugmentChoice = "auto"
    train_images: int = 0
    validation_images: float = 0.1
    optimizer: Optimizer = "adamw"
    momentum: float = 0.9
    nesterov: bool = False
    lr_end: float = 0.0
    label_smoothing: float = 0.0
    clip: float = 0.0
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    backbone: str = "wide_resnet"
    concepts: int = 0
    concept_norm: Literal["auto", "batch", "none"] = "auto"
    pretrained: str = ""
    freeze: bool = False
    backbone_lr: float = 1.0
    bottleneck: Bottleneck = "implicit"
    attributes: str = "cub"
    concept_weight: float = 0.01
    sharpness: tuple[float, ...] | None = None

    def __post_init__(self) -> None:

        def expect(ok: bool, what: str, got: object) -> None:
            if not ok:
                raise ValueError(f"{what}, got {got}")

        def numbers(values: Any) -> bool:
            return all(isinstance(v, float) or (type(v) is int and abs(v) < 2**1000) for v in values)

        for field in fields_of(self):
            name, value = field.name, getattr(self, field.name)
            if field.type == "float":
                expect(numbers([value]), f"{name} must be a number", repr(value))
                object.__setattr__(self, name, float(value))  # 2 and 2.0 are one recipe
            if name == "hidden" or (name in ("start", "sharpness") and getattr(self, name) is not None):
                expect(isinstance(value, list | tuple), f"{name} must be several numbers", repr(value))
                object.__setattr__(self, name, tuple(value))
            if field.type == "str":
                expect(isinstance(value, str), f"{name} must be text", repr(value))
            if field.type == "bool":
                expect(isinstance(value, bool), f"{name} must be true or false", repr(value))
            if field.type == "int":
                expect(isinstance(value, int) and not isinstance(value, bool), f"{name} must be an integer", value)
                expect(value < LIMIT, f"{name} must be below {LIMIT:,}", value)
        for name in ("start", "sharpness"):
            if (values := getattr(self, name)) is not None:
                expect(numbers(values), f"{name} must be several numbers", values)
                object.__setattr__(self, name, tuple(float(v) for v in values))
        methods = f"method must be one of {get_args(Method)}, or package.module:Class"
        expect(self.method in get_args(Method) or is_outside(self.method), methods, repr(self.method))
        for name, known in _CHOICES.items():
            expect(getattr(self, name) in known, f"{name} must be one of {known}", repr(getattr(self, name)))
        for name in ("alpha0", "alpha1", "beta"):
            check_positive(name, getattr(self, name))
        for name in ("lr", "backbone_lr"):
            expect(0 < getattr(self, name) < math.inf, f"{name} must be > 0 and finite", getattr(self, name))
        for name in ("weight_decay", "clip", "concept_weight"):
            expect(0 <= getattr(self, name) < math.inf, f"{name} must be >= 0 and finite", getattr(self, name))
        for name in ("dropout", "momentum", "label_smoothing"):
            expect(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1)", getattr(self, name))
        expect(0 <= self.lr_end <= self.lr, f"lr_end must lie in [0, lr = {self.lr}]", self.lr_end)
        for name in ("epochs", "batch_size", "width", "steps"):
            expect(getattr(self, name) >= 1, f"{name} must be >= 1", getattr(self, name))
        expect(self.steps <= MOST_STEPS, f"steps must be in 1 to {MOST_STEPS:,}", self.steps)
        for name in ("patience", "train_images", "concepts"):
            expect(getattr(self, name) >= 0, f"{name} must be >= 0", getattr(self, name))
        share = 0 < self.validation_images < 1 or self.validation_images % 1 == 0 < self.validation_images
        expect(share, "validation_images must be a number of images or a share below 1", self.validation_images)
        sizes = len(self.hidden) > 0 and all(type(size) is int and 1 <= size < LIMIT for size in self.hidden)
        expect(sizes, f"hidden sizes must be integers in 1 to {LIMIT - 1:,}", self.hidden)
        normalised = self.batch_norm or self.family != "mlp"
        expect(not normalised or self.batch_size >= 2, "batch_size must be >= 2 with batch_norm", self.batch_size)
        expect(not self.nesterov or self.momentum > 0, "momentum must be > 0 with nesterov", self.momentum)
        expect(1 < self.tau < math.inf, "tau must be > 1 and finite", self.tau)
        own = self.family == "icbm" and is_own_backbone(self.backbone)
        if self.family == "icbm":
            expect(bool(self.backbone), "backbone must be the name of a model", repr(self.backbone))
            both = self.pretrained == "hub" and own
            expect(not both, "pretrained must be a path for backbones of htaf, which have no weights on a hub", "hub")
            given = self.bottleneck != "implicit" and self.concepts
            expect(not given, f"concepts must be 0 for bottleneck {self.bottleneck}: the attributes", self.concepts)
        if self.family == "dhn" or (own and self.backbone == "wide_resnet"):
            name = "dhn" if self.family == "dhn" else self.backbone
            fits = 10 <= self.depth <= DEEPEST and self.depth % 6 == 4
            expect(fits, f"depth for {name} must be 6 n + 4 in 10 to {DEEPEST}", self.depth)
        elif own:
            expect(self.depth in (18, 34), "depth for resnet must be one of (18, 34)", self.depth)
        elif self.family in ("bnn", "snn"):
            known = (18, 34) if self.family == "bnn" else (18, 34, 50)
            expect(self.depth in known, f"depth for {self.family} must be one of {known}", self.depth)
        expect((self.family, self.method) != ("bnn", "relu"), "method for bnn must be htaf, ste or ss", "'relu'")
        self.sharpening()  # raises for a bad start or fraction

    def sharpening(self) -> Geometric | None:
        """The schedule of the activation's parameters, None when they stay."""
        if is_outside(self.method):
            moves = self.sharpen and self.start is not None and self.sharpness
            return Geometric(self.start or (), self.sharpness or (), self.sharpen_fraction) if moves else None
        if self.method not in ("htaf", "ss") or not self.sharpen:
            return None
        end = (self.alpha0, self.alpha1) if self.method == "htaf" else (self.beta,)
        return Geometric(self.start or soft_start(*end), end, self.sharpen_fraction)

    def activation(self) -> dict[str, Any]:
        """The activation at the end of training, as `models.build.activation` takes it."""
        names = {"htaf": ("alpha0", "alpha1"), "ss": ("beta",), "ste": ("slope",)}.get(self.method, ())
        bipolar = {"bipolar": True} if self.family == "bnn" else {}
        return {"method": self.method, **{name: getattr(self, name) for name in names}, **bipolar}

    def model(self, inputs: dict[str, Any], outputs: int) -> dict[str, Any]:
        """The network as `models.build.build` takes it.

        Args:
            inputs: {"in_features": n} of a table, {"in_channels": n} of images; for icbm also "image_size": [H, W],
                and "concepts" where attributes say how many.
            outputs: classes, or 1 for a regression.
        """
        shared = {**inputs, "out_features": outputs, "activation": self.activation()}
        match self.family:
            case "mlp":
                return {"kind": "mlp", **shared, "hidden": list(self.hidden), "batch_norm": self.batch_norm}
            case "dhn":
                names = ("depth", "width", "dropout")
                return {"kind": "wide_resnet", **shared, **{name: getattr(self, name) for name in names}}
            case "bnn":
                return {
                    "kind": "bireal",
                    **shared,
                    **{name: getattr(self, name) for name in ("depth", "width", "stem")},
                }
            case "icbm":
                concepts = inputs.get("concepts") or self.concepts or None
                norm = {"auto": None, "batch": True, "none": False}[self.concept_norm]
                own = {name: getattr(self, name) for name in ("depth", "width", "stem", "dropout")}
                backbone = backbone_description(self.backbone, own)
                rest = {"concepts": concepts, "norm": norm, "bottleneck": self.bottleneck, "freeze": self.freeze}
                return {"kind": "icbm", **shared, "backbone": backbone, **rest}
        names = ("depth", "width", "stem", "connect")
        steps = 1 if self.method == "relu" else self.steps
        neuron = {n: getattr(self, n) for n in ("reset", "detach_reset", "exact_reset")} | {"kind": self.neuron}
        neuron |= {"tau": self.tau} if self.neuron == "lif" else {}
        return {
            "kind": "sew_resnet",
            **shared,
            **{n: getattr(self, n) for n in names},
            "steps": steps,
            "neuron": neuron,
        }

    def unread(self) -> dict[str, str]:
        """The fields that this training does not read, each with the choice that leaves it so, as "method relu"."""
        found: dict[str, str] = {}

        def leave(names: Collection[str], why: str) -> None:
            found.update({name: why for name in names if name not in found})

        leave(_others(FAMILY_FIELDS, self.family), f"family {self.family}")
        outside = is_outside(self.method)
        leave(_others(ACTIVATION_FIELDS, "outside" if outside else self.method), f"method {self.method}")
        if self.sharpening() is None:
            leave(("start", "sharpen_fraction"), "no start" if outside and self.sharpen else "sharpen false")
        if self.optimizer != "sgd":
            leave(("momentum", "nesterov"), f"optimizer {self.optimizer}")
        if self.schedule in ("one_cycle", "constant"):
            leave(("lr_end",), f"schedule {self.schedule}")
        if self.family == "snn":
            leave(_NEURON if self.method == "relu" else (), "method relu")
            leave(("tau",) if self.neuron == "if" else (), "neuron if")
        if self.family == "icbm":
            leave(
                {"depth", "width", "stem", "dropout"} - set(backbone_fields(self.backbone)), f"backbone {self.backbone}"
            )
            leave(_SUPERVISED if self.bottleneck == "implicit" else (), "bottleneck implicit")
            leave(("concept_norm",) if self.method == "relu" else (), "method relu")
            leave(("backbone_lr",) if self.freeze else (), "freeze true")
        return found

    def refuse_unread(self, names: Collection[str], spelled: Callable[[str], str] = str) -> None:
        """Raises ValueError where `names`, the fields that someone has set, hold some that this training does not read.

        spelled: how a field is called there, such as a flag.
        """
        unread = self.unread()
        for why in dict.fromkeys(unread.values()):
            if ignored := sorted(name for name in names if unread.get(name) == why):
                raise ValueError(f"{why} does not read {', '.join(map(spelled, ignored))}")

    def effective(self) -> dict[str, Any]:
        """The fields that this training reads, with the values that it will use; as a TOML table they make a plan's
        [recipe]."""
        schedule = self.sharpening()
        found = {k: v for k, v in asdict(self).items() if k not in self.unread()}
        return found if schedule is None else found | {"start": schedule.start}

    def identity(self) -> dict[str, Any]:
        """The fields that bear on the result: two recipes with the same identity train the same network."""
        # keys of earlier records hold lr_end and backbone_lr, read or not
        unused = {name for name, why in self.unread().items() if not why.startswith(("schedule", "freeze"))}
        if self.family == "mlp":
            unused |= {f.name for f in fields_of(self) if f.name in _LATER and getattr(self, f.name) == f.default}
        kept = {k: v for k, v in asdict(self).items() if k not in unused}
        if kept.get("pretrained", "") not in ("", "hub"):  # what the file holds counts, not where it lies
            kept["pretrained"] = "file"
        return kept


def _others(fields: dict[str, tuple[str, ...]], chosen: str) -> set[str]:
    """Fields that only the alternatives of the chosen one read."""
    return {name for names in fields.values() for name in names} - set(fields[chosen])
