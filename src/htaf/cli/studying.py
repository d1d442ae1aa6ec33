"""`htaf study`: methods compared with equal budgets, from a plan; `htaf study worker`: a machine that helps."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from htaf._console import UsageError, err, fail, print_json, say
from htaf._errors import suggestion
from htaf.cli.flags import DataDir, Json

if TYPE_CHECKING:
    from htaf.training.queue import Leasing


Store = Annotated[
    str,
    arg(
        help="A store for many machines: a folder, journal:PATH, postgresql://..., grpc://host:port; docs/scaling.md.",
        metavar="ADDRESS",
    ),
]
Threads = Annotated[int, arg(help="Threads of each process.")]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], arg(help="Where to train.")]
WorkFolder = Annotated[
    Path | None,
    arg(
        help="With a store: folder of checkpoints. On a shared disk another machine resumes what was begun.",
        metavar="DIR",
        help_behavior_hint="(default: htaf/work in the user's cache)",
    ),
]
Heartbeat = Annotated[float, arg(help="Seconds between two signs of life of a worker.")]
Timeout = Annotated[float, arg(help="Seconds without one after which its cell goes to another worker.")]
Patience = Annotated[float, arg(help="Seconds for which a store may be away, such as a server that restarts.")]


def study(
    plan: Annotated[Positional[str], arg(help="A TOML file, or the name of a ready study.", metavar="FILE_OR_NAME")],
    *,
    out: Annotated[
        Path, arg(help="Study folder. Give the same command again to continue a stopped study.", metavar="DIR")
    ],
    workers: Annotated[
        int, arg(help="Trainings at the same time, one process each. With --store 0: others train.")
    ] = 1,
    threads: Threads = 1,
    device: Device = "cpu",
    data_dir: DataDir = None,
    store: Annotated[
        str | None,
        arg(
            help="A store for many machines: a folder, journal:PATH, postgresql://..., grpc://host:port; "
            "docs/scaling.md.",
            metavar="ADDRESS",
            aliases=["--storage"],
            help_behavior_hint="(default: search.db in the study folder, this machine alone)",
        ),
    ] = None,
    results: Annotated[
        str | None,
        arg(
            help="With --store: where cells lie, a folder that all machines share or an address such as s3://...",
            metavar="PLACE",
            help_behavior_hint="(default: --out)",
        ),
    ] = None,
    work: WorkFolder = None,
    heartbeat: Heartbeat = 15.0,
    timeout: Timeout = 90.0,
    patience: Patience = 600.0,
    parallel: Annotated[
        int | None,
        arg(
            help="Candidates of an adaptive plan at the same time.",
            metavar="N",
            help_behavior_hint="(default: --workers)",
        ),
    ] = None,
    keep_runs: Annotated[
        bool, arg(help="Keep the run folders of the final trainings, in runs/ of the study folder.")
    ] = False,
    json: Json = False,
) -> None:
    """Search candidates with equal budgets, then train the chosen ones over several splits or seeds.

    A plan is a TOML file; docs/studies.md shows one. Ready studies: of the paper's tables tabular, and with 8 more
    tables tabular-exact (what helps the exact network); of its images images (reduced to two cores), or one family of
    it: images-dhn, images-bnn, images-snn; images-quick (all of CIFAR-10, small networks).
    """
    if min(workers, threads) < 1 and (workers or store is None or threads < 1):
        raise UsageError(
            f"--workers and --threads must be >= 1, or with --store --workers 0, got {workers} and {threads}"
        )
    if parallel is not None and parallel < 1:
        raise UsageError(f"--parallel must be >= 1, got {parallel}")
    if store is None and (results is not None or work is not None):
        raise UsageError("--results and --work need --store")
    leasing = leasing_of(heartbeat, timeout, patience)
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
        reports.append(
            run_study(
                one,
                folder,
                data_dir=data_dir,
                workers=workers,
                threads=threads,
                device=device,
                store=store,
                results=results if results is None or len(plans) == 1 else f"{results.rstrip('/')}/{one.name}",
                work=work,
                leasing=leasing,
                patience=patience,
                parallel=parallel,
                progress=True,
                keep_runs=keep_runs,
            )
        )
        if not json:
            say(markdown(reports[-1]), end="")
    if json:
        print_json(reports[0] if len(reports) == 1 else reports)
    if failures := sum(len(report["failures"]) for report in reports):
        fail(f"{failures} cells failed; give the same command again to retry them", 1)


def worker(
    *,
    store: Store,
    out: Annotated[
        str | None,
        arg(
            help="Where the study's results lie, seen from this machine: a folder or an address such as s3://...",
            metavar="PLACE",
            aliases=["--results"],
            help_behavior_hint="(default: as the study says)",
        ),
    ] = None,
    workers: Annotated[int, arg(help="Trainings at the same time, one process each.")] = 1,
    threads: Threads = 1,
    device: Device = "cpu",
    data_dir: DataDir = None,
    work: WorkFolder = None,
    wait: Annotated[bool, arg(help="Stay when there is nothing to do, for studies to come.")] = False,
    heartbeat: Heartbeat = 15.0,
    timeout: Timeout = 90.0,
    patience: Patience = 600.0,
    json: Json = False,
) -> None:
    """Help studies on a store: claim cells, train them on this machine, write their results, until there are none."""
    if min(workers, threads) < 1:
        raise UsageError(f"--workers and --threads must be >= 1, got {workers} and {threads}")
    leasing = leasing_of(heartbeat, timeout, patience)
    from htaf.training.worker import Work, run_workers

    def tell(what: str, text: str) -> None:
        err.print(f"note: {text}" if what == "note" else text)

    own: dict[str, Any] = {} if work is None else {"work": work}
    told = Work(
        store, results=out, data_dir=data_dir, device=device, threads=threads, wait=wait, leasing=leasing,
        patience=patience, **own,
    )  # fmt: skip
    found = run_workers(told, workers, tell)
    names = ("computed", "found", "failed", "given back", "lost")
    if json:
        return print_json({name: found[name] for name in names})
    return say(", ".join(f"{found[name]} {name}" for name in names if found[name]) or "no cell waits")


def leasing_of(heartbeat: float, timeout: float, patience: float) -> Leasing:
    """How leases are kept; UsageError for numbers that make no sense."""
    from htaf.training.queue import Leasing
    from htaf.training.results import StudyError

    if not 0 <= patience < float("inf"):
        raise UsageError(f"--patience must be >= 0 and finite, got {patience:g}")
    try:
        return Leasing(heartbeat, timeout)
    except StudyError as error:
        raise UsageError(f"--heartbeat and --timeout: {error}") from None
