"""One training: a recipe, data and a seed in, a run folder out."""

from __future__ import annotations

import json
import logging
import math
import shutil
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from htaf import convert
from htaf._compat import free_start_method
from htaf._errors import expect_memory, expect_seed, option, release_memory
from htaf.contract import StepFactory
from htaf.data.attributes import Attributes
from htaf.data.image_reading import MOST_WORKERS
from htaf.data.images import ImagePreprocessor, Images
from htaf.data.notes import Note, to_record
from htaf.data.parts import Data
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import listed
from htaf.data.tabular import Split, Table
from htaf.diagnostics import layer_statistics
from htaf.diagnostics.layers import BINARY
from htaf.models.build import build, weight_bytes
from htaf.models.icbm import ICBM
from htaf.models.mlp import MLP, Thermometer
from htaf.runs import (
    CHECKPOINTS,
    PLOT,
    Run,
    RunError,
    claim,
    content_hash,
    finish_run,
    finished_run,
    read_record,
    to_json,
)
from htaf.runs.folder import FORMAT
from htaf.runs.predictions import measure
from htaf.sharpening import set_sharpness
from htaf.training._lightning import L, TensorBoardLogger
from htaf.training.averaging import BEGINS, Averaging
from htaf.training.callbacks import AtomicCheckpoint, EpochBar, History, PlainCheckpoints, last_checkpoint
from htaf.training.distributed import (
    PeerError,
    Processes,
    Together,
    TrainingError,
    end_others,
    finished_elsewhere,
    lost,
    processes_of,
    telling,
    thread_count,
    threads,
    wait,
)
from htaf.training.finish import finished, threshold_on_test, with_threshold
from htaf.training.frozen import Fixed, given_once, learns_from_features, on_features
from htaf.training.module import EpochBatches, Training, loaders
from htaf.training.notes import activation_of, best_of, pair_notes, result_notes
from htaf.training.outside import described, with_step
from htaf.training.problems import Problem, data_identity, positive_of, problem, resolved, supervision
from htaf.training.recipe import Recipe, TableData
from htaf.training.running import Running

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
    processes: Processes
    key: str  # of the run
    trainer: L.Trainer
    history: History
    network: dict[str, Any]  # as `models.build.build` takes it
    continued: Run | None
    method: StepFactory | None
    weights: dict[str, Any]  # where the first ones come from, see `Network.initialise`
    frozen: Fixed | None = None  # what is put aside while the rest learns

    @property
    def mean(self) -> dict[str, Tensor]:
        """Of the weights over the end of the training; empty where none was taken."""
        callbacks: Any = self.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        return next((one.mean for one in callbacks if isinstance(one, Averaging)), {})

    def say(self, text: str) -> None:
        """A line on the console, where progress is shown."""
        for callback in self.trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(callback, EpochBar):
                callback.say(text)


@contextmanager
def _as_before() -> Iterator[None]:
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


