"""A concept of one's own in a run on images: what `find_concept` finds, in plain words and pictures."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, UInt8
from matplotlib.figure import Figure
from torch import Tensor

from htaf._ground.errors import listed
from htaf.concepts.codes import ConceptError
from htaf.concepts.finding import FEWEST, FEWEST_PAIRS, LEVEL, Bit, Found, evenly, find_concept
from htaf.concepts.heads import Head
from htaf.concepts.passes import ConceptNetwork, Device
from htaf.concepts.where import rgb, spaced
from htaf.data.image_reading import image_files
from htaf.data.reading import DataError
from htaf.training.runs import Run, to_json, write_atomic

RECORD, IMAGES = "found.json", "images.png"
BATCH = 16  # images in one pass
COLUMNS = 8  # of a picture
BITS = 10  # that are listed
CLASSES = 3  # that an answer names
PAIRED = 0.8  # share of the names that are on both sides, so that the images are pairs


@dataclass(frozen=True, eq=False)
class Sides:
    """Images with a concept, then those without.

    Attributes:
        names: paths. pixels: as the network sees them, before normalisation. has_concept: whether an image is one with.
        paired: both sides have the same names but for their endings, so image i of both is one pair.
        notes: what was left out. unread: "path: reason" of files that cannot be read.
    """

    names: Sequence[str]
    pixels: UInt8[Tensor, "n channels height width"]
    has_concept: Bool[np.ndarray, " n"]
    paired: bool
    notes: Sequence[str]
    unread: Sequence[str]


def read_sides(run: Run, with_: Sequence[Path], without: Sequence[Path]) -> Sides:
    """The images of both sides, read as `htaf predict` reads them.

    Of very many files of a side some are read, evenly spread by name. Of equal images of a side the first is taken:
    with its copy it would be left out of no fit.

    Args:
        run: of `htaf train icbm`. with_, without: files and folders.

    Raises:
        ConceptError: a file or an image on both sides, or fewer than 5 images on one. DataError: no images.
    """
    preprocessor: Any = run.preprocessor()
    files: list[list[Path]] = []
    keys: list[list[str]] = []
    notes: list[str] = []
    for given, side in ((with_, "with"), (without, "without")):
        found, left_out = image_files(given)
        inside = {file: str(file.relative_to(place)) for place in given if place.is_dir() for file in found
                  if file.is_relative_to(place)}  # fmt: skip
        named = sorted((inside.get(file, file.name), file) for file in found)
        some = [named[row] for row in evenly(len(named))]
        files.append([file for _, file in some])
        keys.append([name for name, _ in some])
        notes += left_out
        if len(some) < len(named):
            notes.append(f"{len(some):,} of the {len(named):,} images {side} it are taken, evenly spread by name")
    both = {file.resolve() for file in files[0]} & {file.resolve() for file in files[1]}
    if both:
        raise ConceptError(
            f"expected other files without the concept than with it, got {len(both):,} on both sides, such as "
            f"{min(both)}"
        )
    pixels, problems = preprocessor.read_each([*files[0], *files[1]])
    names = [*map(str, files[0]), *map(str, files[1])]
    own = np.arange(len(names)) < len(files[0])
    unread = [f"{name}: {str(why).removeprefix(f'{name}: ')}" for name, why in zip(names, problems, strict=True) if why]
    if len(unread) == len(names):
        raise DataError(f"none of {len(names)} files can be read as an image: {unread[0]}")
    seen: dict[bytes, int] = {}
    kept, copies = [], []
    for row in (row for row, why in enumerate(problems) if why is None):
        first = seen.setdefault(pixels[row].numpy().tobytes(), row)
        if first == row:
            kept.append(row)
        elif own[first] != own[row]:
            raise ConceptError(
                f"expected other images without the concept than with it, got one on both sides: {names[first]} and "
                f"{names[row]}"
            )
        else:
            copies.append(names[row])
    if copies:
        notes.append(f"left out, as equal to others of their side: {listed(copies, 3)}")
    first, second = ([row for row in kept if own[row] == side] for side in (True, False))
    if min(len(first), len(second)) < FEWEST:
        raise ConceptError(
            f"expected at least {FEWEST} images with the concept and as many without, got {len(first)} and "
            f"{len(second)}{f'; not read: {unread[0]}' if unread else ''}"
        )
    key = [str(Path(name).with_suffix("")) for name in (*keys[0], *keys[1])]
    of = [{key[row]: row for row in rows} for rows in (first, second)]
    same = [name for name in of[0] if name in of[1]]
    paired = len(same) >= max(FEWEST_PAIRS, PAIRED * max(len(first), len(second)))
    if paired:
        if alone := len(first) + len(second) - 2 * len(same):
            notes.append(f"images whose name is not on both sides are left out, as the others are pairs: {alone:,}")
        first, second = ([rows[name] for name in same] for rows in of)
    elif 2 * len(same) >= min(len(first), len(second)):
        notes.append(
            f"{len(same):,} names are on both sides, too few to take the images as pairs: that takes {FEWEST_PAIRS}, "
            f"and {PAIRED:.0%} of a side's"
        )
    rows = [*first, *second]
    return Sides([names[row] for row in rows], pixels[rows], own[rows], paired, notes, unread)


def find_in_run(run: Run, sides: Sides, out: Path | None = None, *, device: Device = "auto") -> dict[str, Any]:
    """Look for a concept in a run, and write found.json and images.png.

    Args:
        run: of `htaf train icbm`, with bits. sides: of `read_sides`.
        out: a folder, made where it does not exist; files of these names are replaced. None: nothing is written.
        device: where the network runs.

    Returns:
        what found.json holds.

    Raises:
        ConceptError: a run without bits, features that are not finite or all the same.
    """
    network = ConceptNetwork(run, device)
    if network.plain:
        raise ConceptError(f"expected a run with bits, {run.path} is a plain network (method relu)")
    net: Any = network.smooth if network.exact is None else network.exact
    normalise = network.preprocessor.normalise
    with torch.no_grad():
        features = torch.cat(
            [net.features(normalise(some.to(network.device))).float().cpu() for some in sides.pixels.split(BATCH)]
        ).numpy()
    if len(bad := np.flatnonzero(~np.isfinite(features).all(1))):
        raise ConceptError(f"expected finite features, got others for the image {sides.names[bad[0]]}")

    @torch.no_grad()
    def pre_activations(x: np.ndarray) -> np.ndarray:
        return net.pre_activations(torch.from_numpy(x.astype(np.float32)).to(network.device)).cpu().double().numpy()

    notes = []
    if sides.paired and not _are_alike(features[sides.has_concept], features[~sides.has_concept]):
        sides = replace(sides, paired=False)
        notes.append("the images of one name are no more alike than others, so they are not taken as pairs")
    head = Head(network.weight.astype(np.float64), network.bias.astype(np.float64))
    found = find_concept(
        features[sides.has_concept], features[~sides.has_concept], pre_activations, head, paired=sides.paired
    )
    bits = pre_activations(features) >= 0
    result = _record(run, sides, found, bits, network.preprocessor.classes)
    result |= {"notes": notes, "answers": answers(result)}
    if out is not None:
        files: dict[str, bytes | str] = {RECORD: to_json(result), IMAGES: _images(result, sides, found)}
        for name, content in files.items():
            write_atomic(out / name, content)
    return result


def _are_alike(with_: Float32[np.ndarray, "pairs f"], without: Float32[np.ndarray, "pairs f"]) -> bool:
    """Whether most rows are nearer to their partner (cosine) than to any other's, as one photo is to its copy. Numbered
    files of other photos have the same names too."""
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True).clip(1e-12) for side in (with_, without)]
    cosine = unit[0] @ unit[1].T
    nearest = (cosine <= np.diag(cosine)[:, None]).all(1)
    return bool(nearest.mean() > 1 / 2)


def _record(run: Run, sides: Sides, found: Found, bits: np.ndarray, classes: Sequence[str]) -> dict[str, Any]:
    bit, direction, pairs = found.bit, found.direction, found.pairs
    shares = [float(bits[found.has_concept == side, bit.concept].mean()) for side in (True, False)]
    turned = np.argsort(-np.abs(direction.turned), kind="stable")[:BITS]
    return {
        "run": str(run.path),
        "model_sha256": run.record["model_sha256"],
        "with": int(found.has_concept.sum()),
        "without": int((~found.has_concept).sum()),
        "paired": sides.paired,
        "of_classes": {"differ": found.of_classes, "apart": found.apart, "p": found.apart_p},
        "follows": None if found.follows is None else "bit" if isinstance(found.follows, Bit) else "direction",
        "bit": {name: getattr(bit, name) for name in ("concept", "on", "agreement", "p", "used", "changed")}
        | {
            "with": shares[0],
            "without": shares[1],
            "weights": dict(zip(classes, bit.weights.tolist(), strict=True)),
        },
        "direction": {name: getattr(direction, name) for name in ("auc", "p", "used", "changed", "changed_by_chance")}
        | {
            "classes": _by_gain(classes, direction.gains, direction.gains_p),
            "bits": [{"concept": int(j), "turned": float(direction.turned[j])} for j in turned if direction.turned[j]],
        },
        "pairs": None
        if pairs is None
        else {
            "changed": pairs.changed,
            "classes": _by_gain(classes, pairs.gains, pairs.gains_p),
        },
        "images": [
            {
                "image": sides.names[row],
                "with": bool(found.has_concept[row]),
                "score": float(direction.scores[row]),
                "prediction": classes[found.predicted[row]],
                "moved": classes[direction.moved[row]],
                "flipped": classes[bit.flipped[row]],
            }
            for row in range(len(sides.names))
        ],
    }


def _by_gain(classes: Sequence[str], gains: np.ndarray, p: np.ndarray) -> list[dict[str, Any]]:
    return [{"class": classes[k], "gain": float(gains[k]), "p": float(p[k])} for k in np.argsort(-gains, kind="stable")]


def answers(result: Mapping[str, Any]) -> dict[str, str]:
    """Say what was found in a few lines, each with a heading."""
    bit, direction, follows, paired = (result[key] for key in ("bit", "direction", "follows", "paired"))
    counts = f"{result['with']:,} images with it, {result['without']:,} without"
    if paired:
        counts = f"{result['with']:,} pairs of images, by their names"
    found = {
        "bit": f"concept {bit['concept']} follows it",
        "direction": "no bit follows it closely; a direction in the features of the backbone does",
        None: "nothing follows it in these images: the network does not see it, or they are too few",
    }[follows]
    lines = {
        **({"first": _of_classes_alone(result)} if result["of_classes"]["differ"] else {}),
        "found": f"{found} ({counts})",
        "bit": f"concept {bit['concept']} is on in {bit['with']:.0%} of the images with it, {bit['without']:.0%} of "
        f"those without; as good a bit by chance: p = {bit['p']:.3f}",
        "direction": f"of two images left out of its fit the one with it scores higher in {direction['auc']:.0%} of "
        f"cases, by chance in 50%: p = {direction['p']:.3f}",
    }
    many = len(result["images"])
    if paired:
        pairs, half = result["pairs"], many // 2
        lines["used"] = (
            f"of {half:,} pairs {pairs['changed'] * half:,.0f} have another prediction with it; {_gains(pairs)}"
        )
    elif direction["p"] <= LEVEL:
        changed, chance = direction["changed"] * many, direction["changed_by_chance"] * many
        lines["used"] = (
            f"{'yes' if direction['used'] else 'not shown'}: moved along the direction {changed:,.0f} of {many:,} "
            f"predictions change, by chance {chance:,.1f}; {_gains(direction)}"
        )
    if follows == "bit":
        weights = [weight if bit["on"] else -weight for weight in bit["weights"].values()]  # of the concept being there
        named = sorted(zip(weights, bit["weights"], strict=True))
        lines["used, as a bit"] = (
            f"of {many:,} predictions {bit['changed'] * many:,.0f} change where it is flipped; it speaks most for "
            f"{named[-1][1]} ({named[-1][0]:+.2f}), least for {named[0][1]} ({named[0][0]:+.2f})"
            if bit["used"]
            else "no: every class has the same weight for it"
        )
    return lines


def _of_classes_alone(result: Mapping[str, Any]) -> str:
    """That the sides differ by predicted class, and in which most."""
    sides = [Counter(row["prediction"] for row in result["images"] if row["with"] == side) for side in (True, False)]
    of = [{name: count / side.total() for name, count in side.items()} for side in sides]
    most = max(of[0] | of[1], key=lambda name: abs(of[0].get(name, 0) - of[1].get(name, 0)))
    shares = [f"{side.get(most, 0):.0%}" for side in of]
    return (
        f"the two sides differ by class: {shares[0]} of the images with it are predicted {most}, {shares[1]} of those "
        "without. What is found may be the class; give images of the same classes on both sides to tell"
    )


def _gains(of: Mapping[str, Any]) -> str:
    """The classes whose scores change most clearly."""
    by_p = sorted(of["classes"], key=lambda row: (row["p"], -abs(row["gain"])))[:CLASSES]
    return "class scores: " + ", ".join(f"{row['class']} {row['gain']:+.2f} (p = {row['p']:.3f})" for row in by_p)


def _images(result: Mapping[str, Any], sides: Sides, found: Found) -> bytes:
    """Images with a concept above those without, from the highest score to the lowest."""
    figure = Figure(figsize=(1.3 * COLUMNS, 3.9), layout="constrained")
    grid: Any = figure.subplots(2, COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    after = "flipped" if result["follows"] == "bit" else "moved"
    for side, line in zip((True, False), grid, strict=True):
        rows = np.flatnonzero(found.has_concept == side)
        for row, axes in zip(spaced(rows, found.direction.scores[rows], COLUMNS).tolist(), line, strict=False):
            shown = result["images"][row]
            axes.imshow(rgb(sides.pixels[row].numpy()))
            turned = "" if shown[after] == shown["prediction"] else f"\nto {_short(shown[after], 16)}"
            axes.set_title(
                f"{shown['score']:+.2f}\n{_short(shown['prediction'], 16)}{turned}", fontsize=7, parse_math=False
            )
    how = "the bit flipped" if after == "flipped" else "the image moved"
    what = "score of the direction, left out of the fit; prediction, and to what it changes with"
    figure.suptitle(f"with it above, without below; {what} {how}", fontsize=8)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    return data.getvalue()


def _short(text: str, most: int) -> str:
    """The text, of more characters the first ones."""
    return text if len(text) <= most else text[: most - 1] + "…"
