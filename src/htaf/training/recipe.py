"""A recipe says everything about a training but its data and seed: a network, its activation, how the weights are
learned, how the network becomes exact, and what is taken of the data.

Each part has its own fields, checks them, and is read as `recipe.optimization.lr`. The names of the fields are unique,
so a record, a plan and the command line give them flat: `recipe.replace(lr=0.1, depth=16)`. The docstring of a part is
the help of its flags. A family (`htaf.training.families`) is a network part with its ready recipes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from htaf._ground.errors import check_positive, suggestion
from htaf._ground.names import Augment, Method, SlopeName, ThresholdMetric, is_outside
from htaf.core.sharpening import Geometric, soft_start

if TYPE_CHECKING:
    import torch

    from htaf.data.tabular import Table
    from htaf.transform.hardening.finishing import Make

Optimizer = Literal["adamw", "adam", "sgd", "muon"]
Schedule = Literal["one_cycle", "cosine", "linear", "constant"]
AugmentChoice = Augment | Literal["auto"]
Weights = Literal["float", "int8", "int4"]
# as an activation reads its fields; the others do not belong to the identity of a training
ACTIVATION_FIELDS: dict[str, tuple[str, ...]] = {
    "htaf": ("alpha0", "alpha1", "sharpen", "start", "sharpen_fraction", "levels"),
    "ss": ("beta", "sharpen", "start", "sharpen_fraction", "levels"),
    "ste": ("slope", "levels"),
    "relu": (),
    "outside": (
        "sharpness",
        "sharpen",
        "start",
        "sharpen_fraction",
        "levels",
    ),  # of every method that is an import path
}
LIMIT = 2**31  # of whole numbers: PyTorch's kernels take no larger sizes
MOST_LEVELS = 127  # as `htaf.functional`
SGD_RATE, ADAPTIVE_RATE = 0.1, 1e-3  # learning rates that an optimizer usually takes


def expect(ok: bool, what: str, got: object) -> None:
    """Raises ValueError that says what was expected and what came, unless `ok`."""
    if not ok:
        raise ValueError(f"{what}, got {got}")


@dataclass(frozen=True)
class RecipePart:
    """Fields of one kind. Their types are checked by what they are declared as, their ranges by `check`."""

    def __post_init__(self) -> None:
        for name, kind in kinds(type(self)).items():
            object.__setattr__(self, name, _as(kind, name, getattr(self, name)))
        self.check()

    def check(self) -> None:
        """Raises ValueError for a value out of range."""

    def values(self) -> dict[str, Any]:
        """The fields by their names."""
        return {name: getattr(self, name) for name in kinds(type(self))}

    def expect_all(self, names: Iterable[str], fits: Callable[[Any], bool], what: str) -> None:
        """Raises ValueError for one of the fields `names` that does not fit; what: "must be >= 1"."""
        for name in names:
            value = getattr(self, name)
            expect(fits(value), f"{name} {what}", value)


@functools.cache
def kinds(part: type[RecipePart]) -> dict[str, Any]:
    """The fields of a part with their types."""
    hints = get_type_hints(part)
    return {field.name: hints[field.name] for field in dataclasses.fields(part)}


@functools.cache
def choices(kind: Any) -> tuple[Any, ...]:
    """The values of a literal type, or of a union of such; of others none."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(value for one in get_args(kind) for value in choices(one))


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**1000)


def _as(kind: Any, name: str, value: Any) -> Any:
    """A value as its field is declared, 2 as 2.0 and a list as a tuple; ValueError for one of another kind."""
    if type(None) in get_args(kind):
        if value is None:
            return value
        kind = Union[tuple(one for one in get_args(kind) if one is not type(None))]  # noqa: UP007
    known = choices(kind)
    if known and str in get_args(kind):  # of a method: its part knows which
        expect(isinstance(value, str), f"{name} must be one of {known}, or text", repr(value))
    elif known and float in get_args(kind):
        expect(value in known or _is_number(value), f"{name} must be a number, or one of {known}", repr(value))
        return float(value) if _is_number(value) else value
    elif known:
        expect(value in known, f"{name} must be one of {known}", repr(value))
    elif kind is bool:
        expect(isinstance(value, bool), f"{name} must be true or false", repr(value))
    elif kind is int:
        expect(isinstance(value, int) and not isinstance(value, bool), f"{name} must be an integer", repr(value))
        expect(value < LIMIT, f"{name} must be below {LIMIT:,}", value)
    elif kind is float:
        expect(_is_number(value), f"{name} must be a number", repr(value))
        return float(value)
    elif kind is str:
        expect(isinstance(value, str), f"{name} must be text", repr(value))
    else:  # several numbers or texts
        what = f"{name} must be several {'texts' if str in get_args(kind) else 'numbers'}"
        expect(isinstance(value, list | tuple), what, repr(value))
        if str in get_args(kind):
            expect(all(isinstance(one, str) for one in value), what, value)
        if float in get_args(kind):
            expect(all(map(_is_number, value)), what, value)
            return tuple(map(float, value))
        return tuple(value)
    return value


