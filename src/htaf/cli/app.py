"""The command `htaf`: a few verbs.

Exit code 0: done; 1: it failed; 2: it was used wrongly; 3: done, but for images that cannot be read; 130: stopped.
"""

from __future__ import annotations

import dataclasses
import io
import signal
import sys
from importlib import metadata
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args

import tyro
from rich.table import Table as TextTable
from tyro.conf import Positional, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from htaf import __version__
from htaf._console import (
    Terminal,
    UsageError,
    check_seed,
    direction,
    fail,
    figures,
    plain_errors,
    print_csv,
    print_json,
    say,
    say_notes,
    say_unread,
)
from htaf._errors import suggestion
from htaf._files import LOCK, check_output, check_output_folder, hold, write_atomic
from htaf.cli.exploring import explore
from htaf.cli.interventions import concepts
from htaf.cli.naming import name_command
from htaf.cli.packing import export, pack, predictors
from htaf.cli.training import DataDir, Json, RunDir, needs_source, train

ABOUT = """Networks whose activations are 0 or 1, trained by ordinary gradient descent.

To begin: htaf train tabular --data digits --out runs/digits; then htaf evaluate runs/digits. htaf --version tells the
version, htaf VERB --help the flags of a verb."""

app = tyro.extras.SubcommandApp()
flags = ConstructorRegistry()


@flags.primitive_rule
def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A flag of type `T | None` reads and shows a T: None is what it is when it is left out."""
    kinds = get_args(info.type)
    if NoneType not in kinds or info.type_origin not in (Union, UnionType):
        return None
    kind: Any = Union[tuple(kind for kind in kinds if kind is not NoneType)]  # noqa: UP007
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
    if not isinstance(spec, PrimitiveConstructorSpec):
        return None
    return dataclasses.replace(
        spec,
        is_instance=lambda given: True if given is None else spec.is_instance(given),
        str_from_instance=lambda given: [] if given is None else spec.str_from_instance(given),
    )


@app.command
def evaluate(
    run: RunDir,
    *,
    data: Annotated[
        str | None,
        arg(
            help="Other labelled data: a table with the same columns, or images of the same classes.",
            metavar="NAME_OR_PATH",
            help_behavior_hint="(default: the run's own)",
        ),
    ] = None,
    part: Annotated[
        Literal["train", "validation", "test", "all"] | None,
        arg(help="Part of the run's own data.", help_behavior_hint="(default: test)"),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Measure the smooth and the exact network of a run, and the gap between them."""
    from htaf.runs import open_run
    from htaf.training.evaluate import evaluate as measure
    from htaf.training.metrics import LOWER_IS_BETTER

    opened = open_run(run)
    if data is not None:
        if part not in (None, "all"):
            raise UsageError(f"--part {part} is for the run's own data, not for --data {data}")
        part = "all"
        found = opened.other_data(data, data_dir=data_dir)
    else:
        with needs_source("give --data"):
            found = opened.data(data_dir=data_dir)
    say_notes(found.notes)
    result = measure(opened, found, part=part or "test")
    if json:
        return print_json(result)
    text = TextTable(title=f"{found.name}, {result['part']}, {result['rows']} rows", title_justify="left")
    for column in ("metric", "smooth", "exact", "gap"):
        text.add_column(column, justify="left" if column == "metric" else "right")
    for name, smooth in result["smooth"].items():
        exact = result["exact"][name] if result["exact"] else None
        text.add_row(name, *figures(smooth, exact, lower_is_better=name in LOWER_IS_BETTER))
    return Terminal().print(text)


