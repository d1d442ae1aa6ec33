"""Measuring a network: the smooth and the exact one side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from htaf.data.images import ImagePreprocessor
from htaf.data.parts import Data
from htaf.runs.confusion import confusion, per_class
from htaf.runs.data import PartName
from htaf.runs.metrics import metrics
from htaf.runs.predictions import Joined

if TYPE_CHECKING:
    from htaf.runs.folder import Run


@torch.no_grad()
def measure(
    smooth: nn.Module,
    exact: nn.Module | None,
    parts: Mapping[str, Iterable[tuple[Tensor, Tensor]]],
    task: str,
    scale: float = 1.0,
    kept: dict[str, tuple[Tensor, Tensor]] | None = None,
) -> dict[str, Any]:
    """Metrics of the smooth and the exact network on each part; "exact" is None where no step exists.

    kept: gets the outputs and targets of each part, of the exact network where there is one.

    The networks run where their parameters lie, as they are (eval mode is the caller's).
    """
    device = next(smooth.parameters()).device
    outputs: dict[str, dict[str, Any]] = {"smooth": {}, "exact": {}}
    for name, part in parts.items():
        rows = len(part) if isinstance(part, Sized) else 0
        networks = {"smooth": smooth} | ({} if exact is None else {"exact": exact})
        seen = {network: Joined(rows) for network in (*networks, "targets")}
        for x, y in part:
            x = x.to(device)
            for network, model in networks.items():
                seen[network].add(model(x).cpu())
            seen["targets"].add(y)
        targets = seen.pop("targets").whole()
        if kept is not None:
            kept[name] = seen["smooth" if exact is None else "exact"].whole(), targets
        for network, found in seen.items():
            outputs[network][name] = metrics(found.whole(), targets, task, scale)
    return outputs | {"exact": outputs["exact"] if exact is not None else None}


def evaluate(run: Run, data: Data, *, part: PartName = "test") -> dict[str, Any]:
    """The smooth and the exact network of a run on labelled data, and the gap between them.

    Args:
        run: from `htaf.runs.open_run`.
        data: the data of the run, or others: a table with the same columns, images of the same classes.
        part: "train", "validation" or "test" of the run's own split; "all", for other data.

    Returns:
        {"headline", "part", "rows", "smooth": {...}, "exact": {...} or None, "gap": exact minus smooth or None}; of a
        classification also "classes", the figures of `htaf.runs.confusion.per_class`, and "confusion", the matrix as
        rows of whole numbers, both of the exact network where there is one; of two classes also "positive", the second
        one, of which AUROC is.

    Raises:
        RunError: a part is asked for and the data are not those that the run was trained on.
        DataError: another kind of data or task, or classes that the run does not know.
    """
    record, whole = run.record, run.part(part, data)
    smooth, exact = run.model(exact=False), run.model() if run.has_step else None
    preprocessor, task = run.preprocessor(), record["data"]["task"]
    scale = 1.0 if isinstance(preprocessor, ImagePreprocessor) else preprocessor.target.std
    kept: dict[str, tuple[Tensor, Tensor]] = {}
    results = measure(smooth, exact, {part: whole}, task, scale, kept)
    name = record["headline"]
    of_smooth, of_exact = results["smooth"][part], results["exact"][part] if exact is not None else None
    known = of_exact is not None and of_exact[name] is not None and of_smooth[name] is not None
    gap = of_exact[name] - of_smooth[name] if of_exact is not None and known else None
    found = {"headline": name, "part": part, "rows": len(whole), "smooth": of_smooth, "exact": of_exact, "gap": gap}
    if task != "classification":
        return found
    classes = preprocessor.classes if isinstance(preprocessor, ImagePreprocessor) else preprocessor.target.classes
    matrix = confusion(*kept[part], len(classes))
    if len(classes) == 2:
        found["positive"] = str(classes[1])
    return found | {"classes": per_class(matrix, classes), "confusion": matrix.tolist()}
