"""From a language model and text to a folder with 0/1 gates: calibrated, trained, merged and measured."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from htaf._files import read_record, to_json, write_atomic
from htaf.language import files, text
from htaf.language.calibration import CalibratedLayer, Calibration, calibrate
from htaf.language.errors import LanguageError
from htaf.language.gates import decoder_of, gated_mlps, gates_of, replace_gates
from htaf.language.hidden import Hidden, hidden_states, running
from htaf.language.lora import CHECKPOINT, Measured, Training, lora_changes, train
from htaf.language.losses import hidden_losses
from htaf.language.ranks import joined
from htaf.language.scores import TextScores, choice_scores, counting_open_gates
from htaf.runs import content_hash, environment, locked

RECORD, WORK, FORMAT = "htaf_record.json", "work", 1
Say = Callable[[str], None]


@dataclass(frozen=True)
class Data:
    """The text of a run.

    text: a file, or a folder of text files, for calibration, training and perplexity.
    task: multiple choice whose right answers are learned too: a JSON-lines file; of a
        known one by `htaf.language.text.task_files`.
    task_test: another file, to be scored on.
    length: tokens of a block. calibration, training, validation, test: at most so many blocks of each.
    """

    text: str | None = None
    task: str | None = None
    task_test: str | None = None
    length: int = 256
    calibration: int = 128
    training: int = 2000
    validation: int = 16
    test: int = 64


@dataclass(frozen=True)
class Blocks:
    """Tokens of each part, [blocks, length]."""

    train: Tensor
    validation: Tensor
    test: Tensor


def prepare(data: Data, tokenizer: Any) -> tuple[Blocks, list[text.Question], list[str]]:
    """The blocks of a run, the questions it is scored on, and notes on lines that were left out.

    Raises:
        LanguageError: neither text nor a task, or too little of it.
    """
    if data.text is None and data.task is None:
        raise LanguageError("expected text or a task to learn from, got neither")
    found, asked, notes = list[text.Document](), list[text.Question](), list[str]()
    if data.text is not None:
        found += text.documents(data.text)
    if data.task is not None:
        learned, bad = text.questions(data.task)
        notes += _notes(data.task, bad)
        lines = list(text.lines_of(learned))
        found += [text.Document(f"task#{i}", "\n".join(lines[i : i + 50])) for i in range(0, len(lines), 50)]
    if data.task_test is not None:
        asked, bad = text.questions(data.task_test)
        notes += _notes(data.task_test, bad)
    parts = text.by_parts(found)
    most = {"train": data.training, "validation": data.validation, "test": data.test}
    made = {part: text.blocks(documents, tokenizer, data.length, most[part]) for part, documents in parts.items()}
    return Blocks(**made), asked, notes


def _notes(path: str, bad: Sequence[str]) -> list[str]:
    listed = "; ".join(bad[:3]) + ("; ..." if len(bad) > 3 else "")
    return [f"{path}: {len(bad)} lines left out ({listed})"] if bad else []


def fit(
    model: str,
    data: Data,
    training: Training,
    out: str | Path,
    *,
    last_k: int = 4,
    start_from: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    quantize: bool = False,
    calibration: Calibration = "down",
    cache: str | Path | None = None,
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
        start_from: a folder of an earlier run with fewer gates: its weights and gates are kept, and the other layers
            among the last_k are calibrated.
        dtype, device: of the weights while they are trained, and of the files.
        quantize: hold the frozen weights in 4 bits while it trains (bitsandbytes).
        calibration: see `htaf.language.calibrate`; weights in 4 bits cannot be refitted, there "down" is "gates".
        cache: folder of hidden states and calibrations that several runs share; None: in the run's own, and deleted
            at its end.
        save: write the model too; False: the record alone.
        say: is told what is being done, a line each.
        progress: is told (what, done, of how many) while hidden states are computed.

    Returns:
        The record, which is also htaf_record.json: scores on the test text before, calibrated and trained, shares of
        open gates, seconds.

    Raises:
        LanguageError: see `files.load`, `calibrate`, `train`; or the folder holds something else.
    """
    out = Path(out)
    source = {
        "model": model, "data": asdict(data), "last_k": last_k, "start_from": start_from, "dtype": str(dtype),
        "calibration": "gates" if quantize and calibration == "down" else calibration, "quantize": quantize,
    }  # fmt: skip
    identity = source | {"training": asdict(training)}
    key = content_hash(identity)
    if (record := _record(out, key)) is not None and record["status"] == "finished":
        return record
    out.mkdir(parents=True, exist_ok=True)
    work = out / WORK
    with joined(device) as (ranks, place), ExitStack() as stack:
        if ranks.first:
            stack.enter_context(locked(out, "another process trains in", LanguageError))
        say = say if ranks.first else _silent
        began = time.perf_counter()
        if ranks.first:
            started = {"format": FORMAT, "status": "running", "key": key, **identity, **environment()}
            write_atomic(out / RECORD, to_json(started))
        say(f"loading {model}")
        original, tokenizer = files.load(model, dtype=dtype, device=place, quantize=quantize)
        original.requires_grad_(False)
        blocks, asked, notes = prepare(data, tokenizer)
        say(f"{len(blocks.train)} blocks of {data.length} tokens to train on, {len(blocks.test)} to test")
        count = len(decoder_of(original).layers)
        if not 1 <= last_k <= count:
            raise LanguageError(f"last_k must be in 1 to {count}, the layers of this model, got {last_k}")
        start = count - last_k
        shared = work if cache is None else Path(cache)
        loading = {"dtype": dtype, "device": place, "quantize": quantize}

        def prepared() -> tuple[dict[str, Hidden], Any, list[CalibratedLayer]]:
            states = _hidden(original, blocks, start, shared, [model, str(dtype), quantize], training, progress)
            kept = cache is not None or ranks.size > 1
            found = _calibrated(
                source, start_from or model, blocks.train[: data.calibration], last_k, shared if kept else None, say,
                **loading,
            )  # fmt: skip
            return states, *found

        if not ranks.first:  # they read what the first one has written
            ranks.wait()
        hidden, converted, layers = prepared()
        if ranks.first:
            ranks.wait()
        before = calibrated = dict[str, Any]()
        if ranks.first:
            before = _scores(original, tokenizer, start, hidden["test"], asked) | {"kl": None, "agreement": None}
            say(f"original: {_told(before)}")
            calibrated = _scores(converted, tokenizer, start, hidden["test"], asked)
            say(f"calibrated: {_told(calibrated)}")
        trained, told = calibrated, list[Measured]()
        if training.steps:
            told = train(
                converted, training, hidden["train"], hidden["validation"], work, original=original,
                merge=not quantize, ranks=ranks,
                tell=lambda row: say(f"step {row.step} of {training.steps}: KL {row.kl:.4f}, loss {row.loss:.4f}"),
            )  # fmt: skip
        if ranks.first:
            if training.steps:
                if quantize:
                    converted = _merged(converted, start_from or model, last_k, dtype=dtype, device=place)
                trained = _scores(converted, tokenizer, start, hidden["test"], asked)
                say(f"trained: {_told(trained)}")
            if save:
                files.save(converted, tokenizer, out)
            record = {
                "format": FORMAT, "status": "finished", "key": key, **identity, **environment(), "notes": notes,
                "before": before, "calibrated": calibrated, "trained": trained,
                "gates": open_shares(converted, blocks.test), "processes": ranks.size,
                "layers": [asdict(layer) for layer in layers], "validation": [asdict(row) for row in told],
                "seconds": time.perf_counter() - began,
            }  # fmt: skip
            write_atomic(out / RECORD, to_json(record))
            shutil.rmtree(work, ignore_errors=True)
        ranks.wait()
    return read(out)


