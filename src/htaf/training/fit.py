"""One training: a recipe, a table and a seed in, a run folder out."""

from __future__ import annotations

import io
import logging
import math
import shutil
import signal
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from htaf import convert
from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import Split, Table, split
from htaf.diagnostics import layer_statistics
from htaf.models.build import build
from htaf.runs import CHECKPOINTS, PLOT, Run, RunError, finish_run, forward, start_run, write_atomic
from htaf.sharpening import set_sharpness
from htaf.training.callbacks import AtomicCheckpoint, EpochBar, History, last_checkpoint
from htaf.training.metrics import as_tensors, headline, metrics
from htaf.training.module import Training, loaders
from htaf.training.recipe import Recipe

warnings.filterwarnings(
    "ignore", message=".*does not have many workers.*"
)  # the loaders index tensors: workers only cost
warnings.filterwarnings("ignore", message=".*LeafSpec.*")


def fit(
    recipe: Recipe,
    table: Table,
    out: str | Path,
    *,
    seed: int = 0,
    mode: str = "random",
    source: Mapping[str, Any] | None = None,
    device: str = "auto",
    progress: bool = False,
    checkpoint_seconds: float = 5.0,
) -> Run:
    """Train, harden, measure and write a run folder; resume it exactly when it was stopped before.

    Args:
        recipe: how to train.
        table: from `htaf.data.tabular.load`.
        out: folder of the run, new or empty, or that of the same run, unfinished (it is resumed) or finished (it is
        read).
        seed: of the split, the initial weights and the order of the batches.
        mode: "random" or "grouped", see `htaf.data.tabular.split`.
        source: how the table was loaded (the arguments of `load`), kept so that `htaf evaluate` can load it again.
        device: "auto", "cpu", "cuda" or "mps".
        progress: show a bar.
        checkpoint_seconds: least time between two checkpoints; what a kill can cost.

    Returns:
        The finished run: `.record["metrics"]`, `.model()`, `.predict(rows)`.

    Raises:
        RunError: `out` holds another run or other files. TrainingError: the loss became NaN or infinite.
        OSError: the disk is full; what was finished before stays.
    """
    out = Path(out)
    identity = {
        "recipe": recipe.identity(),
        "seed": seed,
        "data": {"name": table.name, "fingerprint": table.fingerprint, "task": table.task, "split": mode},
    }
    record = start_run(out, identity)
    if record["status"] == "finished":
        return Run(out, record)
    began = time.perf_counter()
    parts = split(table, seed, mode=mode)  # pyright: ignore[reportArgumentType]
    preprocessor = table.fit_preprocessor(parts.train)
    report = list(preprocessor.report)
    train, validation, test = (
        _tensors(table, preprocessor, rows) for rows in (parts.train, parts.validation, parts.test)
    )

    outputs = 1 if table.task == "regression" else len(table.classes)
    description = {
        "kind": "mlp",
        "in_features": train[0].shape[1],
        "out_features": outputs,
        "hidden": list(recipe.hidden),
        "batch_norm": recipe.batch_norm,
        "activation": recipe.activation(),
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = build(description)
    with _threads(record["threads"]):  # float sums depend on their number, and a resumed run must not differ
        history = _train(net, recipe, table, train, validation, out, seed, device, progress, checkpoint_seconds)
        net.load_state_dict(history.best)
        final = recipe.sharpening()
        if final is not None:
            set_sharpness(net, final.at((history.best_epoch + 1) / recipe.epochs))
        net = net.cpu().eval()
        exact = None if recipe.method == "relu" else convert.harden(net)
        results = measure(net, exact, {"validation": validation, "test": test}, table.task, preprocessor.target.std)
        layers = [asdict(layer) for layer in layer_statistics(net, exact, test[0].split(8192))]
    record |= {
        "headline": headline(table.task, outputs),
        "metrics": results,
        "layers": layers,
        "model": description | {"activation": _activation_of(net, recipe)},
        "rows": _sizes(parts),
        "source": dict(source or {}),
        "notes": [*table.notes, *report],
        "best_epoch": history.best_epoch,
        "epochs_run": len(history.rows),
        "device": device,
        "seconds": round(time.perf_counter() - began, 3),
    }
    history.write()
    _plot(history, out / PLOT, f"{table.name}, {recipe.method}, seed {seed}")
    run = finish_run(out, record, net, preprocessor)
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    return run


def measure(
    smooth: nn.Module, exact: nn.Module | None, parts: Mapping[str, tuple[Tensor, Tensor]], task: str, scale: float
) -> dict[str, Any]:
    """Metrics of the smooth and the exact network on each part; "exact" is None where no step exists."""

    def of(model: nn.Module) -> dict[str, Any]:
        return {name: metrics(forward(model, x), y, task, scale) for name, (x, y) in parts.items()}

    return {"smooth": of(smooth), "exact": None if exact is None else of(exact)}


def evaluate(run: Run, table: Table, *, part: str = "test") -> dict[str, Any]:
    """The smooth and the exact network of a run on labelled rows, and the gap between them.

    Args:
        run: from `htaf.runs.open_run`.
        table: the data of the run, or another table with the same columns.
        part: "train", "validation" or "test" of the run's own split; "all" rows, for other data.

    Returns:
        {"headline", "rows", "smooth": {...}, "exact": {...} or None, "gap": exact minus smooth or None}.

    Raises:
        RunError: a part is asked for and the table is not the one that the run was trained on.
        ValueError: another task, or classes that the run does not know.
    """
    preprocessor, record = run.preprocessor(), run.record
    if table.task != preprocessor.target.task:
        raise ValueError(f"expected a table for {preprocessor.target.task}, got one for {table.task}")
    if part == "all":
        rows = np.arange(len(table.target))
    elif table.fingerprint != record["data"]["fingerprint"]:
        raise RunError(
            f"{run.path} was trained on other data than {table.name}: its parts are only known for its own data"
        )
    else:
        rows = getattr(split(table, record["seed"], mode=record["data"]["split"]), part)
    data = {part: _tensors(table, preprocessor, rows)}
    smooth, exact = run.model(exact=False), run.model() if run.has_step else None
    results = measure(smooth, exact, data, preprocessor.target.task, preprocessor.target.std)
    name = record["headline"]
    ours, theirs = results["smooth"][part], results["exact"][part] if exact is not None else None
    gap = None if theirs is None or ours[name] is None or theirs[name] is None else theirs[name] - ours[name]
    return {"headline": name, "part": part, "rows": len(rows), "smooth": ours, "exact": theirs, "gap": gap}


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
    table: Table,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    out: Path,
    seed: int,
    device: str,
    progress: bool,
    checkpoint_seconds: float,
) -> History:
    """Run the epochs, from the last checkpoint if there is one."""
    schedule = recipe.sharpening()
    first = math.ceil(schedule.fraction * recipe.epochs) - 1 if schedule is not None else -1
    history = History(out, recipe.patience, first)
    callbacks: list[L.Callback] = [history, AtomicCheckpoint(out / CHECKPOINTS, history, checkpoint_seconds)]
    if progress:
        callbacks.append(EpochBar(f"{table.name} {recipe.method}", recipe.epochs))
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its banner and tips
    trainer = L.Trainer(
        accelerator="gpu" if device == "cuda" else device,
        devices=1,
        max_epochs=recipe.epochs,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )
    train_loader, validation_loader = loaders(train, validation, recipe.batch_size, seed)
    module = Training(net, recipe, table.task, len(train_loader) * recipe.epochs)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(
            module, train_loader, validation_loader, ckpt_path=last_checkpoint(out / CHECKPOINTS), weights_only=True
        )
    except SystemExit:  # lightning's answer to Ctrl-C: it exits, and leaves the signal ignored
        signal.signal(signal.SIGINT, interrupt)
        raise KeyboardInterrupt from None
    if not history.best:
        raise RunError(f"no epoch of {out} had a finite validation loss: lower lr or check the data")
    return history


def _tensors(table: Table, preprocessor: Preprocessor, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    x, y, known = preprocessor.transform(table.features.iloc[rows]), table.target[rows], preprocessor.target.classes
    if table.classes != known:  # codes follow the classes that a table holds, and other data may lack some
        if unknown := set(table.classes) - set(known):
            raise ValueError(f"expected the classes {', '.join(known)}, got {', '.join(sorted(unknown))} too")
        y = np.array([known.index(name) for name in table.classes])[y]
    return as_tensors(x, preprocessor.encode_target(y), preprocessor.target.task)


def _activation_of(net: nn.Module, recipe: Recipe) -> dict[str, Any]:
    """The activation as it is at the best epoch: sharpening may not have been over."""
    schedule, activation = recipe.sharpening(), recipe.activation()
    if schedule is None:
        return activation
    names = ("alpha0", "alpha1") if recipe.method == "htaf" else ("beta",)
    module = next(m for m in net.modules() if hasattr(m, names[0]))
    return activation | {name: getattr(module, name) for name in names}


def _sizes(parts: Split) -> dict[str, int]:
    return {name: len(getattr(parts, name)) for name in ("train", "validation", "test")}


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
