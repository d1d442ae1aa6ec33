"""From a language model and text to a folder with 0/1 gates: calibrated, trained, merged and measured."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from htaf._ground.files import LOCK, read_record, sealed, write_atomic
from htaf.language import files, text
from htaf.language.calibration import CalibratedLayer, calibrate
from htaf.language.gates import Gate, decoder_of, gated_mlps, gates_of, read_gates, replace_gates
from htaf.language.hidden import Hidden, hidden_states, kept, running
from htaf.language.lora import Measured, train
from htaf.language.losses import TextScores, hidden_losses
from htaf.language.options import Calibration, Data, LanguageError, Machine, Training
from htaf.training.runs import content_hash, environment, locked

RECORD, WORK, FORMAT = "htaf_record.json", "work", 1
_CALIBRATED = (".threshold", ".scale", ".width", ".down_proj.weight")
AS_USUAL = Machine()
Say = Callable[[str], None]


@dataclass(frozen=True)
class Blocks:
    """Tokens of each part, [blocks, length]. documents: how many documents, or pieces of some, a part has."""

    train: Tensor
    validation: Tensor
    test: Tensor
    documents: dict[str, int]


def prepare(data: Data, tokenizer: Any) -> tuple[Blocks, list[str]]:
    """Prepare the blocks of a run, and notes on files that were left out.

    Raises:
        LanguageError: too little text.
    """
    found, notes = text.documents(data.text)
    parts = text.by_parts(found)
    most = {"train": data.training, "validation": data.validation, "test": data.test}
    made = {
        part: text.blocks(documents, tokenizer, data.length, most[part], what=f"the {part} part")
        for part, documents in parts.items()
    }
    return Blocks(**made, documents={part: len(documents) for part, documents in parts.items()}), notes


def fit(
    model: str,
    data: Data,
    training: Training,
    out: str | Path,
    *,
    last_k: int = 4,
    calibration: Calibration = "down",
    machine: Machine = AS_USUAL,
    save: bool = True,
    say: Say = lambda line: None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Convert a language model and write it as a folder; go on where an earlier call was stopped.

    Args:
        model: as `files.load` takes it.
        data, training: what it learns from, and how; training.steps 0: calibrated only.
        out: a new folder, or the same run's.
        last_k: how many layers, counted from the end.
        calibration: see `htaf.language.calibrate`.
        machine: where the model is held, and how.
        save: write the model too; False: the record alone.
        say: is told what is being done, a line each.
        progress: is told (what, done, of how many) of hidden states, scores and training.

    Returns:
        The record, which is also htaf_record.json: scores on the test text before, calibrated and trained, shares of
        open gates, seconds.

    Raises:
        LanguageError: see `files.load`, `calibrate`, `train`; or the folder holds something else.
    """
    if last_k < 1:
        raise LanguageError(f"last_k must be >= 1, got {last_k}")
    if calibration not in get_args(Calibration):
        raise LanguageError(f"calibration must be {', '.join(get_args(Calibration))}, got {calibration}")
    work = _Work(model, data, training, Path(out), last_k, calibration, machine, say, progress)
    with work.claimed(save) as finished:
        if not finished:
            work.compute(save)
    found = read(out)
    if finished:
        say("already done: the folder holds this run, finished")
        for note in found["notes"]:
            say(f"note: {note}")
    return found