def _silent(line: str) -> None:
    """What the processes but the first say."""


def open_shares(model: nn.Module, tokens: Tensor) -> list[dict[str, float]]:
    """By layer: the share of open gates on some blocks, of neurons whose gate never opens, and of those where it always
    does."""
    with torch.no_grad(), counting_open_gates(model) as counts:
        for block in tokens:
            model(input_ids=block[None].to(next(model.parameters()).device), use_cache=False)
    total = counts[-1].item()
    return [
        {
            "layer": number,
            "open": counts[number].double().mean().item() / total,
            "dead": (counts[number] == 0).double().mean().item(),
            "always": (counts[number] == total).double().mean().item(),
        }
        for number in sorted(gates_of(model))
    ]


def read(folder: str | Path) -> dict[str, Any]:
    """The record of a finished run.

    Raises:
        LanguageError: there is none, or it is not finished.
    """
    record = read_record(Path(folder) / RECORD, FORMAT, LanguageError)
    if record is None:
        raise LanguageError(f"expected a folder that `htaf train llm` wrote, {folder} has no {RECORD}")
    if record.get("status") != "finished":
        raise LanguageError(f"{folder} holds an unfinished training: give its command again")
    return record


def _record(out: Path, key: str) -> dict[str, Any] | None:
    record = read_record(out / RECORD, FORMAT, LanguageError)
    if record is not None and record.get("key") != key:
        raise LanguageError(f"{out} holds another run: choose another --out")
    if record is None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise LanguageError(f"expected a new or empty folder, {out} holds other files: choose another --out")
    return record


