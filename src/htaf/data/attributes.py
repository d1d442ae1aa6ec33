"""Attributes of classes, such as "has a hooked bill": the candidates for the names of concepts."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float32, Float64

from htaf._ground.errors import first_line, suggestion
from htaf.data.image_sets import entries, folder_of
from htaf.data.notes import told
from htaf.data.reading import DataError, listed, to_number, to_text
from htaf.data.table_files import read_frame

# The 112 attributes of CUB in Koh et al. (2020), Concept Bottleneck Models, as places in attributes.txt counted from 0.
# They come from votes over a random 80% of the training images.
CBM_112 = (
    *(1, 4, 6, 7, 10, 14, 15, 20, 21, 23, 25, 29, 30, 35, 36, 38, 40, 44, 45, 50, 51, 53, 54, 56, 57, 59, 63, 64, 69),
    *(70, 72, 75, 80, 84, 90, 91, 93, 99, 101, 106, 110, 111, 116, 117, 119, 125, 126, 131, 132, 134, 145, 149, 151),
    *(152, 153, 157, 158, 163, 164, 168, 172, 178, 179, 181, 183, 187, 188, 193, 194, 196, 198, 202, 203, 208, 209),
    *(211, 212, 213, 218, 220, 221, 225, 235, 236, 238, 239, 240, 242, 243, 244, 249, 253, 254, 259, 260, 262, 268),
    *(274, 277, 283, 289, 292, 293, 294, 298, 299, 304, 305, 308, 309, 310, 311),
)
# Strokes of handwritten digits, by eye: attribute -> the digits that most people write so
DIGITS = {
    "closed loop": "0689",
    "straight vertical stroke": "149",
    "straight strokes only": "147",
    "horizontal stroke at the top": "57",
    "horizontal stroke at the bottom": "2",
    "opening to the left": "23579",
    "opening to the right": "56",
    "bow at the top": "02389",
    "bow at the bottom": "03568",
    "ends at the bottom in a point": "1479",
    "crossing strokes": "48",
}
NAMES = ("cub", "digits")
_TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


@dataclass(frozen=True, eq=False)
class Attributes:
    """What K classes have of A attributes.

    Attributes:
        names: of the A attributes.
        classes: of the K classes.
        values: float32 [K, A] in [0, 1]: the share of the class's images that have the attribute, or 0 and 1.
        notes: what was handled when they were read.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    values: Float32[np.ndarray, "classes attributes"]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.classes), len(self.names)):
            raise DataError(
                f"expected values [{len(self.classes)} classes, {len(self.names)} attributes], got {self.values.shape}"
            )
        if not ((self.values >= 0) & (self.values <= 1)).all():
            bad = self.values[~((self.values >= 0) & (self.values <= 1))][0]
            raise DataError(f"expected values of attributes in [0, 1], got {bad}")
        for what, names in (("classes", self.classes), ("attributes", self.names)):
            if repeated := [name for name, count in Counter(names).items() if count > 1]:
                raise DataError(f"expected distinct {what}, got {listed(repeated, 5)} more than once")

    def of(self, classes: Sequence[str]) -> Attributes:
        """Return the rows of these classes, in their order.

        A name that is not there as it stands is looked for without its number, in any case, underscores as blanks:
        "001.Black_footed_Albatross" finds "black footed albatross".

        Raises:
            DataError: classes that are not there; the message lists them.
        """
        exact = {name: row for row, name in enumerate(self.classes)}
        count = Counter(map(_plain, self.classes))
        plain = {_plain(name): row for row, name in enumerate(self.classes) if count[_plain(name)] == 1}
        rows = [exact.get(name, plain.get(_plain(name))) for name in classes]
        missing = [name for name, row in zip(classes, rows, strict=True) if row is None]
        if missing:
            near = suggestion(missing[0], self.classes)
            raise DataError(f"expected attributes of all classes, got none of {listed(missing, 10)}{near}")
        return replace(self, classes=tuple(classes), values=self.values[np.array(rows, dtype=np.intp)])

    def binary(self) -> Bool[np.ndarray, "classes attributes"]:
        """Return which classes have which attributes: values >= 0.5, bool [K, A]."""
        return self.values >= np.float32(0.5)


