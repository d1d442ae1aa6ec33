"""`htaf study`: methods compared with equal budgets, from a plan."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from htaf._console import UsageError, fail, print_json, say
from htaf._errors import suggestion
from htaf.cli.flags import DataDir, Json


def study(
    plan: Annotated[Positional[str], arg(help="A TOML file, or the name of a ready study.", metavar="FILE_OR_NAME")],
    *,
    out: Annotated[
        Path, arg(help="Study folder. Give the same command again to continue a stopped study.", metavar="DIR")
    ],
    workers: Annotated[int, arg(help="Trainings at the same time, one process each.")] = 1,
    threads: Annotated[int, arg(help="Threads of each process.")] = 1,
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], arg(help="Where to train.")] = "cpu",
    data_dir: DataDir = None,
    storage: Annotated[
        str | None,
        arg(
            help="Optuna storage, such as postgresql://...",
            metavar="URL",
            help_behavior_hint="(default: search.db in the study folder)",
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
    if min(workers, threads) < 1:
        raise UsageError(f"--workers and --threads must be >= 1, got {workers} and {threads}")
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
                storage=storage,
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
