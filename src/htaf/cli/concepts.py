"""`htaf concepts extract|binarise|score|minimal-set|pictures`: what the bits of a run of `htaf train icbm` mean."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table as TextTable
from tyro.conf import Positional, arg

from htaf._console import Terminal, UsageError, check_seed, err, print_json, say, say_notes, say_unread
from htaf._files import LOCK, check_output, check_output_folder, check_place
from htaf.cli.flags import DataDir, Json, RunDir, needs_source
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.concepts.codes import ConceptError, MissingPartError, PartName

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes
    from htaf.runs import Run

CodesDir = Annotated[Positional[Path], arg(help="Folder that extract or binarise wrote.", metavar="CODES")]
Out = Annotated[Path, arg(help="Folder: a new one, or that of a stopped command, to continue it.", metavar="DIR")]
ScoredPart = Annotated[PartName, arg(help="Which images are scored.")]


@contextlib.contextmanager
def offering_parts(part: PartName) -> Iterator[None]:
    """Where codes lack the part that --part says, say which they have."""
    try:
        yield
    except MissingPartError as error:
        if error.part != part or not error.present:
            raise
        raise ConceptError(f"{error}: give --part {' or '.join(error.present)}") from None


Rows = Sequence[Sequence[object]]


def show(title: str, columns: Sequence[str], rows: Rows) -> None:
    """A table on the output."""
    text = TextTable()
    for i, column in enumerate(columns):
        text.add_column(column, justify="right" if i else "left", overflow="fold")
    for row in rows:
        text.add_row(*("-" if v is None else f"{v:.4f}" if isinstance(v, float) else str(v) for v in row))
    say(title)  # a table's own title would be folded to its width
    Terminal().print(text)


def of_images(run: Run) -> Run:
    """The run, if it was trained on images."""
    if not run.takes_images:
        raise UsageError(f"expected a run of `htaf train icbm`, {run.path} was trained on a table")
    return run


def own_images(run: Run, data_dir: str | None, instead: str) -> Any:
    """The images that a run was trained on; where it does not say which, the error says what to do instead."""
    with needs_source(instead):
        return of_images(run).data(data_dir=data_dir)


def extract(
    run: RunDir,
    *,
    out: Out,
    data: Annotated[
        str | None,
        arg(
            help="Other labelled images of the same classes.",
            metavar="NAME_OR_PATH",
            help_behavior_hint="(default: the run's own)",
        ),
    ] = None,
    files: Annotated[
        tuple[str, ...],
        arg(
            help="Images that are no set: files, folders, Parquet files, tar shards; also at addresses (s3://...).",
            metavar="FILE ...",
            help_behavior_hint="(default: none)",
        ),
    ] = (),
    parts: Annotated[
        tuple[PartName, ...],
        arg(help="Parts of the run's own images; other: training images that its recipe left out.",
            help_behavior_hint="(default: train validation test)"),
    ] = (),
    features: Annotated[bool, arg(help="Keep the pre-activations too: 4 bytes for each concept and image.")] = False,
    layer: Annotated[
        Literal["concepts", "backbone"],
        arg(help="backbone: no bits, but what the backbone gives, for htaf concepts binarise."),
    ] = "concepts",
    margins: Annotated[
        bool | None,
        arg(help="Keep them in 2 bytes, to order images by: how clearly on or off a bit is.",
            help_behavior_hint="(default: up to 256 MB)"),
    ] = None,
    part_images: Annotated[
        int | None,
        arg(help="Write folders of so many images, and a manifest: for codes past memory.",
            metavar="N", help_behavior_hint="(default: one folder)"),
    ] = None,
    column: Annotated[
        str | None,
        arg(help="--files: the column of images in Parquet files.", metavar="NAME",
            help_behavior_hint="(default: the only one of bytes, or image)"),
    ] = None,
    engine: Annotated[
        Literal["process", "ray"],
        arg(help="ray: on the nodes of a Ray cluster, in parts; a node that dies loses its blocks alone."),
    ] = "process",
    address: Annotated[
        str | None,
        arg(help="--engine ray: HOST:PORT of the head node, or auto: the cluster of this machine.", metavar="ADDRESS",
            help_behavior_hint="(default: a cluster of this machine alone)"),
    ] = None,
    actors: Annotated[
        tuple[int, int] | None,
        arg(help="--engine ray: networks at once, at least and at most.", metavar="MIN MAX",
            help_behavior_hint="(default: 1 to what the cluster has room for)"),
    ] = None,
    actor_cpus: Annotated[
        float | None,
        arg(help="--engine ray: CPUs, and threads, of each network.", help_behavior_hint="(default: 1)"),
    ] = None,
    actor_gpus: Annotated[
        float | None,
        arg(help="--engine ray: GPUs of each network.", help_behavior_hint="(default: 1 where there are some)"),
    ] = None,
    batch: Annotated[int, arg(help="Images at once.")] = 250,
    workers: Annotated[int, arg(help="Processes that read images and run the network.")] = 1,
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], arg(help="Where the network runs.")] = "auto",
    strict: Annotated[bool, arg(help="--files: stop where one cannot be read.")] = False,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Write the bits of images, and both networks' predictions, to a folder. Of a plain network (relu) its features.

    Of --files those that cannot be read are left out; the exit code is then 3.
    """
    if min(batch, workers) < 1:
        raise UsageError(f"--batch and --workers must be >= 1, got {batch} and {workers}")
    if part_images is not None and part_images < 1:
        raise UsageError(f"--part-images must be >= 1, got {part_images}")
    if bool(data) + bool(files) + bool(parts) > 1:
        raise UsageError(
            "expected at most one of --data, --files and --parts, got more (--parts are of the run's own images)"
        )
    if layer == "backbone" and (files or features or margins):
        raise UsageError(
            "--layer backbone writes features of labelled images: expected none of --files, --features and --margins"
        )
    if engine == "process" and (address, actors, actor_cpus, actor_gpus) != (None,) * 4:
        raise UsageError("--address, --actors, --actor-cpus and --actor-gpus are for --engine ray")
    check_place(out / LOCK)
    from htaf.concepts import extract as room
    from htaf.data.image_reading import image_files
    from htaf.data.image_sources import are_sources
    from htaf.runs import open_run

    opened, unread, total = of_images(open_run(run, method=step_of_run(method))), [], 0
    if margins and not opened.has_step:
        raise UsageError(f"--margins are of bits, {run} is a plain network (method relu): leave it out")
    options: dict[str, Any] = {"batch": batch, "workers": workers, "device": device, "progress": not json}
    shards = are_sources(files)
    if column is not None and not shards:
        raise UsageError("--column is for Parquet files: expected one in --files")
    if engine == "ray" or shards:
        if workers > 1:
            instead = "--actors" if engine == "ray" else "--engine ray"
            raise UsageError(f"--workers is for one folder of image files of this machine: expected {instead} instead")
        kept = {"features": features, "margins": margins, "strict": strict, "column": column}
        if files:
            chosen: Any = files
        else:
            chosen = (
                own_images(opened, data_dir, "give --data")
                if data is None
                else opened.other_data(data, data_dir=data_dir)
            )
            say_notes(chosen.notes)
        from htaf.concepts.blocks import InProcess, extract_blocks

        with ExitStack() as stack:
            if engine == "ray":
                from htaf.concepts.ray_engine import Actors, connected

                least, most = actors or (1, 0)
                pool = Actors(least, most, 1.0 if actor_cpus is None else actor_cpus, actor_gpus)
                used: Any = stack.enter_context(connected(address, pool, device=device, told=not json))
            else:
                used = InProcess(device)
            found: Any = extract_blocks(
                opened, chosen, out, part_images, engine=used, parts=parts or None, layer=layer, batch=batch,
                progress=not json, **kept,
            )  # fmt: skip
        if files:
            say_notes(found.info["notes"])
            unread = found.info["unreadable_files"]
            total = len(found) + found.info["unreadable"]
    elif files:
        listed, left_out = image_files([Path(file) for file in files])
        say_notes(left_out)
        kept = {"features": features, "margins": margins, "strict": strict}
        found = (
            room.extract_files(opened, listed, out, **kept, **options)
            if part_images is None
            else room.extract_parts(opened, listed, out, part_images, **kept, **options)
        )
        unread, total = found.info["unreadable_files"], len(listed)
    else:
        if data is None:
            chosen = own_images(opened, data_dir, "give --data")
        else:
            chosen = opened.other_data(data, data_dir=data_dir)
        say_notes(chosen.notes)
        if part_images is not None:
            kept = {"features": features, "margins": margins, "layer": layer}
            found = room.extract_parts(opened, chosen, out, part_images, parts=parts or None, **kept, **options)
        elif layer == "backbone":
            found = room.extract_features(opened, chosen, out, parts=parts or None, layer=layer, **options)
        elif opened.has_step:
            found = room.extract(
                opened, chosen, out, parts=parts or None, features=features, margins=margins, **options
            )
        else:
            found = room.extract_features(opened, chosen, out, parts=parts or None, **options)
    _summary(found, out, json)
    say_unread(unread, total, found.info.get("unreadable", 0))


