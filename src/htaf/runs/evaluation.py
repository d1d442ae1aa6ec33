"""Measuring a network: the smooth and the exact one side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any

import torch
from torch import Tensor, nn

from htaf._console import progress
from htaf.runs.metrics import metrics
from htaf.runs.predictions import Joined


@torch.no_grad()
def measure(
    smooth: nn.Module,
    exact: nn.Module | None,
    parts: Mapping[str, Iterable[tuple[Tensor, Tensor]]],
    task: str,
    scale: float = 1.0,
    kept: dict[str, tuple[Tensor, Tensor]] | None = None,
    *,
    weights: Mapping[str, Tensor] | None = None,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Metrics of the smooth and the exact network on each part; "exact" is None where no step exists.

    kept: gets the outputs and targets of each part, of the exact network where there is one.
    weights: [rows] by part, where rows do not all count the same. threshold: see `htaf.runs.metrics.decided`.

    The networks run where their parameters lie, as they are (eval mode is the caller's).
    """
    device = next(smooth.parameters()).device
    outputs: dict[str, dict[str, Any]] = {"smooth": {}, "exact": {}}
    for name, part in parts.items():
        rows = len(part) if isinstance(part, Sized) else 0
        networks = {"smooth": smooth} | ({} if exact is None else {"exact": exact})
        seen = {network: Joined(rows) for network in (*networks, "targets")}
        with progress(f"measuring {name}", rows, shown=None if rows else False) as more:
            for x, y in part:
                x = x.to(device)
                for network, model in networks.items():
                    seen[network].add(model(x).cpu())
                seen["targets"].add(y)
                more(len(y))
        targets = seen.pop("targets").whole()
        if kept is not None:
            kept[name] = seen["smooth" if exact is None else "exact"].whole(), targets
        for network, found in seen.items():
            of = (weights or {}).get(name)
            outputs[network][name] = metrics(found.whole(), targets, task, scale, weights=of, threshold=threshold)
    return outputs | {"exact": outputs["exact"] if exact is not None else None}
