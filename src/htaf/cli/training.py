"""`htaf train VERB`: a verb for each family of networks, whose flags are the fields of its recipes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from rich.table import Table as TextTable
from tyro.conf import OmitArgPrefixes, arg

from htaf._console import Terminal, UsageError, check_seed, err, figures, print_json, say, say_notes
from htaf._errors import HtafError
from htaf._files import LOCK, check_output_folder, check_place
from htaf.cli.flags import Baselines, DataDir, Json, check_outside_images
from htaf.cli.methods import outside_step
from htaf.contract import StepFactory
from htaf.data.notes import from_record, told
from htaf.names import Method, is_outside
from htaf.training.families import FAMILIES, continuing
from htaf.training.recipe import Family, ImageData, Recipe, RecipePart, TableData, kinds
from htaf.training.running import LoggerName, Running, Strategy

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


METAVARS = {
    tuple[int, ...]: "INT [INT ...]",
    tuple[float, ...] | None: "FLOAT [FLOAT ...]",
    Method | str: f"{'|'.join(get_args(Method))}|CLASS",
}
MOST_THREADS = 1024  # that a record may hold
SHARPEN_START = "half of alpha0 with alpha0 alpha1 = 2; beta 2"


def flags_of(family: Family) -> type:
    """The flags of a family: a dataclass with one group for each part of its recipes, one flag for each field.

    A flag that is not given is None: what it is then follows from --recipe, so its help shows the value in each.
    """
    ready = {name: make().flat() for name, make in family.recipes.items()}

    def group(part: type[RecipePart]) -> type:
        made: list[Any] = []
        for name, kind in kinds(part).items():
            hint = f"(default: {_values(name, ready)})"
            shown = METAVARS.get(kind)
            made.append((name, Annotated[kind | None, arg(help_behavior_hint=hint, metavar=shown)], None))
        return dataclasses.make_dataclass(part.__name__, made, namespace={"__doc__": part.__doc__})

    groups = {name: group(part) for name, part in family.parts.items() if kinds(part)}
    fields: list[Any] = [(name, made, dataclasses.field(default_factory=made)) for name, made in groups.items()]
    return dataclasses.make_dataclass("Flags", fields)


def _values(field: str, recipes: Mapping[str, Mapping[str, Any]]) -> str:
    """A field's value in the default recipe, then where it is another one: "20; 14 in reduced"."""
    where: dict[str, list[str]] = {}
    for name, fields in recipes.items():
        where.setdefault(_shown(field, fields[field]), []).append(name)
    first, *others = where
    return "; ".join([first, *(f"{value} in {', '.join(where[value])}" for value in others)])


def _shown(field: str, value: Any) -> str:
    if value is None:
        return SHARPEN_START if field == "start" else "as the class sets them"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def _given(flags: Any) -> dict[str, Any]:
    """The flags that were given, flat."""
    return {k: v for part in vars(flags).values() for k, v in vars(part).items() if v is not None}


