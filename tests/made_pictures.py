"""Codes of the paper's drawn pictures, whose attributes are known, and its stand-in for a model that sees them."""

from __future__ import annotations

import numpy as np

from htaf.concepts.codes import Codes, codes_of
from htaf_paper import vision_model
from htaf_paper.drawn import FIXED, LINKED, NAMES, drawn
from htaf_paper.vision_model import images_in, picture_pixels

__all__ = ["FIXED", "LINKED", "NAMES", "VisionModel", "images_in", "picture_pixels", "pictured"]


class VisionModel(vision_model.VisionModel):
    """One that errs never."""

    model, errs, behaviour, seed = "vision model", 0.0, "sees", 0


def pictured(classes: int, images: int, rng: np.random.Generator) -> tuple[Codes, np.ndarray]:
    """Codes whose bit j is attribute j of an image, and the images, uint8 [n, 3, 48, 48]; a third is the test part."""
    made = drawn(classes, images, rng)
    parts = np.where(np.arange(images) // classes % 3 == 2, 2, 0).astype(np.uint8)
    weights = np.ones((classes, len(NAMES)))
    return codes_of(made.has, made.labels, weights, np.zeros(classes), parts=parts), made.pixels
