"""Text for language models: documents cut into blocks of tokens, and tasks of multiple choice."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from htaf._errors import suggestion
from htaf._files import file_sha256
from htaf.language.errors import LanguageError

# name -> its questions to learn and to be scored on, below a folder of data, and where they come from
TASKS = {
    "openbookqa": ("openbookqa/train.jsonl", "openbookqa/test.jsonl", "https://allenai.org/data/open-book-qa"),
    **{
        f"winogrande-{size}": (
            f"winogrande/train_{size}.jsonl",
            "winogrande/dev.jsonl",  # the labels of its test part are not public
            "https://winogrande.allenai.org",
        )
        for size in ("xs", "s", "m")
    },
}
Part = Literal["train", "validation", "test"]
SUFFIXES = (".txt", ".md", ".rst", ".text", "")
FEW = 200  # documents; fewer are cut into pieces, so that parts are not single documents
HELD_OUT = 0.05  # of the text, for validation and for the test each


@dataclass(frozen=True)
class Document:
    """A text and the name by which it is put into a part."""

    name: str
    text: str


@dataclass(frozen=True)
class Question:
    """Multiple choice: the context, its possible continuations, and the number of the right one.

    A continuation is scored by the likelihood of its tokens after the context; where each choice has its own context
    (WinoGrande), `contexts` has one for each and the continuation is the same.
    """

    contexts: tuple[str, ...]
    continuations: tuple[str, ...]
    answer: int


def documents(path: str | Path) -> tuple[list[Document], list[str]]:
    """The documents of a text file, or of all text files below a folder.

    Fewer than `FEW` documents, and those that hold more than 1/`FEW` of the text, are cut into pieces.

    Returns:
        The documents, and notes on files that were left out.

    Raises:
        LanguageError: there is none.
    """
    path = Path(path)
    if path.is_file():
        files, others = [path], 0
    elif path.is_dir():
        every = sorted(file for file in path.rglob("*") if file.is_file())
        files = [file for file in every if file.suffix in SUFFIXES]
        others = len(every) - len(files)
    else:
        raise LanguageError(f"expected a text file or a folder of text files, there is nothing at {path}")
    found, broken = list[Document](), list[str]()
    for file in files:
        name = str(file.relative_to(path)) if file != path else file.name
        try:
            text = file.read_bytes().decode().replace("\r\n", "\n")
        except UnicodeDecodeError:
            if file == path:
                raise LanguageError(f"expected UTF-8 text, {path} is something else") from None
            broken.append(name)
            continue
        if text.strip():
            found.append(Document(name, text))
    notes = [f"{path}: {_files(others)} left out (read are {_ENDINGS})"] if others else []
    if broken:
        notes.append(f"{path}: {len(broken)} of {_files(len(files))} left out, not UTF-8 ({_some(broken)})")
    if not found:
        raise LanguageError(f"expected text, {path} has none (files that end in {_ENDINGS}){_because(notes)}")
    return _pieces(found), notes


_ENDINGS = ".txt, .md, .rst, .text or nothing"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _because(notes: Sequence[str]) -> str:
    return f"; {'; '.join(notes)}" if notes else ""


def _pieces(found: Sequence[Document]) -> list[Document]:
    """Documents, long ones cut between paragraphs, lines or words."""
    whole = sum(len(document.text) for document in found)
    length = max(1, whole // FEW)
    if len(found) < FEW:
        length = min(20_000, length)
    made = list[Document]()
    for document in found:
        rest, number = document.text, 0
        if len(rest) <= length:
            made.append(document)
            continue
        while rest.strip():
            end = len(rest)
            if end > length:
                cuts = (rest.rfind(mark, length // 2, length) + len(mark) for mark in ("\n\n", "\n", " "))
                end = next((cut for cut in cuts if cut > length // 2), length)
            if rest[:end].strip():
                made.append(Document(f"{document.name}#{number}", rest[:end]))
                number += 1
            rest = rest[end:]
    return made


def blocks(
    documents: Sequence[Document],
    tokenizer: Any,
    length: int = 512,
    most: int | None = None,
    seed: int = 0,
    what: str = "",
) -> Int[Tensor, "blocks length"]:
    """Documents as blocks of tokens without padding: joined in random order, an end token behind each, and cut.

    Each block begins with the token that begins a text, where the tokenizer puts one in front of texts.

    Args:
        documents: of one part.
        tokenizer: of transformers.
        length: tokens of a block.
        most: at most so many blocks, taken at random.
        seed: of the order.
        what: of which documents an error says that there are too few.

    Raises:
        LanguageError: there is not enough text for one block.
    """
    generator = torch.Generator().manual_seed(seed)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    tokens: list[int] = []
    for number in torch.randperm(len(documents), generator=generator).tolist():
        tokens += tokenizer(documents[number].text, add_special_tokens=False, verbose=False)["input_ids"] + end
    begin = _beginning(tokenizer)
    each = length - len(begin)
    count = len(tokens) // each
    if count == 0:
        where = f" in {what}" if what else ""
        raise LanguageError(f"expected text of {each} tokens or more{where}, got {len(tokens)}: give more text")
    made = torch.tensor(tokens[: count * each]).view(count, each)
    chosen = made[torch.randperm(count, generator=generator)[:most]]
    return torch.cat([torch.tensor(begin, dtype=torch.int64).expand(len(chosen), -1), chosen], 1)


def _beginning(tokenizer: Any) -> list[int]:
    """The token that a tokenizer puts in front of texts; none where it does not."""
    found = tokenizer("")["input_ids"][:1]
    return found if found == [tokenizer.bos_token_id] else []


def task_files(task: str, data_dir: str | Path | None = None) -> tuple[Path, Path | None]:
    """The files of a task: questions to learn, and those to be scored on where the task is known.

    Args:
        task: one of `TASKS`, or a file.
        data_dir: of the tasks, before the folder in HTAF_DATA; both may hold them in `text/`.

    Raises:
        LanguageError: a known task whose files are in none of the folders; neither a known task nor a file.
    """
    if task not in TASKS:
        if not Path(task).exists():
            raise LanguageError(
                f"expected a JSON-lines file or one of {', '.join(TASKS)}, got {task}{suggestion(task, tuple(TASKS))}"
            )
        return Path(task), None
    *names, source = TASKS[task]
    roots = [Path(root) for root in (data_dir, os.environ.get("HTAF_DATA")) if root]
    for folder in (root / sub for root in roots for sub in ("text", "")):
        if all((folder / name).is_file() for name in names):
            return folder / names[0], folder / names[1]
    raise LanguageError(
        f"{task}: expected {' and '.join(names)} in the folder of --data-dir or HTAF_DATA; they come from {source}"
    )


def questions(path: str | Path) -> tuple[list[Question], list[str]]:
    """Questions of a JSON-lines file: OpenBookQA's, WinoGrande's, or {"context", "choices", "answer"}.

    Returns:
        The questions, and what was wrong with the lines that were left out.

    Raises:
        LanguageError: there is no such file, or not one good line.
    """
    path, found, bad = Path(path), list[Question](), list[str]()
    if not path.is_file():
        raise LanguageError(f"expected a JSON-lines file of questions, there is none at {path}")
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(_question(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            bad.append(f"line {number}: {_short(error)}")
    if not found:
        raise LanguageError(f"expected questions in {path}, one JSON object a line, got none{_because(bad[:3])}")
    return found, bad


def _short(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__


def _question(line: Any) -> Question:
    if not isinstance(line, dict):
        raise ValueError(f"expected a JSON object, got {type(line).__name__}")
    if "sentence" in line:  # WinoGrande, scored by what follows the blank
        before, blank, after = line["sentence"].partition("_")
        if not blank:
            raise ValueError("expected a sentence with a blank _")
        options = (line["option1"], line["option2"])
        return _checked(tuple(before + o for o in options), (after.strip(),) * 2, int(line["answer"]) - 1)
    if "answerKey" in line:  # OpenBookQA, ARC
        asked = line["question"]
        stem, choices = (asked["stem"], asked["choices"]) if isinstance(asked, dict) else (asked, line["choices"])
        labels = [choice["label"] for choice in _listed(choices)]
        if (key := line["answerKey"]) not in labels:
            raise ValueError(f"expected an answerKey of {', '.join(map(str, labels))}, got {key!r:.40}")
        return _checked((stem,) * len(choices), tuple(c["text"] for c in choices), labels.index(key))
    choices, answer = _listed(line["choices"]), line["answer"]
    if isinstance(answer, bool) or not isinstance(answer, int):
        raise ValueError(f"expected the number of the right choice as answer, got {answer!r:.40}")
    return _checked((line["context"],) * len(choices), tuple(choices), answer)


def _listed(choices: Any) -> list[Any]:
    if not isinstance(choices, list):
        raise ValueError(f"expected choices as a list, got {type(choices).__name__}")
    return choices


def _checked(contexts: tuple[str, ...], choices: tuple[str, ...], answer: int) -> Question:
    if len(choices) < 2 or not all(isinstance(text, str) for text in (*contexts, *choices)):
        raise ValueError("expected a context and two choices or more, as text")
    for text in (*contexts, *choices):
        text.encode()  # half of a surrogate pair has no tokens
    if not all(text.strip() for text in choices):
        raise ValueError("expected choices with text, got an empty one")
    if not 0 <= answer < len(choices):
        raise ValueError(f"expected an answer in 0 to {len(choices) - 1}, got {answer}")
    return Question(contexts, choices, answer)


def by_parts(found: Sequence[Document]) -> dict[Part, list[Document]]:
    """Documents by part: validation and test have 5% of the text each, and one document at least.

    Which ones is decided by a hash of their names.

    Raises:
        LanguageError: there are fewer than three documents.
    """
    if len(found) < 3:
        raise LanguageError(f"expected three texts or questions or more, one for each part, got {len(found)}")
    ordered = sorted(found, key=lambda document: hashlib.sha256(document.name.encode()).digest())
    wanted = HELD_OUT * sum(len(document.text) for document in found)
    parts: dict[Part, list[Document]] = {}
    begin = 0
    held: tuple[tuple[Part, int], ...] = (("test", 2), ("validation", 1))  # with how many the parts after it need
    for part, behind in held:
        end = begin + 1
        size = len(ordered[begin].text)
        while size < wanted and end < len(ordered) - behind:
            size += len(ordered[end].text)
            end += 1
        parts[part] = ordered[begin:end]
        begin = end
    parts["train"] = ordered[begin:]
    return parts


def fingerprint(path: str | Path) -> str:
    """A hash of the bytes of a file, or of all text files below a folder, with their names."""
    path = Path(path)
    found = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file() and f.suffix in SUFFIXES)
    made = hashlib.sha256()
    for file in found:
        made.update(f"{file.relative_to(path) if file != path else ''}\0{file.stat().st_size}\0".encode())
        made.update(bytes.fromhex(file_sha256(file)))
    return made.hexdigest()


def lines_of(questions: Sequence[Question]) -> Iterator[str]:
    """Each question with its right answer as a line of text."""
    for question in questions:
        yield f"{question.contexts[question.answer]} {question.continuations[question.answer]}"
