"""`htaf train tabular|dhn|bnn|snn|icbm`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from rich.table import Table as TextTable
from tyro.conf import OmitArgPrefixes, arg

from htaf._console import Terminal, UsageError, check_seed, figures, print_json, say, say_notes
from htaf._errors import HtafError
from htaf._files import LOCK, check_place
from htaf.cli.flags import DataDir, Json
from htaf.cli.methods import outside_step
from htaf.contract import StepFactory, is_outside
from htaf.models.build import SlopeName
from htaf.models.icbm import Bottleneck
from htaf.training.recipe import AugmentChoice, Family, Optimizer, Recipe, Schedule
from htaf.training.recipes import (
    ADAPTIVE_RATE,
    SGD_RATE,
    TABULAR,
    ConceptName,
    ImageName,
    TabularName,
    for_backbone,
    image_recipe,
)

# as in htaf.training, which needs lightning: seconds that `htaf --help` must not take
Strategy = Literal["auto", "ddp", "fsdp"]
LoggerName = Literal["tensorboard", "wandb"]

T = TypeVar("T")

Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], arg(help="Where to train.")]
Task = Annotated[
    Literal["regression", "classification"] | None,
    arg(help="What to do with the target.", help_behavior_hint="(default: by its values, said in a note)"),
]
Out = Annotated[Path, arg(help="Run folder: new, or the same run to resume.", metavar="DIR")]
Seconds = Annotated[float, arg(help="Least time between checkpoints: what a kill can cost.")]
ImageSource = Annotated[
    str,
    arg(help="cifar10, cifar100, tiny-imagenet, cub, digits, or a folder of class folders.", metavar="NAME_OR_PATH"),
]


# names of the recipes of a family, the default first
NAMES: dict[Family, tuple[str, ...]] = {
    "mlp": get_args(TabularName),
    **dict.fromkeys(("dhn", "bnn", "snn"), ("small", "reduced", "cifar10", "cifar100")),
    "icbm": ("small", "reduced", "cifar10", "cifar100", "finetune"),
}
SHARPEN_START = "half of alpha0 with alpha0 alpha1 = 2; beta 2"


def own(text: str, metavar: str | None = None) -> Any:
    """Help of a flag whose default is the recipe's own value; `with_defaults` writes those values behind it."""
    return arg(help=text, metavar=metavar)


def with_defaults(family: Family) -> Callable[[type[T]], type[T]]:
    """A class of flags whose help shows what each of them is in the recipes of a family."""

    def decorate(flags: type[T]) -> type[T]:
        recipes = {name: base_recipe(family, name) for name in NAMES[family]}
        fields: list[Any] = []
        for name, hint in get_type_hints(flags, include_extras=True).items():
            kind, (config, *_) = hint.__origin__, hint.__metadata__
            default = f"(default: {_values(name, recipes)})"
            shown = dataclasses.replace(config, help_behavior_hint=default)
            fields.append((name, Annotated[kind, shown], dataclasses.field(default=None)))
        made = dataclasses.make_dataclass(flags.__name__, fields, bases=(flags,))
        made.__doc__ = flags.__doc__
        return made

    return decorate


def base_recipe(family: Family, name: Any) -> Recipe:
    """The recipe of a family by its name."""
    return TABULAR[name]() if family == "mlp" else image_recipe(family, name)


def _values(field: str, recipes: Mapping[str, Recipe]) -> str:
    """A field's value in the default recipe, then where it is another one: "20; 14 in reduced"."""
    where: dict[str, list[str]] = {}
    for name, recipe in recipes.items():
        where.setdefault(_shown(field, recipe), []).append(name)
    first, *others = where
    return "; ".join([first, *(f"{value} in {', '.join(where[value])}" for value in others)])


def _shown(field: str, recipe: Recipe) -> str:
    value = getattr(recipe, field)
    if value is None:
        return SHARPEN_START if field == "start" else "as the class sets them"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