def _hidden(
    original: nn.Module, blocks: Blocks, start: int, folder: Path, identity: Any, training: Training, progress: Any
) -> dict[str, Hidden]:
    """Hidden states by part; those of the test text as exact as the network."""

    def made(name: str, tokens: Tensor, half: bool) -> Hidden:
        tell = None if progress is None else lambda done, of: progress(f"hidden states, {name}", done, of)
        place = folder / f"{content_hash([identity, start, name, half])[:16]}"
        return hidden_states(original, tokens, start, place, half=half, identity=identity, tell=tell)

    half = training.precision == "bfloat16"
    found = {"test": made("test", blocks.test, False)}
    if training.steps:
        found |= {"train": made("train", blocks.train, half), "validation": made("validation", blocks.validation, half)}
    return found


def _calibrated(
    identity: Any, model: str, tokens: Tensor, last_k: int, cache: Path | None, say: Say, **loading: Any
) -> tuple[Any, list[CalibratedLayer]]:
    """The calibrated model: computed, or read from the cache."""
    made, _ = files.load(model, **loading)
    made.requires_grad_(False)
    file = None if cache is None else cache / f"{content_hash(identity)[:16]}.calibrated.safetensors"
    if file is not None and file.is_file():
        with safetensors.safe_open(file, "pt") as opened:
            report = json.loads((opened.metadata() or {})["report"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        replace_gates(made, last_k)
        made.load_state_dict(tensors, strict=False)
        return made, [CalibratedLayer(**row) for row in report]
    report = calibrate(
        made, tokens, last_k, calibration=identity["calibration"],
        tell=lambda layer: say(
            f"layer {layer.layer}: {layer.open:.0%} of the gates open, error {layer.before:.3f}"
            + ("" if layer.after is None else f", {layer.after:.3f} with down refitted")
        ),
    )  # fmt: skip
    if file is not None:
        paths = tuple(mlp.path for mlp in gated_mlps(made)[-last_k:])
        changed = {
            name: value.contiguous()
            for name, value in made.state_dict().items()
            if name.startswith(paths) and ("down_proj" in name or name.endswith(("threshold", "scale", "width")))
        }
        cached = safetensors.torch.save(changed, {"report": json.dumps([asdict(layer) for layer in report])})
        write_atomic(file, cached)
    return made, report


def _merged(trained: Any, model: str, last_k: int, **loading: Any) -> Any:
    """Gates and LoRA of a model with 4-bit weights, in one with whole weights."""
    whole, _ = files.load(model, **loading)
    gates, changes = gates_of(trained), lora_changes(trained)
    if set(gates_of(whole)) != set(gates):
        replace_gates(whole, last_k)
    with torch.no_grad():
        for number, gate in gates_of(whole).items():
            gate.load_state_dict({name: value.cpu() for name, value in gates[number].state_dict().items()})
        for path, change in changes.items():
            weight = whole.get_submodule(path).weight
            weight.add_(change.to(weight.device, weight.dtype))
    return whole


def _scores(model: Any, tokenizer: Any, start: int, hidden: Hidden, asked: Sequence[text.Question]) -> dict[str, Any]:
    with running(model, start) as (run, head):
        found = hidden_losses(run, head, hidden, next(model.parameters()))
    count = hidden.tokens.shape[0] * (hidden.tokens.shape[1] - 1)
    perplexity = math.exp(min(found.likelihood, 700.0))
    scores: dict[str, Any] = asdict(TextScores(count, found.likelihood, perplexity, found.kl, found.agreement))
    return scores | ({"task": asdict(choice_scores(model, tokenizer, asked))} if asked else {})


def _told(scores: dict[str, Any]) -> str:
    near = "" if scores["kl"] is None else f", KL {scores['kl']:.3f}, agreement {scores['agreement']:.1%}"
    task = f", task {scores['task']['accuracy']:.1%}" if "task" in scores else ""
    return f"perplexity {scores['perplexity']:.2f}{near}{task}"


__all__ = ["CHECKPOINT", "RECORD", "Blocks", "Data", "fit", "open_shares", "prepare", "read"]
