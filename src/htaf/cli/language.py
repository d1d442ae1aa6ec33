"""`htaf train llm` and `htaf generate`: language models with 0/1 gates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from htaf._console import UsageError, check_seed, err, print_json, progress, quiet_transformers, say, say_notes
from htaf._files import check_output_folder
from htaf.cli.flags import AT_HUB, LANGUAGE_RECORD, Folder, Json
from htaf.cli.tables import show
from htaf.language.options import MOST, Calibration, Data, Machine, Training

Model = Annotated[
    str, arg(help="A folder of transformers, a .gguf file, or a name at the Hugging Face hub.", metavar="NAME_OR_PATH")
]
Dtype = Literal["float32", "bfloat16"]
COLDEST = 1e-3  # below, logits over the temperature overflow


@dataclass(frozen=True)
class DataFlags:
    """What it learns from, and is scored on.

    Args:
        text: A file of text, or a folder of text files.
        task: Multiple choice to learn from: openbookqa, winogrande-xs, winogrande-s, winogrande-m, or a file of JSON
            lines in the form of these or of context, choices, answer.
        task_test: Multiple choice to be scored on: the test questions of a named task, or a file; of a named --task its
            own where none is given.
        length: Tokens of a block.
        training_blocks: At most so many different blocks.
        data_dir: Folder of the named tasks; HTAF_DATA where none is given.
    """

    text: Annotated[Path | None, arg(metavar="PATH")] = None
    task: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None
    task_test: Annotated[str | None, arg(metavar="NAME_OR_PATH")] = None
    length: int = 256
    training_blocks: int = 2000
    data_dir: Annotated[str | None, arg(metavar="DIR")] = None

    def check(self) -> None:
        """Raises UsageError for what cannot be."""
        if self.text is None and self.task is None:
            raise UsageError("expected --text or --task to learn from, got neither")
        for name, value in (("length", self.length), ("training-blocks", self.training_blocks)):
            if not 2 <= value <= MOST:
                raise UsageError(f"--{name} must be in 2 to {MOST}, got {value}")
        for name, given in (("task", self.task), ("task-test", self.task_test)):
            if given is not None and not given.strip():
                raise UsageError(f"--{name}: expected a text, got {given!r}")

    def data(self) -> Data:
        """The files of named tasks, and the text."""
        from htaf.language import text as texts

        task, scored = self.task, None
        if task is not None:
            learned, scored = texts.task_files(task, self.data_dir)
            task = str(learned)
        if self.task_test is not None:
            learned, held_out = texts.task_files(self.task_test, self.data_dir)
            scored = held_out or learned
        if task is not None and scored is None:
            say_notes(["the task is learned and not scored: --task-test names questions for that"])
        text, test = (None if file is None else str(file) for file in (self.text, scored))
        return Data(text, task, test, length=self.length, training=self.training_blocks)


def train_llm(
    *,
    model: Model,
    out: Folder,
    last_k: int = 4,
    start_from: Annotated[Path | None, arg(metavar="RUN")] = None,
    calibration: Calibration = "down",
    data: OmitArgPrefixes[DataFlags] = DataFlags(),
    training: OmitArgPrefixes[Training] = Training(),  # noqa: B008
    machine: OmitArgPrefixes[Machine] = Machine(),  # noqa: B008
    json: Json = False,
) -> None:
    """Give the MLPs of a language model 0/1 gates: calibrated in closed form, then trained with LoRA.

    Args:
        out: Folder of the result: new, or the same run to resume.
        last_k: How many layers get gates, counted from the end.
        start_from: Folder of a run with fewer gates, whose weights and gates this one begins with.
        calibration: First, in closed form. plain: nothing; gates: thresholds and scales; down: also the down
            projections.
    """
    check_seed(training.seed)
    if not 1 <= last_k <= MOST:
        raise UsageError(f"--last-k must be in 1 to {MOST}, got {last_k}")
    data.check()
    _check_paths(model=model, text=data.text, start_from=start_from)
    if not machine.device.strip():
        raise UsageError(f"--device: expected a text, got {machine.device!r}")
    inputs = [path for path in (model, data.text, data.task, data.task_test, start_from) if path is not None]
    check_output_folder(out, inputs, own="language model")
    if machine.cache is not None:
        check_output_folder(machine.cache, inputs, flag="--cache")
    for flag, place in (("--out", out), ("--cache", machine.cache)):
        if data.text is not None and place is not None and data.text.resolve() in place.resolve().parents:
            raise UsageError(f"{flag} {place} lies in the folder of --text, whose files are read: choose another")
    from htaf.language.run import fit

    _quiet()
    record = fit(
        model, data.data(), training, out, last_k=last_k, start_from=None if start_from is None else str(start_from),
        calibration=calibration, machine=machine, say=err.print, progress=_Bars(),
    )  # fmt: skip
    print_json(record) if json else _table(record, out)


def _check_paths(**given: Path | str | None) -> None:
    """Raises UsageError for a flag whose path no system takes."""
    for name, path in given.items():
        if "\0" in str(path):
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag}: expected a path, got {str(path)!r}, which holds a null character")


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


def _quiet() -> None:
    """Keep libraries from talking between the lines of a command."""
    import logging

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    quiet_transformers()


def evaluate_llm(folder: Path, data: str | None, json: bool) -> None:
    """What `htaf evaluate` says of a folder that `htaf train llm` wrote."""
    from htaf.language import run as runs

    if data is None:
        record = runs.read(folder)
        return print_json(record) if json else _table(record, folder)
    _quiet()
    found = runs.evaluate(folder, data, progress=_Bars())
    say_notes(found["notes"])
    if json:
        return print_json(found)
    rows = [(name, found[name]) for name in ("original", "run") if found[name]]
    return _scores(data, rows)


def pack_llm(folder: Path, out: Path, weights: Dtype, json: bool) -> None:
    """What `htaf pack` does with a folder that `htaf train llm` wrote, or with a model without gates."""
    import torch

    from htaf.language import LanguageError, files, packed
    from htaf.language.gates import gates_of
    from htaf.language.run import read
    from htaf.language.scores import logit_losses

    _quiet()
    if (folder / LANGUAGE_RECORD).is_file():
        read(folder)  # finished
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise LanguageError(f"expected a new or empty folder for the packed model, {out} is there")
    model, tokenizer = files.load(folder)
    made = packed.pack(model, getattr(torch, weights))
    begin = _beginning(model)
    drawn = list(made.generate(begin, most=256, temperature=1.0)) or begin.tolist()
    text = torch.cat([begin, torch.tensor(drawn, dtype=torch.int64)])
    with torch.inference_mode():
        near = logit_losses(made.logits(text)[None], model(input_ids=text[None], use_cache=False).logits, text[None])
    made.save(out, tokenizer)
    size = (out / packed.FILE).stat().st_size
    told = {"folder": str(out), "bytes": size, "weights": weights, "kl": near.kl, "agreement": near.agreement}
    if json:
        return print_json(told | {"model": str(folder), "last_k": len(gates_of(model))})
    say(f"{out}: {size / 1e6:.0f} MB, {weights}, gates in {len(gates_of(model))} layers")
    return say(
        f"against the unpacked model, on {len(text)} tokens of its own text: KL {abs(near.kl):.4f}, same token "
        f"{near.agreement:.1%}"
    )


def _beginning(model: Any) -> Any:
    """The token with which a text of a model begins."""
    import torch

    config = model.config.get_text_config()
    found = next((t for t in (config.bos_token_id, config.eos_token_id) if isinstance(t, int)), 0)
    return torch.tensor([found])


def _fetched(model: str) -> str:
    """The folder of a model that htaf shared at the hub; else the name, which transformers knows."""
    from htaf.sharing import SharingError, fetched

    try:
        return str(fetched(model))
    except SharingError:
        if "@" in model:  # which no name of another library has
            raise
        return model


def generate(
    model: Annotated[Positional[str], arg(metavar="RUN")],
    prompt: Annotated[Positional[str], arg(metavar="PROMPT")],
    *,
    tokens: int = 200,
    temperature: float = 0.0,
    chat: Literal["auto", "on", "off"] = "auto",
    seed: int = 0,
    context: int | None = None,
    stats: bool = False,
    json: Json = False,
) -> None:
    """Go on from a prompt with a language model, word by word.

    Args:
        model: Folder of `htaf train llm` or `htaf pack`; to compare, a model without gates: a folder of transformers, a
            .gguf file, or a name at the hub; of what htaf shared there also owner/name@revision.
        prompt: What it is to go on from, or asked in a chat; -: standard input.
        tokens: At most so many new tokens.
        temperature: 0: always the likeliest token.
        chat: The prompt as a message of a chat. auto: where the model has a chat template.
        seed: Of what is drawn with a temperature.
        context: Of a packed model: positions at most; none: the model's.
        stats: Then say how quick it was, and of a packed model the share of open gates.
    """
    from htaf.language import files, packed, run
    from htaf.language.generating import Clock, pieces, prompt_tokens, unpacked_tokens

    check_seed(seed)
    if tokens < 1:
        raise UsageError(f"--tokens must be >= 1, got {tokens}")
    if temperature != 0 and not COLDEST <= temperature < float("inf"):
        raise UsageError(f"--temperature must be 0, or >= {COLDEST} and finite, got {temperature}")
    if prompt == "-":
        try:
            prompt = sys.stdin.read()
        except UnicodeDecodeError:
            raise UsageError("expected a prompt in UTF-8 on standard input, got something else") from None
    _quiet()
    model = _fetched(model)
    opened, folder = None, Path(model)
    options: dict[str, Any] = {"most": tokens, "temperature": temperature, "seed": seed}
    how = {"auto": None, "on": True, "off": False}[chat]
    if (folder / packed.FILE).is_file():
        opened, tokenizer = packed.load_packed(folder, context=context), files.tokenizer_of(folder)
        given = prompt_tokens(tokenizer, prompt, how)
        made = opened.generate(given, **options)
    else:
        if context is not None:
            raise UsageError("--context is for a folder of htaf pack")
        if (folder / LANGUAGE_RECORD).is_file():
            run.read(folder)  # finished
        whole, tokenizer = files.load(model)
        given = prompt_tokens(tokenizer, prompt, how)
        made = unpacked_tokens(whole, given, **options)
    clock = Clock(len(given))
    text = ""
    for piece in pieces(made, tokenizer, clock):
        text += piece
        if not json:
            say(piece, end="")
            sys.stdout.flush()
    shares = {} if opened is None else opened.open_shares()
    if json:
        return print_json(
            {
                "text": text, "tokens_read": clock.read, "tokens_written": clock.written,
                "seconds_read": clock.seconds_read, "seconds_written": clock.seconds_written,
                "open_gates": {str(layer): share for layer, share in shares.items()},
            }
        )  # fmt: skip
    say()
    if stats:
        say_notes([str(clock)])
        if shares:
            say_notes([f"open gates: {sum(shares.values()) / len(shares):.1%} of {len(shares)} layers"])
    return None


def concepts_gates(
    model: Annotated[Positional[Path], arg(metavar="RUN"), AT_HUB],
    *,
    out: Folder,
    text: Path | None = None,
    blocks: int = 128,
    json: Json = False,
) -> None:
    """Find which tokens open the gates of a language model, with a page of text snippets.

    Args:
        model: Folder that `htaf train llm` wrote, or any with gates.
        out: Folder of the page: a new one, or that of an earlier page.
        text: Text to read: a file, or a folder of text files; none: test text of the run.
        blocks: At most so many blocks of text.
    """
    from htaf.language import files, meanings
    from htaf.language import run as runs
    from htaf.language import text as texts
    from htaf.report.gates import GATES, PAGE, write_gates

    if blocks < 2:
        raise UsageError(f"--blocks must be >= 2, got {blocks}")
    _check_paths(text=text)
    check_output_folder(out, [path for path in (model, text) if path is not None], own="page of gates")
    _quiet()
    record = runs.read(model) if text is None or (model / LANGUAGE_RECORD).is_file() else None
    network, tokenizer = files.load(model)
    if text is None:
        assert record is not None
        tokens = runs.held_out_blocks(record, tokenizer, blocks)
    else:
        documents, notes = texts.documents(text)
        say_notes(notes)
        tokens = texts.blocks(documents, tokenizer, 256 if record is None else record["data"]["length"], blocks)
    with progress("blocks", len(tokens)) as advance:
        found = meanings.meanings(network, tokenizer, tokens, tell=lambda done, of: advance(1))
    about = [f"{tokens.numel():,} tokens of {text or 'the run' + chr(39) + 's test text'}; all gates: {GATES}"]
    write_gates(found, out, f"Gates of {Path(record['model'] if record else model).name}", about)
    if json:
        return print_json({"page": str(out / PAGE), "gates": str(out / GATES), "count": len(found)})
    share = sum(gate.by_token >= 0.5 for gate in found) / len(found)
    say(f"{len(found):,} gates of {len({gate.layer for gate in found})} layers")
    say(f"the current token explains half of the variance or more of {share:.1%}")
    return say(f"page: {out / PAGE} (open it in a browser)")


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
        task = row.get("task")
        right = None if task is None else f"{100 * task['accuracy']:.1f} ± {100 * task['error']:.1f}%"
        perplexity = f"{row['perplexity']:.2f}" if "perplexity" in row else None
        shown.append((label, perplexity, row.get("kl"), same, right))
    asked = next((row["task"]["questions"] for _, row in rows if "task" in row), None)
    of_task = "" if asked is None else f"; task: accuracy on {asked:,} questions ± standard error"
    show(title + of_task, ("network", "perplexity", "KL", "same token", "task"), shown)
