"""`htaf concepts score --beside`: the bits of a network beside those that anyone gets from the same features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from htaf._console import UsageError, err, say
from htaf.cli.tables import show

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes, PartName
    from htaf.concepts.store import CodesFolder, Features

MOST_SEEDS = 100
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
    seeds: int = 3

    def check(self, out: Path | None) -> None:
        """Raises UsageError: flags that do not go together."""
        if self.beside is None:
            if self.attributes is not None:
                raise UsageError("--attributes needs --beside")
            return
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise UsageError(f"--seeds must be in 1 to {MOST_SEEDS}, got {self.seeds}")
        if not is_run(self.beside):
            check_features(self.beside)
        elif out is None:
            raise UsageError("--beside RUN needs --out, where its features are written")


def is_run(folder: Path) -> bool:
    """Whether it is a run folder."""
    return (folder / "record.json").is_file()


def check_features(place: Path) -> None:
    """Raises UsageError: a folder of codes, or of pre-activations of concepts."""
    from htaf.concepts.store import open_folder

    folder = open_folder(place)
    if "features" not in folder.columns:
        came = "codes without features"
    elif folder.info.get("settings", {}).get("layer") == "concepts" and folder.info.get("method") != "relu":
        came = "pre-activations of concepts"
    else:
        return
    raise UsageError(
        f"--beside: expected a run, or what its backbone gives, from htaf concepts extract RUN --keep backbone, got "
        f"{came}: {place}"
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


def beside(
    groups: Mapping[str, Sequence[CodesFolder]],
    flags: BesideFlags,
    out: Path | None,
    part: PartName,
    data_dir: str | None,
    *,
    told: bool,
) -> dict[str, Any]:
    """The result of `htaf.concepts.bench.bench`."""
    from htaf.concepts.bench import bench
    from htaf.data.attributes import load

    attributes = None if flags.attributes is None else load(flags.attributes, data_dir=data_dir)
    features = features_of(flags.beside or Path(), out, data_dir, progress=told)
    given: dict[str, list[Codes]] = {name: [folder.codes() for folder in some] for name, some in groups.items()}

    def tell(line: str) -> None:
        err.print(line, markup=False, highlight=False)

    return bench(features, given, attributes=attributes, seeds=flags.seeds, part=part, progress=tell if told else None)


def features_of(place: Path, out: Path | None, data_dir: str | None, *, progress: bool) -> Features:
    """What the backbone gives for the images: read, or made of a run."""
    from htaf.cli.concepts import of_images, own_images
    from htaf.concepts.extract import extract
    from htaf.concepts.store import open_features
    from htaf.runs import open_run

    if is_run(place) and out is not None:
        run = of_images(open_run(place))
        return extract(run, own_images(run, data_dir, "give a folder of features"), out / BACKBONE, keep=["backbone"],
                       progress=progress).features()  # fmt: skip
    return open_features(place)


def write_table(result: Mapping[str, Any], out: Path, title: str) -> list[Path]:
    """Write beside.md and beside.csv; the files."""
    from htaf._files import write_atomic
    from htaf.concepts.bench_table import as_csv, table

    for name, text in ((TABLE, table(result, title=title)), (CSV, as_csv(result))):
        write_atomic(out / name, text)
    return [out / TABLE, out / CSV]


def show_table(result: Mapping[str, Any]) -> None:
    """The figures that say most, and which bits are better; all are in the files."""
    from htaf.concepts.bench_table import COLUMNS, cell, rows_of, verdicts

    shown = [column for column in COLUMNS if column.short]
    rows = [(name, *(cell(row, column, spread=False) for column in shown)) for name, _, row in rows_of(result)]
    show(
        "Are they concepts? Accuracy of heads on all bits and on 5 a class, and:",
        ("bits", *(c.short for c in shown)),
        rows,
    )
    for line in verdicts(result):
        say(line)