@_as_before()
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
    continued: Run | None = None,
    notes: Sequence[Note | str] = (),
    method: StepFactory | None = None,
    running: Running = AS_USUAL,
) -> Run:
    """Train, harden, measure and write a run folder; resume it exactly when it was stopped before.

    Args:
        recipe: how to train.
        data: from `htaf.data.tabular.load` or `htaf.data.images.load`, as the recipe's family takes.
        out: folder of the run: new or empty, or the same run's, unfinished (resumed) or finished (read).
        seed: of the split of a table, the initial weights and the order of the batches.
        split: of a table, "random", "grouped" and others, see `htaf.data.tabular.split`; or its parts themselves, of
            which that of the test may be empty where test is False.
        test: also measure on the test part at the end; a search over candidates must not.
        source: how the data were loaded (the arguments of `load`), kept so that `htaf evaluate` can load them again.
        attributes: of the classes, for a supervised bottleneck; None: those of the recipe, from the public sets.
        continued: a finished run of the same network on the same data, whose weights are the first ones; the schedules
            begin anew (`htaf.training.families.continuing`). Its key becomes part of this run's; it stays as it is.
        notes: to be kept in the record beside those of the training.
        method: the class of the step where the recipe's method is the import path of one from outside htaf.
        running: the device, the processes, what is shown and logged.

    Returns:
        The finished run: `.record["metrics"]`, `.model()`, `.predict(rows)`; in every process.

    Raises:
        RunError: `out` holds another run or other files, or another process trains there; or it holds this
            run, finished, whose weights or preprocessing are missing or damaged. DataError: the data are not
            of the family's kind, or too little to split or to learn from. TrainingError: no such device, a logger that
            is not installed, too few rows for so many processes, no such backbone, pretrained weights that are missing
            or of another architecture, a continued run of another network or data, or the loss became NaN or infinite;
            the message names step and layer. PeerError:
            another process of this training failed. OSError: the disk is full; what was finished before stays.
    """
    out, processes = Path(out), processes_of(running)
    check(recipe, running)
    expect_seed(seed, TrainingError)
    recipe = with_step(recipe, method)
    attributes = supervision(recipe) if attributes is None else attributes
    recipe, why = resolved(recipe, data)
    mode, rows = (split, None) if isinstance(split, str) else ("given", split)
    identity = run_identity(recipe, data, seed, mode, test=test, attributes=attributes, continued=continued)
    if rows is not None:
        identity["parts"] = content_hash([part.tolist() for part in (rows.train, rows.validation, rows.test)])
    key, before = content_hash(identity), read_record(out)
    if before is not None and before["key"] == key and before["status"] == "finished":
        shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)  # of a process that was killed as it ended
        return _with_ids(finished_run(out, before, method), data)  # images from files need not be decoded for it
    known = None if continued is None else continued.preprocessor()
    known = known if isinstance(known, ImagePreprocessor) else None  # as the weights know it
    posed = problem(recipe, data, seed, mode, test=test, attributes=attributes, preprocessor=known, rows=rows)
    release_memory()
    if attributes is not None and recipe.optimization.compile:
        raise TrainingError("a network that learns attributes is trained in parts: expected no compile")
    try:
        network = recipe.model(posed.inputs, posed.outputs) | {"activation": described(recipe, method)}
    except (ValueError, OSError) as error:  # no such backbone, or a hub that is out of reach
        raise TrainingError(str(error)) from None
    if continued is not None:
        if "leaves" in network:  # as many as were found there
            network["leaves"] = continued.record["model"].get("leaves", 0)
        _expect_same(continued, identity, network, recipe)
        notes = (*notes, f"continues {continued.path} ({continued.record['epochs_run']} epochs) with a new schedule")
    notes = (*notes, *recipe.network.reads(posed.inputs))
    recipe, every, longer = long_enough(recipe, len(posed.train))
    notes = (*notes, *longer)
    posed = replace(posed, notes=(*posed.notes, *notes, *(note for note in why if note not in notes)))
    trainer, history = _trainer(recipe, posed, out, running, isinstance(data, Images), every)
    train = _Prepared(
        recipe, posed, isinstance(data, Images), out, seed, running, processes, key, trainer, history, network,
        continued, method, {},
    )  # fmt: skip
    first = _network(train) if trainer.is_global_zero else None  # what cannot be built leaves no folder behind
    if first is not None:
        train = _on_features(train, first, data)
    with threads(processes):
        if first is None:
            record = finished_elsewhere(out, key)
            if record is None:
                own = _network(train)
                _train(_on_features(train, own, data), own, torch.get_num_threads())
                record = wait()
            return Run(out, record, method)
        with claim(out, identity) as record:
            if record["status"] == "finished":
                return _with_ids(finished_run(out, record, method), data)
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


def _with_ids(run: Run, data: Data) -> Run:
    """A finished run, seen to keep the columns beside predictions that are asked for: its key does not tell.

    Raises:
        RunError: it keeps others.
    """
    preprocessor = run.preprocessor() if isinstance(data, Table) else None
    if not isinstance(data, Table) or not isinstance(preprocessor, Preprocessor):
        return run
    here, there = [*map(str, data.ids.columns)], [*preprocessor.ids]
    if {*here} == {*there}:
        return run
    raise RunError(
        f"{run.path} holds this training, finished, which keeps {listed(there) if there else 'no column'} beside "
        f"predictions, not {listed(here) if here else 'none'}: choose another {option('--out', 'folder')}, or leave "
        "these columns to htaf predict --id"
    )


def check(recipe: Recipe, running: Running = AS_USUAL) -> None:
    """What can be said of a training before its data are read; arguments and errors as `fit`'s."""
    processes, workers, checkpoint_seconds = processes_of(running), running.workers, running.checkpoint_seconds
    processes.check(running.device)
    if not 0 <= checkpoint_seconds < math.inf:
        raise TrainingError(f"checkpoint_seconds must be >= 0 and finite, got {checkpoint_seconds}")
    if not 0 <= workers <= MOST_WORKERS:
        raise TrainingError(f"workers must be in 0 to {MOST_WORKERS}, got {workers}")
    if running.tensorboard and find_spec("tensorboard") is None:  # Lightning would take an older package
        raise TrainingError("tensorboard needs a package: pip install 'htaf[scale]'")
    if recipe.exact_epoch is not None and processes.world > 1:
        raise TrainingError(f"exact_from trains in one process, got {processes.world}: expected exact_from 1")
    if recipe.optimization.compile and recipe.exact_epoch is not None:
        raise TrainingError("compile does not go with exact_from: expected no compile")
    _fingerprint(recipe)
    try:
        recipe.network.check_available()
    except (ValueError, OSError) as error:
        raise TrainingError(str(error)) from None