@dataclass(frozen=True)
class Activation(RecipePart):
    """The activation, and how it moves in training.

    Args:
        method: htaf; ste: straight-through; ss: scaled sigmoid; relu: real-valued, without an exact step; or the class
            of a step of your own, as package.module:Class, whose code runs.
        alpha0: HTAF at the end of training: width of the tails, > 0.
        alpha1: HTAF at the end of training: > 0; the slope at 0 is alpha0 alpha1 / 4.
        beta: Scaled sigmoid at the end of training: > 0.
        slope: Straight-through: backward slope.
        sharpness: A step of your own: its parameters at the end of training.
        sharpen: Move the parameters geometrically from a soft start to their final values.
        start: Where sharpening starts: a pair; of ss one beta; a step of your own is moved only with it.
        sharpen_fraction: Share of the epochs over which it moves.
        levels: Thresholds of every step: 2 gives 0, 1/2 and 1, two bits a unit with one weight; a layer is as large as
            before and runs over twice as many bits.
    """

    method: Method | str = "htaf"
    alpha0: float = 2.0
    alpha1: float = 11.0
    beta: float = 22.0
    slope: SlopeName = "sigmoid"
    sharpness: tuple[float, ...] | None = None
    sharpen: bool = True
    start: tuple[float, ...] | None = None
    sharpen_fraction: float = 0.7
    levels: int = 1

    def check(self) -> None:
        methods = f"method must be one of {get_args(Method)}, or package.module:Class"
        expect(self.method in get_args(Method) or is_outside(self.method), methods, repr(self.method))
        for name in ("alpha0", "alpha1", "beta"):
            check_positive(name, getattr(self, name))
        expect(1 <= self.levels <= MOST_LEVELS, f"levels must lie in 1 to {MOST_LEVELS}", self.levels)
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

    def description(self) -> dict[str, Any]:
        """The activation at the end of training, as `models.build.activation` takes it."""
        names = {"htaf": ("alpha0", "alpha1"), "ss": ("beta",), "ste": ("slope",)}.get(self.method, ())
        several = {"levels": self.levels} if self.levels > 1 and self.method != "relu" else {}
        return {"method": self.method, **{name: getattr(self, name) for name in names}, **several}

    def unread(self) -> dict[str, str]:
        """The fields that are not read, each with the choice that leaves it so."""
        outside = is_outside(self.method)
        own = ACTIVATION_FIELDS["outside" if outside else self.method]
        others = {name for names in ACTIVATION_FIELDS.values() for name in names} - {*own}
        why = "no start" if outside and self.sharpen else "sharpen false"
        fixed = {} if self.sharpening() else dict.fromkeys(("start", "sharpen_fraction"), why)
        return fixed | dict.fromkeys(others, f"method {self.method}")