def _changed(
    family: Family, base: Recipe, changes: Mapping[str, Any], step: StepFactory | None
) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe with the flags' changes, and in words what they bring with them.

    Args:
        step: the class that `method` names, if it is one from outside htaf.

    Raises:
        UsageError: a bad value, or one that the recipe does not read. HtafError: what it needs cannot be had.
        TrainingError: the step keeps no contract.
    """
    try:
        recipe, notes = family.changed(base, changes, _flag)
        if is_outside(recipe.activation.method):
            from htaf.training.outside import with_step

            recipe = with_step(recipe, step)
        recipe.refuse_unread(changes.keys(), _flag)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return recipe, notes


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


@dataclasses.dataclass
class RunFlags:
    """In how many processes, and what is written beside the record; see docs/scaling.md."""

    devices: Annotated[int, arg(help="Processes on this machine, one a GPU; batch_size is that of all together.")] = 1
    nodes: Annotated[int, arg(help="Machines.")] = 1
    threads: Annotated[
        int | None,
        arg(
            help="CPU threads. More than the cores that are free make a training many times slower. A resumed training "
            "keeps its number.",
            help_behavior_hint="(default: OMP_NUM_THREADS; else 1 for tables, as many as cores for images; shared by "
            "several processes)",
        ),
    ] = None
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
            help="Start from the weights of this finished run, with a new schedule of --epochs and its recipe for the "
            "other flags; it stays as it is.",
            metavar="RUN",
            help_behavior_hint="(optional)",
        ),
    ] = None
    print_recipe: Annotated[
        bool, arg(help="Print the recipe with the values that would be used, as a TOML table, and train nothing.")
    ] = False

    def check(self) -> None:
        """Raises UsageError for a number of threads that cannot be."""
        if self.threads is None:
            return
        if not 1 <= self.threads <= MOST_THREADS:
            raise UsageError(f"--threads must be in 1 to {MOST_THREADS}, got {self.threads}")
        if self.devices * self.nodes > 1:
            raise UsageError("--threads is of one process: with several set OMP_NUM_THREADS")

    def as_running(self, **more: Any) -> Running:
        """As a training takes them; more: its other fields."""
        own = ("devices", "nodes", "strategy", "sync_batch_norm", "logger", "gradients")
        return Running(progress=True, **{name: getattr(self, name) for name in own}, **more)

    def parent(self, family: str, step: StepFactory | None) -> Any:
        """The run to continue, if any."""
        if self.continue_from is None:
            return None
        from htaf.runs import open_run

        found = open_run(self.continue_from, method=step)
        if (there := found.record["recipe"].get("family", "mlp")) != family:
            raise UsageError(f"--continue-from {found.path} is a run of family {there}, not {family}")
        return found


def command_of(family: Family) -> Callable[..., None]:
    """The function of `htaf train VERB` for a family; its arguments are the flags.

    Raises:
        ValueError: the family's data are none that the command can read.
    """
    commands = {TableData: _table_command, ImageData: _image_command}
    if family.network.data not in commands:
        raise ValueError(f"expected a family of tables or images, got {family.name}")
    flags = flags_of(family)
    command = commands[family.network.data](family, flags())
    names, first = tuple(family.recipes), next(iter(family.recipes))
    named = "" if family.network.data is TableData else "that of the data set's name, else "
    hint = f"(default: {named}{first})"
    text = f"What the other flags start from. {family.recipes_help}"
    command.__doc__ = family.about
    # strings could not name these
    command.__annotations__["recipe"] = Annotated[Literal[names] | None, arg(help=text, help_behavior_hint=hint)]  # pyright: ignore[reportInvalidTypeForm]
    command.__annotations__["overrides"] = Annotated[OmitArgPrefixes[flags], arg(name="")]
    return command


def _table_command(family: Family, none: Any) -> Callable[..., None]:
    """A command that trains on a table; none: its flags as none of them is given."""

    def command(
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
        recipe: Any = None,
        overrides: Any = none,
        exclude: Annotated[
            tuple[str, ...], arg(help="Columns to leave out.", metavar="COLUMN", help_behavior_hint="(default: none)")
        ] = (),
        id: Annotated[
            tuple[str, ...],
            arg(
                help="Columns that name the rows: no inputs, kept beside predictions.",
                metavar="COLUMN",
                help_behavior_hint="(default: none)",
            ),
        ] = (),
        test: Annotated[
            str | None,
            arg(
                help="A file with the test rows, with the same columns.",
                metavar="FILE",
                help_behavior_hint="(default: drawn from the data)",
            ),
        ] = None,
        split: Annotated[
            Literal["random", "grouped", "stratified"],
            arg(help="grouped keeps repeated rows on one side; stratified keeps the shares of the classes."),
        ] = "random",
        shares: Annotated[
            tuple[float, ...],
            arg(
                help="Of training, validation and test rows; with --test of training and validation rows.",
                metavar="SHARE",
                help_behavior_hint="(default: 0.7 0.1 0.2; with --test 0.875 0.125)",
            ),
        ] = (),
        group: Annotated[
            str | None,
            arg(
                help="Keep rows that are equal in this column in one part; it is no input.",
                metavar="COLUMN",
                help_behavior_hint="(optional)",
            ),
        ] = None,
        time: Annotated[
            str | None,
            arg(
                help="Test on the last rows by this column of dates or numbers, validate on those before.",
                metavar="COLUMN",
                help_behavior_hint="(optional)",
            ),
        ] = None,
        drop_empty: Annotated[bool, arg(help="fico: leave out the 588 rows without any record.")] = False,
        baselines: Baselines = True,
        data_dir: DataDir = None,
        device: Device = "auto",
        running: OmitArgPrefixes[RunFlags] = RunFlags(),  # noqa: B008
        checkpoint_seconds: Seconds = 5.0,
        json: Json = False,
    ) -> None:
        chosen = _chosen(family, recipe, data, _given(overrides), running)
        check_seed(seed)
        from htaf.data.named import is_named
        from htaf.data.table_files import check_path
        from htaf.data.tabular import load, located

        named = is_named(data)
        place = data if named else str(located(data, data_dir))
        source = _source(place, named, data_dir) | {"target": target, "task": task, "drop_empty": drop_empty}
        source |= {"exclude": list(exclude)} if exclude else {}
        source |= {"ids": list(id)} if id else {}
        source |= {} if test is None else {"test": os.path.realpath(located(test, data_dir))}
        if group is not None and split == "stratified":
            raise UsageError("--group keeps rows together and does not go with --split stratified")
        if time is not None and split != "random":
            raise UsageError(f"--time divides by time and does not go with --split {split}")
        check_output_folder(out, [] if named else [data], own="run")
        check_place(out / LOCK)
        if Path(place).suffix and not named:
            check_path(Path(place))  # before what trains is imported
        mode = "time" if time is not None else "grouped" if group is not None else split
        of_rows: Any = {"test": test, "shares": shares or None, "group": group, "time": time, "ids": id}

        def read() -> Any:
            return load(
                data, target=target, task=task, data_dir=data_dir, drop_empty=drop_empty, exclude=exclude, **of_rows
            )

        options: dict[str, Any] = {"seed": seed, "split": mode}
        how = running.as_running(device=device, checkpoint_seconds=checkpoint_seconds)
        _train(chosen, running, how, read, out, source, options, json, baselines)

    return command


def _image_command(family: Family, none: Any) -> Callable[..., None]:
    """A command that trains on images; none: its flags as none of them is given."""

    def command(
        *,
        data: ImageSource,
        out: Out,
        seed: Annotated[int, arg(help="Of the weights and the order of the batches.")] = 0,
        recipe: Any = None,
        overrides: Any = none,
        size: Annotated[int | None, arg(
            help="Height and width in pixels to which images from files are scaled.",
            help_behavior_hint="(default: by the images, from 32 to 224; their own where all are alike and at most 64)",
        )] = None,
        strict: Annotated[bool, arg(help="Stop at unreadable files and empty classes, else left out.")] = False,
        workers: Annotated[int, arg(help="Processes that read images from files.")] = 0,
        data_dir: DataDir = None,
        device: Device = "auto",
        running: OmitArgPrefixes[RunFlags] = RunFlags(),  # noqa: B008
        checkpoint_seconds: Seconds = 30.0,
        json: Json = False,
    ) -> None:  # fmt: skip
        changes = _given(overrides)
        chosen = _chosen(family, recipe, data, changes, running)
        check_seed(seed)
        check_outside_images(out, data)
        from htaf.data.images import is_named, load

        source = _source(data, is_named(data), data_dir) | {"size": size}
        options: dict[str, Any] = {"seed": seed}
        if chosen.recipe.network.supervised_by is not None:
            from htaf.training.problems import supervision

            if "attributes" not in changes and data.lower() != "cub":
                what = changes.get("bottleneck", "of this recipe")
                raise UsageError(f"--bottleneck {what} on {data} needs --attributes, a row for each class")
            options["attributes"] = supervision(chosen.recipe, data_dir)

        def read() -> Any:
            return load(data, data_dir=data_dir, size=size, strict=strict)

        how = running.as_running(device=device, workers=workers, checkpoint_seconds=checkpoint_seconds)
        _train(chosen, running, how, read, out, source, options, json)

    return command


def __getattr__(name: str) -> Any:
    """`train_VERB`, to which a row of `htaf.cli.verbs` points, is the command of the family with this verb."""
    for family in FAMILIES.values():
        if name == f"train_{family.verb}":
            return command_of(family)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What a command trains by: its recipe, in words what it brings with it, the run that it goes on from, and the
    class of its step where that is from outside htaf."""

    recipe: Recipe
    notes: tuple[str, ...]
    parent: Any
    step: StepFactory | None


