"""The report of the paper: what is shown of which outcome, the same bytes, nothing that data can break."""

from __future__ import annotations

import csv
import html
import io
import itertools
import json
import re
from pathlib import Path

import matplotlib as mpl
import pytest

from htaf_paper import drawing
from htaf_paper.items import ITEMS
from htaf_paper.outcomes import without_times
from htaf_paper.protocol import Outcome, Panel, PaperError, Series
from htaf_paper.records import RecordsError
from htaf_paper.writing import write_report
from made_paper import HOSTILE, claim, drawings, full_outcome, photograph, put, table

NAMES = list(ITEMS)


def report(out: Path) -> tuple[str, str, dict, list[dict[str, str]]]:
    """The page, the Markdown, and the claims as JSON and CSV."""
    page = write_report(out)
    rows = list(csv.DictReader(io.StringIO((out / "claims.csv").read_text())))
    return page.read_text(), (out / "report.md").read_text(), json.loads((out / "claims.json").read_text()), rows


def words(page: str) -> str:
    """What a reader sees, on one line."""
    page = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_every_item_without_an_outcome_is_a_row_with_its_command(tmp_path: Path) -> None:
    page, markdown, claims, rows = report(tmp_path)
    for name in NAMES:
        assert f"htaf paper run {name} --scale full --out DIR" in words(page)
        assert f"`htaf paper run {name} --scale full --out DIR`" in markdown
    assert [(one["id"], one["status"], one["scale"]) for one in claims["items"]] == [
        (n, "not run", None) for n in NAMES
    ]
    assert [(row["item"], row["verdict"]) for row in rows] == [(name, "not run") for name in NAMES]


def test_each_verdict_is_counted_and_shown(tmp_path: Path) -> None:
    photograph(tmp_path, "full")
    put(tmp_path, NAMES[0], "full", full_outcome())
    put(tmp_path, NAMES[1], "full", Outcome(claims=(claim(), claim("does not hold"))))
    page, markdown, claims, rows = report(tmp_path)
    counts = {"holds": 2, "does not hold": 2, "not settled": 1, "not testable at this scale": 1, "not run": 1}
    assert claims["counts"] == {"full": counts}
    for verdict, count in counts.items():
        assert f"<span>{verdict}</span><b>{count}</b>" in page
        assert len(re.findall(rf'<td role="cell"><span class="verdict \w+">{verdict}</span>', page)) == 2 * count
        assert sum(row["verdict"] == verdict and row["scale"] == "full" for row in rows) == count
        assert len(re.findall(rf"^\| \*\*{verdict}\*\* ", markdown, re.MULTILINE)) == count
    assert "2 hold, 2 do not hold, 1 not settled, 1 not testable at this scale, 1 not run" in markdown


def test_the_largest_finished_scale_is_shown_and_scales_are_not_mixed(tmp_path: Path) -> None:
    first, second, third, fourth = NAMES[:4]
    command = f"htaf paper run {first} --scale full --device cuda"
    put(tmp_path, first, "full", status="not run: GPU", message=f"{command}: 300 epochs")
    put(tmp_path, first, "cpu", Outcome(claims=(claim(text="at cpu"),)))
    put(tmp_path, first, "reduced", Outcome(claims=(claim("not settled", text="at cpu"),)))
    put(tmp_path, second, "full", Outcome(claims=(claim(text="at full"),)), status="failed", message="worker died")
    put(tmp_path, second, "smoke", Outcome(claims=(claim("not testable at this scale", "at smoke"),)))
    put(tmp_path, third, "full", Outcome(claims=(claim(text="half of it"),)), status="failed", message="a cell failed")
    put(tmp_path, fourth, "full", status="not run: data", message="expected CIFAR-10, got nothing")
    page, markdown, claims, _ = report(tmp_path)
    shown = {one["id"]: (one["scale"], one["other_scales"]) for one in claims["items"]}
    assert shown[first] == ("cpu", {"full": "not run: GPU", "reduced": "finished"})
    assert shown[second] == ("smoke", {"full": "failed"})
    assert (shown[third], shown[fourth]) == (("full", {}), (None, {"full": "not run: data"}))
    assert [(one["claim"], one["scale"]) for one in claims["claims"]] == [
        ("half of it", "full"), ("at cpu", "cpu"), ("at smoke", "smoke")
    ]  # fmt: skip
    sections = [part for part in re.split(r'<h2 id="h-', page) if part.startswith("claims-")]
    by_scale = {part[: part.index('"')].removeprefix("claims-"): words(part) for part in sections}
    assert list(by_scale) == ["full", "cpu", "smoke"]
    assert "at cpu" in by_scale["cpu"]
    assert not any("at cpu" in by_scale[scale] for scale in ("full", "smoke"))
    for shown in (words(page), markdown.replace("**", "").replace("`", "")):
        for said in ("1 not settled", "Not finished: a cell failed", "expected CIFAR-10, got nothing", command):
            assert said in shown