@dataclasses.dataclass
class Overrides:
    """Fields of the recipe to change; see `htaf.training.recipe.Recipe`."""

    method: Annotated[
        str | None,
        own(
            "htaf; ste: straight-through; ss: scaled sigmoid; relu; or the class of a step of your own, as "
            "package.module:Class, whose code runs.",
            "htaf|ste|ss|relu|CLASS",
        ),
    ] = None
    epochs: Annotated[int | None, own("Most epochs.")] = None
    alpha0: Annotated[float | None, own("HTAF: width of the tails, > 0.")] = None
    alpha1: Annotated[float | None, own("HTAF: > 0; the slope at 0 is alpha0 alpha1 / 4.")] = None
    beta: Annotated[float | None, own("Scaled sigmoid: > 0.")] = None
    slope: Annotated[SlopeName | None, own("Straight-through: backward slope.")] = None
    sharpness: Annotated[
        tuple[float, ...] | None, own("A step of your own: its parameters at the end.", "FLOAT [FLOAT ...]")
    ] = None
    sharpen: Annotated[bool | None, own("Move the parameters from a soft start to their final values.")] = None
    start: Annotated[
        tuple[float, ...] | None,
        own(
            "Where sharpening starts: a pair; of ss one beta; a step of your own is moved only with it.",
            "ALPHA0 ALPHA1",
        ),
    ] = None
    sharpen_fraction: Annotated[float | None, own("Share of the epochs over which it moves.")] = None
    lr: Annotated[float | None, own("Highest learning rate.")] = None
    batch_size: Annotated[int | None, own("Rows or images a step.")] = None
    weight_decay: Annotated[float | None, own("Of the optimizer.")] = None
    schedule: Annotated[Schedule | None, own("Of the learning rate.")] = None
    optimizer: Annotated[Optimizer | None, own("sgd takes momentum.")] = None
    label_smoothing: Annotated[float | None, own("Of the cross-entropy.")] = None
    clip: Annotated[float | None, own("Largest L2 norm of the gradient; 0: none.")] = None
    precision: Annotated[Literal["float32", "bfloat16"] | None, own("bfloat16: mixed.")] = None
    compile: Annotated[bool | None, own("Run the steps through torch.compile.")] = None
    patience: Annotated[
        int | None,
        own("Stop after so many epochs without a better exact network, counted from the end of sharpening; 0 never."),
    ] = None

    def apply(self, base: Recipe, step: StepFactory | None = None) -> tuple[Recipe, tuple[str, ...]]:
        """The recipe with these changes, and in words what they bring with them.

        Args:
            step: the class that `method` names, if it is one from outside htaf.

        Raises:
            UsageError: a bad value, or one that the recipe does not read. TrainingError: the step keeps no contract.
        """
        changes = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        notes: tuple[str, ...] = ()
        try:
            if base.method != changes.get("method", base.method):
                base = dataclasses.replace(base, method=changes["method"], start=None, sharpness=None)
            if "backbone" in changes:
                base, notes = _over(base, changes["backbone"], changes.get("optimizer"))
            optimizer = changes.get("optimizer", base.optimizer)
            if "lr" not in changes and (optimizer == "sgd") != (base.optimizer == "sgd"):
                # that of the other kind is no choice for this one
                lr = SGD_RATE if optimizer == "sgd" else ADAPTIVE_RATE
                base = dataclasses.replace(base, lr=lr, lr_end=min(lr, base.lr_end))
                notes += (f"lr {lr:g}, as the recipe's is for another optimizer than {optimizer}",)
            recipe = dataclasses.replace(base, **changes)
            if is_outside(recipe.method):
                from htaf.training.outside import with_step

                recipe = with_step(recipe, step)
            recipe.refuse_unread(changes.keys(), lambda name: "--" + name.replace("_", "-"))
        except ValueError as error:
            raise UsageError(str(error)) from None
        return recipe, notes