def _chosen(family: Family, name: str | None, data: str, changes: Mapping[str, Any], flags: RunFlags) -> Chosen:
    """The recipe by its name or that of the data set, or that of the run to go on from, with the flags' changes."""
    step = outside_step(changes.get("method"))
    parent = flags.parent(family.name, step)
    if parent is None:
        usual = data.lower() if data.lower() in family.recipes else next(iter(family.recipes))
        base = family.ready(name or family.suited(changes) or usual)
    elif name is not None:
        raise UsageError(f"--recipe {name} does not go with --continue-from, whose recipe the other flags start from")
    else:
        try:
            base = continuing(parent.record)
        except ValueError as error:
            raise UsageError(f"--continue-from {parent.path}: {error}") from None
    return Chosen(*_changed(family, base, changes, step), parent, step)


def _train(
    chosen: Chosen,
    flags: RunFlags,
    running: Running,
    read: Callable[[], Any],
    out: Path,
    source: Mapping[str, Any],
    options: dict[str, Any],
    json: bool,
    baselines: bool = False,
) -> None:
    """Check what can be checked before the data are read; load, train, report on a table, print."""
    try:
        chosen.recipe.network.fingerprint()  # before what takes seconds to import
    except ValueError as error:
        raise HtafError(str(error)) from None
    from htaf.cli.reporting import report_once, say_baselines
    from htaf.data.tabular import Table
    from htaf.report.writing import PAGE, kept_baselines
    from htaf.runs import check_folder, short_commit
    from htaf.runs.metrics import LOWER_IS_BETTER
    from htaf.training.distributed import PeerError, default_threads, first_process, thread_count
    from htaf.training.fit import check, fit
    from htaf.training.notes import best_of
    from htaf.training.problems import divided_notes, resolved

    flags.check()
    recipe = chosen.recipe
    several = running.devices * running.nodes > 1
    check(recipe, running)
    before = None
    if not flags.print_recipe:
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
    divided = divided_notes(data, options["seed"], options.get("split", ""))
    said = [*chosen.notes, *data.notes, *divided, *why]
    if not several or first_process():
        say_notes(told([*said[len(chosen.notes) :], *about_names(recipe, data)]))
    if flags.print_recipe:
        return _print_recipe(recipe, json)
    options |= {"continued": chosen.parent, "method": chosen.step, "running": running}
    if flags.threads is not None and before is not None and before["status"] != "finished":
        began = before["threads"]
        if began != flags.threads:
            say_notes([f"--threads {flags.threads}: {out} began with {began}, which a resumed training keeps"])
    try:
        with thread_count(flags.threads or default_threads(recipe)):
            run = fit(recipe, data, out, source=source, notes=(*chosen.notes, *why), **options)
    except PeerError:
        if first_process():
            raise
        raise SystemExit(1) from None  # the process that failed says why
    if several and not first_process():
        return None
    if isinstance(data, Table):
        report_once(run, data, baselines=baselines)
    if before is not None and before["status"] == "finished":
        commit = short_commit(before["commit"])
        err.print(f"already done: {out} holds this training, finished (commit {commit}). Delete it to train again")
    say_notes(told(note for note in from_record(run.record["notes"]) if note not in said))
    found = kept_baselines(run) if baselines else []
    if json:
        return print_json(run.record | ({"baselines": [vars(one) for one in found]} if found else {}))
    metrics, name = run.record["metrics"], run.record["headline"]
    lower, best = name in LOWER_IS_BETTER, best_of(run.record)
    of = f" of class {run.record['positive']!r}" if name == "auroc" and "positive" in run.record else ""
    title = f"{data.name}: {name}{of}{', lower is better' if lower else ''} ({recipe.activation.method}, {best})"
    text = TextTable()
    for column in ("part", "rows", "smooth", "exact", "exact - smooth"):
        text.add_column(column, justify="left" if column == "part" else "right")
    for part in ("validation", "test"):
        smooth = metrics["smooth"][part][name]
        exact = metrics["exact"][part][name] if metrics["exact"] else None
        text.add_row(part, str(run.record["rows"][part]), *figures(smooth, exact, lower_is_better=lower))
    say(title)
    Terminal().print(text)
    if found:
        say_baselines(found, run.record)
    if (page := out / PAGE).is_file():
        say(f"report: {page}")
    return say(f"run folder: {out}")


def about_names(recipe: Recipe, data: Any) -> list[str]:
    """What is known of the names of concepts before any is trained: with few classes these cannot check them."""
    from htaf.training.families.icbm import ICBMNetwork

    if not isinstance(recipe.network, ICBMNetwork) or recipe.network.supervised_by is not None:
        return []
    if recipe.activation.method == "relu":  # no bits to name
        return []
    from htaf.concepts.naming.checks import FEWEST_CLASSES

    count = len(data.classes)
    if count >= FEWEST_CLASSES:
        return []
    return [
        f"{count} classes: names of the concepts cannot be checked on classes, which takes {FEWEST_CLASSES}; "
        "htaf concepts name --pictures checks them on images"
    ]


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
    name = data if named else os.path.realpath(data)
    return {"name": name, "data_dir": None if data_dir is None else os.path.realpath(data_dir)}