def test_a_claim_stands_at_the_largest_scale_that_tested_it(tmp_path: Path) -> None:
    first = NAMES[0]
    larger = (claim(text="on both"), claim("not testable at this scale", text="too small"), claim("not run", text="no"))
    smaller = (
        claim("does not hold", text="on both"), claim("not settled", text="too small"), claim("not run", text="no"),
        claim("does not hold", text="of quinces"),
    )  # fmt: skip
    put(tmp_path, first, "cpu", Outcome((table(),), claims=larger))
    put(tmp_path, first, "reduced", Outcome((table("a smaller one"),), claims=smaller))
    put(tmp_path, first, "smoke", Outcome(claims=(claim("not testable at this scale", text="of plums"),)))
    page, markdown, claims, _ = report(tmp_path)
    assert [(one["claim"], one["scale"], one["verdict"]) for one in claims["claims"]] == [
        ("on both", "cpu", "holds"), ("no", "cpu", "not run"),
        ("too small", "reduced", "not settled"), ("of quinces", "reduced", "does not hold"),
    ]  # fmt: skip
    for shown in (words(page), markdown):
        own, at_reduced = shown.split("Tested at scale reduced alone")
        assert own.count("of quinces") == at_reduced.count("of quinces") == 1  # in the list of all, and here
        assert "a smaller one" in at_reduced
        assert "of plums" not in shown


def test_ours_stand_beside_the_papers_with_the_difference(tmp_path: Path) -> None:
    put(tmp_path, NAMES[0], "full", Outcome((table(),)))
    page, markdown, _, _ = report(tmp_path)
    seen = words(page)
    assert "CIFAR-10 gap ours paper difference HTAF 91.0 (0.6) 93.4 (0.3) -2.4 (0.7) 0.62 (0.12)" in seen
    assert "method not run: GPU 95.0 - Note: method. Means of 2 to 3 values (standard error). Difference: ours" in seen
    assert "| method | CIFAR-10, ours | paper | difference | gap |" in markdown
    assert "| HTAF | 91.0 (0.6) | 93.4 (0.3) | -2.4 (0.7) | 0.62 (0.12) |" in markdown


def test_all_parts_of_an_outcome_are_in_both(tmp_path: Path) -> None:
    photograph(tmp_path, "cpu")
    put(tmp_path, NAMES[0], "cpu", full_outcome("zebra"))
    page, markdown, claims, _ = report(tmp_path)
    parts = ["Erratum zebra.", "Deviation zebra.", "row zebra", "command zebra", "Note zebra.", "Note: zebra",
             "Two birds", "What is seen: zebra", "0123456789ab+changes", "torch 2.13.0", "Linux-x86\\_64", "12.5 CPU s",
             f"htaf paper run {NAMES[0]} --scale cpu"]  # fmt: skip
    for part in parts:
        assert part.replace("\\_", "_") in words(page) + page
        assert part.replace("x86\\_64", "x86_64") in markdown
    assert words(page).count("Erratum zebra") == 2  # at the item, and in the list of all
    assert f"![What is seen: zebra](figures/{NAMES[0]}-curves.svg)" in markdown
    assert f'<img src="figures/{NAMES[0]}-photo.png" alt="Two birds">' in page
    assert 'role="img" aria-label="What is seen: zebra"' in page
    for name in ("curves.svg", "curves.png", "photo.png"):
        assert (tmp_path / "figures" / f"{NAMES[0]}-{name}").is_file()
    assert claims["items"][0]["missing"] == [
        {"row": "row zebra", "reason": "not run: data", "command": "command zebra"}
    ]
    links = re.findall(r'href="(#?)([^"]+)"', page)
    assert len(links) > 10
    for link in links:  # every link leads somewhere
        assert f'id="{link[1]}"' in page if link[0] else (tmp_path / link[1]).is_file(), link


