"""`htaf paper bench|binarise|labelfree|leakage`: what the bits of a run are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from htaf._ground.console import (
    Rows,
    UsageError,
    check_seed,
    print_json,
    quiet_transformers,
    say,
    say_notes,
    show,
    tell,
)
from htaf._ground.files import LOCK, check_output_folder, check_place
from htaf.cli.concepts import (
    CodesDir,
    Out,
    ScoredPart,
    accuracies_of,
    image_run,
    own_images,
    show_accuracies,
)
from htaf.cli.flags import DataDir, Json, MethodOfRun, RunDir

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes, PartName
    from htaf.concepts.store import CodesFolder

SHOWN = 10  # concepts in the table
MOST_STEPS = 1_000_000
MOST_SEEDS = 1000


def bench(
    codes: CodesDir,
    *,
    features: Annotated[Path, arg(help="Of the backbone, from extract --keep backbone.", metavar="FEATURES")],
    out: Annotated[Path, arg(help="Folder for bench.md and bench.json.", metavar="DIR")],
    others: Annotated[
        tuple[str, ...],
        arg(
            help="More codes; the same NAME for several seeds of one training.",
            metavar="NAME=CODES ...",
            help_behavior_hint="(default: none)",
        ),
    ] = (),
    attributes: Annotated[
        str | None,
        arg(help="Of the classes.", metavar="cub|digits|CSV", help_behavior_hint="(default: none)"),
    ] = None,
    seeds: Annotated[int, arg(help="How often each of the other bits is drawn.")] = 3,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Compare codes with bits that anyone gets from the same features: are they concepts?"""
    if not 1 <= seeds <= MOST_SEEDS:
        raise UsageError(f"--seeds must lie in 1 to {MOST_SEEDS}, got {seeds}")
    if wrong := [text for text in others if "=" not in text]:
        raise UsageError(f"--others: expected NAME=CODES, got {wrong[0]!r}")
    named = [("these", codes), *((name, Path(place)) for name, _, place in (text.partition("=") for text in others))]
    check_output_folder(out, [*(folder for _, folder in named), features], own="folder of a bench")
    from htaf.concepts.store import open_codes, open_folder
    from htaf.data.attributes import load
    from htaf.training.runs import to_json, write_atomic
    from htaf_paper.bench import bench as measured
    from htaf_paper.bench import table

    given: dict[str, list[Codes]] = {}
    for name, folder in named:
        given.setdefault(name, []).append(open_codes(folder))
    known = None if attributes is None else load(attributes, data_dir=data_dir)
    result = measured(open_folder(features).features(), given, attributes=known, seeds=seeds, progress=tell)
    text = table(result, f"Are they concepts? {codes.name}")
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "bench.json", to_json(result))
    write_atomic(out / "bench.md", text)
    return print_json(result) if json else say(text)


def binarise(
    source: Annotated[Positional[Path], arg(help="Folder with the features of a plain network.", metavar="FEATURES")],
    *,
    out: Out,
    how: Annotated[
        Literal["median", "rates"],
        arg(help="median: each node's median is its threshold; rates: nodes are 1 as often as the concepts of --like."),
    ] = "median",
    like: Annotated[
        Path | None, arg(help="Codes for --how rates.", metavar="CODES", help_behavior_hint="(default: none)")
    ] = None,
    sorted: Annotated[
        bool, arg(help="With --how rates: pair nodes and concepts by the order of their rates, not by number.")
    ] = False,
    json: Json = False,
) -> None:
    """Make codes of features by one threshold for each node, from the training images."""
    if (how == "rates") != (like is not None) or (sorted and how != "rates"):
        raise UsageError("--how rates needs --like CODES; --like and --sorted are for --how rates alone")
    from htaf.concepts.store import open_codes, open_folder
    from htaf_paper.binarise import binarise as make

    copied = None if like is None else open_codes(like)
    make(source, out, how, like=copied, sorted=sorted, progress=True)
    show_accuracies(open_folder(out), out, json)