def load(name: str | os.PathLike[str], *, data_dir: str | os.PathLike[str] | None = None) -> Attributes:
    """Load the attributes of a public set, or of any table with a row for each class.

    "cub": 312 attributes of 200 classes, the share of annotators' votes. It is found as `htaf.data.image_sets.load`
    does; classes that classes.txt does not name get their number, such as "051". "digits": 11
    strokes of the ten digits, 0 and 1, bundled.

    Args:
        name: "cub" or "digits", in any case, or a CSV, TSV or Parquet file: first column `class`, then one column an
            attribute with 0 and 1, true and false, or shares in [0, 1].
        data_dir: a folder with the public sets.
    Returns:
        the attributes.
    Raises:
        DataError: nothing by that name, or a file that cannot be used.
    """
    given = os.fspath(name)
    if given.lower() == "digits":
        values = np.array([[digit in having for having in DIGITS.values()] for digit in "0123456789"], dtype=np.float32)
        return Attributes(tuple(DIGITS), tuple("0123456789"), values)
    if given.lower() in NAMES:
        return read_cub_attributes(folder_of("cub", data_dir))
    if not given or not Path(given).exists():  # "" would be the working folder
        raise DataError(
            f"{given!r}: expected {listed(NAMES)} or a CSV or Parquet file with a row for each class, got neither"
            f"{suggestion(given, NAMES)}"
        )
    return read_table(given)


def supervising(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Attributes:
    """Return the attributes that a supervised bottleneck learns: of "cub" the 112 of Koh et al. (2020), of a file all.

    Args, raises: as `load`.
    """
    table = load(name, data_dir=data_dir)
    if name.lower() != "cub":
        return table
    return replace(table, names=tuple(table.names[place] for place in CBM_112), values=table.values[:, CBM_112])


def read_cub_attributes(folder: Path) -> Attributes:
    """Read the shares of CUB-200-2011: attributes/class_attribute_labels_continuous.txt, in percent.

    Args:
        folder: `CUB_200_2011`; attributes.txt lies in it or, as in the official archive, beside it.
    Raises:
        DataError: missing files, or files that contradict each other.
    """
    listing = next((p for p in (folder / "attributes.txt", folder.parent / "attributes.txt") if p.is_file()), None)
    if listing is None:
        raise DataError(f"{folder}: expected attributes.txt in it or beside it, got none")
    file = folder / "attributes" / "class_attribute_labels_continuous.txt"
    names, classes = entries(listing), entries(folder / "classes.txt")
    try:
        values = np.loadtxt(file, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: expected lines of as many numbers ({first_line(error)})") from None
    rows, columns = values.shape
    fits = columns == len(names) and {*classes} <= {*map(str, range(1, rows + 1))}
    if not fits or not ((values >= 0) & (values <= 100)).all():
        raise DataError(
            f"{file}: expected a line for each of {len(classes)} classes, with percents of {len(names)} attributes, "
            f"got {rows} lines of {columns}, {values.min(initial=100)} to {values.max(initial=0)}"
        )
    unnamed = rows - len(classes)
    return Attributes(
        tuple(names.values()),
        tuple(classes.get(str(number), f"{number:03d}") for number in range(1, rows + 1)),
        (values / 100).astype(np.float32),
        (f"{unnamed} of {rows} classes are not in classes.txt: they go by number",) if unnamed else (),
    )


def read_table(path: str | os.PathLike[str]) -> Attributes:
    """Read attributes from a CSV, TSV or Parquet file, as `load` describes it.

    Raises:
        DataError: no column `class` in front, no attribute, repeated or nameless classes, values that are no shares.
    """
    frame, notes = read_frame(path)
    if again := [str(note.values[0]) for note in notes if note.kind == "name again"]:
        raise DataError(f"{path}: expected distinct column names, got {listed(again)} more than once")
    first, *others = map(str, frame.columns)
    if first.lower() != "class" or not others:
        raise DataError(f"{path}: expected the first column 'class' and one column or more, got {first!r} first")
    classes = to_text(frame[first], frozenset({""}))
    if any(name is None for name in classes):
        raise DataError(f"{path}: expected a class in each row, got none in row {list(classes).index(None) + 1}")
    values = np.stack([_shares(path, frame[column], classes) for column in others], axis=1).astype(np.float32)
    try:
        return Attributes(tuple(others), tuple(classes), values, tuple(told(notes)))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _shares(path: str | os.PathLike[str], column: pd.Series, classes: np.ndarray) -> Float64[np.ndarray, " classes"]:
    """Return one column of a table as numbers in [0, 1]."""
    texts = to_text(column)
    truth = pd.Series([_TRUTH.get(str(text).lower(), text) for text in texts], dtype=object)
    values, _ = to_number(truth)
    bad = ~((values >= 0) & (values <= 1))  # a missing value is neither
    if bad.any():
        row = int(np.argmax(bad))
        hint = "; divide percent by 100" if np.nanmax(values, initial=0) > 1 else ""
        raise DataError(
            f"{path}, column {column.name!r}, class {classes[row]!r}: expected 0 or 1, true or false, or a share "
            f"in [0, 1], got {str(column.iloc[row])!r}{hint}"
        )
    return values


def _plain(name: str) -> str:
    """Without a leading "001.", in lower case, runs of blanks, underscores and hyphens as one blank."""
    return re.sub(r"[\s_-]+", " ", re.sub(r"^\d+\.", "", name)).strip().lower()
