"""One training: a recipe, data and a seed in, a run folder out."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from htaf._ground.compat import free_start_method
from htaf._ground.console import tell
from htaf._ground.errors import expect_memory, expect_seed, release_memory
from htaf._ground.names import is_outside
from htaf.core.contract import SmoothStep, StepFactory, from_outside, make_step, sharpness_of
from htaf.core.sharpening import set_sharpness
from htaf.data.attributes import Attributes
from htaf.data.image_reading import MOST_WORKERS
from htaf.data.images import Images
from htaf.data.notes import Note, to_record
from htaf.data.parts import Data
from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import Split, Table
from htaf.models.build import build, weight_bytes
from htaf.models.icbm import ICBM
from htaf.models.mlp import MLP, Thermometer
from htaf.training.backbones import learns_from_features, on_features
from htaf.training.boosting import given_once
from htaf.training.distributed import (
    L,
    PeerError,
    SameTraining,
    TrainingError,
    check_processes,
    end_others,
    expect_rows_for_all,
    finished_elsewhere,
    is_lost_peer,
    received_record,
    sharing_record,
    smallest_batch,
    thread_count,
    trainer_options,
)
from htaf.training.finish import activation_of, finished, result_notes, with_threshold
from htaf.training.module import (
    AtomicCheckpoint,
    EpochBatches,
    History,
    PlainCheckpoints,
    ShownProgress,
    Training,
    has_smooth,
    last_checkpoint,
    loaders,
)
from htaf.training.problems import Problem, data_identity, positive_of, problem, resolved, supervision
from htaf.training.recipe import Recipe, Running
from htaf.training.runs.folder import CHECKPOINTS, FORMAT, claim, content_hash, read_record
from htaf.training.runs.predictions import measure
from htaf.training.runs.run import Run, finish_run, finished_run
from htaf.transform import convert
from htaf.transform.diagnostics import BINARY, layer_statistics

RESERVED = ("method", "kind", "bipolar", "levels")  # what else stands beside the sharpness parameters in a record
AS_USUAL = Running()
# loaders that index tensors need no workers; what is logged is the mean over all processes; a backbone may be frozen
_EXPECTED = (
    ".*does not have many workers.*",
    ".*LeafSpec.*",
    ".*It is recommended to use `self.log.*",
    ".*in eval mode at the start of training.*",
)


@dataclass(frozen=True)
class _Prepared:
    """One training before it begins."""

    recipe: Recipe
    posed: Problem
    images: bool
    out: Path
    seed: int
    running: Running
    key: str  # of the run
    trainer: L.Trainer
    history: History
    network: dict[str, Any]  # as `models.build.build` takes it
    method: StepFactory | None
    weights: dict[str, Any]  # where the first ones come from, see `Network.initialise`
    restore: Callable[[nn.Module], None] | None = None  # gives a network back what was put aside while the rest learned

    def say(self, text: str) -> None:
        """A line on the console, where progress is shown."""
        if self.running.progress:
            tell(text)


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Lightning without its banners and tips; what is set for the whole process is afterwards as it was."""
    there = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = [logger.level for logger in there]
    for logger in there:
        logger.setLevel(logging.WARNING)
    try:
        with free_start_method():
            yield
    finally:
        for logger, level in zip(there, before, strict=True):
            logger.setLevel(level)