def binarise(
    source: Annotated[Positional[Path], arg(help="Folder with the features of a plain network.", metavar="FEATURES")],
    *,
    out: Out,
    how: Annotated[
        Literal["median", "rates", "random"],
        arg(
            help="median: each node's median is its threshold; rates: nodes are 1 as often as the concepts of --like; "
            "random: random hyperplanes, each with half of the training images on either side."
        ),
    ] = "median",
    like: Annotated[
        Path | None, arg(help="Codes for --how rates.", metavar="CODES", help_behavior_hint="(default: none)")
    ] = None,
    sorted: Annotated[
        bool, arg(help="With --how rates: pair nodes and concepts by the order of their rates, not by number.")
    ] = False,
    concepts: Annotated[
        int | None,
        arg(
            help="With --how random (at most 20,000) or median: how many; of median so many nodes, drawn at random.",
            metavar="N",
            help_behavior_hint="(default: as many as features)",
        ),
    ] = None,
    seed: Annotated[int, arg(help="Seed of random hyperplanes and of nodes drawn.")] = 0,
    json: Json = False,
) -> None:
    """Make codes of features by one threshold for each node, from the training images, or by random hyperplanes."""
    check_seed(seed)
    if (how == "rates") != (like is not None) or (sorted and how != "rates"):
        raise UsageError("--how rates needs --like CODES; --like and --sorted are for --how rates alone")
    if concepts is not None and (how == "rates" or concepts < 1):
        raise UsageError(f"--concepts must be >= 1, and is not for --how rates, got {concepts}")
    from htaf.concepts.binarise import binarise as make
    from htaf.concepts.store import open_codes

    copied = None if like is None else open_codes(like)
    codes = make(source, out, how, like=copied, sorted=sorted, concepts=concepts, seed=seed, progress=not json)
    _summary(codes, out, json)