def _over(base: Recipe, backbone: str, optimizer: str | None) -> tuple[Recipe, tuple[str, ...]]:
    """As `for_backbone`; what cannot be had is no wrong use of the command."""
    try:
        return for_backbone(base, backbone, optimizer)
    except (ValueError, OSError) as error:
        raise HtafError(str(error)) from None


@with_defaults("mlp")
@dataclasses.dataclass
class TabularOverrides(Overrides):
    """Those of an MLP too."""

    hidden: Annotated[tuple[int, ...] | None, own("Sizes of the hidden layers.", "INT [INT ...]")] = None
    batch_norm: Annotated[bool | None, own("Normalise the pre-activations.")] = None


@dataclasses.dataclass
class ImageOverrides(Overrides):
    """Those of all image families too."""

    momentum: Annotated[float | None, own("Of sgd.")] = None
    nesterov: Annotated[bool | None, own("Nesterov's momentum.")] = None
    lr_end: Annotated[float | None, own("Where cosine and linear schedules end.")] = None
    depth: Annotated[int | None, own("dhn: 6 n + 4; bnn: 18 or 34; snn: 18, 34 or 50.")] = None
    width: Annotated[int | None, own("dhn: widening factor; bnn, snn: channels of the first stage.")] = None
    augment: Annotated[AugmentChoice | None, own("Of the training images; auto: crop-flip, none for grey ones.")] = None
    train_images: Annotated[int | None, own("So many, class-balanced; 0: all.")] = None
    validation_images: Annotated[float | None, own("So many, class-balanced; below 1: a share.")] = None


@with_defaults("dhn")
@dataclasses.dataclass
class DHNOverrides(ImageOverrides):
    """Those of a deep Heaviside network."""

    dropout: Annotated[float | None, own("Between the convolutions of a block.")] = None


@with_defaults("bnn")
@dataclasses.dataclass
class BNNOverrides(ImageOverrides):
    """Those of a binary network."""

    stem: Annotated[Literal["cifar", "imagenet"] | None, own("First layers: 3x3; 7x7 and pooling.")] = None


@with_defaults("snn")
@dataclasses.dataclass
class SNNOverrides(BNNOverrides):
    """Those of a spiking network."""

    steps: Annotated[int | None, own("Time steps T.")] = None
    connect: Annotated[Literal["add", "and", "iand"] | None, own("How a block meets its shortcut.")] = None
    neuron: Annotated[Literal["if", "lif"] | None, own("Integrate-and-fire, or leaky.")] = None
    tau: Annotated[float | None, own("Membrane time constant of lif, in steps.")] = None
    reset: Annotated[Literal["hard", "soft"] | None, own("To zero, or by subtraction.")] = None
    detach_reset: Annotated[bool | None, own("No gradient through the reset.")] = None
    exact_reset: Annotated[bool | None, own("Reset by the exact step.")] = None


@with_defaults("icbm")
@dataclasses.dataclass
class ICBMOverrides(ImageOverrides):
    """Those of an implicit concept bottleneck model."""

    depth: Annotated[int | None, own("wide_resnet: 6 n + 4; resnet: 18, or 34.")] = None
    width: Annotated[int | None, own("wide_resnet: widening factor; resnet: channels of the first stage.")] = None
    backbone: Annotated[
        str | None, own("wide_resnet, resnet, a timm model's name (resnet18, convnext_tiny), or transformers:NAME.")
    ] = None
    stem: Annotated[Literal["cifar", "imagenet"] | None, own("Of resnet: 3x3; 7x7 and pooling.")] = None
    dropout: Annotated[float | None, own("Of wide_resnet.")] = None
    concepts: Annotated[int | None, own("How many; 0: as many as the backbone has features.")] = None
    concept_norm: Annotated[
        Literal["auto", "batch", "none"] | None, own("Before the step; auto: not behind a layer norm.")
    ] = None
    pretrained: Annotated[str | None, own("hub (timm's, transformers'), a file of weights, or a run folder.")] = None
    freeze: Annotated[bool | None, own("Leave the backbone as it is.")] = None
    backbone_lr: Annotated[float | None, own("Learning rate of the backbone, as a share of lr.")] = None
    bottleneck: Annotated[
        Bottleneck | None, own("implicit, or given attributes as concepts: joint, sequential, independent.")
    ] = None
    attributes: Annotated[str | None, own("Those attributes: cub, or a CSV with a row for each class.")] = None
    concept_weight: Annotated[float | None, own("Of their loss.")] = None