@_quiet_lightning()
def fit(
    recipe: Recipe,
    data: Data,
    out: str | Path,
    *,
    seed: int = 0,
    split: str | Split = "random",
    test: bool = True,
    source: Mapping[str, Any] | None = None,
    attributes: Attributes | None = None,
    notes: Sequence[Note | str] = (),
    method: StepFactory | None = None,
    running: Running = AS_USUAL,
) -> Run:
    """Train, harden, measure and write a run folder; resume it exactly when it was stopped before.

    Args:
        recipe: how to train.
        data: from `htaf.data.tabular.load` or `htaf.data.image_sets.load`, as the recipe's family takes.
        out: folder of the run: new or empty, or the same run's, unfinished (resumed) or finished (read).
        seed: of the split of a table, the initial weights and the order of the batches.
        split: of a table, "random", "grouped" and others, see `htaf.data.tabular.split`; or its parts themselves, of
            which that of the test may be empty where test is False.
        test: also measure on the test part at the end; a search over candidates must not.
        source: how the data were loaded (the arguments of `load`), kept so that `htaf evaluate` can load them again.
        attributes: of the classes, for a supervised bottleneck; None: those of the recipe, from the public sets.
        notes: to be kept in the record beside those of the training.
        method: the class of the step where the recipe's method is the import path of one from outside htaf.
        running: the device, the processes, what is shown and logged.

    Returns:
        The finished run: `.record["metrics"]`, `.model()`, `.predict(rows)`; in every process.

    Raises:
        RunError: `out` holds another run or other files, or another process trains there; or it holds this
            run, finished, whose weights or preprocessing are missing or damaged. DataError: the data are not
            of the family's kind, or too little to split or to learn from. TrainingError: no such device, too few rows
            for so many processes, no such backbone, pretrained weights that are missing or of another architecture, or
            the loss became NaN or infinite; the message names the step. PeerError: another process of this training
            failed. OSError: the disk is full; what was finished before stays.
    """
    out = Path(out)
    check(recipe, running)
    expect_seed(seed, TrainingError)
    recipe = with_step(recipe, method)
    attributes = supervision(recipe) if attributes is None else attributes
    recipe, why = resolved(recipe, data)
    mode, rows = (split, None) if isinstance(split, str) else ("given", split)
    identity = run_identity(recipe, data, seed, mode, test=test, attributes=attributes)
    if rows is not None:
        identity["parts"] = content_hash([part.tolist() for part in (rows.train, rows.validation, rows.test)])
    key, before = content_hash(identity), read_record(out)
    if before is not None and before["key"] == key and before["status"] == "finished":
        shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)  # of a process that was killed as it ended
        return finished_run(out, before, method)  # images from files need not be decoded for it
    posed = problem(recipe, data, seed, mode, test=test, attributes=attributes, rows=rows)
    release_memory()
    try:
        network = recipe.model(posed.inputs, posed.outputs) | {"activation": described_activation(recipe, method)}
    except (ValueError, OSError) as error:  # no such backbone, or a hub that is out of reach
        raise TrainingError(str(error)) from None
    notes = (*notes, *recipe.network.reads(posed.inputs))
    recipe, every, longer = long_enough(recipe, len(posed.train))
    notes = (*notes, *longer)
    posed = replace(posed, notes=(*posed.notes, *notes, *(note for note in why if note not in notes)))
    trainer, history = _trainer(recipe, posed, out, running, isinstance(data, Images), every)
    train = _Prepared(
        recipe, posed, isinstance(data, Images), out, seed, running, key, trainer, history, network, method, {},
    )  # fmt: skip
    first = _network(train) if trainer.is_global_zero else None  # what cannot be built leaves no folder behind
    if first is not None:
        train = _on_features(train, first, data)
    shared = running.devices > 1 and "OMP_NUM_THREADS" not in os.environ  # the machine's cores, among its processes
    with thread_count(max(1, (os.cpu_count() or 1) // running.devices) if shared else torch.get_num_threads()):
        if first is None:
            record = finished_elsewhere(out, key)
            if record is None:
                own = _network(train)
                _train(_on_features(train, own, data), own, torch.get_num_threads())
                record = received_record()
            return Run(out, record, method)
        with claim(out, identity) as record:
            if record["status"] == "finished":
                return finished_run(out, record, method)
            return _lead(train, first, record, source)


MOST_EPOCHS = 150  # for the steps of few rows
VALIDATIONS = 30  # of as many epochs, at most: one takes as long as several steps


def long_enough(recipe: Recipe, rows: int) -> tuple[Recipe, int, tuple[str, ...]]:
    """The recipe with as many epochs as `least_steps` asks for, where there are so many training rows; after how many
    of them it is validated; and a word on it."""
    training = recipe.optimization
    if not training.least_steps:
        return recipe, 1, ()
    steps = len(EpochBatches(rows, training.batch_size, 0))
    epochs = min(math.ceil(training.least_steps / steps), MOST_EPOCHS)
    if epochs <= training.epochs:
        return recipe.replace(epochs=training.epochs), 1, ()
    every = 1 if recipe.exact_epoch is not None else math.ceil(epochs / VALIDATIONS)
    epochs = math.ceil(epochs / every) * every  # the last is validated
    return recipe.replace(epochs=epochs), every, (f"{epochs} epochs, which are {epochs * steps:,} steps",)


def check(recipe: Recipe, running: Running = AS_USUAL) -> None:
    """What can be said of a training before its data are read; arguments and errors as `fit`'s."""
    check_processes(running)
    if not 0 <= running.checkpoint_seconds < math.inf:
        raise TrainingError(f"checkpoint_seconds must be >= 0 and finite, got {running.checkpoint_seconds}")
    if not 0 <= running.workers <= MOST_WORKERS:
        raise TrainingError(f"workers must be in 0 to {MOST_WORKERS}, got {running.workers}")
    if recipe.exact_epoch is not None and running.world > 1:
        raise TrainingError(f"exact_from trains in one process, got {running.world}: expected exact_from 1")
    try:
        recipe.network.fingerprint()
        recipe.network.check_available()
    except (ValueError, OSError) as error:
        raise TrainingError(str(error)) from None


def run_identity(
    recipe: Recipe,
    data: Data,
    seed: int,
    mode: str,
    *,
    test: bool = True,
    attributes: Attributes | None = None,
) -> dict[str, Any]:
    """What makes two trainings the same; its content hash is the key of a run."""
    recipe, _ = resolved(recipe, data)
    more: dict[str, Any] = {} if test else {"test": False}
    more |= recipe.network.fingerprint()
    channels = data.train.channels if isinstance(data, Images) else 0
    if channels and recipe.flat().get("pretrained"):
        more["normalisation"] = recipe.network.normalisation(channels)
    if isinstance(data, Table) and len(data.ids.columns):  # kept beside predictions
        more["ids"] = sorted(map(str, data.ids.columns))
    if attributes is not None:
        more["attributes"] = content_hash([attributes.names, attributes.of(data.classes).values.tolist()])
    own = {"recipe": recipe.identity(), "seed": seed, "data": data_identity(data, mode)}
    return {"format": FORMAT, **own, **more}


def _network(train: _Prepared) -> nn.Module:
    """The network with its first weights."""
    with torch.random.fork_rng():
        torch.manual_seed(train.seed)
        try:
            # weights, gradients, the optimiser's moments
            copies = 3 if train.recipe.optimization.optimizer == "sgd" else 4
            needed = copies * weight_bytes(train.network, train.method)
            expect_memory(needed, "training this network", "choose a smaller one")
            net = build(train.network, train.method)
            train.weights.update(train.recipe.network.initialise(net, train.posed))
            train.network.update(train.recipe.network.sizes(net))
        except (ValueError, OSError) as error:  # no such backbone, other weights, or a hub that is out of reach
            raise TrainingError(str(error)) from None
    return net.to(memory_format=torch.channels_last) if train.images else net  # pyright: ignore[reportCallIssue]


def _on_features(train: _Prepared, net: nn.Module, data: Data) -> _Prepared:
    """The training on what the fixed part of the network gives, where it has one; the network is changed in place."""
    if isinstance(net, MLP) and isinstance(net.thermometer, Thermometer) and net.fitted:
        return replace(train, posed=given_once(train.posed, net), restore=_compute_all)
    several = train.running.world > 1
    if several or not isinstance(net, ICBM) or not isinstance(data, Images) or not learns_from_features(train.recipe):
        return train
    device = train.trainer.strategy.root_device
    posed, restore = on_features(
        train.posed, data, net, train.network, device=str(device), progress=train.running.progress
    )
    train.recipe.network.begin_on_features(net, posed)
    return replace(train, posed=posed, restore=restore, images=False)


def _compute_all(net: nn.Module) -> None:
    """Let a network for tables compute what was given with its inputs."""
    assert isinstance(net, MLP)
    net.given = False


def _settled(recipe: Recipe) -> int:
    """The last epoch in which sharpening moves, -1 without any."""
    schedule = recipe.activation.sharpening()
    return -1 if schedule is None else math.ceil(schedule.fraction * recipe.optimization.epochs - 1e-9) - 1


def _lead(
    train: _Prepared,
    net: nn.Module,
    record: dict[str, Any],
    source: Mapping[str, Any] | None,
) -> Run:
    """Train in a claimed folder, measure, write; of several processes this is the first."""
    with thread_count(record["threads"]):  # float sums depend on their number, and a resumed run must not differ
        train.recipe.network.hold(net)
        if any(parameter.requires_grad for parameter in net.parameters()):
            _train(train, net, record["threads"])
        else:
            train.history.keep(net)
        with sharing_record(train.running.world) as records:
            run = _written(train, net, record, source)
            records.append(run.record)
    return run


def _written(
    train: _Prepared,
    net: nn.Module,
    record: dict[str, Any],
    source: Mapping[str, Any] | None,
) -> Run:
    """Finish and measure the best weights, and write the run."""
    recipe, posed, history, out = train.recipe, train.posed, train.history, train.out
    epoch = history.best_epoch
    net.load_state_dict(history.best)
    net = net.to(history.device).eval()
    real = recipe.activation.method == "relu"
    hard = convert.harden(net) if has_smooth(net) else net
    new, steps = finished(hard, posed, recipe, train.say)
    release_memory()  # a fit of the head holds many bits as numbers
    own = any(step["kept"] for step in steps)  # whether the exact network has weights of its own
    net, exact = (new, None) if real else (net, new)
    for one in (net, exact):
        train.network.update({} if one is None else recipe.network.settle(one))
    final = recipe.activation.sharpening()
    if final is not None:
        set_sharpness(net, final.at((epoch + 1) / recipe.optimization.epochs))
    posed, of_threshold = with_threshold(net if exact is None else exact, posed, recipe.data)
    threshold = posed.preprocessor.target.threshold if isinstance(posed.preprocessor, Preprocessor) else None
    kept: dict[str, tuple[Tensor, Tensor]] = {}
    results = measure(
        net, exact, posed.measured(), posed.task, posed.scale, kept, weights=posed.weights, threshold=threshold
    )
    outside, said = train.weights.pop("out_of_fold", (None, ()))  # of a network whose validation rows are fitted too
    for of_part in results.values() if outside else ():
        if of_part is not None:
            of_part["validation"] = outside
    layers = _layers(net, exact, posed, history.device)
    release_memory()
    for one in (net, exact):
        if one is not None and train.restore is not None:
            train.restore(one)
    record |= {
        "headline": posed.headline,
        **positive_of(posed),
        "metrics": results,
        **({} if threshold is None else {"threshold": threshold}),
        "layers": layers,
        "model": train.network | {"activation": activation_of(net, recipe)},
        "rows": {n: len(part) for n, part in {"train": posed.train, **posed.measured()}.items()},
        "parameters": sum(p.numel() for p in net.parameters()),
        "source": dict(source or {}),
        "notes": to_record([*posed.notes, *history.notes]),
        "best_epoch": epoch,
        "epochs_run": history.epochs,
        "device": history.device,
        "devices": history.devices,
        "seconds": round(history.seconds(), 3),  # all sessions of a training that was stopped
        "cpu_seconds": round(history.cpu_seconds(), 3),
    }
    if train.weights:
        record["weights"] = train.weights
    if steps or recipe.exact_epoch is not None:
        record["hardening"] = {"exact_from": recipe.exact_epoch, "finish": steps}
    record["notes"] += to_record([*of_threshold, *result_notes(record, posed, net, recipe, kept)])
    record["notes"] += to_record(said)
    history.write()
    own_smooth = net if own and exact is not None else None
    run = finish_run(out, record, exact if own_smooth else net, posed.preprocessor, train.method, smooth=own_smooth)  # pyright: ignore[reportArgumentType]
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    return run


def _layers(net: nn.Module, exact: nn.Module | None, posed: Problem, device: str) -> list[dict[str, Any]]:
    """What the layers of a finished network do with some inputs."""
    assert posed.statistics is not None
    inputs = (x.to(device) for x in posed.statistics.inputs())
    has_layers = any(isinstance(m, (*BINARY, nn.ReLU)) for m in net.modules())  # a plain ViT has none
    return [asdict(layer) for layer in layer_statistics(net, exact, inputs)] if has_layers else []


def _trainer(
    recipe: Recipe, posed: Problem, out: Path, running: Running, images: bool, every: int
) -> tuple[L.Trainer, History]:
    """Lightning's trainer with its callbacks; it knows which of several processes this is. It validates after `every`
    epochs."""
    training, count_from = recipe.optimization, _settled(recipe)
    if recipe.exact_epoch is not None:
        count_from = max(count_from, math.ceil(recipe.hardening.exact_from * training.epochs))
    history = History(out, training.patience, count_from, running.world, last=training.keep == "last")
    callbacks = [history, AtomicCheckpoint(out / CHECKPOINTS, history, running.checkpoint_seconds)]
    trainer = L.Trainer(
        **trainer_options(running, PlainCheckpoints()),
        max_epochs=training.epochs,
        check_val_every_n_epoch=every,
        precision="bf16-mixed" if training.precision == "bfloat16" else "32-true",
        gradient_clip_val=training.clip or None,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )
    if running.progress and trainer.is_global_zero:
        trainer.callbacks.insert(1, ShownProgress(posed, recipe, history, "images" if images else "rows"))  # pyright: ignore[reportAttributeAccessIssue]
    return trainer, history


def _train(train: _Prepared, net: nn.Module, number: int) -> None:
    """Run the epochs, on `number` threads, from the last checkpoint if there is one."""
    recipe, posed, world, trainer = train.recipe, train.posed, train.running.world, train.trainer
    expect_rows_for_all(world, net, recipe.optimization.batch_size, len(posed.train), len(posed.validation))
    trainer.callbacks.insert(0, SameTraining(train.running, train.key, number))  # pyright: ignore[reportAttributeAccessIssue]
    parts = loaders(
        posed.train, posed.validation, recipe.optimization.batch_size, train.seed, train.running.workers,
        rank=trainer.global_rank, world=world, least=smallest_batch(world, net),
    )  # fmt: skip
    steps = len(parts[0]) * recipe.optimization.epochs
    state = train.seed * world + trainer.global_rank
    module = Training(net, recipe, posed.task, steps, world, seed=state, attributes=posed.attributes)
    start = last_checkpoint(train.out / CHECKPOINTS)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with warnings.catch_warnings():
            for known in _EXPECTED:
                warnings.filterwarnings("ignore", message=known)
            # a loader draws from the CPU's generator
            with torch.random.fork_rng(devices=None if module.draws else []):
                trainer.fit(module, *parts, ckpt_path=start, weights_only=True)
        if train.history.best_epoch < 0:
            raise TrainingError(f"no epoch of {train.out} had a finite validation loss: lower lr, or check the data")
    except SystemExit as error:  # lightning's answer to Ctrl-C: it exits, and leaves the signal ignored
        signal.signal(signal.SIGINT, interrupt)
        end_others(trainer)
        why = error.__context__
        raise (why if isinstance(why, KeyboardInterrupt) else KeyboardInterrupt()) from None
    except Exception as error:
        end_others(trainer)
        if world > 1 and is_lost_peer(error):
            raise PeerError(f"another process of this training ended or is out of reach ({error})") from error
        if isinstance(error, TrainingError) and not trainer.is_global_zero:
            raise PeerError(str(error)) from None  # every process has it, the first one says it
        raise


def with_step(recipe: Recipe, method: StepFactory | None) -> Recipe:
    """The recipe with the sharpness parameters of its step, where it leaves them to the class.

    Args:
        method: the class, where the recipe's method is an import path; else None.

    Raises:
        TrainingError: it is not given, keeps no contract (`htaf.SmoothStep`), or takes other parameters; or it is given
            for a method of htaf.
    """
    chosen = recipe.activation
    if not is_outside(chosen.method):
        if method is not None:
            raise TrainingError(f"expected no class beside method {chosen.method}, which is htaf's own, got {method}")
        return recipe
    try:
        numbers = sharpness_of(_outside_step(recipe, method))
        if wrong := [name for name in numbers if name in RESERVED]:
            raise ValueError(f"expected other names of sharpness parameters than {', '.join(wrong)}")
        if chosen.sharpness is None:
            return recipe.replace(sharpness=tuple(numbers.values()))
        if len(chosen.sharpness) != len(numbers):
            raise ValueError(
                f"expected sharpness of {len(numbers)} numbers ({', '.join(numbers)}), got {chosen.sharpness}"
            )
        return recipe
    except (ValueError, TypeError) as error:
        raise TrainingError(f"method {chosen.method}: {error}") from None


def described_activation(recipe: Recipe, method: StepFactory | None) -> dict[str, Any]:
    """The activation of a recipe that `with_step` gave, as `models.build.activation` takes it and records keep it."""
    activation = recipe.final_activation()
    if method is None:
        return activation
    module = _outside_step(recipe, method)
    assert isinstance(module, SmoothStep)
    return activation | {
        "kind": module.kind,
        **dict(zip(sharpness_of(module), recipe.activation.sharpness or (), strict=True)),
    }


def _outside_step(recipe: Recipe, method: StepFactory | None) -> Any:
    """One module of a recipe's step from outside htaf."""
    return make_step(
        from_outside(recipe.activation.method, method),
        {},
        bipolar=recipe.network.bipolar,
        levels=recipe.activation.levels,
    )