def test_the_same_outcomes_give_the_same_bytes(tmp_path: Path) -> None:
    def make(name: str, seconds: float) -> dict[str, bytes]:
        out = tmp_path / name
        photograph(out, "full")
        put(out, NAMES[0], "full", full_outcome(), seconds=seconds)
        put(out, NAMES[2], "smoke", Outcome((table(),)), seconds=seconds)
        with mpl.rc_context({"font.size": 30 if name == "b" else 8, "lines.linewidth": 9}):  # nobody's settings count
            write_report(out)
        made = [p for p in out.rglob("*") if p.is_file() and p.name != "outcomes.jsonl"]
        return {str(p.relative_to(out)): p.read_bytes() for p in made}

    first, again, slower = make("a", 12.5), make("b", 12.5), make("c", 1234.25)
    assert first == again
    assert first["report.html"] != slower["report.html"]
    for name, data in first.items():
        if name.endswith((".html", ".md")):
            assert without_times(data.decode()) == without_times(slower[name].decode())
        else:
            assert data == slower[name], name


def test_words_of_outcomes_are_no_markup(tmp_path: Path) -> None:
    photograph(tmp_path, "full")
    put(tmp_path, NAMES[0], "full", full_outcome(HOSTILE), title=HOSTILE)
    put(tmp_path, NAMES[1], "full", status="not run: data", message=HOSTILE, title=HOSTILE)
    page, markdown, claims, rows = report(tmp_path)
    assert not re.search(r'<script|<img(?! src="figures/)|\u202e', page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\\u202e" in page
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", markdown)  # of code, which shows what it holds
    assert "<script" not in outside
    assert "\u202e" not in markdown
    assert "](javascript" not in outside
    lines = markdown.splitlines()
    for above, below in itertools.pairwise(lines):  # a | in a cell makes no new cell
        if above.startswith("| ") and below.startswith("| "):
            assert len(re.findall(r"(?<!\\)\|", above)) == len(re.findall(r"(?<!\\)\|", below)), below
    svg = (tmp_path / "figures" / f"{NAMES[0]}-curves.svg").read_text()
    assert "<script" not in svg
    assert "$\\frac{1}{2}$" in svg
    assert any(HOSTILE in one["claim"] for one in claims["claims"])
    assert any(HOSTILE in row["claim"] for row in rows)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.pop("status"), "status: Field required"),
        (lambda v: v.update(format=99), "expected format 1, got 99"),
        (lambda v: v.update(id="other"), r"expected an item .*, got 'other'"),
        (lambda v: v.update(status="perhaps"), "expected a status"),
        (lambda v: v.update(title=3), "title: expected a valid string, got 3"),
        (lambda v: v.update(outcome=[]), "outcome: expected an object"),
        (lambda v: v["outcome"]["claims"][0].update(verdict="maybe"), "verdict: expected 'holds', .* got 'maybe'"),
        (lambda v: v["outcome"]["claims"][0].update(text=None), "claims.0.text: expected a valid string, got None"),
        (lambda v: v["outcome"]["tables"][0]["rows"][0].pop(), "expected 3 cells"),
        (lambda v: v["outcome"]["tables"][0]["rows"][0][1].update(mean="90"), "mean: expected a valid number"),
        (lambda v: v["outcome"]["drawings"][0].update(name="../x"), "expected a name of small letters"),
        (lambda v: v["outcome"]["drawings"][1].update(picture="../../secret.png"), "expected the name of a PNG"),
        (lambda v: v["outcome"]["drawings"][1].update(picture=None), "and panels or a picture"),
        (lambda v: v["outcome"]["drawings"][0]["panels"][0]["series"][0]["y"].pop(), "expected as many x, y"),
        (lambda v: v["outcome"]["drawings"][0]["panels"][0]["series"][0].update(style="3d"), "style: expected 'line'"),
        (lambda v: v["outcome"].update(more=1), "outcome.more: Unexpected"),
        (lambda v: v["measured"][0].update(cells="many"), "cells: expected a valid integer, got 'many'"),
    ],
)  # fmt: skip
def test_a_damaged_outcome_is_named(tmp_path: Path, change, said: str) -> None:
    photograph(tmp_path, "full")
    file = put(tmp_path, NAMES[0], "full", full_outcome())
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))
    with pytest.raises(PaperError, match=said) as caught:
        write_report(tmp_path)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_another_text_is_not_written_over(tmp_path: Path) -> None:
    put(tmp_path, NAMES[0], "full", Outcome((table(),)))
    write_report(tmp_path)
    write_report(tmp_path)
    (tmp_path / "report.md").write_text("# My own report")
    with pytest.raises(PaperError, match=r"report\.md is another text"):
        write_report(tmp_path)
    assert (tmp_path / "report.md").read_text() == "# My own report"


