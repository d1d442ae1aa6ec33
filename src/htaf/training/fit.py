"""One training: a recipe, data and a seed in, a run folder out."""

from __future__ import annotations

import io
import logging
import math
import shutil
import signal
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import torch
from matplotlib.figure import Figure
from torch import nn

from htaf import convert
from htaf.activations import SATURATION
from htaf.data.images import Images
from htaf.diagnostics import layer_statistics
from htaf.models.build import build
from htaf.runs import CHECKPOINTS, PLOT, Run, claim, finish_run, write_atomic
from htaf.sharpening import set_sharpness
from htaf.training.callbacks import AtomicCheckpoint, EpochBar, History, last_checkpoint
from htaf.training.evaluate import measure
from htaf.training.module import Training, TrainingError, loaders
from htaf.training.problems import Data, Problem, data_identity, problem
from htaf.training.recipe import Recipe


def fit(
    recipe: Recipe,
    data: Data,
    out: str | Path,
    *,
    seed: int = 0,
    mode: str = "random",
    source: Mapping[str, Any] | None = None,
    device: str = "auto",
    workers: int = 0,
    test: bool = True,
    progress: bool = False,
    checkpoint_seconds: float = 5.0,
) -> Run:
    """Train, harden, measure and write a run folder; resume it exactly when it was stopped before.

    Args:
        recipe: how to train.
        data: from `htaf.data.tabular.load` (family mlp) or `htaf.data.images.load` (dhn, bnn, snn).
        out: folder of the run: new or empty, or the same run's, unfinished (resumed) or finished (read).
        seed: of the split of a table, the initial weights and the order of the batches.
        mode: of a table's split, "random" or "grouped", see `htaf.data.tabular.split`.
        source: how the data were loaded (the arguments of `load`), kept so that `htaf evaluate` can load them again.
        device: "auto", "cpu", "cuda" or "mps".
        workers: processes that read images from files.
        test: also measure on the test part at the end; a search over candidates must not.
        progress: show a bar.
        checkpoint_seconds: least time between two checkpoints; what a kill can cost.

    Returns:
        The finished run: `.record["metrics"]`, `.model()`, `.predict(rows)`.

    Raises:
        RunError: `out` holds another run or other files, or another process trains there. DataError: the data are not
            of the family's kind, or too little to split or to learn from. TrainingError: no such device, or the loss
            became NaN or infinite; the message names step and layer. OSError: the disk is full; what was finished
            before stays.
    """
    _check_device(device)
    out = Path(out)
    posed = problem(recipe, data, seed, mode, test=test)
    with claim(out, run_identity(recipe, data, seed, mode, test=test)) as record:
        if record["status"] == "finished":
            return Run(out, record)
        images = isinstance(data, Images)
        return _fit(recipe, posed, images, out, record, source, device, workers, progress, checkpoint_seconds)


def run_identity(recipe: Recipe, data: Data, seed: int, mode: str, *, test: bool = True) -> dict[str, Any]:
    """What makes two trainings the same; its content hash is the key of a run and of a cell of a study."""
    untested = {} if test else {"test": False}
    return {"recipe": recipe.identity(), "seed": seed, "data": data_identity(data, mode), **untested}


