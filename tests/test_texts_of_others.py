"""Names that others gave, in files that spreadsheets and Markdown readers open: nothing in them is run or hidden."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import htaf
from htaf._ground.console import markdown_text, visible
from htaf._ground.files import csv_text, frame_csv, guarded

FORMULAE = ["=1+1", "'=1+1", "+cmd|' /C calc'!A0", "-rf", "@SUM(A1)", "\tx", "\r=1", '=HYPERLINK("a","b")']
NUMBERS = ["-1", "+1", "-0.5", "-1e-3", "+.5", "-2."]
HTML = '<img src=x onerror="alert(1)">\x1b[31m|`a`&lt;[b](c)_d_*e*\u202e\\\n# f'


@given(st.text() | st.sampled_from([*FORMULAE, *NUMBERS]))
def test_a_guarded_text_is_no_formula(text: str) -> None:
    assert guarded(text) in (text, f"'{text}")
    assert not re.match(r"[=@\t\r]|[+-](?![\d.])", guarded(text))


@pytest.mark.parametrize("text", [*NUMBERS, "plain", "", "a=b", "1-2", None, -1, 2.5, True])
def test_numbers_and_other_texts_stay(text: object) -> None:
    assert guarded(text) is text


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("dtype", ["object", "string", "category"])
def test_a_frame(dtype: str) -> None:
    """Cells, whatever their type, and the names of columns, "self" among them."""
    frame = pd.DataFrame({"=a": pd.Series([*FORMULAE, None], dtype=dtype), "self": np.arange(9) - 0.5})
    header, *rows = read(frame_csv(frame))
    assert header == ["'=a", "self"]
    assert [row[0] for row in rows] == [f"'{text}" for text in FORMULAE] + [""]
    assert [float(row[1]) for row in rows] == frame["self"].tolist()
    assert read(frame_csv(frame, header=False)) == rows
    assert frame["=a"].tolist()[:8] == FORMULAE, "the frame itself stays"
    assert csv_text([(None, True, 0.5, "=1+1")]) == ",True,0.5,'=1+1\n"


def test_no_csv_is_written_past_the_one_rule() -> None:
    room = Path(htaf.__file__).parent
    past = re.compile(r"\.to_csv\(|csv\.(DictWriter|writer)\(")
    found = {path.relative_to(room).as_posix() for path in room.rglob("*.py") if past.search(path.read_text("utf-8"))}
    assert found == {"_ground/files.py"}


class Tags(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.text = set[str](), ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(text: str) -> Tags:
    return Tags(MarkdownIt("commonmark").enable("table").enable("strikethrough").render(text))


@given(st.text(st.characters(codec="utf-8"), min_size=1) | st.just(HTML))
def test_markdown_shows_a_text_as_it_is(text: str) -> None:
    page = rendered(f"x{markdown_text(text)}x\n\n| a | b |\n|---|---|\n| x{markdown_text(text)}x | c |\n")
    assert page.tags == {"p", "table", "thead", "tbody", "tr", "th", "td"}
    assert page.text.count(f"x{visible(text)}x") >= 2