def test_files_that_are_no_outcome_are_named(tmp_path: Path) -> None:
    with pytest.raises(PaperError, match="is not there"):
        write_report(tmp_path / "nowhere")
    file = put(tmp_path, NAMES[0], "full")
    (file.parent / f".{file.name}.x1y2").write_text("half a fi")  # of a process that was killed while it wrote
    write_report(tmp_path)
    good = file.read_bytes()
    for bad in ({"id": "unknown"}, {"scale": "tiny"}, {"format": 9}):
        file.write_bytes(good + json.dumps({**json.loads(good), **bad}).encode())
        with pytest.raises(PaperError, match=re.escape(f"{file}, line 2")):
            write_report(tmp_path)
    file.write_bytes(good[:100])
    with pytest.raises(RecordsError, match="is damaged"):
        write_report(tmp_path)


def test_a_picture_that_is_none_is_named(tmp_path: Path) -> None:
    put(tmp_path, NAMES[0], "full", Outcome(drawings=drawings()[1:]))
    page = write_report(tmp_path).read_text()
    assert "not kept: photographs" in page  # a row that says how to make it
    assert "photo.png" not in page
    (tmp_path / "pictures" / "full").mkdir(parents=True)
    (tmp_path / "pictures" / "full" / "photo.png").write_text("<svg>")
    with pytest.raises(PaperError, match="expected a PNG"):
        write_report(tmp_path)


def test_two_drawings_of_one_name_are_refused(tmp_path: Path) -> None:
    put(tmp_path, NAMES[0], "full", Outcome(drawings=2 * drawings()[:1]))
    with pytest.raises(PaperError, match="names of their own"):
        write_report(tmp_path)


def test_panels_in_the_page_follow_its_colours_and_share_no_ids(tmp_path: Path) -> None:
    for name in NAMES[:2]:
        put(tmp_path, name, "full", Outcome(drawings=drawings()[:1]))
    page = write_report(tmp_path).read_text()
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 6
    ids = [one for picture in pictures for one in re.findall(r' id="([^"]+)"', picture)]
    assert len(ids) == len(set(ids)) > 6
    for picture in pictures:
        used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', picture))
        assert used == set(re.findall(r' id="([^"]+)"', picture))
        assert "var(--muted)" in picture
        assert not re.search("#1d1f1e|#5f6361|#000000|font-family|<style|<metadata", picture)


def test_series_differ_by_more_than_colour() -> None:
    lines = tuple(Series(f"s{i}", (0.0, 1.0), (float(i), 1.0)) for i in range(7))
    bars = tuple(Series(f"s{i}", (0.0, 1.0), (float(i + 1), 1.0), "bars") for i in range(7))
    text = drawing.inline(Panel("", "x", "y", lines), "a")
    assert len(set(re.findall(r"stroke-dasharray: ([^;\"]+)", text))) >= 6
    assert drawing.inline(Panel("", "x", "y", bars), "a").count("<pattern") == 6
    assert [f"s{i}" in text for i in range(7)] == [True] * 7
