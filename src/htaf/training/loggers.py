"""TensorBoard and Weights & Biases, beside metrics.csv; both write under the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final, get_args

from torch import nn

from htaf.contract import SmoothStep, sharpness_of
from htaf.convert.exported import cause_of
from htaf.runs import content_hash
from htaf.training._lightning import Callback, L, Logger, TensorBoardLogger, WandbLogger
from htaf.training.callbacks import validated
from htaf.training.distributed import TrainingError
from htaf.training.running import LoggerName


def check_loggers(names: Sequence[LoggerName]) -> None:
    """Raises TrainingError for another name than tensorboard and wandb, a missing package, or no key for wandb."""
    for name in names:
        if name not in get_args(LoggerName):
            raise TrainingError(f"expected logger tensorboard or wandb, got {name!r}")
        try:
            __import__(name)  # in place of tensorboard, Lightning would take an older package
            if name == "wandb":
                _login()
        except ModuleNotFoundError:
            raise TrainingError(f"logger {name} needs a package: pip install 'htaf[{name}]'") from None


def loggers(names: Sequence[LoggerName], out: Path, key: str) -> list[Logger]:
    """Lightning's loggers of these names; tensorboard writes into out/tensorboard, wandb into out/wandb.

    Args:
        names: that `check_loggers` has seen; any order, repeats do no harm.
        key: of the run; with `out` it makes the id under which a resumed training goes on in wandb.
    """
    made: list[Logger] = []
    for name in dict.fromkeys(names):
        if name == "tensorboard":
            made.append(TensorBoardLogger(out, name="tensorboard", version=""))
        else:
            identity = content_hash({"key": key, "out": str(out.resolve())})
            made.append(WandbLogger(name=out.name, save_dir=out, project="htaf", id=identity, resume="allow"))
    return made


def _login() -> None:
    """Find the key of Weights & Biases before there is a folder; raises TrainingError where there is none."""
    import wandb
    from wandb.errors import Error

    try:
        if wandb.setup().settings.mode not in ("offline", "disabled"):
            wandb.login()
    except Error as error:
        raise TrainingError(f"logger wandb: {cause_of(error)} Or set WANDB_API_KEY, or WANDB_MODE=offline") from None


def close(made: Sequence[Logger]) -> None:
    """End the sessions: the next training of this process has its own."""
    for logger in made:
        if isinstance(logger, WandbLogger) and logger._experiment is not None:
            logger.experiment.finish()


@final
class EpochMetrics(Callback):
    """Each epoch into the trainer's loggers: losses, accuracy of a classification, learning rate, and the
    activation's sharpness parameters, such as alpha0 and alpha1."""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not validated(trainer):
            return
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        values |= {"lr": trainer.optimizers[0].param_groups[0]["lr"]} | sharpness(pl_module.net)  # pyright: ignore[reportArgumentType]
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.current_epoch)


def sharpness(net: nn.Module) -> dict[str, float]:
    """The sharpness parameters of the first smooth step that has some, where they are plain numbers."""
    first = next((m for m in net.modules() if isinstance(m, SmoothStep) and m.sharpness), None)
    return {} if first is None else sharpness_of(first)