@dataclass(frozen=True)
class Optimization(RecipePart):
    """How the weights are learned.

    Args:
        epochs: Most epochs, but where `least_steps` asks for more.
        least_steps: Train more epochs, up to 150, where `epochs` of them are fewer steps.
        batch_size: Rows or images a step, of all processes together.
        lr: Highest learning rate of the schedule.
        weight_decay: Of the optimizer; of adam as L2.
        schedule: Of the learning rate, moved every step; cosine and linear go down to lr_end.
        lr_end: Where cosine and linear schedules end.
        optimizer: muon: orthogonalised momentum for matrices and convolutions, AdamW at the same lr for all others.
        momentum: Of sgd and muon.
        nesterov: Nesterov's momentum, of sgd.
        label_smoothing: Of the cross-entropy.
        clip: Largest L2 norm of the gradient; 0: none.
        precision: bfloat16: mixed precision for the training steps; weights and validation stay in float32.
        patience: Stop after so many epochs without a better exact network, counted from when the activations
            stay as they are; 0 never.
        keep: Which weights: those of the best epoch, of the lowest validation loss of the exact network, or those of
            the last one, whatever validation says.
    """

    epochs: int = 100
    least_steps: int = 0
    batch_size: int = 128
    lr: float = 3e-3
    weight_decay: float = 0.0
    schedule: Schedule = "one_cycle"
    lr_end: float = 0.0
    optimizer: Optimizer = "adamw"
    momentum: float = 0.9
    nesterov: bool = False
    label_smoothing: float = 0.0
    clip: float = 0.0
    precision: Literal["float32", "bfloat16"] = "float32"
    patience: int = 25
    keep: Literal["best", "last"] = "best"

    def check(self) -> None:
        self.expect_all(("lr",), lambda v: 0 < v < math.inf, "must be > 0 and finite")
        self.expect_all(("weight_decay", "clip"), lambda v: 0 <= v < math.inf, "must be >= 0 and finite")
        self.expect_all(("momentum", "label_smoothing"), lambda v: 0 <= v < 1, "must lie in [0, 1)")
        self.expect_all(("lr_end",), lambda v: 0 <= v <= self.lr, f"must lie in [0, lr = {self.lr}]")
        self.expect_all(("epochs", "batch_size"), lambda v: v >= 1, "must be >= 1")
        self.expect_all(("patience", "least_steps"), lambda v: v >= 0, "must be >= 0")
        expect(not self.nesterov or self.momentum > 0, "momentum must be > 0 with nesterov", self.momentum)

    def unread(self) -> dict[str, str]:
        """The fields that are not read, each with the choice that leaves it so."""
        used = {"sgd": 2, "muon": 1}.get(self.optimizer, 0)
        found: dict[str, str] = dict.fromkeys(("momentum", "nesterov")[used:], f"optimizer {self.optimizer}")
        if self.keep == "last":
            found["patience"] = "keep last"
        if self.schedule not in ("cosine", "linear"):
            found["lr_end"] = f"schedule {self.schedule}"
        return found


@dataclass(frozen=True)
class Hardening(RecipePart):
    """How the network becomes exact.

    Args:
        exact_from: Share of the epochs after which all steps give exact values, with the gradient of the smooth steps;
            1: they become exact after the training.
        recalibrate: After training, take the statistics of batch norm anew on the exact network; kept where it helps
            validation.
        refit: After training, fit the last layer anew on the exact network, by ridge or logistic regression; kept where
            it helps validation. Of classes beside a linear part (`direct`) it is left out.
    """

    exact_from: float = 1.0
    recalibrate: bool = False
    refit: bool = False

    def check(self) -> None:
        expect(0 <= self.exact_from <= 1, "exact_from must lie in [0, 1]", self.exact_from)

    def unread(self, method: str) -> dict[str, str]:
        """The fields that are not read with an activation, each with the choice that leaves it so."""
        return {"exact_from": "method relu"} if method == "relu" else {}


@dataclass(frozen=True)
class DataOptions(RecipePart):
    """Options for the data of a training."""

    kind: ClassVar[str]  # as messages name such data