@dataclasses.dataclass
class Running:
    """In how many processes, and what is written beside the record; see docs/scaling.md."""

    devices: Annotated[int, arg(help="Processes on this machine, one a GPU; batch_size is that of all together.")] = 1
    nodes: Annotated[int, arg(help="Machines.")] = 1
    strategy: Annotated[Strategy, arg(help="ddp: each process holds the network; fsdp: a share of it; auto: ddp.")] = (
        "auto"
    )
    sync_batch_norm: Annotated[bool, arg(help="Normalise over the whole batch; GPUs only.")] = False
    logger: Annotated[
        tuple[LoggerName, ...],
        arg(
            help="Log to these too, in the run folder; metrics.csv is always written.",
            help_behavior_hint="(default: none)",
        ),
    ] = ()
    gradients: Annotated[bool, arg(help="Write the gradient norms of every layer: gradients.csv and .png.")] = False
    continue_from: Annotated[
        Path | None,
        arg(
            help="Go on from the weights of this finished run, with a new schedule of --epochs and its recipe for the "
            "other flags; it stays as it is.",
            metavar="RUN",
            help_behavior_hint="(optional)",
        ),
    ] = None
    print_recipe: Annotated[
        bool, arg(help="Print the recipe with the values that would be used, as a TOML table, and train nothing.")
    ] = False

    def parent(self, family: Family, step: StepFactory | None) -> Any:
        """The run that is gone on from, if any."""
        if self.continue_from is None:
            return None
        from htaf.runs import open_run

        found = open_run(self.continue_from, method=step)
        if (there := found.record["recipe"].get("family", "mlp")) != family:
            raise UsageError(f"--continue-from {found.path} is a run of family {there}, not {family}")
        return found


def train_tabular(
    *,
    data: Annotated[
        str, arg(help="wine, abalone, churn, fico, digits, or a CSV or Parquet file.", metavar="NAME_OR_PATH")
    ],
    out: Out,
    target: Annotated[
        str | None, arg(help="Target column of a file.", metavar="COLUMN", help_behavior_hint="(needed for a file)")
    ] = None,
    task: Task = None,
    seed: Annotated[int, arg(help="Of the split, the weights and the order of the batches.")] = 0,
    recipe: Annotated[
        TabularName | None,
        arg(help="What the other flags start from.", help_behavior_hint="(default: tabular-mlp)"),
    ] = None,
    overrides: OmitArgPrefixes[TabularOverrides] = TabularOverrides(),  # noqa: B008
    split: Annotated[Literal["random", "grouped"], arg(help="grouped keeps repeated rows on one side.")] = "random",
    drop_empty: Annotated[bool, arg(help="fico: leave out the 588 rows without any record.")] = False,
    data_dir: DataDir = None,
    device: Device = "auto",
    running: OmitArgPrefixes[Running] = Running(),  # noqa: B008
    checkpoint_seconds: Seconds = 5.0,
    json: Json = False,
) -> None:
    """Train an MLP with 0/1 activations on a table; smooth and exact results, and the gap."""
    chosen = _chosen("mlp", recipe, "tabular-mlp", overrides, running)
    check_seed(seed)
    from htaf.data.named import is_named
    from htaf.data.tabular import load

    source = _source(data, is_named(data), data_dir) | {"target": target, "task": task, "drop_empty": drop_empty}

    def read() -> Any:
        return load(data, target=target, task=task, data_dir=data_dir, drop_empty=drop_empty)

    options = {"seed": seed, "mode": split, "device": device, "checkpoint_seconds": checkpoint_seconds}
    _train(chosen, running, read, out, source, options, json)


