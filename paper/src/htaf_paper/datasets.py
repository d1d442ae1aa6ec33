"""Table "Descriptions for datasets": the sizes that are printed, beside those of the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from htaf.data import image_sets
from htaf.data.reading import DataError
from htaf.data.tabular import load
from htaf_paper.computing import Task
from htaf_paper.protocol import Found, Outcome, Place, Scale, Setting, Table, command_of
from htaf_paper.verdicts import true

# name -> rows or images, and features, as printed
TABLES = {"wine": (4898, 11), "abalone": (4178, 8), "churn": (7043, 20), "fico": (10459, 23)}
IMAGES = {"cifar10": 60_000, "cifar100": 60_000}
# not in these files: what is published, and what is printed
PUBLISHED = (
    ("CUB-200", "11,788", "11,788", "first 50 classes at hand here"),
    ("Tiny-ImageNet", "100,000 training images", "100,000", "not supported"),
    ("WinoGrande-small", "640 + 1,267 = 1,907", "1,907", ""),
    ("WinoGrande-medium", "2,558 + 1,267 = 3,825", "3,823", "differs"),
    ("OpenBookQA", "4,957 + 500 = 5,457", "5,456", "differs"),
)


@dataclass(frozen=True)
class Datasets:
    """The item of the paper."""

    id: str = "datasets"
    title: str = "Sizes of the data sets"
    paper: str = "Table 4 (appendix D.1)"

    @property
    def settings(self) -> Mapping[Scale, Setting]:
        return {
            "smoke": Setting("sizes as they are published alone", 0.0),
            "full": Setting("counts rows and columns of the files", 20.0, data=(*TABLES, *IMAGES)),
        }

    def tasks(self, scale: Scale, found: Found, place: Place) -> Sequence[Task]:
        return ()

    def read(self, scale: Scale, found: Found, place: Place) -> Outcome:
        rows, wrong, missing = [], [], []
        command = command_of(self.id, "full", " --data-dir DATA")
        for name, (printed, columns) in TABLES.items() if scale == "full" else ():
            try:
                table = load(name, data_dir=place.data_dir)
            except DataError:
                missing.append((name, "not run: data", command))
                continue
            size, features = len(table.target), table.features.shape[1]
            same = (size, features) == (printed, columns)
            wrong += [] if same else [name]
            paper = f"{printed:,} x {columns}"
            rows.append((name, f"{size:,} x {features}", paper, "" if same else "differs"))
        for name, printed in IMAGES.items() if scale == "full" else ():
            try:
                pictures = image_sets.load(name, data_dir=place.data_dir)
            except DataError:
                missing.append((name, "not run: data", command))
                continue
            size = len(pictures.train) + len(pictures.test)
            wrong += [] if size == printed else [name]
            rows.append((name, f"{size:,}", f"{printed:,}", "" if size == printed else "differs"))
        rows += PUBLISHED
        wrong += [name for name, *_, note in PUBLISHED if note == "differs"]
        table = Table("Rows (x features) or images", ("data set", "counted or published", "paper", ""), tuple(rows))
        claim = true(
            "The sizes of the data sets are as printed", "Table 4", not wrong,
            f"they differ for {', '.join(wrong)}" if wrong else "all equal",
            rule="holds if every size that could be counted, or is published, is the printed one", scale=scale,
        )  # fmt: skip
        errata = (
            "Abalone has 4,177 rows (4,178 printed); Churn 19 predictors once the customer's ID is dropped (20); "
            "WinoGrande-medium 3,825 questions (3,823); OpenBookQA 5,457 (5,456).",
        )
        return Outcome((table,), (), (claim,), errata, (), tuple(missing))


STUDY = Datasets()