@dataclass(frozen=True)
class TableData(DataOptions):
    """Class weights and decision threshold.

    Args:
        class_weight: How much the rows of a class count in the training: balanced, each class as much as another; or
            CLASS=WEIGHT of some classes, 1 of the others.
        threshold: The probability from which the second of two classes is predicted: a number, or the name of what is
            best at it on the validation part.
    """

    kind: ClassVar[str] = "a table"
    class_weight: tuple[str, ...] = ()
    threshold: float | ThresholdMetric | None = None

    def check(self) -> None:
        if self.class_weight != ("balanced",):
            self.weights_by_name()
        if isinstance(self.threshold, float):
            expect(0 < self.threshold < 1, "threshold must lie in (0, 1)", self.threshold)

    def weights_by_name(self) -> dict[str, float]:
        """The weights of `class_weight` by the names of the classes. Raises ValueError for a text that says none."""
        found: dict[str, float] = {}
        for text in self.class_weight:
            name, equals, weight = text.rpartition("=")
            number = _number(weight)
            good = bool(equals) and name not in found and 0 < number < math.inf
            expect(
                good, "class_weight must be balanced, or CLASS=WEIGHT with a weight above 0, once a class", repr(text)
            )
            found[name] = number
        return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class ImageData(DataOptions):
    """What is taken of the images.

    Args:
        augment: Of the training images; auto: crop-flip, none for grey ones.
        train_images: So many of the training part, class-balanced; 0: all that validation leaves.
        validation_images: So many of the training part, class-balanced; below 1: a share.
    """

    kind: ClassVar[str] = "images"
    augment: AugmentChoice = "auto"
    train_images: int = 0
    validation_images: float = 0.1

    def check(self) -> None:
        self.expect_all(("train_images",), lambda v: v >= 0, "must be >= 0")
        share = 0 < self.validation_images < 1 or self.validation_images % 1 == 0 < self.validation_images
        expect(share, "validation_images must be a number of images or a share below 1", self.validation_images)


@dataclass(frozen=True)
class Network(RecipePart, ABC):
    """The network of a recipe: a class for each family, with the fields that this family has.

    Besides `model` and `title` a family overrides what differs for it.
    """

    family: ClassVar[str]
    data: ClassVar[type[DataOptions]]
    bipolar: ClassVar[bool] = False  # steps give -1 or 1 instead of 0 or 1
    takes_relu: ClassVar[bool] = True
    one_level: ClassVar[str] = ""  # why its steps have one level; "": they may have several

    @abstractmethod
    def model(self, inputs: Mapping[str, Any], outputs: int, activation: Mapping[str, Any]) -> dict[str, Any]:
        """The network as `models.build.build` takes it, from the arguments of `Recipe.model` and its activation."""

    @abstractmethod
    def title(self) -> str:
        """The network in words, as reports name it: "WideResNet, depth 16, width 1"."""

    @property
    def on_grid(self) -> bool:
        """Whether its weights are on a grid of integers, see `htaf.transform.grid`: of the families that have such."""
        return getattr(self, "weights", "float") != "float"

    @property
    def normalised(self) -> bool:
        """Whether it has batch norm, which needs two rows in a batch."""
        return True

    @property
    def supervised_by(self) -> str | None:
        """The table of attributes that its concepts learn, see `htaf.data.attributes`; None: it learns none."""
        return None

    def unread(self, method: str) -> dict[str, str]:
        """The fields that are not read with an activation, each with the choice that leaves it so."""
        return {}

    @property
    def frozen(self) -> bool:
        """Whether its backbone is fixed, so that what it gives of images that stay the same is computed once."""
        return False

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and deviation of images for which its first weights are made; None: those of the training images."""
        return None

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The flat fields of a recipe as they count for its identity, such as a file by what it holds."""
        return fields

    def reads(self, inputs: Mapping[str, Any]) -> tuple[str, ...]:
        """What of such inputs, as `model` takes them, the network leaves out, in words."""
        return ()

    def check_available(self) -> None:
        """Raises ValueError or OSError where what the network is made of cannot be had; called before data are read."""

    def fingerprint(self) -> dict[str, str]:
        """Hashes of the files that it starts from, as part of the training's identity."""
        return {}

    def initialise(self, net: torch.nn.Module, posed: Any) -> dict[str, Any]:
        """Put first weights from elsewhere into a new network. Raises ValueError or OSError where there are none.

        Args:
            posed: what it is to learn, a `htaf.training.problems.Problem`.

        Returns:
            Where they come from, for the record; empty where there are none.
        """
        return {}

    def begin_on_features(self, net: torch.nn.Module, posed: Any) -> None:
        """Take first weights from what a frozen backbone gives of the training images, the inputs of `posed`."""

    def sizes(self, net: torch.nn.Module) -> dict[str, Any]:
        """What `initialise` has made other than `model` says, as that describes it."""
        return {}

    def advance(self, net: torch.nn.Module, progress: float) -> None:
        """Change what is trained when an epoch begins, at the share `progress` of the training; on one device alone."""

    def settle(self, net: torch.nn.Module) -> dict[str, Any]:
        """Take away what only the training needs. Returns what else `model` says of the network then."""
        return {}

    def refits(self, task: str) -> bool:
        """Whether `htaf.training.finish.finished` may fit the head anew, where the recipe asks for it."""
        return True

    def finishing(self, net: torch.nn.Module, posed: Any) -> Mapping[str, Make]:
        """Its own last steps of `htaf.training.finish.finished`, by name."""
        return {}

    def hold(self, net: torch.nn.Module) -> None:
        """Let weights that were fitted by other means require no gradient; in every process, before any wraps it."""

    def groups(self, net: torch.nn.Module, lr: float) -> list[Any]:
        """What is trained, as an optimizer of torch takes it."""
        return [p for p in net.parameters() if p.requires_grad]

    def loss(
        self,
        net: torch.nn.Module,
        x: torch.Tensor,
        y: torch.Tensor,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        attributes: torch.Tensor | None,
    ) -> torch.Tensor:
        """The training loss of a batch.

        Args:
            loss: of outputs and targets, a mean over rows.
            attributes: float32 [batch, attributes], of the rows' classes, where `supervised_by` names them.
        """
        return loss(net(x), y)


