"""House style of the pages, as far as a pattern can see it: `make check` runs this in a second."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_YET = {"tables"}  # take a page out once it passes
PAGES = [page for folder in (ROOT, ROOT / "docs") for page in sorted(folder.glob("*.md")) if page.stem not in NOT_YET]
GUIDE = 600  # words of prose in front of a page's reference
LONGEST = 50  # words of a sentence
BETTER = {
    r"^Of (?!course)": "the subject first: not 'Of 10 rows none differs' but 'None of 10 rows differs'",
    r"\bin order to\b": "to",
    r"\b(utili[sz]e|leverage)s?\b": "use",
    r"\b(mend|mends|mended)\b": "correct, fix",
    r"\b(whence|whereby|wherein|thereof|therein|thereby|hereby|whilst)\b": "an everyday word",
    r"\b(simply|obviously|clearly|of course)\b": "leave it out",
    r"\b([a-z]+) \1\b": "the word stands there twice",
}


def prose_of(text: str) -> str:
    """The text without code, tables, pictures and the targets of links."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *\|.*$|^#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|`[^`]*`", "`code`", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences_of(text: str) -> list[str]:
    """Sentences of paragraphs and items, a line each."""
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", prose_of(text))
    joined = [re.sub(r"\*\*|\s+", lambda found: "" if "*" in found[0] else " ", block).strip(" -") for block in blocks]
    return [one for block in joined for one in re.split(r"(?<=[.!?:]) (?=[A-Z`*])", block) if one]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).with_suffix("").as_posix())
def test_a_page_keeps_the_house_style(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    sentences = sentences_of(text)
    found = [f"{better}: {one}" for one in sentences for bad, better in BETTER.items() if re.search(bad, one)]
    found += [f"more than {LONGEST} words: {one}" for one in sentences if len(one.split()) > LONGEST]
    guide, reference, _ = text.partition("\n## Reference\n")
    words = len(prose_of(guide).split())
    found += [f"{words} words in front of the reference, at most {GUIDE}"] if reference and words > GUIDE else []
    assert not found, "\n" + "\n".join(found)
