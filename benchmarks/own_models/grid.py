"""Trains and tests sixteen models by several methods.

    python -m benchmarks.own_models --out FILE.jsonl [--tasks ...] [--methods ...] [--seeds 0 1 2] [--jobs N]
    python -m benchmarks.own_models --table FILE.jsonl

A line a task, method and seed; those that are in the file are not run again. `ste`: of several slopes that of the best
validation measure, task by task.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from benchmarks.own_models.methods import METHODS
from benchmarks.own_models.problem import MissingDataError, Problem
from benchmarks.own_models.tasks import NAMES

Row = dict[str, Any]


def run(task: str, method: str, optimizer: str, seed: int) -> Row:
    torch.set_num_threads(1)
    problem: Problem = importlib.import_module(f"benchmarks.own_models.tasks.{task}").make(seed)
    begin = time.perf_counter()
    net = METHODS[method](problem, optimizer)
    seconds = time.perf_counter() - begin
    row = {"task": task, "method": method, "optimizer": optimizer, "seed": seed, "metric": problem.metric}
    row |= {"better": problem.better, "measure": problem.measure(net), "score": problem.score(net)}
    return row | {"seconds": round(seconds, 2)}


def key(row: Row) -> tuple[Any, ...]:
    return row["task"], row["method"], row["optimizer"], row["seed"]


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines() if line] if path.is_file() else []


def go(args: argparse.Namespace) -> None:
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done = {key(row) for row in read(args.out)}
    wanted = [(t, m, args.optimizer, s) for s in args.seeds for t in args.tasks for m in args.methods]
    wanted = [one for one in wanted if one not in done]
    with (
        ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool,
        args.out.open("a") as file,
    ):
        futures = {pool.submit(run, *one): one for one in wanted}
        for number, future in enumerate(as_completed(futures), 1):
            label = " ".join(map(str, futures[future]))
            try:
                row = future.result()
            except MissingDataError as error:
                print(f"[{number}/{len(wanted)}] {label}: left out: {error}", flush=True)
                continue
            except Exception as error:
                print(f"[{number}/{len(wanted)}] {label}: failed: {type(error).__name__}: {error}", flush=True)
                continue
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"[{number}/{len(wanted)}] {label}: {row['score']:.4g} in {row['seconds']} s", flush=True)


def best_slopes(rows: list[Row]) -> list[Row]:
    """Those of the slope with the best mean validation measure, task by task, under the name `ste`; of slopes that were
    run with as many seeds as any."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["method"].startswith("ste-"):
            found[row["task"], row["optimizer"]][row["method"]].append(row)
    made = []
    for by_slope in found.values():
        most = max(map(len, by_slope.values()))
        whole = [some for some in by_slope.values() if len(some) == most]
        best = min(whole, key=lambda some: statistics.fmean(r["measure"] for r in some))
        made += [row | {"method": "ste", "slope": row["method"][4:]} for row in best]
    return made


def error_of(values: list[float]) -> float:
    """The standard error of the mean."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def table(rows: list[Row], base: str = "ste") -> str:
    """Means (standard errors) by task and method; and against `base` the difference over its standard error, paired by
    seed, where > 0 is better; the mean of the relative gain, and how often a method is ahead or behind."""
    rows = rows + best_slopes(rows)
    by: dict[tuple[str, str, str], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        by[row["optimizer"], row["task"], row["method"]][row["seed"]] = row
    lines = []
    for optimizer in dict.fromkeys(o for o, _, _ in by):
        tasks = [t for t in NAMES if any((optimizer, t, m) in by for m in {r["method"] for r in rows})]
        methods = sorted({m for o, _, m in by if o == optimizer}, key=lambda m: (m.startswith("ste-"), m))
        for method in methods:
            ahead, behind, gains, cells = 0, 0, [], []
            for task in tasks:
                own = by.get((optimizer, task, method), {})
                other = by.get((optimizer, task, base), {})
                values = [r["score"] for r in own.values()]
                if not values:
                    cells.append(f"{task} -")
                    continue
                text = f"{task} {statistics.fmean(values):.4g} ({error_of(values):.2g})"
                common = sorted(own.keys() & other.keys())
                if common and method != base:
                    sign = 1 if own[common[0]]["better"] == "higher" else -1
                    differences = [sign * (own[s]["score"] - other[s]["score"]) for s in common]
                    difference = statistics.fmean(differences)
                    scale = statistics.fmean(abs(other[s]["score"]) for s in common)
                    spread = max(error_of([other[s]["score"] for s in common]), error_of(values))
                    gains.append(100 * difference / scale)
                    text += f" {100 * difference / scale:+.1f}%"
                    ahead, behind = ahead + (difference > 0), behind + (difference < -spread)
                    text += "!" if difference < -spread else ""
                cells.append(text)
            head = f"{optimizer} {method}"
            if gains:
                head += f": {statistics.fmean(gains):+.2f}% over {base}, ahead in {ahead}, behind by more than its "
                head += f"standard error in {behind} of {len(gains)}"
            lines += [head, "    " + ", ".join(cells)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, nargs="+", help="print what these files hold")
    parser.add_argument("--tasks", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "sgd", "muon"))
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if args.table:
        print(table([row for path in args.table for row in read(path)]))
    elif args.out:
        go(args)
    else:
        sys.exit("expected --out FILE to run, or --table FILE to print")