def weighted(model: dict[str, Any], weights: Weights) -> dict[str, Any]:
    """A network as `models.build.build` takes it, with these weights."""
    return model if weights == "float" else model | {"weights": weights}


def titled(title: str, weights: Weights) -> str:
    """The network in words, with its weights."""
    return title if weights == "float" else f"{title}, {weights} weights"


def by_part(family: str, own: Mapping[str, str], fields: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Flat fields by the part that has them, lists as tuples; ValueError for one that a family does not have.

    own: the names of its fields, each with its part.
    """
    if others := [f"{name}{suggestion(name, [*own])}" for name in sorted(fields) if name not in own]:
        raise ValueError(f"family {family} does not read {', '.join(others)}")
    found: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        found.setdefault(own[name], {})[name] = tuple(value) if isinstance(value, list) else value
    return found


PARTS = ("network", "activation", "optimization", "hardening", "data")


@dataclass(frozen=True)
class Recipe:
    """How to train a network with 0/1 activations.

    Raises:
        ValueError: parts that do not go together.
    """

    network: Network
    data: DataOptions
    activation: Activation = Activation()
    optimization: Optimization = Optimization()
    hardening: Hardening = Hardening()

    def __post_init__(self) -> None:
        kind, batch = self.network.data, self.optimization.batch_size
        expect(type(self.data) is kind, f"data of family {self.family} must be {kind.__name__}", repr(self.data))
        expect(not self.network.normalised or batch >= 2, "batch_size must be >= 2 with batch_norm", batch)
        fits = self.network.takes_relu or self.activation.method != "relu"
        expect(fits, f"method for {self.family} must be htaf, ste or ss", "'relu'")
        levels, why = self.activation.levels, self.network.one_level
        expect(levels == 1 or not why, f"levels for {self.family} must be 1: {why}", levels)
        exact = levels.bit_count() == 1 or not self.network.on_grid
        expect(exact, "levels must be 1, 2, 4 or another power of two with weights on a grid", levels)

    @property
    def family(self) -> str:
        """The name of the network's family."""
        return self.network.family

    @property
    def exact_epoch(self) -> int | None:
        """The epoch from which on all steps give exact values in training, from 0; None: all of it is smooth."""
        epochs = self.optimization.epochs
        first = math.floor(epochs * self.hardening.exact_from + 0.5)
        return first if first < epochs and self.activation.method != "relu" else None

    @property
    def fields(self) -> dict[str, str]:
        """The names of all fields, each with the part that it belongs to."""
        return {name: part for part in PARTS for name in kinds(type(getattr(self, part)))}

    def replace(self, **changes: Any) -> Recipe:
        """With other values of some fields, whichever part they belong to.

        Another method begins at its own start, unless one is given: a pair of HTAF says nothing of another curve. SGD
        in place of another optimizer, or another in its place, has the learning rate that it usually takes. The epochs
        that are given are those, without least_steps, unless these are given too.

        Raises:
            ValueError: no such field in this family, or a bad value.
        """
        if changes.get("method", self.activation.method) != self.activation.method:
            changes = {"start": None, "sharpness": None, **changes}
        before, optimizer = self.optimization, changes.get("optimizer", self.optimization.optimizer)
        if (optimizer == "sgd") != (before.optimizer == "sgd"):
            lr = SGD_RATE if optimizer == "sgd" else ADAPTIVE_RATE
            changes = {"lr": lr, "lr_end": min(changes.get("lr", lr), before.lr_end), **changes}
        if "epochs" in changes:
            changes = {"least_steps": 0, **changes}
        own = self.fields
        given = by_part(self.family, own, changes)
        parts = {part: dataclasses.replace(getattr(self, part), **values) for part, values in given.items()}
        return dataclasses.replace(self, **parts)

    def flat(self) -> dict[str, Any]:
        """The family and all fields, as `replace` and a plan's [recipe] take them."""
        return {"family": self.family} | {k: v for part in PARTS for k, v in getattr(self, part).values().items()}

    def final_activation(self) -> dict[str, Any]:
        """The activation at the end of training, as `models.build.activation` takes it."""
        return self.activation.description() | ({"bipolar": True} if self.network.bipolar else {})

    def model(self, inputs: Mapping[str, Any], outputs: int) -> dict[str, Any]:
        """The network as `models.build.build` takes it.

        Args:
            inputs: {"in_features": n, "rows": of the training, may lack, "levels": [how many different values each
                input has], "discrete": [places of those that are told by each value]} of a table;
                {"in_channels": n, "image_size": [H, W]} of images, and "concepts" where attributes say how many.
            outputs: classes, or 1 for a regression.
        """
        return self.network.model(inputs, outputs, self.final_activation())

    def unread(self) -> dict[str, str]:
        """The fields that this training does not read, each with the choice that leaves it so, as "method relu"."""
        method = self.activation.method
        found = self.optimization.unread() | self.network.unread(method) | self.activation.unread()
        return found | self.hardening.unread(method)

    def refuse_unread(self, names: Collection[str], spelled: Callable[[str], str] = str) -> None:
        """Raises ValueError where `names`, the fields that someone has set, hold some that this training does not read.

        spelled: how a field is called there, such as a flag.
        """
        own = {*self.fields, "family"}
        unread = dict.fromkeys((name for name in names if name not in own), f"family {self.family}") | self.unread()
        for why in dict.fromkeys(unread.values()):
            if ignored := sorted(name for name in names if unread.get(name) == why):
                shown = ", ".join(map(spelled, ignored))
                raise ValueError(f"{why} does not read {shown}")

    def effective(self) -> dict[str, Any]:
        """The fields that this training reads, with the values that it will use; as a TOML table they make a plan's
        [recipe]."""
        schedule, unread = self.activation.sharpening(), self.unread()
        found = {k: v for k, v in self.flat().items() if k not in unread}
        return found if schedule is None else found | {"start": schedule.start}

    def identity(self) -> dict[str, Any]:
        """The family and all fields: two trainings whose recipes have the same identity are the same."""
        return self.network.identity(self.flat())


@dataclass(frozen=True)
class Family:
    """Networks that are trained by name: `htaf train VERB`, and `family` in a plan.

    network: its part of a recipe, which names the family and the kind of its data.
    verb: of the command. about: one line of help.
    recipes: name -> recipe, the first is the default; one named as a data set is the default for that.
    recipes_help: what they are.
    suited: fields that someone has given -> the recipe that suits them where none is named; "": the usual one.

    Raises:
        ValueError: two parts have a field of the same name.
    """

    network: type[Network]
    verb: str
    about: str
    recipes: Mapping[str, Callable[[], Recipe]]
    recipes_help: str
    suited: Callable[[Mapping[str, Any]], str] = lambda given: ""

    def __post_init__(self) -> None:
        names = [name for part in self.parts.values() for name in kinds(part)]
        twice = sorted({name for name in names if names.count(name) > 1 or name == "family"})
        expect(not twice, f"the fields of family {self.name} must have names of their own", ", ".join(twice))

    @property
    def name(self) -> str:
        """Of the family, as records hold it."""
        return self.network.family

    @property
    def parts(self) -> dict[str, type[RecipePart]]:
        """The parts of its recipes, each with its class."""
        found = (self.network, Activation, Optimization, Hardening, self.network.data)
        return dict(zip(PARTS, found, strict=True))

    def make(self, **fields: Any) -> Recipe:
        """A recipe from flat fields; the others are at their default.

        Raises:
            ValueError: no such field in this family, or a bad value.
        """
        own = {name: part for part, kind in self.parts.items() for name in kinds(kind)}
        given = by_part(self.name, own, fields)
        made = {part: kind(**given.get(part, {})) for part, kind in self.parts.items()}
        return Recipe(**made)  # pyright: ignore[reportArgumentType]

    def ready(self, name: str) -> Recipe:
        """A ready recipe by its name.

        Raises:
            ValueError: it has none of this name.
        """
        if name not in self.recipes:
            near = suggestion(name, [*self.recipes])
            raise ValueError(f"expected a recipe of family {self.name}: {', '.join(self.recipes)}, got {name!r}{near}")
        return self.recipes[name]()


@dataclass(frozen=True)
class Running:
    """How `fit` runs a training; no part of the identity of a run.

    Args:
        device: "auto", "cpu", "cuda" or "mps".
        workers: processes that read images from files.
        devices, nodes: processes on each machine, and machines; see docs/scaling.md for how they are started. The
            recipe's batch_size is that of all processes together.
        progress: show a bar on a terminal; elsewhere, as in the log of a job, a line now and then.
        checkpoint_seconds: least time between two checkpoints; what a kill can cost.
    """

    device: str = "auto"
    workers: int = 0
    devices: int = 1
    nodes: int = 1
    progress: bool = False
    checkpoint_seconds: float = 5.0

    @property
    def world(self) -> int:
        """How many processes train together, one a device, each with the whole network."""
        return self.devices * self.nodes


@dataclass(frozen=True)
class Source(RecipePart):
    """Where data come from: the arguments of `htaf.data.tabular.load` and how rows are split, or those of
    `htaf.data.image_sets.load` for a family that takes images."""

    name: str
    target: str | None = None
    task: Literal["regression", "classification"] | None = None
    text_as_missing: bool = False
    split: Literal["random", "grouped", "stratified"] = "random"
    size: int | None = None
    exclude: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    group: str | None = None
    time: str | None = None
    weight: str | None = None

    def check(self) -> None:
        if self.group is not None and self.split == "stratified":
            raise ValueError("a group keeps rows together and does not go with split stratified")
        if self.time is not None and (self.split != "random" or self.group is not None):
            raise ValueError("time divides by time and goes with no other split and no group")
        expect(self.size is None or self.size >= 1, "size must be >= 1", self.size)

    @property
    def mode(self) -> Literal["random", "grouped", "stratified", "time"]:
        """How rows are divided, for `htaf.data.tabular.split`."""
        return "time" if self.time is not None else "grouped" if self.group is not None else self.split

    def arguments(self) -> dict[str, Any]:
        """Those of `htaf.data.tabular.load` but the name, the ones alone that are given."""
        given = {name: value for name, value in self.values().items() if value not in (None, False, ())}
        return {name: value for name, value in given.items() if name not in ("name", "split", "size")}

    def table(self, data_dir: str | None = None) -> Table:
        """The table; raises as `htaf.data.tabular.load`."""
        from htaf.data.tabular import load

        return load(self.name, data_dir=data_dir, **self.arguments())

    def remembered(self, data_dir: str | None = None, *, images: bool = False) -> dict[str, Any]:
        """Where the data came from as a run remembers it: whole paths, which hold from any working folder."""
        from htaf.data import tabular as named
        from htaf.data.image_sets import is_named
        from htaf.data.tabular import located

        if images:
            known, place = {"size": self.size}, None if is_named(self.name) else self.name
        else:
            kept = ("shares", "group", "time", "weight")  # by the record, as part of what the data are
            known = {name: value for name, value in self.arguments().items() if name not in kept}
            place = None if named.is_named(self.name) else located(self.name, data_dir)
        name = self.name if place is None else os.path.realpath(place)
        return {"name": name, "data_dir": data_dir and os.path.realpath(data_dir), **known}
