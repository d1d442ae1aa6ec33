"""`htaf study`: methods compared with equal budgets, from a plan."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from htaf._console import UsageError, fail, print_json, say
from htaf._errors import suggestion
from htaf.cli.flags import DataDir, Json

if TYPE_CHECKING:
    from htaf.training.cells import Computing

Workers = Annotated[int, arg(help="Processes that compute, a cell at a time each; 0: in the process of the command.")]
Threads = Annotated[int, arg(help="Threads of each process.")]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], arg(help="Where to train.")]
Share = Annotated[
    str | None,
    arg(
        help="I/N: every Nth cell from the Ith, 1/N to N/N, as of an array of jobs.",
        metavar="I/N",
        help_behavior_hint="(default: all that no other process has or holds)",
    ),
]
EngineFlag = Annotated[
    Literal["local", "ray"], arg(help="local: processes of this machine; ray: tasks on the nodes of a Ray cluster.")
]
Address = Annotated[
    str | None,
    arg(
        help="Of the Ray cluster: HOST:PORT of its head node, or auto.",
        metavar="ADDRESS",
        help_behavior_hint="(default: a cluster of this machine alone)",
    ),
]


def study(
    plan: Annotated[Positional[str], arg(help="A TOML file, or the name of a ready study.", metavar="FILE_OR_NAME")],
    *,
    out: Annotated[
        Path,
        arg(
            help="Study folder. The same command again continues a stopped study, and on another machine helps it.",
            metavar="DIR",
        ),
    ],
    workers: Workers = 1,
    threads: Threads = 1,
    device: Device = "cpu",
    data_dir: DataDir = None,
    share: Share = None,
    engine: EngineFlag = "local",
    address: Address = None,
    keep_runs: Annotated[
        bool, arg(help="Keep the run folders of the final trainings, cells/KEY/run in the study folder.")
    ] = False,
    json: Json = False,
) -> None:
    """Search candidates with equal budgets, then train the chosen ones over several splits or seeds.

    A plan is a TOML file; docs/studies.md shows one. Ready studies: of the paper's tables tabular, and with 8 more
    tables tabular-exact (what helps the exact network); of its images images (reduced to two cores), or one family of
    it: images-dhn, images-bnn, images-snn; images-quick (all of CIFAR-10, small networks).
    """
    computing = computing_of(workers, threads, share, engine, address)
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
        fail(f"{failures} cells failed; give the same command again to retry them", 1)


def computing_of(
    workers: int, threads: int, share: str | None, engine: Literal["local", "ray"], address: str | None
) -> Computing:
    """How cells are computed; UsageError for what makes no sense."""
    if workers < 0 or threads < 1:
        raise UsageError(f"--workers must be >= 0 and --threads >= 1, got {workers} and {threads}")
    if address is not None and engine != "ray":
        raise UsageError("--address needs --engine ray")
    first, _, count = (share or "1/1").partition("/")
    if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise UsageError(f"--share: expected I/N with I from 1 to N, such as 3/8, got {share!r}")
    from htaf.training.cells import Computing

    part = None if share is None else (int(first), int(count))
    return Computing(workers, threads, part, engine, address, progress=True)
