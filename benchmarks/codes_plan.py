"""A plan for codes of 1e9 images: seconds a pass and cost for numbers of machines, by simulation from measured rates.

A pass is a list of tasks, one for each part. A task takes

    max(work / rate of a core, bytes / share of the machine's reading) * factor of the machine * noise

noise is log-normal with mean 1. A share of the machines is slow all the time, by one factor (stragglers). A machine
fails after an exponential time; its tasks are lost and given out again, and it comes back after a while; what ended
tasks counted is kept. With backups, a core that finds no task left repeats the task that has run longest; the first to
end counts, the other is not stopped.

The rates are those of a core in a result of codes_scale.py (seconds of the processor). Machines, noise, failures and
the price of an hour are assumptions, given by flags. Before, the simulation without noise is compared
with the closed form.
"""

from __future__ import annotations

import heapq
import json
import math
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import measuring
import numpy as np


@dataclass(frozen=True)
class Cluster:
    """Machines, as the module says. seconds: of a task on one core. Times in seconds."""

    machines: int
    cores: int
    tasks: int
    seconds: float
    noise: float = 0.25
    slow: float = 0.05
    slow_factor: float = 3.0
    between_failures: float = math.inf
    restart: float = 120.0
    backups: bool = True


@dataclass(frozen=True)
class Pass:
    """What a simulated pass took: seconds, tasks that ran in vain, and machines that failed."""

    seconds: float
    wasted: int
    failures: int


def simulate(cluster: Cluster, seed: int) -> Pass:
    """One pass."""
    draw = np.random.default_rng(seed)
    factor = np.where(draw.random(cluster.machines) < cluster.slow, cluster.slow_factor, 1.0)
    waiting = list(range(cluster.tasks))[::-1]
    running: dict[int, tuple[int, int, float]] = {}  # attempt: task, machine, start
    copies: dict[int, int] = {}  # task: attempts under way
    done = np.zeros(cluster.tasks, bool)
    free = [cluster.cores] * cluster.machines
    events: list[tuple[float, int, str, int]] = []
    count, wasted, failures, left, now = 0, 0, 0, cluster.tasks, 0.0

    def push(time: float, kind: str, what: int) -> None:
        nonlocal count
        heapq.heappush(events, (time, count, kind, what))
        count += 1

    def start(task: int, machine: int) -> None:
        noise = draw.lognormal(-(cluster.noise**2) / 2, cluster.noise)
        running[count] = (task, machine, now)
        copies[task] = copies.get(task, 0) + 1
        free[machine] -= 1
        push(now + cluster.seconds * factor[machine] * noise, "end", count)

    def fill(machine: int) -> None:
        while free[machine] > 0:
            while waiting and done[waiting[-1]]:
                waiting.pop()
            if waiting:
                start(waiting.pop(), machine)
                continue
            alone = [(since, task) for task, _, since in running.values() if copies[task] == 1 and not done[task]]
            if not cluster.backups or not alone:
                return
            start(min(alone)[1], machine)

    for machine in range(cluster.machines):
        if math.isfinite(cluster.between_failures):
            push(draw.exponential(cluster.between_failures), "fail", machine)
    for _ in range(cluster.cores):  # a core of each machine at a time
        for machine in range(cluster.machines):
            if waiting and free[machine]:
                start(waiting.pop(), machine)
    while left:
        now, _, kind, what = heapq.heappop(events)
        if kind == "end":
            if what not in running:
                continue  # lost with its machine
            task, machine, _ = running.pop(what)
            copies[task] -= 1
            free[machine] += 1
            wasted += bool(done[task])
            left -= not done[task]
            done[task] = True
            fill(machine)
        elif kind == "fail":
            failures += 1
            for attempt in [a for a, (_, where, _) in running.items() if where == what]:
                task = running.pop(attempt)[0]
                copies[task] -= 1
                if not done[task]:
                    wasted += 1
                    if not copies[task]:
                        waiting.append(task)
            free[what] = -(10**9)
            push(now + cluster.restart, "back", what)
            for machine in range(cluster.machines):
                fill(machine)
        else:
            free[what] = cluster.cores
            push(now + draw.exponential(cluster.between_failures), "fail", what)
            fill(what)
    return Pass(now, wasted, failures)