def _summary(found: Any, out: Path, json: bool) -> None:
    """Accuracy of each part of codes or features."""
    from htaf.concepts.codes import Codes
    from htaf.concepts.sharded import ShardedCodes
    from htaf.concepts.store import accuracies

    rows = found.accuracies() if isinstance(found, ShardedCodes) else accuracies(found)
    result = {"out": str(out), "images": len(found), "concepts": found.weight.shape[1], "parts": rows}
    if json:
        return print_json(result | {"notes": found.info.get("notes", [])})
    bits = "codes" in found.info["arrays"] if isinstance(found, ShardedCodes) else isinstance(found, Codes)
    of = "concepts" if bits else "features"
    title = f"{result['images']:,} images, {result['concepts']} {of}: accuracy"
    show(title, ("part", "images", "smooth", "exact"), [tuple(row.values()) for row in rows])
    return say(f"folder: {out}")


def score(
    codes: CodesDir,
    *,
    baseline: Annotated[
        tuple[Path, ...],
        arg(
            help="Codes of other networks, to compare class specificity with.",
            metavar="CODES ...",
            help_behavior_hint="(default: none)",
        ),
    ] = (),
    leakage: Annotated[
        bool, arg(help="State leakage too: what soft values, and bits beyond their names, tell of the class.")
    ] = False,
    names: Annotated[
        Path | None,
        arg(help="With --leakage: names of the concepts.", metavar="FILE", help_behavior_hint="(default: none)"),
    ] = None,
    attributes: Annotated[
        str | None,
        arg(
            help="With --names: the attributes of the classes that they were named after.",
            metavar="cub|digits|CSV",
            help_behavior_hint="(default: none)",
        ),
    ] = None,
    part: ScoredPart = "test",
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        arg(help="Also write tables and plots to this folder.", metavar="DIR", help_behavior_hint="(default: none)"),
    ] = None,
    json: Json = False,
) -> None:
    """Score concepts: gap, binarity, dead concepts, concept accuracy, class specificity, redundancy, sparsity."""
    if (names is not None and not leakage) or (attributes is not None and names is None):
        raise UsageError("--names needs --leakage, and --attributes needs --names")
    from htaf.concepts.report import write_report
    from htaf.concepts.scores import score_parts
    from htaf.concepts.sharded import open_sharded
    from htaf.concepts.store import in_parts, open_codes

    def opens(folder: Path) -> Any:
        return open_sharded(folder) if in_parts(folder) else open_codes(folder)

    if out is not None:
        check_output_folder(out, [codes, *baseline, *([names] if names else [])], own="folder of scores")
    others = {folder.name: opens(folder) for folder in baseline}
    if len(others) < len(baseline):
        raise UsageError(f"expected folders of different names for --baseline, got {', '.join(map(str, baseline))}")
    with offering_parts(part):
        scores = score_parts(opens(codes), baseline=others, scored=part, progress=not json)
    if leakage:
        scores["leakage"] = _leakage(open_codes(codes), codes, names, attributes, part, data_dir)
    files = write_report(scores, out, title=codes.name) if out is not None else []
    if json:
        return print_json(scores)
    accuracy, found, same = scores["accuracy"][part], scores["concept_accuracy"], scores["redundancy"]
    rows = [
        ("accuracy, smooth", accuracy["smooth"]),
        ("accuracy, exact", accuracy["exact"]),
        ("predictions that differ", accuracy["flips"]),
        ("binarity", scores["binarity"]),
        ("dead concepts", scores["dead"]["count"]),
        ("concept accuracy", found["mean"]),
        ("the same, balanced", found["balanced"]),
        ("the same, trivial", found["trivial"]),
        ("proportions <= 0.1 or >= 0.9", scores["class_specificity"]["extreme"]),
        *((f"the same, {name}", row["extreme"]) for name, row in scores["class_specificity"]["baselines"].items()),
        ("duplicate pairs", same["duplicates"]["count"]),
        ("complementary pairs", same["complementary"]["count"]),
        ("effective number of concepts", float(same["effective"])),
        ("concepts of a class (NEC)", scores["sparsity"]["nec"]),
        ("concepts of a decision (NCC)", scores["sparsity"]["ncc"]),
        *_leakage_rows(scores.get("leakage", {})),
    ]
    show(f"{scores['concepts']} concepts, part {part}", ("score", "value"), rows)
    for file in files:
        say(file)
    return None