RECIPES = (
    "What the other flags start from. cifar10, cifar100: the published code's, for a GPU; reduced: a small network and "
    "5,000 images, for two cores; small: the same network on all images, 20 epochs."
)


def _image_command(
    family: Family, kind: type[ImageOverrides], text: str, names: Any = ImageName, recipes: str = RECIPES
) -> Callable[..., None]:
    """The function of `htaf train FAMILY`."""

    def command(
        *,
        data: ImageSource,
        out: Out,
        seed: Annotated[int, arg(help="Of the weights and the order of the batches.")] = 0,
        recipe: Any = None,
        overrides: Any = kind(),  # noqa: B008
        size: Annotated[int | None, arg(
            help="Height and width in pixels to which images from files are scaled.",
            help_behavior_hint="(default: by the images, from 32 to 224; their own where all are alike and at most 64)",
        )] = None,
        strict: Annotated[bool, arg(help="Stop at unreadable files and empty classes, else left out.")] = False,
        workers: Annotated[int, arg(help="Processes that read images from files.")] = 0,
        data_dir: DataDir = None,
        device: Device = "auto",
        running: OmitArgPrefixes[Running] = Running(),  # noqa: B008
        checkpoint_seconds: Seconds = 30.0,
        json: Json = False,
    ) -> None:  # fmt: skip
        known: dict[str, ConceptName] = {"cifar10": "cifar10", "cifar100": "cifar100"}
        chosen = _chosen(family, recipe, known.get(data.lower(), "small"), overrides, running)
        check_seed(seed)
        from htaf.data.images import is_named, load

        source = _source(data, is_named(data), data_dir) | {"size": size}
        options = {"seed": seed, "device": device, "workers": workers, "checkpoint_seconds": checkpoint_seconds}
        if isinstance(overrides, ICBMOverrides):
            from htaf.training.problems import supervision

            if chosen.recipe.bottleneck != "implicit" and overrides.attributes is None and data.lower() != "cub":
                bottleneck = chosen.recipe.bottleneck
                raise UsageError(f"--bottleneck {bottleneck} on {data} needs --attributes, a row for each class")
            options["attributes"] = supervision(chosen.recipe, data_dir)

        def read() -> Any:
            return load(data, data_dir=data_dir, size=size, strict=strict)

        _train(chosen, running, read, out, source, options, json)

    command.__doc__ = text
    # strings could not name these
    hint = "(default: cifar10 and cifar100 for these sets, else small)"
    command.__annotations__["recipe"] = Annotated[names | None, arg(help=recipes, help_behavior_hint=hint)]
    command.__annotations__["overrides"] = OmitArgPrefixes[kind]
    return command


train_dhn = _image_command(
    "dhn", DHNOverrides, "Train a WideResNet with 0/1 activations on images; smooth and exact results, and the gap."
)
train_bnn = _image_command(
    "bnn",
    BNNOverrides,
    "Train a Bi-Real Net, binary activations and weights, on images; smooth and exact results, and the gap.",
)
train_snn = _image_command(
    "snn", SNNOverrides, "Train a SEW-ResNet of spiking neurons on images; smooth and exact results, and the gap."
)
train_icbm = _image_command(
    "icbm",
    ICBMOverrides,
    "Train an implicit concept bottleneck model: any image backbone, its last features as bits. Then: htaf concepts.",
    ConceptName,
    f"{RECIPES} finetune: a pretrained timm ResNet-18, the backbone at a tenth of the learning rate.",
)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What a command trains by: its recipe, in words what it brings with it, the run that it goes on from, and the
    class of its step where that is from outside htaf."""

    recipe: Recipe
    notes: tuple[str, ...]
    parent: Any
    step: StepFactory | None


def _chosen(family: Family, name: str | None, default: str, overrides: Overrides, running: Running) -> Chosen:
    """The recipe by its name, or that of the run to go on from, with the flags' changes."""
    step = outside_step(overrides.method)
    parent = running.parent(family, step)
    if parent is None:
        base = base_recipe(family, name or default)
    elif name is not None:
        raise UsageError(f"--recipe {name} does not go with --continue-from, whose recipe the other flags start from")
    else:
        from htaf.training.recipes import continuing

        try:
            base = continuing(parent.record)
        except ValueError as error:
            raise UsageError(f"--continue-from {parent.path}: {error}") from None
    return Chosen(*overrides.apply(base, step), parent, step)


