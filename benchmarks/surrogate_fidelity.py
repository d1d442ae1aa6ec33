"""How far one tree of at most eight leaves stands for the default network of a table, on held-out rows.

python benchmarks/surrogate_fidelity.py a.csv:target b.csv:price --out fidelity.csv     # half a minute a table

Each table is split by chance (70/10/20) with `--seed` and trained with the default recipe. A row for each: the tree's
fidelity (agreement of classes, R2 of numbers) with its 95% interval, that of one answer for all rows, leaves, columns,
and accuracy, or R2, of network and tree against the true values; all on test rows. Seconds are of the tree alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pandas as pd

from htaf.data import tabular
from htaf.tables.rules import surrogate
from htaf.training.families.mlp import tabular_residual
from htaf.training.fit import fit
from htaf.training.recipe import Running


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", metavar="FILE:TARGET")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="a CSV file")
    options = parser.parse_args()
    found = []
    for given in options.tables:
        file, _, target = given.rpartition(":")
        table = tabular.load(file, target=target)
        with tempfile.TemporaryDirectory() as folder:
            run = fit(tabular_residual(), table, Path(folder) / "run", seed=options.seed, running=Running("cpu"))
            began = time.process_time()
            tree = surrogate(run, table)
        low, high = tree.fidelity.interval or (None, None)
        found.append(
            {
                "table": table.name,
                "rows": len(table.target),
                "columns": table.features.shape[1],
                "measure": tree.measure,
                "fidelity": round(tree.fidelity.value, 3),
                "low": low and round(low, 3),
                "high": high and round(high, 3),
                "one_answer": round(tree.usual, 3),
                "faithful": tree.faithful,
                "leaves": tree.leaves,
                "network": round(tree.network.value, 3),
                "tree": round(tree.tree.value, 3),
                "seconds": round(time.process_time() - began, 2),
                "rule": tree.rule,
            }
        )
        pd.DataFrame(found).to_csv(options.out, index=False)
        print(pd.DataFrame(found[-1:]).to_string(index=False, header=len(found) == 1))


if __name__ == "__main__":
    main()
