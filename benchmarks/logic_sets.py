"""Jet substructure and UNSW-NB15, by which logic networks are compared, as tables for `htaf train logic`.

    python benchmarks/logic_sets.py jets FILE --out jets            # then the command that it prints
    python benchmarks/logic_sets.py unsw TRAINING.csv TESTING.csv --out unsw

jets: https://www.openml.org/d/42468 (hls4ml_lhc_jets_hlf), one file: ARFF, or CSV with a header; 16 numbers a jet and
`class`: g, q, t, w or z; 830,000 rows. unsw: https://research.unsw.edu.au/projects/unsw-nb15-dataset, the files
UNSW_NB15_training-set.csv (175,341 rows) and UNSW_NB15_testing-set.csv: `id`, 42 columns, `attack_cat` and `label`, 0
or 1. (In some copies the names of the two files are exchanged: the training set is the larger one.)

Neither was at hand here, so no figure of ours is of them.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import pandas as pd

COLUMNS = {"jets": 16, "unsw": 42}
TARGETS = {"jets": "class", "unsw": "label"}
LEFT_OUT = ("id", "attack_cat")


def read(file: Path) -> pd.DataFrame:
    """A CSV file with a header, or the columns and rows of an ARFF file. Its names are those of the attributes."""
    text = file.read_text("utf-8-sig")
    if file.suffix.lower() != ".arff":
        return pd.read_csv(io.StringIO(text))
    head, found, rows = text.partition("\n@data" if "\n@data" in text else "\n@DATA")
    if not found:
        raise SystemExit(f"{file}: expected @DATA in an ARFF file, got none")
    said = [line.split(None, 2) for line in head.splitlines() if line.lower().startswith("@attribute")]
    return pd.read_csv(io.StringIO(rows.strip()), names=[one[1].strip("'\"") for one in said], quotechar="'")


def table(name: str, file: Path) -> pd.DataFrame:
    """The columns that a network may read, and the target. Ends where the file has another layout."""
    found = read(file).drop(columns=[*LEFT_OUT], errors="ignore")
    target, inputs = TARGETS[name], found.shape[1] - 1
    if target not in found or inputs != COLUMNS[name]:
        raise SystemExit(f"{file}: expected {COLUMNS[name]} columns and {target!r}, got {', '.join(found.columns)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*COLUMNS])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.csv, and of unsw test.csv")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for part, file in zip(("train", "test"), given.files, strict=False):
        table(given.name, file).to_csv(given.out / f"{part}.csv", index=False)
    run, target = given.out / "run", TARGETS[given.name]
    print(f"htaf train logic --data {given.out / 'train.csv'} --target {target} --luts 1000 --out {run}")
    if len(given.files) > 1:
        print(f"htaf evaluate {run} --data {given.out / 'test.csv'}")


if __name__ == "__main__":
    main()
