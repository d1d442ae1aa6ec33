"""`htaf train llm`: language models with 0/1 gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, arg

from htaf._ground.console import (
    UsageError,
    check_seed,
    print_json,
    progress,
    quiet_transformers,
    say,
    show,
    tell,
)
from htaf._ground.files import check_output_folder
from htaf.cli.flags import Folder, Json
from htaf.language.options import MOST, Calibration, Data, Machine, Training

Model = Annotated[
    str, arg(help="A folder of transformers, a .gguf file, or a name at the Hugging Face hub.", metavar="NAME_OR_PATH")
]


@dataclass(frozen=True)
class DataFlags:
    """What it learns from, and is scored on.

    Args:
        text: A file of text, or a folder of text files.
        length: Tokens of a block.
        training_blocks: At most so many different blocks.
    """

    text: Annotated[Path, arg(metavar="PATH")]
    length: int = 256
    training_blocks: int = 2000

    def check(self) -> None:
        """Raise UsageError for values out of range."""
        for name, value in (("length", self.length), ("training-blocks", self.training_blocks)):
            if not 2 <= value <= MOST:
                raise UsageError(f"--{name} must be in 2 to {MOST}, got {value}")

    def data(self) -> Data:
        """As `fit` takes it."""
        return Data(str(self.text), length=self.length, training=self.training_blocks)


def train_llm(
    *,
    model: Model,
    out: Folder,
    data: OmitArgPrefixes[DataFlags],
    last_k: int = 4,
    calibration: Calibration = "down",
    training: OmitArgPrefixes[Training] = Training(),  # noqa: B008
    machine: OmitArgPrefixes[Machine] = Machine(),  # noqa: B008
    json: Json = False,
) -> None:
    """Give the MLPs of a language model 0/1 gates: calibrated in closed form, then trained with LoRA.

    Args:
        out: Folder of the result: new, or the same run to resume.
        last_k: How many layers get gates, counted from the end.
        calibration: First, in closed form. plain: nothing; gates: thresholds and scales; down: also the down
            projections.
    """
    check_seed(training.seed)
    if not 1 <= last_k <= MOST:
        raise UsageError(f"--last-k must be in 1 to {MOST}, got {last_k}")
    data.check()
    if not machine.device.strip():
        raise UsageError(f"--device: expected a text, got {machine.device!r}")
    inputs = [model, data.text]
    check_output_folder(out, inputs, own="language model")
    if machine.cache is not None:
        check_output_folder(machine.cache, inputs, flag="--cache")
    for flag, place in (("--out", out), ("--cache", machine.cache)):
        if place is not None and data.text.resolve() in place.resolve().parents:
            raise UsageError(f"{flag} {place} lies in the folder of --text, whose files are read: choose another")
    from htaf.language.run import fit

    quiet_transformers()
    record = fit(
        model, data.data(), training, out, last_k=last_k,
        calibration=calibration, machine=machine, say=tell, progress=_Bars(),
    )  # fmt: skip
    print_json(record) if json else _table(record, out)


class _Bars:
    """Progress of one kind of work after the other."""

    def __init__(self) -> None:
        self.what, self.done = "", 0
        self.stack = ExitStack()
        self.advance: Callable[..., None] = lambda more: None

    def __call__(self, what: str, done: int, of: int) -> None:
        if what != self.what:
            self.stack.close()
            self.advance = self.stack.enter_context(progress(what, of, done=done - 1))
            self.what, self.done = what, done - 1
        self.advance(done - self.done)
        self.done = done
        if done == of:
            self.stack.close()
            self.what = ""


def _table(record: dict[str, Any], folder: Path) -> None:
    name = Path(record["model"]).name
    method = f" ({record['training']['method']})" if record["training"]["steps"] else ""
    rows = (("before", "original"), ("calibrated", "calibrated"), ("trained", "trained"))
    shown = [(label, record[key]) for key, label in (rows if record["training"]["steps"] else rows[:2])]
    _scores(f"{name}, last {record['last_k']} layers with 0/1 gates{method}", shown)
    opened = [gate["open"] for gate in record["gates"]]
    say(f"open gates: {sum(opened) / len(opened):.1%}; model: {folder}")


def _scores(title: str, rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Networks with their scores as a table."""
    shown: list[tuple[object, ...]] = []
    for label, row in rows:
        same = None if row.get("kl") is None else f"{row['agreement']:.1%}"
        shown.append((label, f"{row['perplexity']:.2f}", row.get("kl"), same))
    show(title, ("network", "perplexity", "KL", "same token"), shown)
