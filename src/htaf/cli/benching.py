"""`htaf concepts score --beside`: the bits of a network beside those that anyone gets from the same features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from htaf._console import UsageError, say, tell
from htaf.cli.tables import show

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes, PartName
    from htaf.concepts.extract import Keep
    from htaf.concepts.store import CodesFolder, Features
    from htaf.data.attributes import Attributes
    from htaf.data.images import Images
    from htaf.runs import Run

SEEDS, MOST_SEEDS = 3, 100
THESE = "these"
TABLE, CSV, BACKBONE, CODES = "beside.md", "beside.csv", "backbone", "codes"


@dataclass(frozen=True)
class BesideFlags:
    """Are they concepts? The same figures of other bits of the same features.

    Args:
        beside: Features of the backbone, from extract --keep backbone; or the run, whose features are made in --out.
            Beside the codes: random hyperplanes, median cut, ITQ, k-means, a sparse autoencoder, random class splits.
        attributes: Of the classes: cub, digits, or a CSV or Parquet file with a row for each class.
        seeds: How often each of these bits is drawn.
    """

    beside: Annotated[Path | None, arg(metavar="RUN_OR_FEATURES")] = None
    attributes: Annotated[str | None, arg(metavar="NAME_OR_FILE")] = None
    seeds: Annotated[int | None, arg(help_behavior_hint=f"(default: {SEEDS})")] = None

    def check(self, out: Path | None) -> None:
        """Raises UsageError: flags that do not go together."""
        if self.beside is None:
            for name in ("attributes", "seeds"):
                if getattr(self, name) is not None:
                    raise UsageError(f"--{name} needs --beside")
            return
        if self.seeds is not None and not 1 <= self.seeds <= MOST_SEEDS:
            raise UsageError(f"--seeds must be in 1 to {MOST_SEEDS}, got {self.seeds}")
        if is_run(self.beside) and out is None:
            raise UsageError("--beside RUN needs --out, where its features are written")


def is_run(folder: Path) -> bool:
    """Whether it is a run folder."""
    return (folder / "record.json").is_file()


def expect_features(folder: CodesFolder) -> None:
    """Raises UsageError: a folder of codes, or of pre-activations of concepts, in place of what a backbone gives."""
    if "features" not in folder.columns:
        came = "codes without features"
    elif folder.info.get("settings", {}).get("layer") == "concepts" and folder.info.get("method") != "relu":
        came = "pre-activations of concepts"
    else:
        return
    raise UsageError(
        f"--beside: expected a run, or what its backbone gives, from htaf concepts extract RUN --keep backbone, got "
        f"{came}: {folder.path}"
    )


def groups_of(codes: Path, baseline: Sequence[str]) -> dict[str, list[Path]]:
    """Folders of codes by name: those that are scored under `THESE`, each --baseline under its own or given name.

    Raises:
        UsageError: two folders of one name, which was not given.
    """
    found = {THESE: [codes]}
    for text in baseline:
        name, equals, folder = text.partition("=")
        given = bool(equals and name) and not Path(text).exists()
        path = Path(folder if given else text)
        name = name if given else path.name or path.resolve().name
        if name in found and not given:
            raise UsageError(
                f"expected folders of different names for --baseline, got {name!r} twice: give NAME=CODES, "
                "the same NAME for several seeds of one training"
            )
        found.setdefault(name, []).append(path)
    return found


@dataclass(frozen=True)
class Prepared:
    """What `htaf concepts score` needs, opened and checked before anything is made of a run.

    runs: a run and its images, of each folder that is a run. folders: of codes or features, each other one.
    attributes: of the classes, if any.
    """

    runs: Mapping[Path, tuple[Run, Images]]
    folders: Mapping[Path, CodesFolder]
    attributes: Attributes | None

    def made(self, place: Path, out: Path, *keep: Keep, progress: bool) -> CodesFolder:
        """The folder; of a run what is made of it in `out`."""
        from htaf.concepts.extract import extract

        if place not in self.runs:
            return self.folders[place]
        return extract(*self.runs[place], out, keep=keep, progress=progress)


def prepared(
    groups: Mapping[str, Sequence[Path]], flags: BesideFlags, out: Path | None, part: PartName, data_dir: str | None
) -> Prepared:
    """All that the command is given, opened.

    Raises:
        UsageError: a run of which nothing can be made, or features that are none. DataError: no such attributes, or not
            of these classes. MissingPartError: images of the part are missing.
    """
    from htaf.cli.concepts import of_images, own_images
    from htaf.concepts.codes import MissingPartError
    from htaf.concepts.store import open_folder
    from htaf.data.attributes import load
    from htaf.runs import open_run

    codes = [folder for some in groups.values() for folder in some]
    if other := [folder for folder in codes[1:] if is_run(folder)]:
        raise UsageError(f"--baseline: expected codes, from htaf concepts extract RUN, got the run {other[0]}")
    also = [] if flags.beside is None else [flags.beside]
    of_runs = {folder: open_run(folder) for folder in (codes[0], *also) if is_run(folder)}
    if codes[0] in of_runs and out is None:
        raise UsageError(
            f"{codes[0]} is a run: expected --out, where its codes are made, or codes of htaf concepts extract"
        )
    folders = {folder: open_folder(folder) for folder in (*codes, *also) if folder not in of_runs}
    if flags.beside in folders:
        expect_features(folders[flags.beside])
    instead = "give a folder of codes or features"
    runs = {folder: (of_images(run), own_images(run, data_dir, instead)) for folder, run in of_runs.items()}
    if runs and part == "other":  # which their recipes left out
        raise MissingPartError(part, ("train", "validation", "test"))
    for folder in folders.values():
        if part not in (present := [row["part"] for row in folder.accuracies()]):
            raise MissingPartError(part, present)
    attributes = None if flags.attributes is None else load(flags.attributes, data_dir=data_dir)
    if attributes is not None:
        attributes.of(runs[codes[0]][1].classes if codes[0] in runs else folders[codes[0]].classes)
    return Prepared(runs, folders, attributes)


def beside(
    opened: Mapping[str, Sequence[CodesFolder]],
    features: Features,
    attributes: Attributes | None,
    seeds: int | None,
    part: PartName,
) -> dict[str, Any]:
    """The result of `htaf.concepts.bench.bench`."""
    from htaf.concepts.bench import bench

    given: dict[str, list[Codes]] = {name: [folder.codes() for folder in some] for name, some in opened.items()}

    return bench(features, given, attributes=attributes, seeds=seeds or SEEDS, part=part, progress=tell)


def write_table(result: Mapping[str, Any], out: Path, title: str) -> list[Path]:
    """Write beside.md and beside.csv; the files."""
    from htaf._files import write_atomic
    from htaf.concepts.bench_table import as_csv, table

    for name, text in ((TABLE, table(result, title=title)), (CSV, as_csv(result))):
        write_atomic(out / name, text)
    return [out / TABLE, out / CSV]


def show_table(result: Mapping[str, Any]) -> None:
    """The figures that say most, and which bits are better; all are in the files."""
    from htaf.concepts.bench_table import cell, rows_of, shown, verdicts

    columns = [column for column in shown(result) if column.short]
    rows = [(name, *(cell(row, column, spread=False) for column in columns)) for name, _, row in rows_of(result)]
    show(
        "Are they concepts? Accuracy of heads on all bits and on 5 a class, and:",
        ("bits", *(c.short for c in columns)),
        rows,
    )
    for column in columns[2:]:
        say(f"{column.short}: {column.shows}")
    for line in verdicts(result):
        say(line)
