"""A packed file that carries the preprocessing and the classes of its run: what predicts is this one file.

Reading it imports neither lightning nor the libraries of backbones; for images no scikit-learn either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor, nn

from htaf.data.notes import warn_unlike
from htaf.data.preprocess import labels_of, relabelled
from htaf.data.reading import Frame
from htaf.program import packed
from htaf.program.integer.model import IntegerModel, load
from htaf.training.runs.predictions import of_images, of_rows

if TYPE_CHECKING:
    from htaf.data.images import ImagePreprocessor
    from htaf.data.preprocess import Preprocessor
    from htaf.program.packed import PackedModel
    from htaf.training.runs.run import Run

RUN = "run"  # of a packed file's `extra`
KEYS = ("images", "preprocessing", "about")


def run_extra(*, images: bool, preprocessing: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """What `htaf.packed.save(..., extra=...)` keeps of a run, so that `open_packed` reads it.

    Args:
        images: whether the network reads images; otherwise it reads rows of a table.
        preprocessing: `to_json()` of its preprocessor.
        about: whatever else is to be told of the run, JSON values.
    """
    return {RUN: {"images": images, "preprocessing": preprocessing, "about": about}}


def extra_of(run: Run, **more: Any) -> dict[str, Any]:
    """`run_extra` of a run; more: what else is to be told of it."""
    names = ("key", "model_sha256", "headline", "metrics", "seed", "data")
    about = {name: run.record[name] for name in names if name in run.record}
    about |= {"labels": labels_of(run.record), **more}
    return run_extra(images=run.takes_images, preprocessing=run.preprocessor().to_json(), about=about)


@dataclass(frozen=True)
class PackedRun:
    """A packed network with its preprocessing, read by `open_packed`; it predicts as `htaf.runs.Run` does."""

    path: Path
    model: PackedModel | IntegerModel
    takes_images: bool
    preprocessing: dict[str, Any]
    about: dict[str, Any]

    def preprocessor(self) -> Preprocessor | ImagePreprocessor:
        """What turns raw rows or image files into inputs. Raises DataError when it is damaged."""
        return self._preprocessor

    @cached_property
    def _preprocessor(self) -> Preprocessor | ImagePreprocessor:  # a server asks for each batch
        if self.takes_images:
            from htaf.data.images import ImagePreprocessor

            return ImagePreprocessor.from_json(self.preprocessing)
        from htaf.data.preprocess import Preprocessor  # scikit-learn

        return Preprocessor.from_json(self.preprocessing)

    def predict(self, rows: Frame, *, bits: bool = False, text_as_missing: bool = False) -> pd.DataFrame:
        """Predictions for raw rows of a table; as `htaf.runs.Run.predict`.

        Args:
            bits: add a column `bits`, the last hidden layer of each row as a text of 0 and 1.
            text_as_missing: as there.
        """
        preprocessor: Any = self.preprocessor()
        if self.takes_images:
            raise packed.PackedError(f"{self.path} was trained on images: expected image files, got a table")
        seen = _Bits(self.model) if bits else None
        found, notes = of_rows(seen or self.model, preprocessor, rows, text_as_missing=text_as_missing)
        warn_unlike(notes)
        found = relabelled(found, preprocessor.target.classes, self.about.get("labels"))
        return seen.beside(found) if seen else found

    def predict_images(
        self, paths: Sequence[str | Path | bytes], *, strict: bool = True, bits: bool = False
    ) -> pd.DataFrame:
        """Predictions for image files; as `htaf.runs.Run.predict_images`.

        Args:
            bits: add a column `bits`, the concepts of each image as a text of 0 and 1; for networks with a bottleneck.
        """
        preprocessor: Any = self.preprocessor()
        if not self.takes_images:
            raise packed.PackedError(f"{self.path} was trained on a table: expected its rows, got image files")
        seen = _Bits(self.model) if bits else None
        found = of_images(seen or self.model, preprocessor, paths, strict=strict)
        return seen.beside(found) if seen else found


class _Bits(nn.Module):
    """A packed model that keeps the bits of its last step, call by call."""

    def __init__(self, model: PackedModel | IntegerModel) -> None:
        super().__init__()
        self.model, self.bits = model, list[str]()

    def forward(self, x: Tensor) -> Tensor:
        outputs, bits = self.model.with_bits(x)
        self.bits += ["".join("01"[bit] for bit in row) for row in bits.tolist()]
        return outputs

    def beside(self, found: pd.DataFrame) -> pd.DataFrame:
        """Predictions, with the bits in a last column; None where there is no prediction."""
        made = pd.Series(self.bits[: len(found)], index=found.index, dtype=object)
        return found.assign(bits=made.where(found["prediction"].notna().to_numpy(), None))


def open_packed(path: str | Path) -> PackedRun:
    """Read a file of `htaf pack`, or of `htaf export --to integer`.

    Raises:
        PackedError: no packed file, a damaged one, or one that was saved without a run's preprocessing.
        IntegerError: a damaged integer program.
    """
    path = Path(path)
    return as_run(load(path), path)


def as_run(model: PackedModel | IntegerModel, path: Path) -> PackedRun:
    """The run of a packed model that was loaded from a file of `htaf pack`; raises as `open_packed`."""
    run = model.extra.get(RUN)
    if not isinstance(run, dict) or set(run) != set(KEYS) or type(run["images"]) is not bool:
        raise packed.PackedError(
            f"expected a file of `htaf pack`, {path} holds no preprocessing: htaf.packed.load reads it, and "
            "htaf.program.integer.files.load an integer program"
        )
    if not isinstance(run["preprocessing"], dict) or not isinstance(run["about"], dict):
        raise packed.PackedError(f"{path}: expected objects for preprocessing and about, got others")
    if isinstance(model, IntegerModel):
        if run["images"]:
            from htaf.data.images import ImagePreprocessor, pixel_table

            model = IntegerModel(model.program, pixel_table(ImagePreprocessor.from_json(run["preprocessing"])))
    elif not isinstance(model.program.outputs, int):
        got = type(model.program.outputs).__name__
        raise packed.PackedError(f"{path}: expected a network with one output, got a {got} of them")
    return PackedRun(path, model, run["images"], run["preprocessing"], run["about"])
