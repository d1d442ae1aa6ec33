"""A running mean of the weights over the end of a training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from htaf.training._lightning import Callback, L

BEGINS = 0.7  # share of the steps after which the mean begins, if all steps are exact by then


class Averaging(Callback):
    """mean <- decay mean + (1 - decay) weights after every step from `first` on, in the checkpoint too.

    Args:
        decay: in (0, 1). first: steps of the optimizer before it begins with the weights of that moment.
    """

    def __init__(self, decay: float, first: int) -> None:
        self.decay, self.first = decay, first
        self.mean: dict[str, Tensor] = {}  # the parameters of the network, by name

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step < self.first:
            return
        net: Any = pl_module.net
        assert isinstance(net, nn.Module)
        for name, weight in net.named_parameters():
            if not weight.requires_grad:
                continue
            if name in self.mean:
                self.mean[name] = self.mean[name].to(weight.device).lerp_(weight, 1 - self.decay)
            else:
                self.mean[name] = weight.detach().clone()

    def state_dict(self) -> dict[str, Any]:
        return {"mean": dict(self.mean)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.mean = dict(state_dict["mean"])