def labelfree(
    run: RunDir,
    *,
    texts: Annotated[Path, arg(help="Texts of the concepts, one a line.", metavar="FILE")],
    clip: Annotated[
        str,
        arg(
            help="CLIP or SigLIP in the format of transformers: a folder, or a name on the hub.",
            metavar="FOLDER_OR_NAME",
        ),
    ],
    out: Out,
    features: Annotated[
        Path | None,
        arg(
            help="Features of the run, from extract --keep backbone.",
            metavar="FEATURES",
            help_behavior_hint="(default: DIR-backbone, made or finished where needed)",
        ),
    ] = None,
    similarity: Annotated[
        float, arg(help="A concept is dropped unless its similarity (cos cubed) on validation images is larger.")
    ] = 0.45,
    clip_cutoff: Annotated[
        float, arg(help="A text is dropped unless the five images most like it have a larger mean similarity.")
    ] = 0.25,
    threshold: Annotated[Literal["mean", "median"], arg(help="Where a concept's bit turns to 1.")] = "mean",
    steps: Annotated[int, arg(help="Most steps of the projection.")] = 1000,
    seed: Annotated[int, arg(help="Of the projection's first weights.")] = 0,
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], arg(help="Where the models run.")] = "auto",
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Make codes whose concepts are texts, over the backbone of a run: a label-free concept bottleneck, by CLIP."""
    check_seed(seed)
    if not -1 <= similarity < 1 or not -1 <= clip_cutoff < 1:
        raise UsageError(f"--similarity and --clip-cutoff must be in [-1, 1), got {similarity} and {clip_cutoff}")
    if not 1 <= steps <= MOST_STEPS:
        raise UsageError(f"--steps must be in 1 to {MOST_STEPS}, got {steps}")
    check_place(out / LOCK)
    check_output_folder(out, [run, texts, clip, *([features] if features else [])], own="folder of codes")
    from htaf.concepts.extract import extract
    from htaf.concepts.store import open_folder
    from htaf_paper.image_text import load_image_text
    from htaf_paper.labelfree import label_free, read_texts

    given, notes = read_texts(texts)
    opened = image_run(run, method)
    quiet_transformers()
    try:
        model = load_image_text(clip)
        notes += cut_notes(given, model.too_long(given), model.length)
    except ValueError as error:
        raise UsageError(f"--clip: {error}") from None
    say_notes(notes)
    images = own_images(opened, data_dir, "train it again from images that stay where they are")
    if features is not None:
        read = open_folder(features).features()
    else:
        named = out if out.name not in ("", "..") else out.resolve()
        made = named.with_name(f"{named.name}-backbone")
        read = extract(opened, images, made, keep=["backbone"], device=device, progress=True).features()
    codes = label_free(
        opened, images, read, model, given, out, similarity=similarity, clip_cutoff=clip_cutoff, threshold=threshold,
        steps=steps, seed=seed, notes=notes, device=device, progress=True,
    )  # fmt: skip
    info = codes.info
    rows = accuracies_of(open_folder(out))
    if json:
        kept = {name: info[name] for name in ("texts", "similarity", "highest", "dropped", "image_text", "notes")}
        return print_json({"out": str(out), "images": len(codes), "concepts": codes.concepts, "parts": rows} | kept)
    order = sorted(range(codes.concepts), key=lambda j: -info["similarity"][j])[:SHOWN]
    listed = [(info["texts"][j], info["similarity"][j], info["highest"][j]) for j in order]
    show(f"{codes.concepts} of {len(given)} texts are concepts; the best", ("text", "cos cubed", "top 5"), listed)
    counts = {why: sum(row["why"] == why for row in info["dropped"]) for why in (d["why"] for d in info["dropped"])}
    for why, count in counts.items():
        say(f"{count} dropped: {why}")
    show("accuracy", ("part", "images", "soft", "bits"), [tuple(row.values()) for row in rows])
    return say(f"folder: {out}; names: {out / 'names.json'}")


def cut_notes(texts: list[str], cut: list[int], length: int) -> list[str]:
    """What is to be said of texts that are longer than the model takes."""
    if not cut:
        return []
    return [f"{len(cut)} of {len(texts)} texts have more than {length} tokens and are cut, such as {texts[cut[0]]:.60}"]


def leakage(
    codes: CodesDir,
    *,
    names: Annotated[
        Path | None, arg(help="Names of the concepts.", metavar="FILE", help_behavior_hint="(default: none)")
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
    json: Json = False,
) -> None:
    """State leakage: what soft values, and bits beyond their names, tell of the class."""
    if attributes is not None and names is None:
        raise UsageError("--attributes needs --names")
    from htaf.concepts.store import open_folder

    found = _leakage(open_folder(codes), names, attributes, part, data_dir)
    if json:
        return print_json(found)
    show(f"Leakage, part {part}", ("figure", "value"), _leakage_rows(found))
    return say(found["definition"])


def _leakage(
    folder: CodesFolder, names: Path | None, attributes: str | None, part: PartName, data_dir: str | None
) -> dict[str, Any]:
    """Of soft values where the folder has them, and of names where they are given."""
    from htaf.concepts.codes import codes_key
    from htaf.concepts.naming.files import read_names
    from htaf.data.attributes import load
    from htaf_paper.leakage import DEFINITION, named_leakage, soft_leakage

    codes = folder.codes()
    found: dict[str, Any] = {"soft": None, "named": None, "definition": DEFINITION}
    if "features" in folder.columns:
        found["soft"] = soft_leakage(codes, folder.features(), part=part)
    elif names is None:
        raise UsageError(
            f"{folder.path} has no pre-activations: give --names, or write them to a new folder with "
            "htaf concepts extract --keep features"
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