@app.command
def predict(
    run: Annotated[Positional[Path], arg(help="Run folder, or a file of htaf pack.", metavar="RUN")],
    inputs: Annotated[
        Positional[tuple[Path, ...]],
        arg(
            help="A CSV or Parquet file with the raw columns; for a run on images, files or a folder.",
            metavar="INPUT",
            help_behavior_hint="(required)",
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        arg(help="Write a .csv or .parquet file.", metavar="FILE", help_behavior_hint="(default: print CSV)"),
    ] = None,
    smooth: Annotated[bool, arg(help="Use the smooth network instead of the exact one.")] = False,
    strict: Annotated[bool, arg(help="Images: stop at the first file that cannot be read.")] = False,
    json: Json = False,
) -> None:
    """Predict with the exact network: a column `prediction`, and a probability per class.

    Images that cannot be read keep their row, with the reason in a column `error`; the exit code is then 3.
    """
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise UsageError(f"--out must end in .csv or .parquet, got {out.name}")
    if not inputs:
        raise UsageError("expected INPUT: a CSV or Parquet file, or for a run on images files or a folder; got none")
    if out is not None:
        check_output(out, [run, *inputs])
    of_images, of_rows, takes_images = predictors(run, exact=not smooth)
    unread: dict[str, str] = {}
    if takes_images:
        from htaf.data.image_reading import image_files
        from htaf.data.reading import DataError

        frame = of_images(image_files(inputs), strict=strict).reset_index()
        unread = {} if strict else frame.set_index("image")["error"].dropna().to_dict()
        if unread and len(unread) == len(frame):
            first = next(iter(unread))
            raise DataError(f"none of {len(frame)} files can be read as an image: {first}: {unread[first]}")
    else:
        from htaf.data.reading import read_frame

        if len(inputs) != 1:
            raise UsageError(f"expected one CSV or Parquet file for a run on a table, got {len(inputs)}")
        rows, notes = read_frame(inputs[0])
        frame, seen = of_rows(rows)
        say_notes([*notes, *seen])
    if out is not None:
        data: Any = frame.to_csv(index=False) if out.suffix == ".csv" else frame.to_parquet(index=False)
        write_atomic(out, data)
    if json:
        print_json(frame.astype(object).where(frame.notna(), None).to_dict(orient="records"))
    elif out is None:
        print_csv(frame.to_csv(index=False))
    else:
        say(f"{len(frame)} rows: {out}")
    say_unread([f"{file}: {reason}" for file, reason in unread.items()], len(frame))


@app.command
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

    A plan is a TOML file; docs/studies.md shows one. Ready studies, of the paper's tables: tabular; images (reduced to
    two cores), or one family of it: images-dhn, images-bnn, images-snn.
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


@app.command
def theory(
    *,
    eps: Annotated[float, arg(help="Distance from the step that the bounds guarantee for |x| >= eps.")] = 0.1,
    alpha1: Annotated[
        tuple[float, ...],
        arg(help="Rows of the table.", metavar="ALPHA1 ...", help_behavior_hint="(default: the paper's)"),
    ] = (),
    json: Json = False,
) -> None:
    """Print the exact bounds beside the paper's table, and what its six pairs achieve."""
    from htaf import theory as bounds

    try:
        rows = bounds.bounds_table(eps, alpha1 or tuple(bounds.PAPER_BOUNDS))
        limit, least = bounds.product_limit(eps), bounds.alpha1_lower_bound(eps)
    except ValueError as error:
        raise UsageError(str(error)) from None
    achieved: list[dict[str, Any]] = [
        {
            "alpha0": a0,
            "alpha1": a1,
            "achieved_eps": bounds.achieved_eps(a0, a1),
            "slope_at_zero": bounds.slope_at_zero(a0, a1),
            "tail_constant": bounds.tail_constant(a0, a1),
            "gradient_share": bounds.gradient_share(a0, a1),
        }
        for a0, a1 in bounds.PAPER_PAIRS
    ]
    if json:
        return print_json(
            {"eps": eps, "alpha1_lower_bound": least, "product_limit": limit, "bounds": rows, "pairs": achieved}
        )
    console = Terminal()
    text = TextTable(title=f"Least alpha0 at eps = {eps:g} (alpha1 > {least:.4f})", title_justify="left")
    for column in ("alpha1", "exact alpha0", "rounded up", "paper", "equal", "alpha0 alpha1"):
        text.add_column(column, justify="right")
    for row in rows:
        equal = "" if row["paper"] is None else "yes" if row["paper"] == row["rounded_up"] else "NO"
        text.add_row(
            f"{row['alpha1']:g}",
            f"{row['alpha0']:.6f}",
            str(row["rounded_up"]),
            str(row["paper"] or ""),
            equal,
            f"{row['product']:.4f}",
        )
    console.print(text)
    console.print(f"alpha0 alpha1 tends to {limit:.4f} as alpha1 grows.\n", highlight=False)
    text = TextTable(title="The paper's pairs (its bound asks for eps = 0.1)", title_justify="left")
    for column in (
        "alpha0",
        "alpha1",
        "achieved eps",
        "slope at 0",
        "tail constant",
        "N(0,1) inputs with gradient > 1e-6",
    ):
        text.add_column(column, justify="right")
    for row in achieved:
        values = (
            f"{row['achieved_eps']:.5f}",
            f"{row['slope_at_zero']:.3f}",
            f"{row['tail_constant']:.3g}",
            f"{row['gradient_share']:.0%}",
        )
        text.add_row(f"{row['alpha0']:g}", f"{row['alpha1']:g}", *values)
    return console.print(text)