def _fingerprint(recipe: Recipe) -> dict[str, str]:
    """Of the files that the network starts from; TrainingError where one is missing."""
    try:
        return recipe.network.fingerprint()
    except ValueError as error:
        raise TrainingError(str(error)) from None


def _expect_same(continued: Run, identity: Mapping[str, Any], network: Mapping[str, Any], recipe: Recipe) -> None:
    """Raises TrainingError where a run is not one that this training can go on from."""
    record, data = continued.record, identity["data"]
    there, here = dict(record["model"]), json.loads(to_json(network))
    for of in (there, here):  # a head that was trained over a frozen backbone may be trained with it
        for name in ("freeze", "keep_norms", "feature_dropout"):
            of.pop(name, None)
    differing = [
        f"{k} {there.get(k)!r} instead of {here.get(k)!r}"
        for k in dict.fromkeys([*here, *there])  # what is absent is 0; real weights are rounded to any grid
        if k not in ("activation", "weights") and (there.get(k) or None) != (here.get(k) or None)
    ]
    for name in ("train_images", "validation_images"):  # what it validates on must be new to the weights
        now = recipe.identity().get(name)
        if record["recipe"].get(name) != now:
            differing.append(f"{name} {record['recipe'].get(name)} instead of {now}")
    if record["data"] != data:
        differing.append("other data, other weights of their rows, or another split of them")
    if isinstance(recipe.data, TableData) and record["seed"] != identity["seed"]:  # of the split too
        differing.append(f"seed {record['seed']} instead of {identity['seed']}")
    if differing:
        raise TrainingError(
            f"expected a run of the same network and data to continue, {continued.path} has " + "; ".join(differing)
        )


def run_identity(
    recipe: Recipe,
    data: Data,
    seed: int,
    mode: str,
    *,
    test: bool = True,
    attributes: Attributes | None = None,
    continued: Run | None = None,
) -> dict[str, Any]:
    """What makes two trainings the same; its content hash is the key of a run."""
    recipe, _ = resolved(recipe, data)
    more: dict[str, Any] = {} if test else {"test": False}
    if continued is not None:
        more["continued"] = {name: continued.record[name] for name in ("key", "model_sha256")}
    more |= _fingerprint(recipe)
    channels = data.train.channels if isinstance(data, Images) else 0
    if channels and continued is None and recipe.flat().get("pretrained"):
        more["normalisation"] = recipe.network.normalisation(channels)
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
            if train.continued is not None:
                net.load_state_dict(train.continued.model(exact=False).state_dict())
                train.weights.update(train.continued.record.get("weights") or {})
            else:
                train.weights.update(train.recipe.network.initialise(net, train.posed))
                train.network.update(train.recipe.network.sizes(net))
        except (ValueError, OSError) as error:  # no such backbone, other weights, or a hub that is out of reach
            raise TrainingError(str(error)) from None
    return net.to(memory_format=torch.channels_last) if train.images else net  # pyright: ignore[reportCallIssue]


