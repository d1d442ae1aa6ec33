"""`htaf concepts sparse`: heads in which each class draws on few concepts, beside heads on other bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from tyro.conf import arg

from htaf._console import UsageError, check_seed, err, print_json, say, say_notes
from htaf._files import check_output_folder
from htaf.cli.concepts import Rows, ScoredPart, of_images, own_images, show
from htaf.cli.flags import DataDir, Json, RunDir
from htaf.cli.methods import MethodOfRun, step_of_run

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes
    from htaf.concepts.sparse import SparseHead
    from htaf.runs import Run

RESULT, TABLE, CODES, BACKBONE = "sparse.json", "sparse.md", "codes", "backbone"
MOST_SEEDS, DEFAULT = 1000, (5, 10)
CHOOSING = {"train": "fits", "validation": "chooses"}  # parts whose accuracy says too much
SOFT, LABEL_FREE = "soft:", "label-free"
MADE = ("random", "median")  # bits that are made of the backbone's features


def sparse(
    run: RunDir,
    *,
    out: Annotated[Path, arg(help="Folder of the result: a new one, or an earlier one.", metavar="DIR")],
    codes: Annotated[
        Path | None,
        arg(
            help="Codes of this run.",
            metavar="CODES",
            help_behavior_hint="(default: DIR/codes, made or finished where needed)",
        ),
    ] = None,
    nec: Annotated[
        tuple[int, ...],
        arg(
            help="Most concepts of a class; all of them are tried besides.",
            metavar="N ...",
            help_behavior_hint="(default: 5 10)",
        ),
    ] = (),
    baseline: Annotated[
        tuple[str, ...],
        arg(
            help="Other bits beside them. random: random hyperplanes of the backbone's features; median: those "
            "features cut at their medians; a folder: codes of the same images; soft: with it: its pre-activations.",
            metavar="random|median|CODES|soft:CODES ...",
            help_behavior_hint="(default: none)",
        ),
    ] = (),
    seeds: Annotated[int, arg(help="How many times random bits are drawn, and labels shuffled.")] = 3,
    seed: Annotated[int, arg(help="The first of these seeds.")] = 0,
    shuffled: Annotated[bool, arg(help="Fit to permuted labels too: what chance gives.")] = False,
    part: ScoredPart = "test",
    save_run: Annotated[
        Path | None,
        arg(
            help="Also write a run with the sparse head of the first --nec.",
            metavar="DIR",
            help_behavior_hint="(default: none)",
        ),
    ] = None,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Fit heads in which each class draws on few concepts, and compare with random bits of the same size.

    Says NEC (concepts of a class), NCC (concepts that make up 95% of a logit) and the accuracy at each size.
    """
    check_seed(seed)
    if min(nec, default=1) < 1:
        raise UsageError(f"--nec must be numbers >= 1, got {' '.join(map(str, nec))}")
    if not 1 <= seeds <= MOST_SEEDS:
        raise UsageError(f"--seeds must be in 1 to {MOST_SEEDS}, got {seeds}")
    if len(set(baseline)) < len(baseline):
        raise UsageError(f"expected different names for --baseline, got {', '.join(baseline)}")
    given = [name for name in baseline if name not in MADE]
    folders = {f"codes {name}": Path(name) for name in given if not name.startswith(SOFT)}
    soft = {f"soft {name.removeprefix(SOFT)}": Path(name.removeprefix(SOFT)) for name in given if name.startswith(SOFT)}
    for folder in (*folders.values(), *soft.values()):
        if not (folder / "concepts.json").is_file():
            raise UsageError(f"--baseline: expected random, median or a folder of codes, got {str(folder)!r}")
    check_output_folder(
        out, [run, *folders.values(), *soft.values(), *([codes] if codes else [])], own="folder of sparse heads"
    )
    if save_run is not None:
        check_output_folder(save_run, [run, out], own="run", flag="--save-run")
    from htaf.concepts.soft import SoftConcepts
    from htaf.concepts.sparse_report import compare, table
    from htaf.concepts.store import open_codes, open_features
    from htaf.runs import open_run, to_json, write_atomic

    opened = of_images(open_run(run, method=step_of_run(method)))
    size = getattr(opened.model(), "size", max(nec, default=1))
    if max(nec, default=1) > size:
        raise UsageError(f"--nec must be in 1 to {size}, the number of concepts, got {max(nec)}")
    limits = dict.fromkeys(nec or [n for n in DEFAULT if n < size] or [size])
    others: dict[str, list[Codes | SoftConcepts]] = {name: [open_codes(folder)] for name, folder in folders.items()}
    others |= {name: [SoftConcepts.of(open_features(folder))] for name, folder in soft.items()}
    images: Any = None
    if codes is None or any(name in MADE for name in baseline) or save_run is not None:
        images = own_images(opened, data_dir, "give --codes alone, without --baseline random or median and --save-run")
    own = open_codes(codes) if codes else _extracted(opened, images, out / CODES, not json)
    _of_run(own, opened)
    for name in baseline:
        if name in MADE:
            others[name] = [*_made(name, opened, images, out / BACKBONE, own.concepts, seeds, seed, not json)]
    if part in CHOOSING:
        say_notes([f"the {part} part {CHOOSING[part]} the heads: its accuracy is too high, the test part's is not"])
    told = None if json else lambda line: err.print(line, markup=False, highlight=False)
    shuffles = seeds if shuffled else 0
    result, heads = compare(
        own, others, targets=(*limits, None), shuffles=shuffles, part=part, seed=seed, progress=told
    )
    result = {"run": str(run), "key": opened.record["key"], **result}
    write_atomic(out / TABLE, table(result, title=f"Sparse heads of {run.name}"))
    write_atomic(out / RESULT, to_json(result))
    saved = None if save_run is None else _saved(opened, save_run, heads[0], images)
    if json:
        return print_json(result | ({} if saved is None else {"save_run": saved}))
    _shown(result)
    if saved is not None:
        say(f"run folder: {save_run}; accuracy on test (exact): {saved['exact']['test']['accuracy']:.4f}")
    return say(f"result: {out / RESULT}, {out / TABLE}")


