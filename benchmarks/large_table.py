"""Memory and time of a large CSV file: read, split, prepared.

python benchmarks/large_table.py                       # 5,000,000 rows of 8 numbers, a category, a date and a target
python benchmarks/large_table.py --columns 10000 --rows 500
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from pyarrow import Table, csv


def write(path: Path, rows: int, columns: int, task: str = "regression") -> None:
    """A file in pieces of 100,000 rows; of a classification the target is yes or no."""
    days = pd.date_range("2010-01-01", periods=3000, freq="D").strftime("%Y-%m-%d").to_numpy()
    for begin in range(0, rows, 100_000):
        rng, count = np.random.default_rng(begin), min(100_000, rows - begin)
        frame = pd.DataFrame(rng.normal(size=(count, columns)).round(5), columns=[f"x{i}" for i in range(columns)])
        frame["kind"], frame["day"] = rng.choice(["red", "green", "blue"], count), rng.choice(days, count)
        frame["y"] = frame["x0"] + rng.normal(size=count).round(5)
        if task == "classification":
            frame["y"] = np.where(frame["y"] > 0, "yes", "no")
        with path.open("ab") as file:
            csv.write_csv(
                Table.from_pandas(frame), file, csv.WriteOptions(include_header=not begin, quoting_style="none")
            )


def peak() -> float:
    """MiB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rows", type=int, default=5_000_000)
    words.add_argument("--columns", type=int, default=8)
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.csv"
        write(path, given.rows, given.columns)
        from htaf.data.parts import table_part
        from htaf.data.tabular import load, split

        size, before, start = path.stat().st_size / 2**20, peak(), time.perf_counter()
        print(f"file {size:.0f} MiB; this program before it is read {before:.0f} MiB", flush=True)
        table = load(path, target="y")
        print(f"load: {time.perf_counter() - start:.1f} s, {peak():.0f} MiB", flush=True)
        parts = split(table, 0)
        preprocessor = table.fit_preprocessor(parts.train)
        print(f"fit: {time.perf_counter() - start:.1f} s, {peak():.0f} MiB", flush=True)
        made = [table_part(table, preprocessor, rows) for rows in (parts.train, parts.validation, parts.test)]
        print(f"inputs {len(preprocessor.feature_names)}, rows {[len(part) for part in made]}")
        print(f"all: {time.perf_counter() - start:.1f} s, {peak():.0f} MiB = {peak() / size:.2f} files; "
              f"{(peak() - before) / size:.2f} without the program")  # fmt: skip


if __name__ == "__main__":
    main()
