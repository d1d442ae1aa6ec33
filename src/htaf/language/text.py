"""Text for language models: documents cut into blocks of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from htaf._ground.files import file_sha256
from htaf.language.options import LanguageError

Part = Literal["train", "validation", "test"]
SUFFIXES = (".txt", ".md", ".rst", ".text", "")
FEW = 200  # documents; fewer are cut into pieces, so that parts are not single documents
HELD_OUT = 0.05  # of the text, for validation and for the test each


@dataclass(frozen=True)
class Document:
    """A text and the name by which it is put into a part."""

    name: str
    text: str


def documents(path: str | Path) -> tuple[list[Document], list[str]]:
    """Read the documents of a text file, or of all text files below a folder.

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
    """Turn documents into blocks of tokens without padding: joined in random order, an end token behind each, and cut.

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
    """Return the token that a tokenizer puts in front of texts; none where it does not."""
    found = tokenizer("")["input_ids"][:1]
    return found if found == [tokenizer.bos_token_id] else []


def by_parts(found: Sequence[Document]) -> dict[Part, list[Document]]:
    """Divide documents into parts: validation and test have 5% of the text each, and one document at least.

    Which ones is decided by a hash of their names.

    Raises:
        LanguageError: there are fewer than three documents.
    """
    if len(found) < 3:
        raise LanguageError(f"expected three texts or more, one for each part, got {len(found)}")
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
    """Hash the bytes of a file, or of all text files below a folder, with their names."""
    path = Path(path)
    found = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file() and f.suffix in SUFFIXES)
    made = hashlib.sha256()
    for file in found:
        made.update(f"{file.relative_to(path) if file != path else ''}\0{file.stat().st_size}\0".encode())
        made.update(bytes.fromhex(file_sha256(file)))
    return made.hexdigest()