def _extracted(run: Run, images: Any, out: Path, progress: bool) -> Codes:
    from htaf.concepts.codes import ConceptError
    from htaf.concepts.extract import extract

    if not run.has_step:
        raise ConceptError(
            f"{run.path} is a plain network (method relu), which has no bits: expected a run of a method with a step"
        )
    return extract(run, images, out, progress=progress).codes()


def _of_run(codes: Codes, run: Run) -> None:
    """Raises UsageError for codes of another run, or of other concepts than its own."""
    settings = codes.info.get("settings", {})
    if settings.get("what") == LABEL_FREE:
        raise UsageError("--codes: expected the run's own concepts, got a label-free bottleneck: give it as --baseline")
    of = settings.get("run")
    if of != run.record["key"]:
        raise UsageError(f"expected codes of the run {run.path}, got codes of another: extract them from this one")


def _made(
    how: str, run: Run, images: Any, out: Path, concepts: int, seeds: int, seed: int, progress: bool
) -> list[Codes]:
    """Bits of the backbone's features, as many as there are concepts, one for each seed."""
    import numpy as np

    from htaf.concepts.binarise import How, bits_of
    from htaf.concepts.codes import PARTS
    from htaf.concepts.extract import extract

    features = extract(run, images, out, keep=["backbone"], progress=progress).features()
    rows = np.flatnonzero(features.parts == PARTS.index("train"))
    kind: How = next(name for name in get_args(How) if name == how)
    size = features.values.shape[1]
    if how == "median" and concepts >= size:  # there are no more to draw from
        return [bits_of(features, rows, kind).codes(features)]
    return [bits_of(features, rows, kind, concepts=concepts, seed=seed + i).codes(features) for i in range(seeds)]


def _saved(run: Run, out: Path, found: SparseHead, images: Any) -> dict[str, Any]:
    """Write a run with a sparse head; its metrics."""
    from htaf.concepts.edit_head import measured_run, write_with_head

    about = {"what": "sparse", "target": found.target, "strength": found.strength, "ridge": found.ridge}
    note = f"head of the run at {run.path} replaced by a sparse one: at most {found.target} concepts a class"
    made = measured_run(run, out, lambda place, m: write_with_head(run, place, found.head, about, note, m), images)
    return made.record["metrics"]


def _shown(result: dict[str, Any]) -> None:
    own = result["own_head"]
    apart = {(row["bits"], row["target"]): row for row in result["differences"]}
    rows: list[tuple[object, ...]] = [("own head", "all", own["accuracy"], None, own["nec"], own["ncc"], None)]
    for row in result["summary"]:
        other = apart.get((row["bits"], row["target"]))
        low, high = other["interval"] if other else (0.0, 0.0)
        less = None if other is None else f"{100 * other['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        size = "all" if row["target"] is None else str(row["target"])
        rows.append((row["bits"], size, row["accuracy"], row["sd"], row["nec"], row["ncc"], less))
    listed: Rows = rows
    title = (
        f"{result['concepts']} concepts, {result['classes']} classes, part {result['part']}; at most so many concepts "
        "a class, differences in points"
    )
    columns = ("bits", "at most", "accuracy", "sd", "NEC", "NCC", "these less those (95%)")
    show(title, columns, listed)
