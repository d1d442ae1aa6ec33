"""Figure "Results of the prediction accuracy of LLM depends on various k", and how near to the original a model stays.

Reduced to two cores: any small model of transformers (SmolLM2-135M in results/) instead of Llama-2-7b and Qwen-3.5-9b,
hundreds of steps instead of 5,000. Two parts:

- `text`: the last k gates calibrated, then LoRA with distillation on text; perplexity, KL divergence and agreement with
  the original on test documents, and accuracy on OpenBookQA. HTAF, straight-through and scaled sigmoid, equal budgets.
- `task`: as the paper, the likelihood of the task's right answers alone, each k from the network of the k before;
  accuracy over k.

Each cell is the record of a run (`htaf.language.run.fit`) in a folder of its own; finished ones are not computed again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from htaf._console import plain_errors
from htaf.language.calibration import Calibration
from htaf.language.lora import Method, Training
from htaf.language.run import Data, fit
from htaf_paper.language_report import report
from htaf_paper.shares import HELP, share

LAYERS = (1, 2, 4, 8, 16, 30)
SEEDED = (4, 8)  # where three methods get three seeds
WAYS: dict[str, Calibration] = {"plain": "plain", "threshold": "gates", "trained": "down"}
METHODS: tuple[Method, ...] = ("htaf", "ste", "ss")


@dataclass(frozen=True)
class Cell:
    """One run. part: text or task. way: plain or threshold (no training), or trained: of the calibrated network, whose
    scores it holds too.
    """

    part: str
    last_k: int
    way: str
    method: Method = "htaf"
    seed: int = 0

    @property
    def name(self) -> str:
        """Of its folder."""
        what = f"{self.method}-{self.seed}" if self.way == "trained" else self.way
        return f"{self.part}-k{self.last_k:02d}-{what}"


def cells(layers: tuple[int, ...] = LAYERS) -> Iterator[Cell]:
    """The plan, from few layers to many."""
    for k in layers:
        for way in ("plain", "threshold"):
            yield Cell("text", k, way)
        for method in METHODS:
            if method == "ss" and k not in SEEDED:
                continue
            for seed in range(3 if k in SEEDED else 1):
                yield Cell("text", k, "trained", method, seed)
        for method in METHODS[:2]:
            yield Cell("task", k, "trained", method)


@dataclass(frozen=True)
class Setting:
    """What all cells share. steps: of a training. training: blocks of text at hand for it. batch_size, lr, rank: see
    `Training`; chosen on validation text.
    """

    model: str
    text: str
    task: str
    task_test: str
    steps: int = 100
    length: int = 256
    training: int = 400
    batch_size: int = 2
    lr: float = 1.5e-3
    rank: int = 64


def before(cell: Cell, layers: tuple[int, ...]) -> Cell | None:
    """The cell whose network a cell of the task begins with."""
    fewer = [k for k in layers if k < cell.last_k]
    return replace(cell, last_k=max(fewer)) if cell.part == "task" and fewer else None


def run_cell(
    cell: Cell, setting: Setting, out: Path, layers: tuple[int, ...] = LAYERS, *, keep: bool = False
) -> dict[str, Any]:
    """Compute one cell, or read it; and those that it begins with."""
    begin = before(cell, layers)
    if begin is not None:
        run_cell(begin, setting, out, layers, keep=True)
    task = cell.part == "task"
    data = Data(
        None if task else setting.text, setting.task if task else None, setting.task_test, length=setting.length,
        training=max(setting.training, setting.steps * setting.batch_size),
    )  # fmt: skip
    training = Training(steps=0, precision="bfloat16")
    if cell.way == "trained":
        training = Training(
            cell.method, steps=setting.steps, batch_size=setting.batch_size, lr=setting.lr, rank=setting.rank,
            lora_alpha=setting.rank, distil=0.0 if task else 1.0, precision="bfloat16", seed=cell.seed,
        )  # fmt: skip
    return fit(
        setting.model, data, training, out / cell.name, last_k=cell.last_k, cache=out / "cache",
        calibration=WAYS[cell.way], save=keep or task, start_from=None if begin is None else str(out / begin.name),
        say=lambda line: print(f"{cell.name}: {line}", flush=True),
    )  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m htaf_paper.language", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the cells and the report")
    parser.add_argument("--model", required=True, help="folder of transformers, .gguf file, or a name at the hub")
    parser.add_argument("--text", required=True, help="folder of text files")
    parser.add_argument("--task", required=True, help="questions to learn, JSON lines")
    parser.add_argument("--task-test", required=True, help="questions to be scored on")
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--steps", type=int, default=Setting.steps)
    parser.add_argument("--part", choices=("text", "task"), help="(default: both)")
    parser.add_argument("--keep", nargs="*", default=[], help="cells whose models are kept, such as text-k08-htaf-0")
    parser.add_argument("--only", nargs="+", metavar="CELL", help="these cells alone, such as text-k08-htaf-0")
    parser.add_argument("--share", type=share, default="1/1", help=HELP)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    layers = tuple(sorted(given.layers))
    setting = Setting(given.model, given.text, given.task, given.task_test, given.steps)
    planned = [cell for cell in cells(layers) if given.part in (None, cell.part)]
    if given.only:
        unknown = sorted(set(given.only) - {cell.name for cell in planned})
        if unknown:
            parser.error(f"no such cells: {' '.join(unknown)}; there are {' '.join(cell.name for cell in planned)}")
        planned = [cell for cell in planned if cell.name in given.only]
    text = [cell for cell in planned if cell.part == "text"][given.share]
    mine = METHODS[given.share]  # a chain of cells, each from the one before, stays in one process
    task = [cell for cell in planned if cell.part == "task" and cell.method in mine]
    with plain_errors():
        for cell in text + task:
            run_cell(cell, setting, given.out, layers, keep=cell.name in given.keep)
        print(report(given.out))


if __name__ == "__main__":
    main()
