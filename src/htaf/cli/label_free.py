"""`htaf concepts labelfree`: a bottleneck whose concepts are given as texts, over the backbone of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from htaf._console import UsageError, check_seed, print_json, quiet_transformers, say, say_notes
from htaf._files import LOCK, check_output_folder, check_place
from htaf.cli.concepts import Out, of_images, own_images, show
from htaf.cli.flags import DataDir, Json, RunDir
from htaf.cli.methods import MethodOfRun, step_of_run

SHOWN = 10  # concepts in the table
MOST_STEPS = 1_000_000


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
    from htaf.concepts.extract import Local, extract
    from htaf.concepts.labelfree import label_free, read_texts
    from htaf.concepts.store import open_features, open_folder
    from htaf.models.image_text import load_image_text
    from htaf.runs import open_run

    given, notes = read_texts(texts)
    opened = of_images(open_run(run, method=step_of_run(method)))
    quiet_transformers(json)
    try:
        model = load_image_text(clip)
        notes += cut_notes(given, model.too_long(given), model.length)
    except ValueError as error:
        raise UsageError(f"--clip: {error}") from None
    say_notes(notes)
    images = own_images(opened, data_dir, "train it again from images that stay where they are")
    if features is not None:
        read = open_features(features)
    else:
        named = out if out.name not in ("", "..") else out.resolve()
        made = named.with_name(f"{named.name}-backbone")
        read = extract(opened, images, made, keep=["backbone"], engine=Local(device), progress=not json).features()
    codes = label_free(
        opened, images, read, model, given, out, similarity=similarity, clip_cutoff=clip_cutoff, threshold=threshold,
        steps=steps, seed=seed, notes=notes, device=device, progress=not json,
    )  # fmt: skip
    info = codes.info
    rows = open_folder(out).accuracies()
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