def _fit(
    recipe: Recipe,
    posed: Problem,
    images: bool,
    out: Path,
    record: dict[str, Any],
    source: Mapping[str, Any] | None,
    device: str,
    workers: int,
    progress: bool,
    checkpoint_seconds: float,
) -> Run:
    """Train in a claimed folder, measure, write."""
    seed, description = record["seed"], recipe.model(posed.inputs, posed.outputs)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = build(description)
    if images:
        net = net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    with _threads(record["threads"]):  # float sums depend on their number, and a resumed run must not differ
        history = _train(net, recipe, posed, out, seed, device, workers, progress, checkpoint_seconds)
        net.load_state_dict(history.best)
        final = recipe.sharpening()
        if final is not None:
            set_sharpness(net, final.at((history.best_epoch + 1) / recipe.epochs))
        net = net.to(history.device).eval()
        exact = None if recipe.method == "relu" else convert.harden(net)
        results = measure(net, exact, posed.measured(), posed.task, posed.scale)
        assert posed.statistics is not None
        inputs = (x.to(history.device) for x in posed.statistics.inputs())
        layers = [asdict(layer) for layer in layer_statistics(net, exact, inputs)]
    record |= {
        "headline": posed.headline,
        "metrics": results,
        "layers": layers,
        "model": description | {"activation": _activation_of(net, recipe)},
        "rows": {n: len(part) for n, part in {"train": posed.train, **posed.measured()}.items()},
        "parameters": sum(p.numel() for p in net.parameters()),
        "source": dict(source or {}),
        "notes": [*posed.notes, *_pair_notes(net, recipe)],
        "best_epoch": history.best_epoch,
        "epochs_run": len(history.rows),
        "device": history.device,
        "seconds": round(history.seconds(), 3),  # all sessions of a training that was stopped
        "cpu_seconds": round(history.cpu_seconds(), 3),
    }
    history.write()
    _plot(history, out / PLOT, f"{posed.name}, {recipe.method}, seed {seed}")
    run = finish_run(out, record, net, posed.preprocessor)
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    return run


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(
    net: nn.Module,
    recipe: Recipe,
    posed: Problem,
    out: Path,
    seed: int,
    device: str,
    workers: int,
    progress: bool,
    checkpoint_seconds: float,
) -> History:
    """Run the epochs, from the last checkpoint if there is one."""
    schedule = recipe.sharpening()
    count_from = math.ceil(schedule.fraction * recipe.epochs - 1e-9) - 1 if schedule is not None else -1
    history = History(out, recipe.patience, count_from)
    callbacks: list[L.Callback] = [history, AtomicCheckpoint(out / CHECKPOINTS, history, checkpoint_seconds)]
    if progress:
        callbacks.append(EpochBar(f"{posed.name} {recipe.method}", recipe.epochs))
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its banner and tips
    trainer = L.Trainer(
        accelerator="gpu" if device == "cuda" else device,
        devices=1,
        max_epochs=recipe.epochs,
        precision="bf16-mixed" if recipe.precision == "bfloat16" else "32-true",
        gradient_clip_val=recipe.clip or None,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )
    train_loader, validation_loader = loaders(posed.train, posed.validation, recipe.batch_size, seed, workers)
    module = Training(net, recipe, posed.task, len(train_loader) * recipe.epochs)
    start = last_checkpoint(out / CHECKPOINTS)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with warnings.catch_warnings():
            for known in (".*does not have many workers.*", ".*LeafSpec.*"):  # loaders that index tensors need none
                warnings.filterwarnings("ignore", message=known)
            trainer.fit(module, train_loader, validation_loader, ckpt_path=start, weights_only=True)
    except SystemExit:  # lightning's answer to Ctrl-C: it exits, and leaves the signal ignored
        signal.signal(signal.SIGINT, interrupt)
        raise KeyboardInterrupt from None
    if not history.best:
        raise TrainingError(f"no epoch of {out} had a finite validation loss: lower lr or check the data")
    return history


def _check_device(device: str) -> None:
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device not in ("auto", "cpu", *there):
        raise TrainingError(f"expected device auto, cpu, cuda or mps, got {device!r}")
    if not there.get(device, True):
        raise TrainingError(f"expected a {device} device, this machine has none: use cpu or auto")


def _pair_notes(net: nn.Module, recipe: Recipe) -> list[str]:
    """What a reader must know of the activation's parameters: not the recipe's, or too small to ever be binary."""
    notes, final = [], recipe.activation()
    used = _activation_of(net, recipe)
    if used != final:
        shown = ", ".join(f"{k} = {used[k]:.4g} of {final[k]:g}" for k in final if k != "method")
        notes.append(f"the best epoch lies within the sharpening, so the smooth network has {shown}")
    alpha1 = used.get("alpha1", float("inf"))
    if alpha1 <= SATURATION:
        notes.append(f"alpha1 = {alpha1:.4g} <= ln 99 = {SATURATION:.3f}: no output passes 0.99, so binarity is 0")
    return notes


def _activation_of(net: nn.Module, recipe: Recipe) -> dict[str, Any]:
    """The activation as it is at the best epoch: sharpening may not have been over."""
    schedule, activation = recipe.sharpening(), recipe.activation()
    if schedule is None:
        return activation
    names = ("alpha0", "alpha1") if recipe.method == "htaf" else ("beta",)
    module = next(m for m in net.modules() if hasattr(m, names[0]))
    return activation | {name: getattr(module, name) for name in names}


def _plot(history: History, path: Path, title: str) -> None:
    """loss.png: training and validation losses by epoch, the best epoch marked."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    epochs = [row["epoch"] for row in history.rows]
    for name, label in (
        ("train_loss", "training"),
        ("val_loss_smooth", "validation, smooth"),
        ("val_loss", "validation, exact"),
    ):
        axes.plot(epochs, [row[name] for row in history.rows], label=label)
    axes.axvline(history.best_epoch, color="0.6", linestyle=":", label=f"best: epoch {history.best_epoch}")
    axes.set(xlabel="epoch", ylabel="loss", title=title)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_atomic(path, picture.getvalue())
