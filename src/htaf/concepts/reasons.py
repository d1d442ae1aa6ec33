"""Why an ICBM takes an image for its class: what each bit is worth between that class and the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor, nn

from htaf.concepts.codes import ConceptError
from htaf.data.images import ImagePreprocessor
from htaf.training.runs import Run
from htaf.training.runs.predictions import of_images

SHOWN = 5  # reasons of an image


@dataclass(frozen=True)
class Reasons:
    """What speaks for the predicted class of each image, against the class with the next highest logit.

    The margin of an image, the logit of its class p minus that of the runner-up r, falls by worth_j where bit c_j is
    flipped:

        worth_j = (w_pj - w_rj) (2 c_j - 1)

    So a bit that is off can be a reason too, and a worth below 0 speaks against the prediction.

    Attributes:
        predicted, runner_up: int64 [n], class numbers. margin: float64 [n], >= 0. worth: float64 [n, C].
    """

    predicted: Int64[np.ndarray, " n"]
    runner_up: Int64[np.ndarray, " n"]
    margin: Float64[np.ndarray, " n"]
    worth: Float64[np.ndarray, "n concepts"]

    def strongest(self, row: int, most: int = SHOWN) -> list[int]:
        """Return the concepts of a row that are worth most, those that speak for the prediction alone."""
        order = np.argsort(-self.worth[row], kind="stable")[:most]
        return [int(concept) for concept in order if self.worth[row, concept] > 0]

    def shown(self, row: int, most: int = SHOWN) -> float:
        """Return the share of a row's margin that is lost where its strongest reasons are all flipped, in [0, 1]; 1:
        the runner-up then draws level or wins, so they are enough to undo the prediction."""
        lost = float(self.worth[row, self.strongest(row, most)].sum())
        return 1.0 if lost >= self.margin[row] else lost / float(self.margin[row])


def reasons_of(bits: UInt8[np.ndarray, "n concepts"], weight: np.ndarray, bias: np.ndarray) -> Reasons:
    """Return what the bits of images are worth to a linear head.

    Args:
        bits: 0 or 1. weight: [K, C]. bias: [K].

    Raises:
        ConceptError: fewer than two classes.
    """
    if len(weight) < 2:
        raise ConceptError(f"expected two classes or more, got {len(weight)}")
    weight, bias = weight.astype(np.float64), bias.astype(np.float64)
    logits = bits.astype(np.float64) @ weight.T + bias
    order = np.argsort(-logits, axis=1, kind="stable")
    first, second = order[:, 0], order[:, 1]
    rows = np.arange(len(bits))
    worth = (weight[first] - weight[second]) * (2.0 * bits - 1.0)
    return Reasons(first, second, logits[rows, first] - logits[rows, second], worth)


def predict_with_bits(
    run: Run,
    paths: Sequence[str | Path],
    *,
    bits: bool = False,
    explain: bool = False,
    names: Sequence[Mapping[str, Any]] | None = None,
    strict: bool = False,
    watching: Callable[[nn.Module], AbstractContextManager[Any]] = nullcontext,
) -> tuple[pd.DataFrame, list[list[dict[str, Any]]]]:
    """Predict the classes of image files, with the bits that decide.

    Args:
        run: of `htaf train icbm`, not plain. paths: image files of the kinds in `htaf.data.image_reading.FORMATS`.
        bits: a column for each concept, `concept_17`, 0 or 1.
        names: as `htaf.concepts.naming.files.read_names` gives them; they become part of these columns and of the
            reasons, those that are not verified with that word.
        explain: the columns `runner_up`, `margin`, `shown` (see `Reasons.shown`) and `reasons`.
        strict: raise for a file that cannot be read; else its row has only the reason, in a column `error`.
        watching: what the network is in while it predicts, as `htaf.concepts.known.watched`.

    Returns:
        As `Run.predict_images` with these columns, and for each image its reasons: {"concept", "name", "verified",
        "bit", "worth"}; without a name both are None.

    Raises:
        ConceptError: a run without bits. DataError: as `Run.predict_images`.
    """
    net: Any = run.model()
    preprocessor = run.preprocessor()
    if not run.has_step or not hasattr(net, "pre_activations") or not isinstance(preprocessor, ImagePreprocessor):
        raise ConceptError(f"expected a run with concepts, as `htaf train icbm` makes it with a step, got {run.path}")
    if getattr(net.act, "bipolar", False):
        raise ConceptError(f"expected concepts of 0 and 1, {run.path} has -1 and 1")
    seen: list[Tensor] = []
    handle = net.act.register_forward_hook(lambda module, inputs, output: seen.append(output.to(torch.uint8)))
    try:
        with watching(net):
            frame = of_images(net, preprocessor, paths, strict=strict)
    finally:
        handle.remove()
    found = torch.cat(seen).numpy()[: len(frame)] if seen else np.zeros((0, net.size), np.uint8)
    read = frame["error"].isna().to_numpy() if "error" in frame else np.ones(len(frame), bool)
    known = {entry["concept"]: entry for entry in names or () if entry.get("name")}
    more: dict[str, Any] = {}
    listed: list[list[dict[str, Any]]] = [[] for _ in range(len(frame))]
    if explain:
        head: nn.Linear = net.head
        bias = torch.zeros(len(head.weight)) if head.bias is None else head.bias
        reasons = reasons_of(found, head.weight.detach().numpy(), bias.detach().numpy())
        classes = preprocessor.classes
        listed = [_listed(reasons, found, row, known) if read[row] else [] for row in range(len(frame))]
        more["runner_up"] = [classes[k] if ok else None for k, ok in zip(reasons.runner_up, read, strict=True)]
        more["margin"] = np.where(read, reasons.margin, np.nan)
        more["shown"] = [round(reasons.shown(row), 4) if ok else np.nan for row, ok in enumerate(read)]
        more["reasons"] = ["; ".join(map(reason_text, row)) if row else None for row in listed]
    for concept in range(net.size) if bits else ():
        one = known.get(concept)
        name = f" {one['name']}{'' if one.get('verified') else ' (unverified)'}" if one else ""
        more[f"concept_{concept}{name}"] = pd.Series(found[:, concept], dtype="Int64").where(pd.Series(read)).array
    frame = pd.concat([frame, pd.DataFrame(more, index=frame.index)], axis=1) if more else frame
    return frame, listed


def _listed(
    reasons: Reasons, bits: np.ndarray, row: int, names: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    return [
        {
            "concept": concept,
            "name": names[concept]["name"] if concept in names else None,
            "verified": bool(names[concept].get("verified")) if concept in names else None,
            "bit": int(bits[row, concept]),
            "worth": round(float(reasons.worth[row, concept]), 6),
        }
        for concept in reasons.strongest(row)
    ]


def reason_text(reason: Mapping[str, Any]) -> str:
    """Put a reason into words: "concept 17 (red wing, unverified) is on, +1.32"."""
    name = f" ({reason['name']}{'' if reason['verified'] else ', unverified'})" if reason["name"] else ""
    return f"concept {reason['concept']}{name} is {'on' if reason['bit'] else 'off'}, {reason['worth']:+.2f}"