def _leakage(
    codes: Codes, folder: Path, names: Path | None, attributes: str | None, part: PartName, data_dir: str | None
) -> dict[str, Any]:
    """Of soft values where the folder has them, and of names where they are given."""
    from htaf.concepts.codes import codes_key
    from htaf.concepts.leakage import DEFINITION, named_leakage, soft_leakage
    from htaf.concepts.naming.files import read_names
    from htaf.concepts.store import open_features
    from htaf.data.attributes import load

    found: dict[str, Any] = {"soft": None, "named": None, "definition": DEFINITION}
    if "features" in codes.info.get("arrays", ()):
        found["soft"] = soft_leakage(codes, open_features(folder), part=part)
    elif names is None:
        raise UsageError(
            f"--leakage: {folder} has no pre-activations: give --names, or write them to a new folder with "
            "htaf concepts extract --features"
        )
    if names is not None:
        known = None if attributes is None else load(attributes, data_dir=data_dir)
        read = read_names(names, codes.concepts, codes=codes_key(codes))
        found["named"] = named_leakage(codes, read, known, part=part)
    return found


def _leakage_rows(leakage: Mapping[str, Any]) -> Rows:
    rows: list[tuple[str, object]] = []
    if leakage.get("soft") is not None:
        soft = leakage["soft"]
        rows += [("leakage of soft values (CTL)", soft["ctl"]), ("accuracy gained by soft values", _gain(soft["gain"]))]
    if leakage.get("named") is not None:
        named = leakage["named"]
        rows.append((f"accuracy beyond {len(named['verified'])} verified names", _gain(named["unnamed"])))
        if shares := [row["beyond"] for row in named["beyond"] if row["beyond"] is not None]:
            rows.append(("of a bit's information, beyond its name", sum(shares) / len(shares)))
    return rows