@dataclass(frozen=True)
class _Work:
    """A run that is being computed. Its fields are the arguments of `fit`."""

    model: str
    data: Data
    training: Training
    out: Path
    last_k: int
    calibration: Calibration
    machine: Machine
    say: Say
    progress: Callable[[str, int, int], None] | None

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return getattr(torch, self.machine.dtype)

    @cached_property
    def content(self) -> dict[str, Any]:
        """Hashes of what the run reads: the same run is known again wherever its inputs lie."""
        return {"model": files.fingerprint(self.model), "data": [text.fingerprint(self.data.text)]}

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What makes two runs the same."""
        sizes = {k: v for k, v in asdict(self.data).items() if k != "text"}
        return {
            "content": self.content, "sizes": sizes, "training": asdict(self.training), "last_k": self.last_k,
            "dtype": str(self.dtype), "calibration": self.calibration,
        }  # fmt: skip

    @contextmanager
    def claimed(self, save: bool) -> Iterator[bool]:
        """Hold the folder; gives whether the run is finished. A new folder is empty again after an error."""
        key = content_hash(self.identity)
        _record(self.out, key)
        fresh = not self.out.exists()
        self.out.mkdir(parents=True, exist_ok=True)
        with locked(self.out, "another process trains in", LanguageError):
            record = _record(self.out, key)  # another process may have finished meanwhile
            if record is not None and record["status"] == "finished" and (not save or self.saved(record)):
                yield True
                return
            started = {"format": FORMAT, "status": "running", "key": key, **self.about(), **_environment()}
            write_atomic(self.out / RECORD, sealed(started))
            try:
                yield False
            except LanguageError:
                if record is None and not any((self.out / WORK).rglob("*")):
                    (self.out / RECORD).unlink(missing_ok=True)
                    if fresh:
                        shutil.rmtree(self.out)
                raise

    def about(self) -> dict[str, Any]:
        """Return the arguments as the record stores them."""
        return self.identity | {"model": self.model, "data": asdict(self.data)}

    def saved(self, record: dict[str, Any]) -> bool:
        """Return whether the files of a finished run are there, as they were written."""
        try:
            files.verify(self.out)
        except LanguageError:
            return False
        return bool(record["files"])

    def load(self, model: str) -> Any:
        """Load a model whose weights are frozen, and its tokenizer."""
        made, tokenizer = files.load(model, dtype=self.dtype, device=self.machine.device)
        return made.requires_grad_(False), tokenizer

    def checked(self, original: Any) -> int:
        """Return the first layer that gets gates, of a model that can have them."""
        count = len(decoder_of(original).layers)
        if not 1 <= self.last_k <= count:
            raise LanguageError(f"last_k must be in 1 to {count}, the layers of this model, got {self.last_k}")
        longest = getattr(original.config.get_text_config(), "max_position_embeddings", None)
        if longest is not None and self.data.length > longest:
            raise LanguageError(f"length must be <= {longest}, as the model reads at once, got {self.data.length}")
        if gates_of(original):
            raise LanguageError(f"{self.model} has gates already: give its original")
        gated_mlps(original)
        return count - self.last_k

    def expect_known(self, original: Any, blocks: Blocks) -> None:
        """Raise LanguageError where the tokenizer makes tokens that the model does not know."""
        known = original.get_input_embeddings().num_embeddings
        largest = max(int(part.max()) for part in (blocks.train, blocks.validation, blocks.test))
        if largest >= known:
            raise LanguageError(f"expected a tokenizer for the {known} tokens of {self.model}, its own makes {largest}")

    def compute(self, save: bool) -> None:
        """Do it all, and write the record."""
        began, say = time.perf_counter(), self.say
        say(f"loading {self.model}")
        original, tokenizer = self.load(self.model)
        start = self.checked(original)
        blocks, notes = prepare(self.data, tokenizer)
        for note in notes:
            say(f"note: {note}")
        self.expect_known(original, blocks)
        say(
            f"{len(blocks.train)} blocks of {self.data.length} tokens to train on, {len(blocks.test)} to test, from "
            f"{blocks.documents['train']} and {blocks.documents['test']} documents"
        )
        test = self._hidden(original, blocks.test, start, "test", half=False)
        of_original = self._cache_key(self.content["model"], blocks.test.tolist())
        before = self._known(of_original, lambda: self._scored("original", original, start, test))
        before |= {"kl": None, "agreement": None}
        say(f"original: {_told(before)}")
        half = self.training.precision == "bfloat16"
        learn = [
            self._hidden(original, part, start, name, half=half)
            for part, name in ((blocks.train, "train"), (blocks.validation, "validation"))
            if self.training.steps
        ]
        original = None  # makes room
        tokens = blocks.train[: self.data.calibration]
        converted, layers = self._calibrated(tokens)
        calibrated = trained = self._known(
            self._cache_key(of_original, self._calibration_key(tokens)),
            lambda: self._scored("calibrated", converted, start, test),
        )
        say(f"calibrated: {_told(calibrated)}")
        told = list[Measured]()
        if self.training.steps:
            told = train(
                converted, self.training, learn[0], learn[1], self.out / WORK,
                tell=lambda row: say(f"step {row.step} of {self.training.steps}: KL {row.kl:.4f}, loss {row.loss:.4f}"),
                advance=None if self.progress is None else partial(self.progress, "training"),
            )  # fmt: skip
            trained = self._scored("trained", converted, start, test)
            say(f"trained: {_told(trained)}")
        sizes = dict[str, int]()
        if save:
            files.save(converted, tokenizer, self.out)
            sizes = {file.name: file.stat().st_size for file in self.out.glob("*.safetensors")}
        record = {
            "format": FORMAT, "status": "finished", "key": content_hash(self.identity), **self.about(),
            **_environment(), "notes": notes, "documents": blocks.documents, "before": before,
            "calibrated": calibrated, "trained": trained,
            "gates": open_shares(converted, blocks.test), "files": sizes,
            "layers": [asdict(layer) for layer in layers], "validation": [asdict(row) for row in told],
            "seconds": time.perf_counter() - began,
        }  # fmt: skip
        write_atomic(self.out / RECORD, sealed(record))
        shutil.rmtree(self.out / WORK, ignore_errors=True)

    def _cache_key(self, *inputs: Any) -> str:
        """Of what follows from these inputs and the type of the weights."""
        return content_hash([*inputs, str(self.dtype)])[:16]

    def _calibration_key(self, tokens: Tensor) -> str:
        return self._cache_key(self.content["model"], tokens.tolist(), self.last_k, self.calibration)

    def _known(self, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Scores, computed or read from the cache that several runs share."""
        if self.machine.cache is None:
            return compute()
        return kept(self.machine.cache / f"{key}.scores.safetensors", lambda: ({}, compute())).about

    def _scored(self, what: str, model: Any, start: int, hidden: Hidden) -> dict[str, Any]:
        """Return the scores of a network for the record."""
        tell = None if self.progress is None else partial(self.progress, f"scores, {what}")
        parameter = next(model.parameters())
        with running(model, start) as (run, head):
            found = hidden_losses(run, head, hidden, parameter.device, parameter.dtype, tell)
        count = hidden.tokens.shape[0] * (hidden.tokens.shape[1] - 1)
        return asdict(TextScores.of(count, found))

    def _hidden(self, original: nn.Module, tokens: Tensor, start: int, name: str, *, half: bool) -> Hidden:
        """Return hidden states of a part; those of the test text as exact as the network."""
        progress = self.progress
        tell = None if progress is None else lambda done, of: progress(f"hidden states, {name}", done, of)
        identity = [self.content["model"], str(self.dtype)]  # rounded weights, or products alone
        place = self.machine.cache or self.out / WORK
        return hidden_states(original, tokens, start, place, half=half, identity=identity, tell=tell)

    def _calibrated(self, tokens: Tensor) -> tuple[Any, list[CalibratedLayer]]:
        """Compute the calibrated model, or read it where another run, process or call has kept it."""
        made, _ = self.load(self.model)

        def computed() -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
            report = calibrate(
                made, tokens, self.last_k, calibration=self.calibration,
                tell=lambda layer: self.say(
                    f"layer {layer.layer}: {layer.open:.0%} of the gates open, error {layer.before:.3f}"
                    + ("" if layer.after is None else f", {layer.after:.3f} with down refitted")
                ),
            )  # fmt: skip
            return _calibration(made, report), [asdict(layer) for layer in report]

        file = (self.machine.cache or self.out / WORK) / f"{self._calibration_key(tokens)}.calibrated.safetensors"
        found = kept(file, computed)
        if not found.made:
            replace_gates(made, self.last_k)
            made.load_state_dict(found.tensors, strict=False)
        return made, [CalibratedLayer(**row) for row in found.about]


