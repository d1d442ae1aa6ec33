"""`htaf study`: methods compared with equal budgets, from a plan."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from htaf._console import FAILED, UsageError, fail, print_json, say
from htaf._errors import suggestion
from htaf.cli.flags import DataDir, Device, Folder, Json

if TYPE_CHECKING:
    from htaf.training.cells import Computing


@dataclass(frozen=True)
class ComputingFlags:
    """Who computes the cells.

    Args:
        workers: Processes that compute, a cell at a time each; 0: in the process of the command.
        threads: Threads of each process.
        share: I/N: every Nth cell from the Ith, 1/N to N/N, as of an array of jobs; none: all that no other process has
            or holds.
        engine: local: processes of this machine; ray: tasks on the nodes of a Ray cluster.
        address: Of the Ray cluster: HOST:PORT of its head node, or auto; none: a cluster of this machine alone.
    """

    workers: int = 1
    threads: int = 1
    share: Annotated[str | None, arg(metavar="I/N")] = None
    engine: Literal["local", "ray"] = "local"
    address: str | None = None

    def computing(self) -> Computing:
        """As cells take them; UsageError for what makes no sense."""
        if self.workers < 0 or self.threads < 1:
            raise UsageError(f"--workers must be >= 0 and --threads >= 1, got {self.workers} and {self.threads}")
        if self.address is not None and self.engine != "ray":
            raise UsageError("--address needs --engine ray")
        first, _, count = (self.share or "1/1").partition("/")
        if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
            raise UsageError(f"--share: expected I/N with I from 1 to N, such as 3/8, got {self.share!r}")
        from htaf.training.cells import Computing

        part = None if self.share is None else (int(first), int(count))
        return Computing(self.workers, self.threads, part, self.engine, self.address, progress=True)


def study(
    plan: Annotated[Positional[str], arg(metavar="FILE_OR_NAME")],
    *,
    out: Folder,
    cells: OmitArgPrefixes[ComputingFlags] = ComputingFlags(),
    device: Device = "cpu",
    data_dir: DataDir = None,
    keep_runs: bool = False,
    json: Json = False,
) -> None:
    """Search candidates with equal budgets, then train the chosen ones over several splits or seeds.

    A plan is a TOML file; docs/studies.md shows one. Ready studies: of the paper's tables tabular, and with 8 more
    tables tabular-exact (what helps the exact network); of its images images (reduced to two cores), or one family of
    it: images-dhn, images-bnn, images-snn; images-quick (all of CIFAR-10, small networks).

    Args:
        plan: A TOML file, or the name of a ready study.
        out: Study folder. The same command again continues a stopped study, and on another machine helps it.
        device: Where to train.
        keep_runs: Keep the run folders of the final trainings, cells/KEY/run in the study folder.
    """
    computing = cells.computing()
    from htaf.training.cells import OtherSharesError
    from htaf.training.plan import read_plan
    from htaf.training.report import markdown
    from htaf.training.study import run_study

    ready = {entry.name: entry for entry in metadata.entry_points(group="htaf.studies")}
    if plan in ready:
        loaded = ready[plan].load()()
        plans = loaded if isinstance(loaded, tuple) else (loaded,)
    elif plan.endswith(".toml"):
        plans = (read_plan(plan),)
    else:
        raise UsageError(
            f"expected a TOML file or one of {', '.join(sorted(ready))}, got {plan!r}{suggestion(plan, [*ready])}"
        )
    reports = []
    for one in plans:
        folder = out if len(plans) == 1 else out / one.name
        try:
            report = run_study(one, folder, computing, data_dir=data_dir, device=device, keep_runs=keep_runs)
        except OtherSharesError as left:
            say(str(left))
            continue
        reports.append(report)
        if not json:
            say(markdown(report), end="")
    if json:
        print_json(reports[0] if len(plans) == len(reports) == 1 else reports)
    if failures := sum(len(report["failures"]) for report in reports):
        fail(f"{failures} cells failed; give the same command again to retry them", FAILED)
