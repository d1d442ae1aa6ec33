"""Label-free concept bottlenecks: concepts given as texts, learned from a frozen backbone by what CLIP says of images.

Source: Oikarinen et al. 2023, Label-Free Concept Bottleneck Models; `their code
<https://github.com/Trustworthy-ML-Lab/Label-free-CBM>`_ has the same similarity, steps and thresholds. The head is that
of `htaf.concepts.heads`, so that these concepts and the bits of a network are compared with the same head.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from htaf._ground.console import progress as progress_of
from htaf._ground.errors import expect_memory, expect_seed
from htaf.concepts.codes import PARTS, Codes, ConceptError, codes_key
from htaf.concepts.extract import Device, as_margins, choose_device
from htaf.concepts.heads import sparse_heads
from htaf.concepts.naming.files import NOT_CHECKED, read_text, write_names
from htaf.concepts.store import CHUNK, Features, write_codes
from htaf.data.images import FilePart, ImagePreprocessor, Images
from htaf.training.runs import Run, content_hash
from htaf.training.runs.features import FeatureKey, FeatureStore, fill
from htaf.training.runs.run import is_own, rows_of
from htaf_paper.image_text import ImageText

Threshold = Literal["mean", "median"]
SIMILARITY, CLIP_CUTOFF = 0.45, 0.25  # as the source has them
STEPS, RATE, LOOK, BATCH = 1000, 1e-3, 50, 50_000  # of Adam: at most, its rate, steps between two looks, images at once
TOP = 5  # images whose similarities are averaged
TEXTS = 256  # texts at once
WHAT, NAMES, PROJECTION = "label-free", "names.json", "projection.safetensors"
REASON = "learned to follow CLIP's similarity with this text (cos cubed {:.2f} on validation images); not checked"
LISTED = 5  # texts that a message names


def cos_cubed(wanted: Float[Tensor, "images concepts"], made: Float[Tensor, "images concepts"]) -> Tensor:
    """The similarity of each column of two tables: float [C], in [-1, 1].

        p = wanted_j - mean, q = made_j - mean;   sum_i p_i^3 q_i^3 / (|p^3| |q^3|)

    The cube gives most weight to the images that have the most, or the least, of a concept. It is 0 where a column is
    constant to six digits. Neither shift nor scale (> 0) of a column counts.

    Source: Oikarinen et al. 2023, equation 2.
    """
    return (_cubed(wanted) * _cubed(made)).sum(0)


def _cubed(values: Tensor) -> Tensor:
    """Columns less their means, cubed, of length 1; constant ones 0."""
    centred = values - values.mean(0)
    largest = centred.detach().abs().amax(0)  # a scale that changes nothing but keeps cubes in range
    constant = largest <= 1e-6 * values.detach().abs().amax(0)
    cubes = (centred / torch.where(constant, 1, largest)) ** 3
    length = torch.where(constant, 1, cubes.square().sum(0)).sqrt()
    return torch.where(constant, 0, cubes / length)


@dataclass(frozen=True, eq=False)
class Projection:
    """What was learned.

    Attributes:
        weight: float32 [C, F]; concept j of features x is weight_j . x.
        similarity: float64 [C], cos cubed on the validation images.
        step: after which it was best there. steps: how many were taken.
    """

    weight: Float32[np.ndarray, "concepts features"]
    similarity: Float64[np.ndarray, " concepts"]
    step: int
    steps: int


def learn_projection(
    features: Float32[np.ndarray, "train features"],
    wanted: Float32[np.ndarray, "train concepts"],
    held: Float32[np.ndarray, "validation features"],
    held_wanted: Float32[np.ndarray, "validation concepts"],
    *,
    steps: int = STEPS,
    rate: float = RATE,
    batch: int = BATCH,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: bool = False,
) -> Projection:
    """The linear map of features whose outputs are most like wanted columns: Adam on the mean of -cos cubed.

    Every 50 steps the validation images are looked at; it ends when they are matched worse than before, and the best
    weights seen are kept.

    Args:
        features, wanted: of the training images. held, held_wanted: of the validation images.
        steps: at most. rate: of Adam. batch: images of a step, drawn anew for each where there are more.
        seed: of the first weights and the draws.
        device: where it runs. progress: show a bar on the error stream.

    Raises:
        ConceptError: a number out of range.
    """
    expect_seed(seed, ConceptError)
    if steps < 1 or batch < 2 or not 0 < rate < math.inf:
        raise ConceptError(f"expected steps >= 1, batch >= 2 and a finite rate > 0, got {steps}, {batch} and {rate}")
    source = torch.Generator().manual_seed(seed)
    count, width = features.shape
    bound = 1 / math.sqrt(width)
    first = (2 * torch.rand(wanted.shape[1], width, generator=source) - 1) * bound
    weight = first.to(device).requires_grad_()
    x, p, xv, pv = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in (features, wanted, held, held_wanted))
    adam = torch.optim.Adam([weight], rate)
    best, kept, at, taken = -math.inf, first, 0, 0
    with progress_of("projection", steps, shown=progress) as advance:
        for step in range(steps):
            rows = None if count <= batch else torch.randperm(count, generator=source)[:batch].to(x.device)
            wanted_now, seen = (p, x) if rows is None else (p[rows], x[rows])
            (-cos_cubed(wanted_now, seen @ weight.T).mean()).backward()
            adam.step()
            adam.zero_grad()
            taken = step + 1
            advance(1)
            if step % LOOK == 0 or taken == steps:
                with torch.no_grad():
                    reached = float(cos_cubed(pv, xv @ weight.T).mean())
                if reached <= best:
                    break
                best, kept, at = reached, weight.detach().clone(), taken
    with torch.no_grad():
        similarity = cos_cubed(pv, xv @ kept.to(device).T).double().cpu().numpy()
    return Projection(kept.cpu().numpy(), similarity, at, taken)


def top_mean(similarities: Float32[np.ndarray, "images concepts"], top: int = TOP) -> Float64[np.ndarray, " concepts"]:
    """Of each concept the mean of its largest similarities with an image: float64 [C]."""
    count = min(top, len(similarities))
    return np.partition(similarities, len(similarities) - count, axis=0)[-count:].mean(0, dtype=np.float64)


def read_texts(path: str | Path) -> tuple[list[str], list[str]]:
    """Texts of concepts, one a line; empty lines and repetitions are left out.

    Returns:
        the texts, in their order, and notes on what was left out.

    Raises:
        ConceptError: no such file, not UTF-8, or no text in it.
    """
    path = Path(path)
    if "\0" in str(path):
        raise ConceptError(f"expected a file of texts, got {str(path)!r}, which holds a null character")
    lines = [" ".join(line.split()) for line in read_text(path).splitlines()]
    given = [line for line in lines if line]
    first: dict[str, str] = {}
    for line in given:
        first.setdefault(line.casefold(), line)
    texts = list(first.values())
    if not texts:
        raise ConceptError(f"{path}: expected texts of concepts, one a line, got none")
    again = len(given) - len(texts)
    return texts, [f"{again} of {len(given)} texts of {path.name} are there twice and are left out"] if again else []


def text_vectors(model: ImageText, texts: Sequence[str], *, progress: bool = False) -> Float32[np.ndarray, "texts d"]:
    """float32 [M, D], of length 1."""
    found = []
    with progress_of("texts", len(texts), shown=progress) as advance:
        for first in range(0, len(texts), TEXTS):
            found.append(model.texts(texts[first : first + TEXTS]).numpy())
            advance(len(found[-1]))
    return np.concatenate(found)


def image_vectors(
    model: ImageText,
    images: Images,
    side: str,
    rows: Int64[Tensor, " rows"],
    *,
    device: str | torch.device = "cpu",
    progress: bool = False,
) -> Float32[np.ndarray, "rows d"]:
    """What a model of images and texts makes of images: float32 [N, D], of length 1.

    The vectors are kept on disk as features of a frozen backbone are (`htaf.runs.features`): a stopped computation is
    continued, and another list of texts needs no new one. Images in files are decoded at the model's own size; those in
    memory are enlarged or reduced as they are.

    Args:
        side: of the set, "train" or "test". rows: of it.

    Raises:
        RunError: NaN. DataError: an image is gone.
    """
    part: Any = getattr(images, side)
    if isinstance(part, FilePart):
        part = replace(part, size=model.size)
    channels = part.channels
    plain = ImagePreprocessor((0.0,) * channels, (1.0,) * channels, part.size, channels, images.classes)
    said = ("image-text", model.described["kind"], model.mean, model.std)
    known = (plain.mean, plain.std, plain.size, channels)
    weights = str(model.described["tensors_sha256"])
    key = FeatureKey(weights, content_hash(said), False, model.size, known, part.fingerprint(), len(part))
    with torch.no_grad():
        where = next(model.parameters()).device
        width = model.features(torch.zeros(1, channels, *part.size, device=where)).shape[1]
    store = FeatureStore(key, width)
    fill(store, model, part, plain, rows, device=device, progress=progress, label=f"{side} images, as CLIP sees them")
    return store.batch(rows).numpy()


@dataclass(frozen=True, eq=False)
class LabelFree:
    """Concepts given as texts, as they were learned.

    Attributes:
        texts: of the C concepts that were kept.
        projection: float32 [C, F].
        means, scales: float64 [C], of weight . x over the training images.
        thresholds: float64 [C], of weight . x: the bit is 1 from there on.
        similarity: float64 [C], cos cubed on the validation images. highest: float64 [C], `top_mean`.
        dropped: of each other text {"text", "highest", "similarity", "why"}.
        step: of the best projection.
    """

    texts: tuple[str, ...]
    projection: Float32[np.ndarray, "concepts features"]
    means: Float64[np.ndarray, " concepts"]
    scales: Float64[np.ndarray, " concepts"]
    thresholds: Float64[np.ndarray, " concepts"]
    similarity: Float64[np.ndarray, " concepts"]
    highest: Float64[np.ndarray, " concepts"]
    dropped: tuple[dict[str, Any], ...]
    step: int

    def values(self, features: Float32[np.ndarray, "images features"]) -> Float32[np.ndarray, "images concepts"]:
        """(weight . x - threshold) / scale: float32 [N, C]; a bit is 1 where it is >= 0."""
        made = np.asarray(features) @ self.projection.T
        return ((made - self.thresholds) / self.scales).astype(np.float32)


def learn_concepts(
    features: Features,
    texts: Sequence[str],
    similarities: Callable[[Int64[np.ndarray, " rows"]], Float32[np.ndarray, "rows texts"]],
    *,
    similarity: float = SIMILARITY,
    clip_cutoff: float = CLIP_CUTOFF,
    threshold: Threshold = "mean",
    steps: int = STEPS,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: bool = False,
) -> LabelFree:
    """Concepts of a frozen backbone's features that follow what CLIP says of texts.

    1. A text is dropped unless the five training images that are most like it have a mean similarity > `clip_cutoff`.
    2. `learn_projection` for the others, on training images, stopped by the validation images.
    3. A concept is dropped unless its cos cubed on the validation images is > `similarity`.
    4. What is left is brought to mean 0 and variance 1 over the training images. A bit is 1 from the mean, or the
       median, on.

    Args:
        features: of the backbone, with training and validation images; labels are not read.
        texts: M of them.
        similarities: of the images of these rows of `features` with all texts: float32 [rows, M].
        steps, seed, device, progress: as `learn_projection`.

    Raises:
        ConceptError: no training or validation images, a number out of range, or no concept is left.
    """
    if not -1 <= similarity < 1 or not -1 <= clip_cutoff < 1:
        raise ConceptError(f"expected cut-offs in [-1, 1), got similarity {similarity} and clip_cutoff {clip_cutoff}")
    train, validation = (np.flatnonzero(features.parts == PARTS.index(name)) for name in ("train", "validation"))
    for name, rows in (("training", train), ("validation", validation)):
        if len(rows) < 2:
            raise ConceptError(f"expected {name} images to learn the concepts with, got {len(rows)}")
    expect_memory(
        8 * (len(train) + len(validation)) * (len(texts) + features.values.shape[1]),
        f"learning {len(texts):,} concepts on {len(train):,} images",
        "give fewer texts",
    )
    wanted, held_wanted = similarities(train), similarities(validation)
    highest = top_mean(wanted)
    seen = np.flatnonzero(highest > clip_cutoff)
    dropped = [_dropped(texts[j], highest[j], None) for j in np.flatnonzero(~(highest > clip_cutoff)).tolist()]
    if not len(seen):
        raise ConceptError(
            f"all {len(texts)} texts are dropped: the five images most like one have a mean similarity of at most "
            f"{highest.max():.3f}, expected > {clip_cutoff}: lower --clip-cutoff, or give texts of what the images show"
        )
    x, held = np.asarray(features.values[train]), np.asarray(features.values[validation])
    options: dict[str, Any] = {"steps": steps, "seed": seed, "device": device, "progress": progress}
    found = learn_projection(x, wanted[:, seen], held, held_wanted[:, seen], **options)
    good = found.similarity > similarity
    dropped += [_dropped(texts[j], highest[j], found.similarity[i]) for i, j in enumerate(seen.tolist()) if not good[i]]
    weight = found.weight[good]
    made = (x @ weight.T).astype(np.float64)
    scales = made.std(0)
    if not good.any() or not (scales > 0).all():
        raise ConceptError(
            f"no concept is left of {len(texts)} texts: the features follow the best of {len(seen)} with a similarity "
            f"of {found.similarity.max():.3f} on validation images, expected > {similarity}: lower --similarity, or "
            "give texts of what the images show"
        )
    means = made.mean(0)
    cuts = means if threshold == "mean" else np.median(made, axis=0)
    kept = seen[good]
    return LabelFree(
        tuple(texts[int(j)] for j in kept),
        weight,
        means,
        scales,
        cuts,
        found.similarity[good],
        highest[kept],
        tuple(dropped),
        found.step,
    )


def _dropped(text: str, highest: float, similarity: float | None) -> dict[str, Any]:
    why = "no image is like it" if similarity is None else "the features do not follow it"
    return {
        "text": text,
        "highest": round(float(highest), 6),
        "similarity": None if similarity is None else round(float(similarity), 6),
        "why": why,
    }


def label_free(
    run: Run,
    images: Images,
    features: Features,
    model: ImageText,
    texts: Sequence[str],
    out: str | Path,
    *,
    similarity: float = SIMILARITY,
    clip_cutoff: float = CLIP_CUTOFF,
    threshold: Threshold = "mean",
    steps: int = STEPS,
    seed: int = 0,
    notes: Sequence[str] = (),
    device: Device = "auto",
    progress: bool = False,
) -> Codes:
    """Codes of a label-free concept bottleneck over the backbone of a run.

    Args:
        run: whose backbone and images are taken; its own concepts are not.
        images: of the run.
        features: that `extract(run, images, ..., keep=["backbone"])` gave.
        model: of images and texts. It sees training and validation images, no test images.
        texts: of the concepts.
        out: a new folder, or the same one to resume.
        similarity, clip_cutoff, threshold, steps, seed: as `learn_concepts`.
        notes: for the record.
        device: where the models run. progress: show bars on the error stream.

    Returns:
        the codes. `exact` is what a logistic head on the bits predicts, `smooth` one on the standardised concepts, as
        the original has them; the L2 strength of both is chosen on validation images. The column features has these
        concepts less their thresholds. names.json has the texts as names; projection.safetensors "weight" [C, F],
        "mean", "scale" and "threshold" [C].

    Raises:
        ConceptError: features of another run or layer, other images, too few images, no concept left.
        RunError, DataError: of the images.
    """
    if not texts or len(set(texts)) < len(texts):
        raise ConceptError(
            f"expected different texts of concepts, got {len(texts)}, {len(set(texts))} of them different"
        )
    place = choose_device(device)
    segments = _segments(run, images, features)
    words = text_vectors(model.to(place), texts, progress=progress)

    def similarities(rows: Int64[np.ndarray, " rows"]) -> Float32[np.ndarray, "rows texts"]:
        side, first, numbers = next(s for s in segments if s[1] <= int(rows[0]) < s[1] + len(s[2]))
        chosen = numbers[torch.from_numpy(rows - first)]
        return image_vectors(model, images, side, chosen, device=place, progress=progress) @ words.T

    found = learn_concepts(
        features,
        texts,
        similarities,
        similarity=similarity,
        clip_cutoff=clip_cutoff,
        threshold=threshold,
        steps=steps,
        seed=seed,
        device=place,
        progress=progress,
    )
    return write_concepts(found, features, model.described, out, threshold=threshold, notes=notes)


def _segments(run: Run, images: Images, features: Features) -> list[tuple[str, int, Tensor]]:
    """Of each part of the features: a side of the set, the first row, row numbers in the side."""
    settings = features.info.get("settings", {})
    if settings.get("run") != run.record["key"] or settings.get("layer") != "backbone":
        raise ConceptError(
            f"expected features of the backbone of {run.path}, got others: htaf concepts extract {run.path} "
            "--keep backbone writes them"
        )
    if not is_own(run, images) or settings.get("fingerprint") != images.fingerprint:
        raise ConceptError(f"expected the images that {run.path} was trained on, got others")
    found, first = [], 0
    for name, (side, rows) in rows_of(run, images).items():
        if name in settings["parts"] and len(rows):
            found.append((side, first, rows))
            first += len(rows)
    return found


def write_concepts(
    found: LabelFree,
    features: Features,
    described: dict[str, Any],
    out: str | Path,
    *,
    threshold: Threshold = "mean",
    notes: Sequence[str] = (),
) -> Codes:
    """The folder of codes that `label_free` returns.

    Args:
        found: the concepts. features: of all images. described: the model that compared images with texts.
    """
    values = np.concatenate([found.values(features.values[i : i + CHUNK]) for i in range(0, len(features), CHUNK)])
    k, c = len(features.classes), len(found.texts)
    fields = (features.classes, features.labels, features.parts, features.ids)
    zeros = (np.zeros((k, c), np.float32), np.zeros(k, np.float32))
    nothing = np.full(len(values), -1, np.int32)
    bits = np.packbits(values >= 0, axis=1, bitorder="little")
    (hard,) = sparse_heads(Codes(bits, c, *fields, *zeros, nothing, nothing, nothing), (None,))
    (soft,) = sparse_heads(Features(values, *fields, *zeros, nothing), (None,))
    weight, bias = hard.head.weight.astype(np.float32), hard.head.bias.astype(np.float32)
    thresholds = found.thresholds.astype(np.float32)
    learned = hashlib.sha256(found.projection.tobytes() + thresholds.tobytes()).hexdigest()
    settings = {
        "what": WHAT,
        "features": features.info["key"],
        "run": features.info["settings"].get("run"),
        "texts": content_hash(list(found.texts)),
        "image_text": described.get("tensors_sha256"),
        "threshold": threshold,
        "thresholds": learned[:16],
    }
    info = {name: features.info[name] for name in ("run", "method", "model") if name in features.info}
    info |= {
        "how": WHAT,
        "image_text": described,
        "texts": list(found.texts),
        "similarity": [round(float(v), 6) for v in found.similarity],
        "highest": [round(float(v), 6) for v in found.highest],
        "dropped": list(found.dropped),
        "step": found.step,
        "notes": [*features.info.get("notes", ()), *notes],
    }
    guess = values.astype(np.float64) @ soft.head.weight.T + soft.head.bias
    exact = (values >= 0).astype(np.float32) @ weight.T + bias
    guesses = (guess.argmax(1).astype(np.int32), exact.argmax(1).astype(np.int32))
    tensors = {
        "weight": found.projection,
        "mean": found.means,
        "scale": found.scales,
        "threshold": found.thresholds,
    }
    projection = safetensors.numpy.save({name: np.ascontiguousarray(v, np.float32) for name, v in tensors.items()})
    codes = write_codes(
        out,
        Codes(bits, c, *fields, weight, bias, *guesses, nothing),
        settings,
        features=values,
        margins=as_margins(values),
        thresholds=thresholds,
        info=info,
        files={PROJECTION: projection},
    ).codes()
    if not (Path(out) / NAMES).exists():
        write_names(names_of(found), Path(out) / NAMES, codes=codes_key(codes))
    return codes


def names_of(found: LabelFree) -> list[dict[str, Any]]:
    """The texts as names of the concepts, for `htaf.concepts.naming`; none of them verified."""
    same = {"verified": False, "status": NOT_CHECKED, "source": WHAT}
    listed = zip(found.texts, found.similarity, strict=True)
    return [
        {"concept": number, "name": text, "reason": REASON.format(reached), **same}
        for number, (text, reached) in enumerate(listed)
    ]