def _environment() -> dict[str, Any]:
    """As in every record, with the packages that language models need."""
    found = environment()
    for package in ("transformers", "peft", "gguf"):
        with suppress(metadata.PackageNotFoundError):
            found["versions"][package] = metadata.version(package)
    return found


def _calibration(model: nn.Module, report: Sequence[CalibratedLayer]) -> dict[str, Tensor]:
    """Return what calibration changed in a model."""
    numbers = {layer.layer for layer in report}
    paths = tuple(f"{mlp.path}." for mlp in gated_mlps(model) if mlp.layer in numbers)
    return {
        name: value.contiguous()
        for name, value in model.state_dict().items()
        if name.startswith(paths) and value.is_floating_point() and name.endswith(_CALIBRATED)
    }


def open_shares(model: nn.Module, tokens: Tensor) -> list[dict[str, float]]:
    """By layer: the share of open gates on some blocks, of neurons whose gate never opens, and of those where it always
    does."""
    counts = dict[int, Tensor]()

    def see(number: int, gate: Gate, g: Tensor) -> None:
        counts[number] = counts.get(number, 0) + gate.open(g).sum(0).cpu()

    read_gates(model, tokens, see)
    total = tokens.numel()
    return [
        {
            "layer": number,
            "open": opened.double().mean().item() / total,
            "dead": (opened == 0).double().mean().item(),
            "always": (opened == total).double().mean().item(),
        }
        for number, opened in sorted(counts.items())
    ]


def read(folder: str | Path) -> dict[str, Any]:
    """Read the record of a finished run.

    Raises:
        LanguageError: there is none, or it is not finished.
    """
    record = read_record(Path(folder) / RECORD, FORMAT, LanguageError)
    if record is None:
        raise LanguageError(f"expected a folder that `htaf train llm` wrote, {folder} has no {RECORD}")
    if record.get("status") != "finished":
        raise LanguageError(f"{folder} holds an unfinished training: give its command again")
    return record


def _record(out: Path, key: str | None) -> dict[str, Any] | None:
    """Return the record of a folder; key: of the run that it must be."""
    record = read_record(out / RECORD, FORMAT, LanguageError)
    if record is not None and key is not None and record.get("key") != key:
        raise LanguageError(f"{out} holds another run, or its inputs have changed: choose another --out")
    others = out.exists() and (not out.is_dir() or any(file.name != LOCK for file in out.iterdir()))
    if record is None and others:
        raise LanguageError(f"expected a new or empty folder, {out} holds other files: choose another --out")
    return record


def _told(scores: dict[str, Any]) -> str:
    near = "" if scores["kl"] is None else f", KL {scores['kl']:.4f}, agreement {scores['agreement']:.1%}"
    return f"perplexity {scores['perplexity']:.2f}{near}"
