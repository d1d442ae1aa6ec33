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
from htaf._ground.files import LOCK, check_output_folder, check_place, regular
from htaf._ground.names import Method, is_outside
from htaf.cli.flags import Baselines, Column, Columns, DataDir, Device, Folder, Json, outside_step
from htaf.core.contract import StepFactory
from htaf.data.notes import from_record, told
from htaf.training.families import FAMILIES
from htaf.training.recipe import Family, ImageData, Recipe, RecipePart, Running, TableData, kinds

if TYPE_CHECKING:
    from htaf.concepts.run_heads import PerClass
    from htaf.data.tabular import Table
    from htaf.training.recipe import Source
    from htaf.training.runs import Run

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


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """How many processes train; see docs/scaling.md. OMP_NUM_THREADS says with how many threads each.

    Args:
        devices: Processes on this machine, one a GPU; batch_size is that of all together.
        nodes: Machines.
        print_recipe: Print the recipe with the values that would be used, as a TOML table, and train nothing.
    """

    devices: int = 1
    nodes: int = 1
    print_recipe: bool = False


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

    def source(self, data: str, out: Path, data_dir: str | None, recipe: Recipe, changes: Mapping[str, Any]) -> Source:
        """Return where the data come from, checked as far as possible before they are read.

        Raises:
            UsageError, DataError, OutputError: they cannot be read, or `out` cannot be written.
        """
        from htaf.data.table_files import check_path
        from htaf.data.tabular import is_named, located

        source = _source(data, self, ids=self.id)
        check_output_folder(out, [] if is_named(data) else [data], own="run")
        check_place(out / LOCK)
        if not is_named(data) and (place := located(data, data_dir)).suffix:
            check_path(place)  # before what trains is imported
        return source

    def read(self, source: Source, data_dir: str | None) -> Table:
        """Load the data."""
        return source.table(data_dir)

    def about(self, recipe: Recipe, data: Any, source: Source) -> list[str]:
        """Return advice on a training, before it begins."""
        return []

    def kept(self, run: Run, data: Any, recipe: Recipe, *, progress: bool) -> Run:
        """Return the run with what is made of it beside the training: the report of a table."""
        from htaf.cli.evaluating import report_once

        report_once(run, data, baselines=self.baselines)
        return run


def _source(data: str, flags: TableFlags | ImageFlags, **others: Any) -> Source:
    """Return the source that the flags describe. Raises UsageError for values that it does not have."""
    from htaf.training.recipe import Source

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

    def source(self, data: str, out: Path, data_dir: str | None, recipe: Recipe, changes: Mapping[str, Any]) -> Source:
        """As `TableFlags.source`."""
        from htaf.data.image_sets import expect_outside

        expect_outside(out, data)
        if recipe.network.supervised_by is not None and "attributes" not in changes and data.lower() != "cub":
            what = changes.get("bottleneck", "of this recipe")
            raise UsageError(f"--bottleneck {what} on {data} needs --attributes, a row for each class")
        return _source(data, self)

    def read(self, source: Source, data_dir: str | None) -> Any:
        """Load the data."""
        from htaf.data.image_sets import load

        return load(source.name, data_dir=data_dir, size=self.size)

    def about(self, recipe: Recipe, data: Any, source: Source) -> list[str]:
        """As `TableFlags.about`: a pretrained backbone, where a network would learn from the user's images alone."""
        from htaf.data.image_sets import is_named

        if recipe.network.family != "dhn" or is_named(source.name):
            return []
        command = f"htaf demo --pretrained hub --data {shlex.quote(source.name)}"
        return [f"this network learns from these images alone; a pretrained backbone is usually far better: {command}"]

    def kept(self, run: Run, data: Any, recipe: Recipe, *, progress: bool) -> Run:
        """As `TableFlags.kept`."""
        return run


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

    def source(self, data: str, out: Path, data_dir: str | None, recipe: Recipe, changes: Mapping[str, Any]) -> Source:
        """As `TableFlags.source`."""
        if changes.get("concepts") == 0 and recipe.flat()["bottleneck"] == "implicit":
            raise UsageError("--concepts must be >= 1, got 0; leave it out for as many as the recipe has")
        self.asked(recipe)  # what cannot be is refused before the training
        return super().source(data, out, data_dir, recipe, changes)

    def about(self, recipe: Recipe, data: Any, source: Source) -> list[str]:
        """As `TableFlags.about`."""
        from htaf.concepts.discovery import about_names

        return about_names(recipe, len(data.classes))

    def kept(self, run: Run, data: Any, recipe: Recipe, *, progress: bool) -> Run:
        """As `TableFlags.kept`: a head that can be read, and what is known of the training images."""
        from htaf.concepts.discovery import kept_per_class
        from htaf.concepts.known import keep_known
        from htaf.concepts.run_heads import keep_readable, keep_trained

        run = keep_readable(run, data, kept_per_class(run, self.asked(recipe), recipe))
        if self.concepts_per_class == 0 and "heads" not in run.record:
            run = keep_trained(run)
        if run.record["model"]["kind"] == "icbm":
            keep_known(run, data, progress=progress)
        return run

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
        step = outside_step(changes.get("method"))
        chosen = _recipe(family, recipe, data, changes, step)
        if seeds < 1:
            raise UsageError(f"--seeds must be >= 1, got {seeds}")
        for one in (seed, seed + seeds - 1):
            check_seed(one)
        reading = {"workers": given.workers} if isinstance(given, ImageFlags) else {}
        how = Running(
            progress=True, devices=running.devices, nodes=running.nodes, device=device,
            checkpoint_seconds=given.checkpoint_seconds, **reading,
        )  # fmt: skip
        runs: list[Run] = []  # of a process that is not the first none
        for one in [seed] if running.print_recipe else range(seed, seed + seeds):
            folder = out if seeds == 1 else out / f"seed-{one}"
            job = _Training(chosen, step, changes, data, data_dir, given, folder, one, running, how)
            runs += [run] if (run := job.run(json=json)) is not None else []
        if runs and seeds == 1:
            _show(runs[0], out, getattr(given, "baselines", False), json)
        elif runs:
            _show_seeds([run.record for run in runs], out, json)

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
    from htaf.data import image_sets
    from htaf.data import tabular as named

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


