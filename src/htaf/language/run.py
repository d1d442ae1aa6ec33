"""From a language model and text to a folder with 0/1 gates: calibrated, trained, merged and measured."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from htaf._files import read_record, to_json, write_atomic
from htaf.language import files, text
from htaf.language.calibration import calibrate
from htaf.language.errors import LanguageError
from htaf.language.gates import gates_of
from htaf.language.hidden import Hidden, hidden_states
from htaf.language.lora import CHECKPOINT, Training, train
from htaf.language.scores import choice_scores, counting_open_gates, text_scores
from htaf.runs import content_hash, environment, locked

RECORD, WORK, FORMAT = "htaf_record.json", "work", 1
Say = Callable[[str], None]


@dataclass(frozen=True)
class Data:
    """The text of a run.

    text: a file, or a folder of text files, for calibration, training and perplexity.
    task: a JSON-lines file of multiple choice, whose right answers are learned too.
    task_test: another one, to be scored on.
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


def prepare(data: Data, tokenizer: Any, seed: int) -> tuple[Blocks, list[text.Question], list[str]]:
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
    made = {
        part: text.blocks(documents, tokenizer, data.length, most[part], seed if part == "train" else 0)
        for part, documents in parts.items()
    }
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
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    repair: bool = True,
    say: Say = lambda line: None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Convert a language model and write it as a folder; go on where an earlier call was stopped.

    Args:
        model: as `files.load` takes it.
        data, training: what it learns from, and how; training.steps 0 is not possible: leave it to `convert`.
        out: a new folder, or the same run's.
        last_k: how many layers, counted from the end.
        dtype, device: of the weights while they are trained, and of the files.
        repair: refit `down` in the calibration.
        say: is told what is being done, a line each.
        progress: is told (what, done, of how many) while hidden states are computed.

    Returns:
        The record, which is also htaf_record.json: scores on the test text before, calibrated and trained, shares of
        open gates, seconds.

    Raises:
        LanguageError: see `files.load`, `calibrate`, `train`; or the folder holds something else.
    """
    out = Path(out)
    identity = {
        "model": model, "data": asdict(data), "training": asdict(training), "last_k": last_k, "dtype": str(dtype),
        "repair": repair,
    }  # fmt: skip
    key = content_hash(identity)
    if (record := _record(out, key)) is not None and record["status"] == "finished":
        return record
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, "another process trains in", LanguageError):
        began = time.perf_counter()
        write_atomic(
            out / RECORD,
            to_json({"format": FORMAT, "status": "running", "key": key, **identity, **environment()}),
        )
        say(f"loading {model}")
        original, tokenizer = files.load(model, dtype=dtype, device=device)
        blocks, asked, notes = prepare(data, tokenizer, training.seed)
        say(f"{len(blocks.train)} blocks of {data.length} tokens to train on, {len(blocks.test)} to test")
        start = len(_layers(original)) - last_k
        if start < 0 or last_k < 1:
            raise LanguageError(f"last_k must be in 1 to {len(_layers(original))}, got {last_k}")
        kept = _hidden(original, blocks, start, out / WORK, [model, str(dtype)], progress)
        before = _scores(original, tokenizer, blocks.test, asked, None)
        say(f"original: {_told(before)}")
        converted, _ = files.load(model, dtype=dtype, device=device)
        layers = calibrate(
            converted, blocks.train[: data.calibration], last_k, repair=repair,
            tell=lambda layer: say(
                f"layer {layer.layer}: {layer.open:.0%} of the gates open, error {layer.before:.3f}"
                + ("" if layer.after is None else f", {layer.after:.3f} with down refitted")
            ),
        )  # fmt: skip
        calibrated = _scores(converted, tokenizer, blocks.test, asked, original)
        say(f"calibrated: {_told(calibrated)}")
        told = train(
            converted, training, *kept, out / WORK,
            tell=lambda row: say(f"step {row.step} of {training.steps}: KL {row.kl:.4f}, loss {row.loss:.4f}"),
        )  # fmt: skip
        trained = _scores(converted, tokenizer, blocks.test, asked, original)
        say(f"trained: {_told(trained)}")
        files.save(converted, tokenizer, out)
        record = {
            "format": FORMAT, "status": "finished", "key": key, **identity, **environment(), "notes": notes,
            "before": before, "calibrated": calibrated, "trained": trained,
            "gates": open_shares(converted, blocks.test),
            "layers": [asdict(layer) for layer in layers], "validation": [asdict(row) for row in told[1:]],
            "seconds": time.perf_counter() - began,
        }  # fmt: skip
        write_atomic(out / RECORD, to_json(record))
        shutil.rmtree(out / WORK, ignore_errors=True)
    return json.loads(to_json(record))


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


def _layers(model: nn.Module) -> nn.ModuleList:
    from htaf.language.gates import decoder_of

    return decoder_of(model).layers


def _hidden(
    model: nn.Module, blocks: Blocks, start: int, work: Path, identity: Any, progress: Any
) -> tuple[Hidden, Hidden]:
    def made(tokens: Tensor, name: str) -> Hidden:
        tell = None if progress is None else lambda done, of: progress(f"hidden states, {name}", done, of)
        return hidden_states(model, tokens, start, work / name, identity=identity, tell=tell)

    return made(blocks.train, "train"), made(blocks.validation, "validation")


def _scores(
    model: nn.Module, tokenizer: Any, tokens: Tensor, asked: Sequence[text.Question], original: nn.Module | None
) -> dict[str, Any]:
    found: dict[str, Any] = asdict(text_scores(model, tokens, original))
    return found | ({"task": asdict(choice_scores(model, tokenizer, asked))} if asked else {})


def _told(scores: dict[str, Any]) -> str:
    near = "" if scores["kl"] is None else f", KL {scores['kl']:.3f}, agreement {scores['agreement']:.1%}"
    task = f", task {scores['task']['accuracy']:.1%}" if "task" in scores else ""
    return f"perplexity {scores['perplexity']:.2f}{near}{task}"


__all__ = ["CHECKPOINT", "RECORD", "Blocks", "Data", "fit", "open_shares", "prepare", "read"]