def _gain(found: Mapping[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['difference']:+.4f} ({low:+.4f} to {high:+.4f})"


def minimal_set(
    codes: CodesDir,
    *,
    tolerance: Annotated[float, arg(help="Validation accuracy that may be lost, in percentage points.")] = 0.5,
    seed: Annotated[int, arg(help="Seed of the random orders of concepts to compare with.")] = 0,
    out: Annotated[
        Path | None,
        arg(
            help="Also write the result, with the new head, as JSON.",
            metavar="FILE",
            help_behavior_hint="(default: none)",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Look for a minimal concept set: as few concepts as keep the exact network's accuracy."""
    check_seed(seed)
    from htaf.concepts.minimal import minimal_set as search
    from htaf.concepts.store import open_codes
    from htaf.runs import to_json, write_atomic

    def told(kept: int, accuracy: float) -> None:
        err.print(f"{kept} concepts: validation accuracy {accuracy:.4f}")

    if out is not None:
        check_output(out, [codes])
    opened = open_codes(codes)
    result = search(opened, tolerance=tolerance, seed=seed, progress=None if json else told)
    if out is not None:
        write_atomic(out, to_json(result))
    if json:
        return print_json(result)
    accuracy = result["accuracy"]
    names = {"full": "all concepts", "kept": "minimal set, old head", "chosen": "minimal set, chosen head"}
    rows: list[Sequence[object]] = [
        (text, accuracy[name]["validation"], accuracy[name]["test"]) for name, text in names.items()
    ]
    most = max(result["curve"], key=int, default=None)
    if most is not None:
        rows.insert(1, (f"{most} concepts, refitted head", result["curve"][most], None))
        if result["curve"][most] > accuracy["full"]["validation"] + tolerance / 100:
            say_notes(
                [
                    "a refitted head is better than the trained one, so the network is undertrained: train longer, "
                    "then count again"
                ]
            )
    size = f"{result['needed']} of {opened.concepts} concepts ({result['head']} head)"
    title = f"minimal concept set: {size if result['needed'] else 'empty, the biases of the head alone are enough'}"
    show(title, ("accuracy", "validation", "test"), rows)
    return say("concepts:", *(result["kept"] or ["none"]))


def pictures(
    codes: CodesDir,
    run: RunDir,
    *,
    out: Annotated[Path, arg(help="Folder for concept-NUMBER.png.", metavar="DIR")],
    concept: Annotated[
        tuple[int, ...],
        arg(help="Numbers of concepts.", metavar="C ...", help_behavior_hint="(default: the five most important)"),
    ] = (),
    count: Annotated[int, arg(help="Images with the concept, and as many without it.")] = 8,
    where: Annotated[bool, arg(help="Draw over them where the concept is seen.")] = False,
    part: ScoredPart = "test",
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Draw images that have a concept above images that lack it, picked at random."""
    from htaf.concepts.completeness import most_important
    from htaf.concepts.pixels import pixels_of
    from htaf.concepts.report import pictures as draw
    from htaf.concepts.store import open_codes
    from htaf.runs import open_run, write_atomic

    check_output_folder(out, [codes, run], own="folder of scores")
    opened = open_codes(codes)
    of_run = open_run(run, method=step_of_run(method))
    images = own_images(of_run, data_dir, "draw them in Python, with htaf.concepts.report.pictures")
    maps = None
    if where:
        from htaf.concepts.where import Maps

        maps = Maps(of_run, images)
    chosen = concept or tuple(most_important(opened)[:5].tolist())
    files = []
    for number in chosen:

        def seen(rows: list[int], number: int = number) -> Any:
            ids = [opened.ids[row] for row in rows]
            return pixels_of(images, ids) if maps is None else maps.over(ids, number)

        with offering_parts(part):
            picture = draw(opened, seen, number, part=part, count=count)
        files.append(out / f"concept-{number}.png")
        write_atomic(files[-1], picture)
    if json:
        return print_json([str(file) for file in files])
    for file in files:
        say(file)
    return None