@app.command
def demo(
    *,
    out: Annotated[Path, arg(help="Folder for the runs, the table and the picture.", metavar="DIR")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, arg(help="Of the split, the weights and the order of the batches.")] = 0,
    json: Json = False,
) -> None:
    """Train three methods on handwritten digits, harden them, compare; then read the bits of a concept bottleneck, and
    write the page of its concepts.

    No download, under two minutes.
    """
    from htaf.cli.demo import run_concepts, run_demo

    check_seed(seed)
    if (out / "demo.json").exists():
        say_notes([f"{out} was finished before: delete it to train again"])
    check_output_folder(out, own="demonstration")
    with hold(out / LOCK, f"another process writes {out}"):
        rows = run_demo(out, seed=seed)
        found = run_concepts(out, seed=seed)
    if json:
        return print_json({"methods": rows, "concepts": found})
    text = TextTable(
        title="Handwritten digits, test accuracy in %: equal budgets, same weights smooth and exact",
        title_justify="left",
    )
    for column in ("method", "smooth", "exact 0/1", "gap", "epochs", "seconds"):
        text.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        values = (f"{100 * row[k]:.2f}" for k in ("smooth", "exact"))
        gap = f"{100 * row['gap']:+.2f} {direction(row['gap'])}".strip()
        text.add_row(row["method"], *values, gap, str(row["epochs"]), f"{row['seconds']:.1f}")
    console = Terminal(highlight=False)
    console.print(text)
    say(f"picture: {out / 'demo.png'}\n")
    text = TextTable(title=f"An image model whose last {found['concepts']} features are bits", title_justify="left")
    text.add_column("score, test images")
    text.add_column("value", justify="right")
    for name, field in (
        ("accuracy, smooth", "smooth"),
        ("accuracy, exact bits", "exact"),
        ("outputs within 0.01 of 0 or 1 before the step", "binarity"),
        ("a bit told from the class alone", "concept_accuracy"),
        ("the same, balanced over bits 1 and 0", "balanced"),
        ("the same, always the more frequent value", "trivial"),
    ):
        text.add_row(name, f"{100 * found[field]:.1f}%")
    size = found["bytes"]
    text.add_row("bytes of all images' concepts, packed", f"{size['packed']:,} of {size['float32']:,} in float32")
    console.print(text)
    for one in found["strongest"]:
        shown = f"most of {', '.join(one['most']) or 'none'} have it, few of {', '.join(one['few']) or 'none'}"
        console.print(f"concept {one['concept']}: {shown}; {one['picture']}", soft_wrap=True)
    say(f"scores: {out / 'concepts' / 'scores.md'}; go on with htaf concepts --help on {found['codes']}")
    names = found["names"]
    say(f"names: {names['found']} by strokes, {names['verified']} hold on digits that did not choose them")
    say(f"page: open {found['page']} in a browser, or serve it:")
    words = f"--codes {found['codes']} --names {out / 'names.json'} --out {out / 'explorer'}"
    return say(f"  htaf explore {found['run']} {words} --serve")


@app.command
def doctor(*, json: Json = False) -> None:
    """Say what this machine can do: versions, processor, accelerator, kernels, data sets."""
    from htaf.cli.doctor import report
    from htaf.runs import short_commit

    found = report()
    if json:
        return print_json(found)
    found["commit"] = short_commit(found["commit"])
    width = max(map(len, found))
    for name, value in found.items():
        shown = (
            ", ".join(f"{k}: {'yes' if v else 'no'}" for k, v in value.items()) if isinstance(value, dict) else value
        )
        say(f"{name:<{width}}  {shown}")
    return None


app.command(name="pack")(pack)
app.command(name="export")(export)
app.command(train, name="train", help="Train a network with 0/1 activations.")
concepts.command(name="name")(name_command)
app.command(concepts, name="concepts", help="Extract, score, name and edit the concepts of an ICBM.")
app.command(name="explore")(explore)


def main() -> None:
    """Entry point of the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # names of classes and columns are any text
    signal.signal(signal.SIGINT, signal.default_int_handler)  # after the imports, see `_compat`
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a scheduler sends is to stop as Ctrl-C does
    with plain_errors():
        if sys.argv[1:] == ["--version"]:
            return say(f"htaf {__version__}")
        app.cli(prog="htaf", description=ABOUT, registry=flags)
    return None