def _train(
    chosen: Chosen,
    running: Running,
    read: Callable[[], Any],
    out: Path,
    source: Mapping[str, Any],
    options: dict[str, Any],
    json: bool,
) -> None:
    """Check what can be checked before the data are read; load, train, print."""
    from htaf.runs import check_folder, short_commit
    from htaf.runs.metrics import LOWER_IS_BETTER
    from htaf.training.distributed import PeerError, Processes, first_process
    from htaf.training.fit import check, fit
    from htaf.training.problems import resolved

    recipe = chosen.recipe
    several = running.devices * running.nodes > 1
    spread = {name: getattr(running, name) for name in ("devices", "nodes", "strategy", "sync_batch_norm")}
    checked = {name: options[name] for name in ("workers", "checkpoint_seconds") if name in options}
    check(recipe, options["device"], Processes(**spread), logger=running.logger, **checked)
    before = None
    if not running.print_recipe:
        known = recipe.identity()
        if known.get("augment") == "auto":  # known once the data are
            del known["augment"]
        before = check_folder(out, {"seed": options["seed"], "recipe": known}, part=True)
        if before is None:
            check_place(out / LOCK)
    if not several or first_process():
        say_notes(chosen.notes)
    data = read()
    recipe, why = resolved(recipe, data)
    said = [*chosen.notes, *data.notes, *why]
    if not several or first_process():
        say_notes(said[len(chosen.notes) :])
    if running.print_recipe:
        return _print_recipe(recipe, json)
    options |= spread | {"logger": running.logger, "gradients": running.gradients, "continued": chosen.parent}
    options["method"] = chosen.step
    try:
        run = fit(recipe, data, out, source=source, progress=True, notes=(*chosen.notes, *why), **options)
    except PeerError:
        if first_process():
            raise
        raise SystemExit(1) from None  # the process that failed says why
    if several and not first_process():
        return None
    say_notes([note for note in run.record["notes"] if note not in said])
    if before is not None and before["status"] == "finished":
        say_notes([f"{out} was finished before (commit {short_commit(before['commit'])}): delete it to train again"])
    if json:
        return print_json(run.record)
    metrics, name = run.record["metrics"], run.record["headline"]
    best = f"best epoch {run.record['best_epoch'] + 1}"
    text = TextTable(title=f"{data.name}: {name} ({recipe.method}, {best})", title_justify="left")
    for column in ("part", "rows", "smooth", "exact", "gap"):
        text.add_column(column, justify="left" if column == "part" else "right")
    for part in ("validation", "test"):
        smooth = metrics["smooth"][part][name]
        exact = metrics["exact"][part][name] if metrics["exact"] else None
        text.add_row(
            part, str(run.record["rows"][part]), *figures(smooth, exact, lower_is_better=name in LOWER_IS_BETTER)
        )
    Terminal().print(text)
    return say(f"run folder: {out}")


def _print_recipe(recipe: Recipe, json: bool) -> None:
    """The effective values as JSON, or as the [recipe] of a study's plan."""
    from json import dumps

    values = recipe.effective()
    if json:
        return print_json(values)
    say("[recipe]")
    for name, value in values.items():
        say(f"{name} = {dumps(value, ensure_ascii=False)}")
    return None


def _source(data: str, named: bool, data_dir: str | None) -> dict[str, Any]:
    """Where the data came from, in a form that holds from any working folder."""
    name = data if named else str(Path(data).resolve())
    return {"name": name, "data_dir": None if data_dir is None else str(Path(data_dir).resolve())}