def check() -> None:
    """Without noise a pass takes ceil(tasks / cores) tasks' time."""
    for machines, cores, tasks in ((1, 1, 7), (3, 2, 20), (4, 8, 1000), (50, 8, 100)):
        found = simulate(Cluster(machines, cores, tasks, 2.0, noise=0, slow=0, backups=False), 0)
        if not math.isclose(found.seconds, 2.0 * math.ceil(tasks / (machines * cores))):
            sys.exit(f"the simulation differs from the closed form: {found}")


def rates(file: Path) -> dict[str, float]:
    """Images a second of a core that are scored, and words a second that are compared, from codes_scale.py's result."""
    rows = json.loads(file.read_text())["rows"]
    scored = next(row for row in rows if row["what"] == "scores" and row["side"] == "score_parts")
    share = next(row for row in rows if row["what"] == "search" and row["side"] == "share")
    if scored["concepts"] != 512:
        sys.exit(f"expected rates of 512 concepts, got {scored['concepts']}")
    return {"scores": scored["images"] / scored["processor"][0], "search": share["words_a_second"]}


def main() -> None:
    parser = measuring.parser(__doc__)
    add = parser.add_argument
    add("measured", type=Path, help="a result of codes_scale.py")
    add("--images", type=int, default=10**9, help="default: 1e9")
    add("--bytes", type=int, default=64, help="of a code; default: 64, 512 bits")
    add("--part-images", type=int, default=10**6, help="default: 1e6")
    add("--queries", type=int, default=100, help="of a batch; default: 100")
    add("--machines", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="default: 1 2 4 8 16 32")
    add("--cores", type=int, default=8, help="of a machine; default: 8")
    add("--reading", type=float, default=2.0, help="GB a second that a machine reads; default: 2, a local NVMe disk")
    add("--noise", type=float, default=0.25, help="sigma of the logarithm; default: 0.25")
    add("--slow", type=float, default=0.05, help="share of slow machines; default: 0.05")
    add("--slow-factor", type=float, default=3.0, help="default: 3")
    add("--hours-between-failures", type=float, default=24.0, help="of one machine; default: 24")
    add("--restart", type=float, default=120.0, help="seconds until a machine is back; default: 120")
    add("--price", type=float, default=0.4, help="of a machine's hour; default: 0.40")
    add("--trials", type=measuring.at_least_one, default=100, help="default: 100")
    add("--seed", type=int, default=0, help="default: 0")
    args = parser.parse_args()
    check()
    found, rows = rates(args.measured), []
    tasks = math.ceil(args.images / args.part_images)
    reading = args.part_images * args.bytes / (args.reading * 1e9 / args.cores)
    work = {
        "scores": args.part_images / found["scores"],
        "search": args.part_images * args.queries * math.ceil(args.bytes / 8) / found["search"],
    }
    print(f"{tasks:,} parts of {args.part_images * args.bytes / 1e6:.0f} MB; a part in seconds of a core: scores "
          f"{work['scores']:.2f}, search of {args.queries} {work['search']:.2f}, reading {reading:.3f}")  # fmt: skip
    for what, seconds in work.items():
        for machines in args.machines:
            base = Cluster(
                machines, args.cores, tasks, max(seconds, reading), args.noise, args.slow, args.slow_factor,
                args.hours_between_failures * 3600, args.restart,
            )  # fmt: skip
            ideal = base.seconds * math.ceil(tasks / (machines * args.cores))
            for backups in (True, False):
                passes = [simulate(replace(base, backups=backups), args.seed + trial) for trial in range(args.trials)]
                spent = np.array([one.seconds for one in passes])
                middle, high = float(np.median(spent)), float(np.percentile(spent, 95))
                price = middle / 3600 * machines * args.price
                print(f"{what:7} {machines:3} machines, {'backups' if backups else 'none   '}: ideal {ideal:7.1f} s, "
                      f"median {middle:7.1f}, 95% {high:7.1f}, cost {price:.3f}", flush=True)  # fmt: skip
                rows.append(
                    {"what": what, "ideal": ideal, "median": middle, "percentile_95": high, "cost": price,
                     "wasted": float(np.mean([one.wasted for one in passes])),
                     "failures": float(np.mean([one.failures for one in passes])),
                     **asdict(replace(base, backups=backups)), "reading": reading, "trials": args.trials}
                )  # fmt: skip
    measuring.write(args.json, rows)


if __name__ == "__main__":
    main()
