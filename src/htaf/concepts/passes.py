"""One pass of a network with concepts over images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float16, Float32, UInt8
from torch import Tensor, nn

from htaf.concepts.codes import ConceptError
from htaf.concepts.store import CHUNK
from htaf.core.activations import BINARY_ABOVE, BINARY_BELOW
from htaf.core.functional import pack_bits
from htaf.data.images import ImagePreprocessor, Part
from htaf.training.runs import Run
from htaf.training.runs.features import FeatureStore, key_of
from htaf.transform import convert

Device = Literal["auto", "cpu", "cuda", "mps"]
Layer = Literal["concepts", "backbone"]
LARGEST, SMALLEST = np.float16(65504), np.float16(2**-24)


class ConceptNetwork:
    """The network of a run, as extraction uses it.

    Attributes:
        plain: whether it has no step, and so no bits.
        layer: "backbone": what the backbone gives is read, in place of bits and pre-activations.
        weight: float32 [K, C]. bias: float32 [K]. Of a backbone, which has no head of its own, both 0.

    Raises:
        ConceptError: a run without concepts.
    """

    def __init__(self, run: Run, device: Device = "auto", layer: Layer = "concepts") -> None:
        smooth: Any = run.model(exact=False)
        preprocessor = run.preprocessor()
        if not hasattr(smooth, "pre_activations") or not isinstance(preprocessor, ImagePreprocessor):
            family = run.record["recipe"].get("family", run.record["model"].get("kind"))
            raise ConceptError(
                f"expected a run with concepts, as `htaf train icbm` makes it, got one of family {family} at {run.path}"
            )
        self.preprocessor, self.plain = preprocessor, not run.has_step
        self.layer: Layer = layer
        self.device = choose_device(device)
        self.smooth: Any = smooth.to(self.device).eval()
        self.exact: Any = None
        if not self.plain:
            if getattr(smooth.act, "bipolar", False):
                raise ConceptError(f"expected concepts of 0 and 1, {run.path} has -1 and 1")
            hard = convert.harden(smooth, share=True)
            if run.has_own_smooth:
                hard = run.model().to(self.device)
            if run.has_own_smooth or {site.path for site in convert.conversion(hard).replaced} != {"act"}:
                self.exact = hard.eval()  # its weights differ or its backbone has steps: a pass of its own
        self.head: Any = (self.smooth if self.exact is None else self.exact).head  # which reads the bits

    def kept(self, run: Run, segments: Sequence[tuple[Part, Tensor]]) -> tuple[FeatureStore, ...]:
        """What the frozen backbone of a run gives of parts of a set; empty where not all of it is at hand."""
        if self.exact is not None or not run.record["model"].get("freeze"):
            return ()
        found: list[FeatureStore] = []
        for part, rows in segments:
            key = key_of(self.smooth, run.record["model"], self.preprocessor, part, part.fingerprint())
            store = FeatureStore.kept(key, rows)
            if store is None:
                return ()
            found.append(store)
        return tuple(found)

    @property
    def weight(self) -> Float32[np.ndarray, "classes concepts"]:
        if self.layer == "backbone":
            size = (2, self.preprocessor.channels, *self.preprocessor.size)
            with torch.no_grad():
                features = self.smooth.features(torch.zeros(size, device=self.device)).shape[1]
            return np.zeros((len(self.head.weight), features), np.float32)
        return self.head.weight.detach().float().cpu().numpy()

    @property
    def bias(self) -> Float32[np.ndarray, " classes"]:
        head: nn.Linear = self.head
        if head.bias is None or self.layer == "backbone":
            return np.zeros(len(head.weight), np.float32)
        return head.bias.detach().float().cpu().numpy()

    def __call__(
        self,
        ids: Sequence[str],
        pixels: UInt8[np.ndarray, "n c h w"] | Float32[np.ndarray, "n f"],
        batch: int,
        kept: Sequence[str],
    ) -> dict[str, np.ndarray]:
        """Columns of `htaf.concepts.store` for some images.

        Args:
            ids: their names.
            pixels: or float32 [n, F], what the frozen backbone gives of them.
            batch: images at once; a new batch begins at each thousand.
            kept: of "features" and "margins".

        Raises:
            ConceptError: the network gives NaN; it names the image.
        """
        found: list[dict[str, np.ndarray]] = []
        for first in range(0, len(ids), CHUNK):
            last = min(first + CHUNK, len(ids))
            for start in range(first, last, batch):
                rows = slice(start, min(start + batch, last))
                found.append(self._batch(torch.from_numpy(pixels[rows]), ids[rows], kept))
        return {name: np.concatenate([arrays[name] for arrays in found]) for name in found[0]}

    @torch.no_grad()
    def _batch(self, pixels: Tensor, ids: Sequence[str], kept: Sequence[str]) -> dict[str, np.ndarray]:
        x = pixels.to(self.device)
        if x.ndim == 4:
            x = self.preprocessor.normalise(x)
        # a GPU's shorter mantissas would turn bits near the threshold
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            if self.layer == "backbone":
                return self._of_backbone(x, ids)
            before: Tensor = self.smooth.pre_activations(x)
            deciding: Tensor = before if self.exact is None else self.exact.pre_activations(x)
        if (bad := (before.isnan() | deciding.isnan()).any(1)).any():
            raise ConceptError(
                f"expected numbers as pre-activations, got NaN for the image {ids[int(bad.int().argmax())]}"
            )
        after: Tensor = self.smooth.act(before)
        arrays = {"smooth": self.smooth.head(after).argmax(1)}
        if not self.plain:
            arrays["exact"] = self.head((deciding >= 0).to(after.dtype)).argmax(1)
            arrays["saturated"] = ((after > BINARY_ABOVE) | (after < BINARY_BELOW)).sum(1)
        made = {name: values.to(torch.int32).cpu().numpy() for name, values in arrays.items()}
        if not self.plain:
            made["bits"] = pack_bits(deciding.float().cpu()).numpy()
        values = deciding.float().cpu().numpy() if kept else np.empty(0, np.float32)
        forms = {"features": lambda: values, "margins": lambda: as_margins(values)}
        return made | {name: forms[name]() for name in kept}

    def _of_backbone(self, x: Tensor, ids: Sequence[str]) -> dict[str, np.ndarray]:
        """What the backbone of the network that gives the bits makes of a batch, and what the smooth one predicts."""

        def of(net: Any) -> Tensor:
            return x if x.ndim == 2 else net.features(x)

        features = of(self.smooth if self.exact is None else self.exact)
        if (bad := features.isnan().any(1)).any():
            raise ConceptError(f"expected numbers as features, got NaN for the image {ids[int(bad.int().argmax())]}")
        net, own = self.smooth, features if self.exact is None else of(self.smooth)
        logits = net.head(net.act(net.norm(net.projection(own))))
        return {
            "smooth": logits.argmax(1).to(torch.int32).cpu().numpy(),
            "features": features.float().cpu().numpy(),
        }


def as_margins(values: Float32[np.ndarray, "n concepts"]) -> Float16[np.ndarray, "n concepts"]:
    """Pre-activations as float16 that are >= 0 where the bit is 1 and only there: large ones are cut."""
    margins = values.clip(-LARGEST, LARGEST).astype(np.float16)
    margins[(values < 0) & (margins == 0)] = -SMALLEST
    return margins


def choose_device(device: Device) -> torch.device:
    """auto: a GPU where there is one.

    Raises:
        ConceptError: a device that is not there.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(name for name, found in there.items() if found))
    if not there[device]:
        raise ConceptError(
            f"expected a device of this machine ({', '.join(k for k, v in there.items() if v)}), got {device}"
        )
    return torch.device(device)
