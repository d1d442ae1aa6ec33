"""`htaf train VERB`: a verb for each family of networks, whose flags are the fields of its recipes."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from tyro.conf import OmitArgPrefixes, Suppress, arg

from htaf._ground.console import UsageError, check_seed, figures, print_json, say, say_notes, show, tell
from htaf._ground.errors import HtafError
from htaf._ground.files import LOCK, check_output_folder, check_place, regular
from htaf._ground.names import Method, is_outside
from htaf.cli.flags import Baselines, Column, Columns, DataDir, Device, Folder, Json, outside_step
from htaf.core.contract import StepFactory
from htaf.data.notes import from_record, told
from htaf.training.families import FAMILIES, continuing
from htaf.training.recipe import Family, ImageData, Recipe, RecipePart, Running, TableData, kinds

if TYPE_CHECKING:
    from htaf.concepts.run_heads import PerClass
    from htaf.training.source import Source

SHOWN = {
    "backbone", "concepts", "depth", "epochs", "exclude", "hidden", "id", "luts", "method", "pretrained", "size",
    "target", "task", "test", "width",
}  # fmt: skip
ALL = "--help-all"
Words = list[str]
METAVARS = {
    tuple[int, ...]: "INT [INT ...]",
    tuple[float, ...] | None: "FLOAT [FLOAT ...]",
    Method | str: f"{'|'.join(get_args(Method))}|CLASS",
}
MOST_THREADS = 1024  # that a record may hold
SHARPEN_START = "half of alpha0 with alpha0 alpha1 = 2; beta 2"


def of_flags(words: Sequence[str]) -> set[str]:
    """Return the fields whose flags are among the words: `--lr-end 0` names lr_end."""
    flags = [word.partition("=")[0][2:].replace("-", "_") for word in words if word.startswith("--")]
    return {*flags, *(flag.removeprefix("no_") for flag in flags)}


def expanded(words: Sequence[str], kinds: Mapping[str, Any], family: str) -> Words:
    """Return the words with a flag in place of each `--set FIELD=VALUE`, and of each field of a `--recipe FILE`.

    Args:
        kinds: the type of each field that can be set.
        family: of the recipes.

    Raises:
        UsageError: no such field, no value, a file that holds no such recipe.
    """
    made, left = Words(), [*words]
    while left:
        word = left.pop(0)
        if word == "--set":
            pairs = Words()
            while left and not left[0].startswith("--"):
                pairs.append(left.pop(0))
            for pair in pairs or [""]:
                name, equals, value = pair.partition("=")
                name = name.replace("-", "_")
                if not equals or name not in kinds:
                    raise UsageError(f"--set: expected FIELD=VALUE with a field that {ALL} lists, got {pair!r}")
                made += _words_of(name, value, kinds[name])
        elif word == "--recipe" and left and left[0].endswith(".toml"):
            given = of_flags(words) | {pair.partition("=")[0] for pair in words}
            fields = _read(Path(left.pop(0)), family, kinds)
            for name, value in fields.items():
                if name not in given:
                    made += _words_of(name, value, kinds[name])
        else:
            made.append(word)
    return made


def _words_of(name: str, value: Any, kind: Any) -> Words:
    """Return the words that set a field: a text as it was written, or a value of a file."""
    flag, text = _flag(name), isinstance(value, str)
    if kind is bool:
        on = value if not text else {"true": True, "false": False}.get(value.lower())
        if not isinstance(on, bool):
            raise UsageError(f"{flag}: expected true or false, got {value!r}")
        return [flag if on else f"{flag[:2]}no-{flag[2:]}"]
    if "tuple" in str(kind):
        values = [str(one) for one in value]
        if text:  # names of columns may have blanks
            values = [one for one in (value if "str" in str(kind) else value.replace(" ", ",")).split(",") if one]
        return [flag, *values] if values else []
    if isinstance(value, bool) or (text and value.lower() in ("true", "false")):
        return [flag, str(value).capitalize()]
    return [flag, str(value)]


def _read(file: Path, family: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a recipe that `--print-recipe` printed or a person wrote."""
    try:
        found = tomllib.loads(regular(file).read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        said = (isinstance(error, OSError) and error.strerror) or error
        raise UsageError(f"--recipe {file}: expected a TOML file, got: {said}") from None
    fields = found.get("recipe")
    if not isinstance(fields, dict):
        raise UsageError(f"--recipe {file}: expected a table [recipe], as --print-recipe prints it, got none")
    fields = dict(fields)
    if (there := fields.pop("family", family)) != family:
        raise UsageError(f"--recipe {file}: expected a recipe of family {family}, got {there}")
    if unknown := sorted(fields.keys() - kinds.keys()):
        raise UsageError(f"--recipe {file}: expected fields that {ALL} lists, got {unknown[0]!r}")
    return fields


def with_flags(of: type, shown: set[str]) -> type:
    """Return the dataclass with only these fields as flags."""
    hints = get_type_hints(of, include_extras=True)
    hidden: list[Any] = [
        (field.name, Annotated[hints[field.name], Suppress], dataclasses.field(default=field.default))
        for field in dataclasses.fields(of)
        if field.name not in shown
    ]
    return dataclasses.make_dataclass(of.__name__, hidden, bases=(of,), frozen=True, namespace={"__doc__": of.__doc__})


def flags_of(family: Family, shown: set[str] | None = None) -> type:
    """Return the flags of a family: a dataclass with one group for each part of its recipes, one flag for each field.

    A flag that is not given is None: what it is then follows from --recipe, so its help shows the value in each.

    Args:
        shown: the fields that have a flag; None: all.
    """
    ready = {name: make().flat() for name, make in family.recipes.items()}

    def group(part: type[RecipePart]) -> type:
        made: list[Any] = []
        for name, kind in kinds(part).items():
            if shown is not None and name not in shown:
                continue
            hint = f"(default: {_values(name, ready)})"
            metavar = METAVARS.get(kind)
            made.append((name, Annotated[kind | None, arg(help_behavior_hint=hint, metavar=metavar)], None))
        return dataclasses.make_dataclass(part.__name__, made, namespace={"__doc__": part.__doc__})

    groups = {name: group(part) for name, part in family.parts.items() if kinds(part)}
    fields: list[Any] = [
        (name, made, dataclasses.field(default_factory=made))
        for name, made in groups.items()
        if dataclasses.fields(made)
    ]
    return dataclasses.make_dataclass("Flags", fields)


def _values(field: str, recipes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a field's value in the default recipe, then where it is another one: "20; 14 in reduced"."""
    where: dict[str, list[str]] = {}
    for name, fields in recipes.items():
        where.setdefault(_shown(field, fields[field]), []).append(name)
    first, *others = where
    return "; ".join([first, *(f"{value} in {', '.join(where[value])}" for value in others)])


def _shown(field: str, value: Any) -> str:
    if value is None:
        return {"start": SHARPEN_START, "sharpness": "as the class sets them"}.get(field, "none")
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def _changed(
    family: Family, base: Recipe, changes: Mapping[str, Any], step: StepFactory | None
) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe with the flags' changes, and in words what they bring with them.

    Args:
        step: the class that `method` names, if it is one from outside htaf.

    Raises:
        UsageError: a bad value, or one that the recipe does not read. HtafError: what it needs cannot be had.
        TrainingError: the step keeps no contract.
    """
    try:
        recipe, notes = family.changed(base, changes)
        if is_outside(recipe.activation.method):
            from htaf.training.fit import with_step

            recipe = with_step(recipe, step)
        recipe.refuse_unread(changes.keys(), _flag)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return recipe, notes


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """How many processes train, and from which run they go on; see docs/scaling.md.

    Args:
        devices: Processes on this machine, one a GPU; batch_size is that of all together.
        nodes: Machines.
        threads: CPU threads; none: OMP_NUM_THREADS, else 1 for tables, as many as cores for images; shared by several
            processes. More than the cores that are free make a training many times slower. A resumed training keeps
            its number.
        continue_from: Start from the weights of this finished run, with a new schedule of --epochs and its recipe for
            the other flags; it stays as it is.
        print_recipe: Print the recipe with the values that would be used, as a TOML table, and train nothing.
    """

    devices: int = 1
    nodes: int = 1
    threads: int | None = None
    continue_from: Annotated[Path | None, arg(metavar="RUN")] = None
    print_recipe: bool = False

    def check(self) -> None:
        """Raise UsageError for a number of threads that cannot be."""
        if self.threads is None:
            return
        if not 1 <= self.threads <= MOST_THREADS:
            raise UsageError(f"--threads must be in 1 to {MOST_THREADS}, got {self.threads}")
        if self.devices * self.nodes > 1:
            raise UsageError("--threads is for one process: for several set OMP_NUM_THREADS")

    def parent(self, family: str, step: StepFactory | None) -> Any:
        """Return the run to continue, if any."""
        if self.continue_from is None:
            return None
        from htaf.training.runs import open_run

        found = open_run(self.continue_from, method=step)
        if (there := found.record["recipe"].get("family", "mlp")) != family:
            raise UsageError(f"--continue-from {found.path} is a run of family {there}, not {family}")
        return found


@dataclasses.dataclass(frozen=True)
class Given:
    """The data of a command.

    read: loads them. source: where they come from, for the record. options: what `fit` is told of them.
    """

    read: Callable[[], Any]
    source: Mapping[str, Any]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TableFlags:
    """The table, and how its rows are divided.

    Args:
        target: Target column; a file needs it.
        task: What to do with the target; none: a note says what its values suggest.
        exclude: Columns to leave out.
        id: Columns that name the rows: no inputs, kept beside predictions.
        split: grouped keeps repeated rows on one side; stratified keeps the shares of the classes.
        shares: Of training, validation and test rows.
        group: Keep rows that are equal in this column in one part; it is no input.
        time: Test on the last rows by this column of dates or numbers, validate on those before.
        weight: How much each row counts, in the training and in what is measured: a column of numbers >= 0; no input.
        text_as_missing: Read a text in a column of numbers, as "unknown", as missing; else it is refused or a category.
        checkpoint_seconds: Least time between checkpoints: what a kill can cost.
    """

    target: Column = None
    task: Literal["regression", "classification"] | None = None
    exclude: Columns = ()
    id: Columns = ()
    split: Literal["random", "grouped", "stratified"] = "random"
    shares: Annotated[tuple[float, ...], arg(metavar="SHARE", help_behavior_hint="(default: 0.7 0.1 0.2)")] = ()
    group: Column = None
    time: Column = None
    weight: Column = None
    text_as_missing: bool = False
    baselines: Baselines = True
    checkpoint_seconds: float = 5.0

    def given(self, data: str, out: Path, data_dir: str | None, chosen: Chosen, changes: Mapping[str, Any]) -> Given:
        """Check the data as far as possible before they are read; UsageError and others for what cannot be."""
        from htaf.data.tabular import is_named
        from htaf.data.table_files import check_path
        from htaf.data.tabular import located

        source = _source(data, self, ids=self.id)
        check_output_folder(out, [] if is_named(data) else [data], own="run")
        check_place(out / LOCK)
        if not is_named(data) and (place := located(data, data_dir)).suffix:
            check_path(place)  # before what trains is imported
        return Given(lambda: source.table(data_dir), source.remembered(data_dir), {"split": source.mode})


def _source(data: str, flags: TableFlags | ImageFlags, **others: Any) -> Source:
    """Return the source that the flags describe. Raises UsageError for values that it does not have."""
    from htaf.training.source import Source

    own = {f.name: getattr(flags, f.name) for f in dataclasses.fields(flags) if f.name in Source.__match_args__}
    try:
        return Source(data, **own, **others)
    except ValueError as error:
        raise UsageError(f"{data}: {error}") from None


@dataclasses.dataclass(frozen=True)
class ImageFlags:
    """The images.

    Args:
        size: Height and width in pixels to which images from files are scaled; none: by the images, from 32 to 224;
            their own where all are alike and at most 64.
        workers: Processes that read images from files.
        checkpoint_seconds: Least time between checkpoints: what a kill can cost.
    """

    size: int | None = None
    workers: int = 0
    checkpoint_seconds: float = 30.0

    def given(self, data: str, out: Path, data_dir: str | None, chosen: Chosen, changes: Mapping[str, Any]) -> Given:
        """As `TableFlags.given`."""
        from htaf.data.image_sets import expect_outside, load

        expect_outside(out, data)
        source = _source(data, self)
        options: dict[str, Any] = {}
        if chosen.recipe.network.supervised_by is not None:
            from htaf.training.problems import supervision

            if "attributes" not in changes and data.lower() != "cub":
                what = changes.get("bottleneck", "of this recipe")
                raise UsageError(f"--bottleneck {what} on {data} needs --attributes, a row for each class")
            options["attributes"] = supervision(chosen.recipe, data_dir)

        def read() -> Any:
            return load(data, data_dir=data_dir, size=self.size)

        return Given(read, source.remembered(data_dir, images=True), options)


@dataclasses.dataclass(frozen=True)
class ConceptFlags(ImageFlags):
    """The images, and the head on their concepts.

    Args:
        concepts_per_class: Most concepts that a class draws on; auto: 5, 10 or all, the fewest within two points of all
            on validation images; 0: the head as it was trained.
    """

    concepts_per_class: Annotated[
        int | Literal["auto"] | None,
        arg(metavar="auto|INT", help_behavior_hint="(default: auto over a frozen backbone, else 0)"),
    ] = None

    def given(self, data: str, out: Path, data_dir: str | None, chosen: Chosen, changes: Mapping[str, Any]) -> Given:
        """As `TableFlags.given`."""
        if changes.get("concepts") == 0 and chosen.recipe.flat()["bottleneck"] == "implicit":
            raise UsageError("--concepts must be >= 1, got 0; leave it out for as many as the recipe has")
        return super().given(data, out, data_dir, chosen, changes)

    def asked(self, recipe: Recipe) -> PerClass | None:
        """Return the sparse heads that were asked for, None: none; UsageError where the recipe has no bits of its
        own."""
        per_class = self.concepts_per_class
        if per_class in (None, 0):
            return per_class
        if per_class != "auto" and per_class < 0:
            raise UsageError(f"--concepts-per-class must be auto or >= 0, got {per_class}")
        from htaf.concepts.discovery import no_heads

        if (why := no_heads(recipe)) is not None:
            raise UsageError(f"--concepts-per-class does not go with {why}")
        concepts = recipe.flat().get("concepts", 0)
        if per_class != "auto" and concepts and per_class > concepts:
            raise UsageError(f"--concepts-per-class must be auto or in 0 to {concepts}, the concepts, got {per_class}")
        return per_class


DATA_FLAGS: dict[type, tuple[type, str]] = {  # with the help of --data
    TableData: (TableFlags, "wine, abalone, churn, fico, digits, or a CSV or Parquet file."),
    ImageData: (ImageFlags, "cifar10, cifar100, mnist, cub, digits, or a folder of class folders."),
}


def command_of(family: Family, shown: set[str] | None = None) -> Callable[..., None]:
    """Return the function of `htaf train VERB` for a family; its arguments are the flags.

    Args:
        shown: fields of recipes, of data and of runs that have a flag; None: all of them.

    Raises:
        ValueError: the family's data are none that the command can read.
    """
    if family.network.data not in DATA_FLAGS:
        raise ValueError(f"expected a family of tables or images, got {family.name}")
    flags, (of_data, names_of_data) = flags_of(family, shown), DATA_FLAGS[family.network.data]
    of_data, of_run = ConceptFlags if family.verb == "icbm" else of_data, RunFlags
    if shown is not None:
        of_data, of_run = with_flags(of_data, shown), with_flags(of_run, shown)

    def command(
        *,
        data: str,
        out: Folder,
        seed: int = 0,
        seeds: int = 1,
        recipe: Any = None,
        overrides: Any = flags(),  # noqa: B008
        given: Any = of_data(),  # noqa: B008
        data_dir: DataDir = None,
        device: Device = "auto",
        running: Any = of_run(),  # noqa: B008
        json: Json = False,
    ) -> None:
        changes = {k: v for part in vars(overrides).values() for k, v in vars(part).items() if v is not None}
        chosen = _chosen(family, recipe, data, changes, running)
        if seeds < 1:
            raise UsageError(f"--seeds must be >= 1, got {seeds}")
        for one in (seed, seed + seeds - 1):
            check_seed(one)
        reading = {"workers": given.workers} if isinstance(given, ImageFlags) else {}
        how = Running(
            progress=True, devices=running.devices, nodes=running.nodes, device=device,
            checkpoint_seconds=given.checkpoint_seconds, **reading,
        )  # fmt: skip
        records: list[dict[str, Any]] = []
        for one in range(seed, seed + seeds):
            folder = out if seeds == 1 else out / f"seed-{one}"
            known = given.given(data, folder, data_dir, chosen, changes)
            record = _train(chosen, running, how, known, folder, one, json, given, shown=seeds == 1)
            if running.print_recipe:
                return
            records += [] if record is None else [record]
        if seeds > 1 and records:  # other processes of a training have none
            _show_seeds(records, out, json)

    names, first = tuple(family.recipes), next(iter(family.recipes))
    named = "" if issubclass(of_data, TableFlags) else "that of the data set's name, else "
    hint = f"(default: {named}{first})"
    text = f"What the other flags start from, by name or a FILE.toml as --print-recipe prints it. {family.recipes_help}"
    more = "" if shown is None else f" --set FIELD=VALUE sets another field; {ALL} lists all that there are."
    command.__doc__ = f"""{family.about}{more}

    Args:
        out: Run folder: new, or the same run to resume.
        seed: Seed of a table's split, the weights and the order of the batches.
        seeds: How many trainings, with seeds SEED, SEED + 1, ..., each in its folder seed-N of --out; then mean and
            standard deviation of the test metrics.
        device: Where to train.
    """
    # strings could not name these
    command.__annotations__["data"] = Annotated[str, arg(help=names_of_data, metavar="NAME_OR_PATH")]
    command.__annotations__["recipe"] = Annotated[Literal[names] | None, arg(help=text, help_behavior_hint=hint)]  # pyright: ignore[reportInvalidTypeForm]
    command.__annotations__["overrides"] = Annotated[OmitArgPrefixes[flags], arg(name="")]
    command.__annotations__["given"] = OmitArgPrefixes[of_data]
    command.__annotations__["running"] = OmitArgPrefixes[of_run]
    return command


def _family(verb: str, words: Sequence[str]) -> Family:
    """Return the family of a verb; if there is one for tables and one for images, the one that reads --data."""
    of_verb = [family for family in FAMILIES.values() if family.verb == verb]
    first, *others = sorted(of_verb, key=lambda family: family.network.data is ImageData)
    given = [after for word, after in itertools.pairwise([*words, ""]) if word == "--data"]
    given += [word.partition("=")[2] for word in words if word.startswith("--data=")]
    if not others or not given:
        return first
    from htaf.data import image_sets, named

    of_images = image_sets.is_named(given[-1]) or Path(given[-1]).is_dir()
    return others[0] if of_images and not named.is_named(given[-1]) else first


def fitted(verb: str, words: list[str]) -> tuple[Callable[..., None], list[str]]:
    """Return the command of `train VERB` with the flags that its help shows and those that are given, and its words."""
    family = _family(verb, words)
    of_data = ConceptFlags if verb == "icbm" else DATA_FLAGS[family.network.data][0]
    fields: dict[str, Any] = {n: kind | None for part in family.parts.values() for n, kind in kinds(part).items()}
    for of in (of_data, RunFlags):
        fields |= get_type_hints(of, include_extras=True)
    words = expanded(words, fields, family.name)
    if ALL in words:
        return command_of(family), ["--help" if word == ALL else word for word in words]
    given = of_flags(words)
    return command_of(family, SHOWN | (given & fields.keys())), words


def __getattr__(name: str) -> Any:
    """`train_VERB`, to which a row of `htaf.cli` points, is the command of the family with this verb."""
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
    """Return the recipe by its name or that of the data set, or that of the run to go on from, with the flags'
    changes."""
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
    given: Given,
    out: Path,
    seed: int,
    json: bool,
    of_data: TableFlags | ImageFlags,
    *,
    shown: bool,
) -> dict[str, Any] | None:
    """Check what can be checked before the data are read; load, train, report on a table, print.

    Args:
        shown: print the result too.

    Returns:
        The record; None in a process that is not the first of a training, and where the recipe alone is printed.
    """
    try:
        chosen.recipe.network.fingerprint()  # before what takes seconds to import
    except ValueError as error:
        raise HtafError(str(error)) from None
    from htaf.cli.evaluating import beside_the_best, report_once, say_baselines
    from htaf.data.tabular import Table
    from htaf.tables.report.writing import PAGE, kept_baselines
    from htaf.training.distributed import PeerError, default_threads, first_process, thread_count
    from htaf.training.finish import best_of
    from htaf.training.fit import check, fit
    from htaf.training.problems import divided_notes, resolved
    from htaf.training.runs import check_folder, short_commit
    from htaf.training.runs.metrics import LOWER_IS_BETTER

    flags.check()
    recipe = chosen.recipe
    baselines = isinstance(of_data, TableFlags) and of_data.baselines
    if isinstance(of_data, ConceptFlags):
        of_data.asked(recipe)  # what cannot be is refused before the training
    several = running.devices * running.nodes > 1
    check(recipe, running)
    before = None
    if not flags.print_recipe:
        known = recipe.identity()
        if known.get("augment") == "auto":  # known once the data are
            del known["augment"]
        before = check_folder(out, {"seed": seed, "recipe": known}, part=True)
        if before is None:
            check_place(out / LOCK)
    if not several or first_process():
        say_notes(chosen.notes)
    data = given.read()
    recipe, why = resolved(recipe, data)
    divided = divided_notes(data, seed, given.options.get("split", ""))
    said = [*chosen.notes, *data.notes, *divided, *why]
    if not several or first_process():
        about = about_own(recipe, given.source["name"])
        if isinstance(of_data, ConceptFlags):
            from htaf.concepts.discovery import about_names

            about = [*about_names(recipe, len(data.classes)), *about]
        say_notes(told([*said[len(chosen.notes) :], *about]))
    if flags.print_recipe:
        _print_recipe(recipe, json)
        return None
    options = {**given.options, "continued": chosen.parent, "method": chosen.step, "running": running}
    if flags.threads is not None and before is not None and before["status"] != "finished":
        began = before["threads"]
        if began != flags.threads:
            say_notes([f"--threads {flags.threads}: {out} began with {began}, which a resumed training keeps"])
    try:
        with thread_count(flags.threads or default_threads(recipe)):
            run = fit(recipe, data, out, seed=seed, source=given.source, notes=(*chosen.notes, *why), **options)
    except PeerError:
        if first_process():
            raise
        raise SystemExit(1) from None  # the process that failed says why
    if several and not first_process():
        return None
    finished = before is not None and before["status"] == "finished"
    if isinstance(data, Table):
        report_once(run, data, baselines=baselines)
    elif isinstance(of_data, ConceptFlags):
        from htaf.concepts.discovery import kept_per_class
        from htaf.concepts.known import keep_known
        from htaf.concepts.run_heads import keep_readable, keep_trained

        per_class = kept_per_class(run, of_data.asked(recipe), recipe)
        run = keep_readable(run, data, per_class)
        if of_data.concepts_per_class == 0 and "heads" not in run.record:
            run = keep_trained(run)
        if run.record["model"]["kind"] == "icbm":
            keep_known(run, data, progress=running.progress)
    if before is not None and finished:
        commit = short_commit(before["commit"])
        tell(f"already done: {out} holds this training, finished (commit {commit}). Delete it to train again")
    say_notes(told(note for note in from_record(run.record["notes"]) if note not in said))
    if not shown:
        return run.record
    found = kept_baselines(run) if baselines else []
    if json:
        beside = {"baselines": [vars(one) for one in found], "verdict": beside_the_best(found, run.record)}
        print_json(run.record | (beside if found else {}))
        return run.record
    metrics, name = run.record["metrics"], run.record["headline"]
    lower, best = name in LOWER_IS_BETTER, best_of(run.record)
    of = f" of class {run.record['positive']!r}" if name == "auroc" and "positive" in run.record else ""
    title = f"{data.name}: {name}{of}{', lower is better' if lower else ''} ({recipe.activation.method}, {best})"
    rows: list[tuple[object, ...]] = []
    for part in ("validation", "test"):
        smooth = metrics["smooth"][part][name]
        exact = metrics["exact"][part][name] if metrics["exact"] else None
        rows.append((part, run.record["rows"][part], *figures(smooth, exact, lower_is_better=lower)))
    show(title, ("part", "rows", "smooth", "exact", "exact - smooth"), rows)
    if found:
        say_baselines(found, run.record)
    if run.record.get("heads", {}).get("rows"):
        from htaf.cli.concepts import show_heads

        show_heads(run.record["heads"])
    if (page := out / PAGE).is_file():
        say(f"report: {page}")
    say(f"run folder: {out}")
    return run.record


def _show_seeds(records: Sequence[Mapping[str, Any]], out: Path, json: bool) -> None:
    """Print mean and standard deviation of the test metrics of the trainings of one recipe."""
    import statistics

    found: dict[str, dict[str, Any]] = {}
    for network in ("smooth", "exact"):
        parts = [(record["metrics"][network] or {}).get("test", {}) for record in records]
        for metric in parts[0]:
            values = [part[metric] for part in parts]
            known = [value for value in values if value is not None]
            mean, deviation = (statistics.fmean(known), statistics.stdev(known)) if len(known) > 1 else (None, None)
            found.setdefault(network, {})[metric] = {"mean": mean, "deviation": deviation, "values": values}
    seeds, data = [record["seed"] for record in records], records[0]["data"]["name"]
    if json:
        return print_json({"data": data, "seeds": seeds, "headline": records[0]["headline"], "test": found})
    rows = [
        (metric, *(_spread(of.get(metric)) for of in (found["smooth"], found.get("exact", {}))))
        for metric in found["smooth"]
    ]
    show(
        f"{data}: test metrics, mean ± standard deviation over {len(seeds)} seeds", ("metric", "smooth", "exact"), rows
    )
    return say(f"run folders: {', '.join(str(out / f'seed-{seed}') for seed in seeds)}")


def _spread(figure: Mapping[str, Any] | None) -> str | None:
    """Return a figure of several seeds in a table; None where fewer than two have it."""
    if figure is None or figure["mean"] is None:
        return None
    return f"{figure['mean']:.4f} ± {figure['deviation']:.4f}"


def about_own(recipe: Recipe, data: str) -> list[str]:
    """Advise a pretrained backbone where a network would learn from the user's images alone."""
    from htaf.data.image_sets import is_named

    if recipe.network.family != "dhn" or is_named(data):
        return []
    command = f"htaf demo --pretrained hub --data {shlex.quote(data)}"
    return [f"this network learns from these images alone; a pretrained backbone is usually far better: {command}"]


def _print_recipe(recipe: Recipe, json: bool) -> None:
    """Print the effective values as JSON, or as a TOML table [recipe]."""
    from json import dumps

    values = recipe.effective()
    if json:
        return print_json(values)
    say("[recipe]")
    for name, value in values.items():
        if value is not None:  # TOML has no null: the field is at its default then
            say(f"{name} = {dumps(value, ensure_ascii=False)}")
    return None
