"""The log of gradient norms: the figures of a training that is spelled out, exact resume, its two files."""

from __future__ import annotations

import htaf  # before lightning, which imports torchvision: see htaf._compat

# isort: split
import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from htaf.models.mlp import MLP
from htaf.training.gradient_log import GradientLog, plot

LAYERS = ["hidden.0.act", "hidden.1.act"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def soft() -> nn.Module:
    return htaf.HTAF(1.0, 5.0)


class Module(L.LightningModule):
    """SGD on a fixed set; a validation that hardens a copy, as this library's does."""

    def __init__(self, fail_at: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.fail_at = MLP(3, 1, (6, 4), soft), fail_at

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if self.current_epoch == self.fail_at:
            raise RuntimeError("stopped")
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        htaf.harden(self.net, share=True)(batch[0])
        self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.5)


def loader(batch_size: int = 4) -> DataLoader:
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(12, 3, generator=generator), torch.randn(12, 1, generator=generator))
    return DataLoader(data, batch_size)


def fit(
    module: Module, log: GradientLog, epochs: int, path: str | None = None, batch: int = 4, **options: Any
) -> L.Trainer:
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
        **{"enable_checkpointing": False} | options | {"callbacks": [log, *options.get("callbacks", [])]},
    )
    trainer.fit(module, loader(batch), loader(batch), ckpt_path=path, weights_only=True)
    return trainer


def by_hand(epochs: int) -> list[tuple[float, float]]:
    """(norm, per sample) per epoch and layer, of plain SGD over the same batches."""
    module, found = Module(), []
    for _ in range(epochs):
        batches = []
        for x, y in loader():
            first = module.net.hidden[0].linear(x)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
            second = module.net.hidden[1].linear(soft()(first))  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
            loss = nn.functional.mse_loss(module.net.head(soft()(second)), y)
            gradients = torch.autograd.grad(loss, (first, second), retain_graph=True)
            batches.append([(g.norm().item(), g.norm(dim=1).sum().item()) for g in gradients])
            loss.backward()
            with torch.no_grad():
                for p in module.net.parameters():
                    assert p.grad is not None
                    p -= 0.5 * p.grad
                    p.grad = None
        found += [
            (sum(b[i][0] for b in batches) / len(batches), sum(b[i][1] for b in batches) / len(batches)) for i in (0, 1)
        ]
    return found


def test_means_of_an_epoch(tmp_path: Path) -> None:
    log, module = GradientLog(tmp_path), Module()
    fit(module, log, 3)
    assert [(row["epoch"], row["layer"]) for row in log.rows] == [(e, layer) for e in range(3) for layer in LAYERS]
    for row, (norm, each) in zip(log.rows, by_hand(3), strict=True):
        assert row["norm"] == pytest.approx(norm, rel=1e-4)
        assert row["per_sample"] == pytest.approx(each, rel=1e-4)
    assert not any(m._forward_pre_hooks for m in module.modules())


def test_files(tmp_path: Path) -> None:
    log = GradientLog(tmp_path / "deep" / "run")
    fit(Module(), log, 2)
    folder = tmp_path / "deep" / "run"
    assert sorted(p.name for p in folder.iterdir()) == ["gradients.csv", "gradients.png"]
    with (folder / "gradients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["epoch", "layer", "norm", "per_sample"]
    assert [float(row["norm"]) for row in rows] == [row["norm"] for row in log.rows]
    assert (folder / "gradients.png").read_bytes().startswith(b"\x89PNG")


def test_a_resumed_training_has_all_rows(tmp_path: Path) -> None:
    whole = GradientLog(tmp_path / "whole")
    fit(Module(), whole, 4)
    checkpoints = ModelCheckpoint(tmp_path / "checkpoints", save_top_k=-1, filename="{epoch}")
    module = Module(fail_at=2)
    with pytest.raises(RuntimeError, match="stopped"):
        fit(module, GradientLog(tmp_path / "part"), 4, enable_checkpointing=True, callbacks=[checkpoints])
    assert not any(m._forward_pre_hooks for m in module.modules())
    assert not (tmp_path / "part").exists()
    resumed = GradientLog(tmp_path / "part")
    fit(Module(), resumed, 4, str(tmp_path / "checkpoints" / "epoch=1.ckpt"))
    assert resumed.rows == whole.rows
    assert (tmp_path / "part/gradients.csv").read_bytes() == (tmp_path / "whole/gradients.csv").read_bytes()


def test_accumulated_batches_count_as_one(tmp_path: Path) -> None:
    logs = [GradientLog(tmp_path), GradientLog(tmp_path)]
    fit(Module(), logs[0], 2, batch=12)
    fit(Module(), logs[1], 2, accumulate_grad_batches=3)
    for one, many in zip(logs[0].rows, logs[1].rows, strict=True):
        assert many["norm"] == pytest.approx(one["norm"], rel=1e-4)
        assert many["per_sample"] == pytest.approx(one["per_sample"], rel=1e-4)


def test_another_net_can_be_watched(tmp_path: Path) -> None:
    module = Module()
    log = GradientLog(tmp_path, module.net.hidden[1])
    fit(module, log, 1)
    assert [row["layer"] for row in log.rows] == ["act"]


def test_plot_of_many_layers_and_zeros() -> None:
    rows = [
        {"epoch": e, "layer": f"block.{i}.act", "norm": 0.0 if i == 3 else 10.0**-i, "per_sample": 1.0}
        for e in range(3)
        for i in range(30)
    ]
    figure = plot(rows)
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert len(axes.lines) == 30
    assert all(math.isnan(v) for v in axes.lines[3].get_ydata())  # pyright: ignore[reportGeneralTypeIssues]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(names) <= 13
    assert (names[0], names[-1]) == ("block.0.act", "block.29.act")
    assert plot([]).axes