def _recipe(
    family: Family, name: str | None, data: str, changes: Mapping[str, Any], step: StepFactory | None
) -> Recipe:
    """Return the recipe by its name or that of the data set, with the flags' changes.

    Args:
        step: the class that `method` names, if it is one from outside htaf.

    Raises:
        UsageError: a bad value, or one that the recipe does not read. TrainingError: the step keeps no contract.
    """
    usual = data.lower() if data.lower() in family.recipes else next(iter(family.recipes))
    try:
        recipe = family.ready(name or family.suited(changes) or usual).replace(**changes)
        if is_outside(recipe.activation.method):
            from htaf.training.fit import with_step

            recipe = with_step(recipe, step)
        recipe.refuse_unread(changes.keys(), _flag)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return recipe


@dataclasses.dataclass(frozen=True)
class _Training:
    """One training of a command: its recipe, its data, where it is written, and how it runs.

    step: the class of the activation where that is from outside htaf. changes: the fields that were given.
    """

    recipe: Recipe
    step: StepFactory | None
    changes: Mapping[str, Any]
    data: str
    data_dir: str | None
    given: TableFlags | ImageFlags
    out: Path
    seed: int
    flags: RunFlags
    running: Running

    def run(self, *, json: bool) -> Run | None:
        """Check what can be checked before the data are read; load, train, report on a table.

        Returns:
            The run; None in a process that is not the first of a training, and where the recipe alone is printed.
        """
        source = self.given.source(self.data, self.out, self.data_dir, self.recipe, self.changes)
        from htaf.training.distributed import PeerError, default_threads, first_process, thread_count
        from htaf.training.fit import check, fit
        from htaf.training.problems import divided_notes, resolved, supervision
        from htaf.training.runs import short_commit

        check(self.recipe, self.running)
        before = None if self.flags.print_recipe else self._before()
        attributes = supervision(self.recipe, self.data_dir)
        data = self.given.read(source, self.data_dir)
        recipe, why = resolved(self.recipe, data)
        said = [*data.notes, *divided_notes(data, self.seed, source.mode), *why]
        first = self.running.world == 1 or first_process()
        if first:
            say_notes(told([*said, *self.given.about(recipe, data, source)]))
        if self.flags.print_recipe:
            return _print_recipe(recipe, json)
        remembered = source.remembered(self.data_dir, images=isinstance(self.given, ImageFlags))
        try:
            with thread_count(default_threads(recipe)):
                run = fit(
                    recipe, data, self.out, seed=self.seed, split=source.mode, source=remembered, notes=why,
                    attributes=attributes, method=self.step, running=self.running,
                )  # fmt: skip
        except PeerError:
            if first_process():
                raise
            raise SystemExit(1) from None  # the process that failed says why
        if not first:
            return None
        run = self.given.kept(run, data, recipe, progress=self.running.progress)
        if before is not None and before["status"] == "finished":
            commit = short_commit(before["commit"])
            tell(f"already done: {self.out} holds this training, finished (commit {commit}). Delete it to train again")
        say_notes(told(note for note in from_record(run.record["notes"]) if note not in said))
        return run

    def _before(self) -> dict[str, Any] | None:
        """Return the record of this training where its folder holds one already; another one is an error."""
        from htaf.training.runs.folder import check_folder

        known = self.recipe.identity()
        if known.get("augment") == "auto":  # known once the data are
            del known["augment"]
        before = check_folder(self.out, {"seed": self.seed, "recipe": known}, part=True)
        if before is None:
            check_place(self.out / LOCK)
        return before


def _show(run: Run, out: Path, baselines: bool, json: bool) -> None:
    """Print the result of a training: its headline figures, baselines and heads."""
    from htaf.cli.evaluating import beside_the_best, say_baselines
    from htaf.tables.report.writing import PAGE, kept_baselines
    from htaf.training.finish import best_of
    from htaf.training.runs.metrics import LOWER_IS_BETTER

    record, found = run.record, kept_baselines(run) if baselines else []
    if json:
        beside = {"baselines": [vars(one) for one in found], "verdict": beside_the_best(found, record)}
        return print_json(record | (beside if found else {}))
    metrics, name = record["metrics"], record["headline"]
    lower, how = name in LOWER_IS_BETTER, f"{record['recipe']['method']}, {best_of(record)}"
    of = f" of class {record['positive']!r}" if name == "auroc" and "positive" in record else ""
    rows: list[tuple[object, ...]] = []
    for part in ("validation", "test"):
        smooth = metrics["smooth"][part][name]
        exact = metrics["exact"][part][name] if metrics["exact"] else None
        rows.append((part, record["rows"][part], *figures(smooth, exact, lower_is_better=lower)))
    title = f"{record['data']['name']}: {name}{of}{', lower is better' if lower else ''} ({how})"
    show(title, ("part", "rows", "smooth", "exact", "exact - smooth"), rows)
    if found:
        say_baselines(found, record)
    if record.get("heads", {}).get("rows"):
        from htaf.cli.concepts import show_heads

        show_heads(record["heads"])
    if (page := out / PAGE).is_file():
        say(f"report: {page}")
    return say(f"run folder: {out}")


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