def _on_features(train: _Prepared, net: nn.Module, data: Data) -> _Prepared:
    """The training on what the fixed part of the network gives, where it has one; the network is changed in place."""
    if isinstance(net, MLP) and isinstance(net.thermometer, Thermometer) and net.fitted:
        posed, given = given_once(train.posed, net)
        return replace(train, posed=posed, frozen=given)
    several = train.processes.world > 1
    if several or not isinstance(net, ICBM) or not isinstance(data, Images) or not learns_from_features(train.recipe):
        return train
    device = train.trainer.strategy.root_device
    posed, frozen = on_features(
        train.posed, data, net, train.network, device=str(device), progress=train.running.progress
    )
    return replace(train, posed=posed, frozen=frozen, images=False)


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
    processes = train.processes
    with thread_count(record["threads"]):  # float sums depend on their number, and a resumed run must not differ
        _train(train, net, record["threads"])
        with telling(processes) as told:
            run = _written(train, net, record, source)
            told.append(run.record)
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
    made, told = finished(net if real else convert.harden(net), posed, recipe, train.say, train.mean)
    release_memory()  # a fit of the head holds many bits as numbers
    own = any(step["kept"] for step in told)  # whether the exact network has weights of its own
    net, exact = (made, None) if real else (net, made)
    final = recipe.activation.sharpening()
    if final is not None:
        set_sharpness(net, final.at((epoch + 1) / recipe.optimization.epochs))
    posed, of_threshold = with_threshold(net if exact is None else exact, posed, recipe.data)
    threshold = posed.preprocessor.target.threshold if isinstance(posed.preprocessor, Preprocessor) else None
    kept: dict[str, tuple[Tensor, Tensor]] = {}
    results = measure(
        net, exact, posed.measured(), posed.task, posed.scale, kept, weights=posed.weights, threshold=threshold
    )
    layers = _layers(net, exact, posed, history.device)
    release_memory()
    if train.frozen is not None:
        for one in (net, exact):
            if one is not None:
                train.frozen.restore(one)
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
        "notes": to_record([*posed.notes, *recipe.network.notes(), *pair_notes(net, recipe), *history.notes]),
        "best_epoch": epoch,
        "epochs_run": history.epochs,
        "device": history.device,
        "devices": history.devices,
        "seconds": round(history.seconds(), 3),  # all sessions of a training that was stopped
        "cpu_seconds": round(history.cpu_seconds(), 3),
    }
    if train.weights:
        record["weights"] = train.weights
    if told or recipe.exact_epoch is not None:
        record["hardening"] = {"exact_from": recipe.exact_epoch, "finish": told}
    record["notes"] += to_record([*of_threshold, *threshold_on_test(kept, posed, recipe.data)])
    record["notes"] += to_record([*result_notes(record, posed, net, exact, recipe, kept)])
    history.write()
    title = f"{posed.name}, {recipe.activation.method}, seed {train.seed}"
    if train.running.plot:
        history.plot(out / PLOT, title, best_of(record), epoch + 1)
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
    training, count_from, processes = recipe.optimization, _settled(recipe), processes_of(running)
    if recipe.exact_epoch is not None:
        count_from = max(count_from, math.ceil(recipe.hardening.exact_from * training.epochs))
    history = History(out, training.patience, count_from, processes.world, last=training.keep == "last")
    callbacks: list[L.Callback] = [history]
    if running.progress:
        callbacks.append(EpochBar(posed, recipe, history, "images" if images else "rows"))
    callbacks.append(AtomicCheckpoint(out / CHECKPOINTS, history, running.checkpoint_seconds))
    trainer = L.Trainer(
        **processes.options(running.device, PlainCheckpoints()),
        max_epochs=training.epochs,
        check_val_every_n_epoch=every,
        precision="bf16-mixed" if training.precision == "bfloat16" else "32-true",
        gradient_clip_val=training.clip or None,
        callbacks=callbacks,
        logger=TensorBoardLogger(out, name="tensorboard", version="") if running.tensorboard else False,
        log_every_n_steps=1,
        enable_checkpointing=True,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )
    return trainer, history


def _train(train: _Prepared, net: nn.Module, number: int) -> None:
    """Run the epochs, on `number` threads, from the last checkpoint if there is one."""
    recipe, posed, processes, trainer = train.recipe, train.posed, train.processes, train.trainer
    processes.enough(net, recipe.optimization.batch_size, len(posed.train), len(posed.validation))
    trainer.callbacks.insert(0, Together(processes, train.key, number))  # pyright: ignore[reportAttributeAccessIssue]
    parts = loaders(
        posed.train, posed.validation, recipe.optimization.batch_size, train.seed, train.running.workers,
        rank=trainer.global_rank, world=processes.world, least=processes.least(net),
    )  # fmt: skip
    steps = len(parts[0]) * recipe.optimization.epochs
    if decay := recipe.optimization.average:
        begins = BEGINS if recipe.exact_epoch is None else max(BEGINS, recipe.hardening.exact_from)
        trainer.callbacks.insert(1, Averaging(decay, math.ceil(begins * steps)))  # pyright: ignore[reportAttributeAccessIssue]
    state = train.seed * processes.world + trainer.global_rank
    module = Training(net, recipe, posed.task, steps, processes.world, seed=state, attributes=posed.attributes)
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
        if processes.world > 1 and lost(error):
            raise PeerError(f"another process of this training ended or is out of reach ({error})") from error
        if isinstance(error, TrainingError) and not trainer.is_global_zero:
            raise PeerError(str(error)) from None  # every process has it, the first one says it
        raise
