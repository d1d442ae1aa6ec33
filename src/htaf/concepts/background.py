"""Is it the background? What a classifier takes an image for where its surroundings are those of another class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, UInt8
from torch import Tensor

from htaf.concepts.codes import ConceptError
from htaf.concepts.extract import ConceptNetwork, Device, ids_of
from htaf.concepts.finding import BATCH, CLASSES, RECORD, evenly
from htaf.concepts.heads import Head, fewer_right
from htaf.concepts.where import Pictures
from htaf.data.image_reading import in_folder
from htaf.data.images import ImagePreprocessor, Images
from htaf.training.runs import Run, to_json, write_atomic
from htaf.training.runs.run import rows_of

MIDDLE = "middle"
AREA = 0.5  # of an image: its middle, which is taken for the object where no masks are given
LEAST = 20  # images, and images in which a bit differs from the donor's
PART, MOST = 0.05, 0.5  # share of the images that take the class of other surroundings: a part of them, most of them

BitsOf = Callable[[UInt8[Tensor, "n channels height width"]], Bool[np.ndarray, "n concepts"]]


@dataclass(frozen=True, eq=False)
class Background:
    """What a classifier takes images for, as they are and with other surroundings.

    Each image has a donor, an image of another predicted class: where both have surroundings, it is given the donor's.
    As a control it is given those of an image of its own predicted class in the same way.

    Attributes:
        classes: int64 [n], "as it is", "swapped" (with the donor's surroundings) and "control"; "no surroundings" and
            "no object", where that part has the mean colour of the rest.
        donors: int64 [n], rows.
        follows: float64 [C], of the images whose bit differs from the donor's the share that has the donor's bit with
            its surroundings; nan for fewer than 20 such images.
    """

    classes: Mapping[str, Int64[np.ndarray, " n"]]
    donors: Int64[np.ndarray, " n"]
    follows: Float64[np.ndarray, " concepts"]

    def taken(self, kind: str) -> Bool[np.ndarray, " n"]:
        """Return whether each image is taken for the donor's class, "swapped" or in the "control"."""
        return self.classes[kind] == self.classes["as it is"][self.donors]

    @property
    def drawn(self) -> tuple[float, float, float]:
        """Share of the images that the surroundings draw to their class, less that of the control; 95% interval."""
        found = fewer_right(self.taken("swapped"), self.taken("control"))
        return found["cost"], *found["interval"]

    @property
    def is_followed(self) -> bool:
        """Whether the surroundings draw more than a twentieth of the images to their class, by the whole interval."""
        return self.drawn[1] > PART


def background(
    pixels: UInt8[Tensor, "n channels height width"],
    objects: Bool[Tensor, "n height width"],
    bits_of: BitsOf,
    head: Head,
    *,
    seed: int = 0,
) -> Background:
    """Give images the surroundings of others, and see which class they are taken for.

    Args:
        pixels: images, 20 or more. objects: where the object of each is; the rest are its surroundings.
        bits_of: the bits of images. head: of the bits.
        seed: of the donors.

    Raises:
        ConceptError: fewer images, or all of one predicted class.

    Source: Xiao et al. 2021 (Noise or Signal), whose Mixed-Same and Mixed-Rand these are.
    """
    bits = bits_of(pixels)
    predicted = _classes(bits, head)
    count = len(np.unique(predicted))
    if len(pixels) < LEAST or count < 2:
        raise ConceptError(
            f"expected at least {LEAST} images of two predicted classes or more, got {len(pixels):,} of {count}"
        )
    alike, around = predicted[:, None] == predicted, ~objects
    draws = np.random.default_rng(seed).random(alike.shape) - np.eye(len(alike))  # itself: where there is no other
    donors, own = (np.where(allowed, draws, -2).argmax(1) for allowed in (~alike, alike))

    def given(rows: np.ndarray) -> np.ndarray:
        return bits_of(torch.where((around & around[rows])[:, None], pixels[rows], pixels))

    made = {"as it is": bits, "swapped": given(donors), "control": given(own)}
    made |= {"no surroundings": bits_of(_blank(pixels, around)), "no object": bits_of(_blank(pixels, objects))}
    differ = bits != bits[donors]
    took, of = (differ & (made["swapped"] == bits[donors])).sum(0), differ.sum(0)
    return Background(
        classes={name: _classes(each, head) for name, each in made.items()},
        donors=donors,
        follows=np.where(of >= LEAST, took / of.clip(1), np.nan),
    )


def _classes(bits: Bool[np.ndarray, "n concepts"], head: Head) -> Int64[np.ndarray, " n"]:
    return (bits @ head.weight.T + head.bias).argmax(1)


def _blank(pixels: Tensor, hidden: Bool[Tensor, "n height width"]) -> Tensor:
    """Give hidden pixels the mean colour of the others of their image."""
    shown = ~hidden[:, None]
    mean = (pixels * shown).sum((2, 3), keepdim=True) / shown.sum((2, 3), keepdim=True).clamp(1)
    return torch.where(shown, pixels, mean.to(torch.uint8))


def middle(count: int, size: tuple[int, int]) -> Bool[Tensor, "count height width"]:
    """Take the middle of images, half of their area, for the object."""
    inside = torch.zeros(count, *size, dtype=torch.bool)
    top, left = (round(side * (1 - AREA**0.5) / 2) for side in size)
    inside[:, top : size[0] - top, left : size[1] - left] = True
    return inside


def read_objects(
    folder: Path, names: Sequence[str], preprocessor: ImagePreprocessor
) -> tuple[list[int], Bool[Tensor, "rows height width"]]:
    """Read masks, images that are white where the object is, under the names of the images but for the endings.

    Returns:
        the images that have a mask of a part of them, by their rows, and where their objects are.

    Raises:
        ConceptError: a mask of none of the images. DataError: a file that cannot be read.
    """
    files = {str(file.relative_to(folder).with_suffix("")): file for file in in_folder(folder)[0]}
    keys = [str(PurePath(name).with_suffix("")) for name in names]
    rows = [row for row, key in enumerate(keys) if key in files]
    if not rows:
        raise ConceptError(f"{folder}: expected masks by the names of the images, such as {keys[0]}.png, got none")
    objects = preprocessor.read([files[keys[row]] for row in rows]).amax(1) > 127
    is_part = objects.flatten(1).any(1) & ~objects.flatten(1).all(1)
    return [row for row, part in zip(rows, is_part.tolist(), strict=True) if part], objects[is_part]


def background_of_run(
    run: Run, images: Images, masks: str = MIDDLE, out: Path | None = None, *, device: Device = "auto"
) -> dict[str, Any]:
    """Ask whether a run follows the background of its test images, at most 1,000, and write found.json.

    Args:
        run: of `htaf train icbm`, with bits. images: those that it was trained on.
        masks: a folder of masks, as of `read_objects`; "middle": the middle half of each image is its object.
        out, device: as of `htaf.concepts.finding.find_in_run`.

    Returns:
        what found.json holds.

    Raises:
        ConceptError: a run without bits, too few images. RunError: other images.
    """
    network = ConceptNetwork(run, device)
    net, head = network.deciding(run)
    rows = rows_of(run, images)["test"][1]
    names = ids_of(images.test, "test", rows[evenly(len(rows))])
    notes = ["the middle half of each image is taken for its object; a folder of masks says where it is"]
    objects = middle(len(names), network.preprocessor.size)
    if masks != MIDDLE:
        kept, objects = read_objects(Path(masks), names, network.preprocessor)
        lost = len(names) - len(kept)
        names = [names[row] for row in kept]
        notes = [f"left out, without a mask of a part of them: {lost:,} images"] if lost else []

    @torch.no_grad()
    def bits_of(pixels: Tensor) -> np.ndarray:
        some = (network.preprocessor.normalise(part.to(network.device)) for part in pixels.split(BATCH))
        return torch.cat([net.pre_activations(x).cpu() >= 0 for x in some]).numpy()

    found = background(Pictures(images).pixels(names), objects, bits_of, head)
    drawn, before = found.drawn, found.classes["as it is"]
    used = np.flatnonzero((np.ptp(head.weight, axis=0) > 0) & (found.follows > MOST))
    used = used[np.argsort(-found.follows[used], kind="stable")]
    result = {
        "run": str(run.path),
        "model_sha256": run.record["model_sha256"],
        "masks": masks,
        "area": float(objects.float().mean()),
        "background": found.is_followed,
        "drawn": drawn[0],
        "interval": drawn[1:],
        "changed": {name: float((of != before).mean()) for name, of in found.classes.items()},
        "concepts": [{"concept": int(j), "follows": float(found.follows[j])} for j in used],
        "images": [
            {"image": name, "surroundings": names[found.donors[row]]}
            | {kind: network.preprocessor.classes[of[row]] for kind, of in found.classes.items()}
            for row, name in enumerate(names)
        ],
        "notes": notes,
    }
    result["answers"] = _answers(result, *(int(found.taken(kind).sum()) for kind in ("swapped", "control")))
    if out is not None:
        write_atomic(out / RECORD, to_json(result))
    return result


def _answers(result: Mapping[str, Any], taken: int, control: int) -> dict[str, str]:
    """Say what was found in a few lines, each with a heading."""
    count, changed, (low, high) = len(result["images"]), result["changed"], result["interval"]
    said = "not shown: the decision is not seen to follow what lies outside the object"
    if result["background"]:
        said = f"yes: the decision {'mostly' if low > MOST else 'partly'} follows what lies outside the object"
    lines = {
        "background": f"{said}. With the surroundings of another class {taken:,} of {count:,} images are taken for "
        f"that class, with those of their own class {control:,}: {result['drawn']:.0%} more, 95% interval {low:.0%} "
        f"to {high:.0%}",
        "in one colour": f"{changed['no surroundings']:.0%} of the predictions change where the surroundings have one "
        f"colour, {changed['no object']:.0%} where the object has it; it takes {result['area']:.0%} of an image",
    }
    if result["concepts"]:
        first = ", ".join(f"{row['concept']} ({row['follows']:.0%})" for row in result["concepts"][:CLASSES])
        lines["concepts"] = f"{first}: how often these take the bit of the image whose surroundings are given"
    return lines
