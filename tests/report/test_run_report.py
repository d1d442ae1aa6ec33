"""The report of a run: what it says, that it says it again, and that nothing in a table is read as HTML."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from htaf.cli.evaluating import report_once
from htaf.data.preprocess import Column, Preprocessor, Target
from htaf.data.tabular import Table, load, split
from htaf.models.logic import LogicNet
from htaf.program.integer.logic_c import compared_of
from htaf.tables.inspection import importance
from htaf.tables.report import contents, writing
from htaf.tables.report.writing import PAGE, VALUES, kept_baselines, write_report
from htaf.training.families import make_recipe, ready_recipe
from htaf.training.families.mlp import tabular_residual
from htaf.training.recipe import Running
from htaf.training.runs import Run, open_run
from htaf.training.runs.packing import build_run
from made_report import CLASSES, HOSTILE, hostile, reported, trained

FITTED = ["constant", "logistic", "boosting"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Three classes, hostile names."""
    return hostile(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def amounts(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A regression of the same columns."""
    return hostile(tmp_path_factory.mktemp("data"), "regression")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, table: Table) -> Run:
    return reported(tmp_path_factory.mktemp("runs") / "classes", table)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory, amounts: Table) -> Run:
    return reported(tmp_path_factory.mktemp("runs") / "numbers", amounts)


def values_of(run: Run) -> dict[str, Any]:
    return json.loads((run.path / VALUES).read_text("utf-8"))


class Seen(html.parser.HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(run: Run) -> Seen:
    return Seen((run.path / PAGE).read_text("utf-8"))


# --- what it says ---


def test_a_column_that_is_in_the_linear_part_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"noise": rng.normal(size=400), "kind": rng.choice([*"uv"], 400), "a": rng.normal(size=400)})
    frame.assign(y=3 * frame["a"] + 0.1 * rng.normal(size=400)).to_csv(tmp_path / "line.csv", index=False)
    table = load(tmp_path / "line.csv", target="y")
    recipe = tabular_residual().replace(members=2, hidden=(16,), thresholds=8, epochs=2, least_steps=1)
    values = values_of(reported(tmp_path / "run", table, recipe))
    assert values["importance"]["columns"][0]["column"] == "a"


def test_the_figures_are_those_of_the_record(run: Run, numbers: Run) -> None:
    for one, better in ((run, "higher"), (numbers, "lower")):
        values, record = values_of(one), one.record
        assert values["metrics"] == record["metrics"]
        found, name = values["results"]["test"], record["headline"]
        smooth, exact = (record["metrics"][kind]["test"][name] for kind in ("smooth", "exact"))
        assert (found["smooth"], found["exact"], found["gap"]) == (smooth, exact, exact - smooth)
        worse = exact < smooth if better == "higher" else exact > smooth
        assert found["direction"] == ("the same" if exact == smooth else "worse" if worse else "better")
        assert f"{better.title()} is better" in seen(one).text
        assert f"{exact:.4f}" in seen(one).text


def test_a_gap_of_networks_with_other_weights_is_none(run: Run) -> None:
    values = values_of(run)
    assert values["refitted"] is None
    assert "gap, exact - smooth" in writing.page(values)
    text = " ".join(writing.page(values | {"refitted": ["recalibrate", "shrink"]}).split())
    assert "The exact network was refitted after hardening" in text
    assert "gap, exact - smooth" not in text
    steps = [{"name": "recalibrate", "kept": False}, {"name": "refit", "kept": True}]
    record = {"hardening": {"finish": steps}}
    of: Any = SimpleNamespace(has_own_smooth=True, record=record)
    assert contents.refitted(of) == ["refit"]


def test_what_stands_in_the_report_of_each_task(run: Run, numbers: Run) -> None:
    classes, amounts = values_of(run), values_of(numbers)
    assert classes["residuals"] is None
    assert (amounts["calibration"], amounts["confusion"]) == (None, None)
    assert sum(one["rows"] for one in classes["calibration"]["bins"]) == classes["rows"]["test"]
    assert sum(one["rows"] for one in amounts["residuals"]["bins"]) == amounts["rows"]["test"]
    matrix = classes["confusion"]["matrix"]
    right = sum(matrix[k][k] for k in range(3))
    assert right / classes["rows"]["test"] == pytest.approx(classes["metrics"]["exact"]["test"]["accuracy"])
    assert [one["name"] for one in classes["baselines"]] == FITTED
    assert [one["name"] for one in amounts["baselines"]] == ["constant", "linear", "boosting"]
    worse = [one["worse"] for one in amounts["importance"]["columns"]]
    assert len(worse) == 3
    assert worse == sorted(worse, reverse=True)


DATE = {"order": "day-month-year", "first": "2020-01-02T03:04", "filled": "2021-01-01"}


@pytest.mark.parametrize(
    ("column", "inputs", "said"),
    [
        (
            Column("a", "date", outputs=("month", "hour"), **DATE),
            2,
            "month, hour; read as day-month-year, from 2020-01-02",
        ),
        (
            Column("a", "encoded", categories=tuple("abcdefghij"), outputs=("mean y",)),
            1,
            "mean y in each of 10 categories",
        ),
        (Column("a", "category", categories=("", "x"), other=True), 3, "one input each: missing, x; one for rare"),
        (Column("a", "dropped"), 0, "not used: it does not vary"),
        (Column("a", "number", 0.0, 2.0, 1.0, (-9.0,)), 2, "0 to 2 become 0 to 1; missing: 1; codes -9"),
    ],
    ids=lambda one: one.kind if isinstance(one, Column) else "",
)
def test_how_columns_of_each_kind_are_read(column: Column, inputs: int, said: str) -> None:
    target = Target("y", "regression")
    *_, found = contents.columns(Preprocessor([Column("b", "number", 0.0, 1.0), column], target))
    assert found["inputs"] == inputs
    assert found["read"].startswith(said)


def test_columns_that_are_left_out_are_said(tmp_path: Path, htaf: Any) -> None:
    rng = np.random.default_rng(0)
    names = ("row", "y", "a", "junk", "who")
    frame = pd.DataFrame({name: rng.normal(size=90) for name in names}).assign(who=np.arange(90) // 3)
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = ("--exclude", "junk", "--id", "row", "--group", "who", "--epochs", "1", "--baselines", "False")
    data = ("--data", tmp_path / "t.csv", "--target", "y", "--hidden", "4")
    code, _, said = htaf("train", "tabular", *data, *words, "--out", tmp_path / "r")
    assert code == 0, said
    values = json.loads((tmp_path / "r" / VALUES).read_text())
    assert [(one["name"], one["why"].split()[0]) for one in values["left_out"]] == [
        ("row", "names"),
        ("junk", "excluded"),
        ("who", "divides"),
    ]
    assert "names the rows" in (tmp_path / "r" / PAGE).read_text()


def test_importance_is_that_of_inspection(run: Run, table: Table, numbers: Run, amounts: Table) -> None:
    for one, data in ((run, table), (numbers, amounts)):
        assert values_of(one)["importance"] == importance(one, data).to_json()


def test_a_network_without_a_step_has_a_report(tmp_path: Path, table: Table) -> None:
    from htaf.training.fit import fit

    recipe = make_recipe(method="relu", hidden=(8,), epochs=1, batch_size=32)
    made = fit(recipe, table, tmp_path / "run", running=Running("cpu"))
    values = write_report(made, table, baselines=False)
    assert (values["results"]["test"]["exact"], values["baselines"]) == (None, None)
    text = seen(made).text
    assert "exact network" not in text
    assert "Beside baselines" not in text


# --- it is a page ---


def test_nothing_of_a_table_is_markup(run: Run, numbers: Run) -> None:
    for one in (run, numbers):
        text, found = (one.path / PAGE).read_text("utf-8"), seen(one)
        tags = {tag for tag, _ in found.tags}
        assert not tags & {"script", "img", "i", "iframe", "link", "object", "form", "a"}
        assert not [name for _, given in found.tags for name in given if name.startswith("on")]
        assert "\u202e" not in text
        assert "\\u202eevil" in found.text
        for name in (HOSTILE["number"], HOSTILE["text"], HOSTILE["target"], HOSTILE["file"], "<b>x</b>"):
            assert name in found.text
    assert CLASSES[0] in seen(run).text
    assert [tag for tag, _ in seen(run).tags].count("title") == 1


def test_it_needs_no_other_file_and_no_script(run: Run) -> None:
    text, found = (run.path / PAGE).read_text("utf-8"), seen(run)
    assert "http" not in text.replace("http-equiv", "")
    assert not [given for _, given in found.tags if "src" in given or not (given.get("href") or "#").startswith("#")]
    assert not re.search(r"url\((?!#)|@import", text)
    assert "default-src 'none'" in next(g["content"] or "" for _, g in found.tags if g.get("http-equiv"))


def test_every_picture_has_words_and_a_table(run: Run, numbers: Run) -> None:
    for one in (run, numbers):
        text = (one.path / PAGE).read_text("utf-8")
        pictures = re.findall(
            r'<svg viewBox="[^"]*" role="img" aria-label="([^"]{20,})">.*?</figure>\s*(.{0,40})', text, re.DOTALL
        )
        assert len(pictures) == text.count("<svg") == 1
        assert all(after.startswith("<details><summary>") for _, after in pictures)


def test_elements_are_closed(run: Run, numbers: Run) -> None:
    empty = {"meta"}

    stack: list[str] = []

    class Nested(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            stack.extend([] if tag in empty else [tag])

        def handle_startendtag(self, tag: str, attrs: Any) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert stack.pop() == tag

    for one in (run, numbers):
        Nested().feed((one.path / PAGE).read_text("utf-8"))
        assert stack == []


def test_many_classes_and_columns_are_folded(run: Run) -> None:
    values = values_of(run)
    names = [f"class {k}" for k in range(40)]
    pairs = [{"true": 3, "predicted": 5, "rows": 7}]
    values |= {"classes": names, "confusion": {"matrix": None, "pairs": pairs}}
    values["columns"] *= 10
    text = writing.page(values)
    assert "class 3" in text
    assert 'class="matrix"' not in text
    assert 'class="matrix"' in (run.path / PAGE).read_text("utf-8")
    assert "15 more columns" in text


@pytest.mark.parametrize("task", ["table", "amounts"])
def test_a_logic_network_is_shown_as_a_circuit(task: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    of = request.getfixturevalue(task)
    run = reported(tmp_path, of, ready_recipe("logic", "logic").replace(epochs=1, least_steps=0, luts=(16,)))
    measured, net, program = contents.Measured.of(run, of), run.model(exact=True), build_run(run)
    assert isinstance(net, LogicNet)
    features, truth = of.features.iloc[measured.rows], measured.truth()
    x = measured.preprocessor.transform(features)
    bits = net.layers(net.thermometer(net.rounded(torch.from_numpy(x))))
    groups = bits.unflatten(1, (net.sums.groups, -1)).detach().numpy()
    apart = list[float]()
    for k in range(net.sums.groups):
        own = truth == k if of.classes else truth > np.median(truth)
        apart += [*np.abs(groups[own, k].mean(0) - groups[~own, k].mean(0))]
    found = values_of(run)["circuit"]
    assert [abs(one["own"] - one["others"]) for one in found["telling"]] == pytest.approx(sorted(apart)[:-11:-1])
    assert {one["column"] for one in found["asked"]} <= {*of.features}
    text = (run.path / PAGE).read_text()
    assert [text.count(f">{title}</h") for title in ("The circuit", "Tables that say most")] == [1, 1]
    ((number, compared),) = compared_of(program)[1].items()
    for one, bit in zip(compared, program.every_value(program.input.quantised(x))[number].T, strict=True):
        line = program.about["columns"][one.place]
        if line["kind"] == "number":
            sign, end = contents.condition(program, one).removeprefix(line["column"]).split()
            raw = features[line["column"]].to_numpy(float)
            assert np.array_equal(raw >= float(end), bit == (sign == ">="))
        elif line["kind"] == "encoded":
            named = features[line["column"]].isin(contents.condition(program, one).split(" one of ")[1].split(", "))
            assert np.array_equal(named, bit == ("not one of" not in contents.condition(program, one)))


# --- the same again, and failures ---


def test_the_same_run_gives_the_same_bytes(run: Run, table: Table) -> None:
    files = [run.path / PAGE, run.path / VALUES]
    before = [file.read_bytes() for file in files]
    files[0].unlink()
    write_report(open_run(run.path), table)
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize("damage", ["{", "[]", '{"format": 1}', "other weights", "text"])
def test_baselines_of_a_damaged_report_are_not_taken(run: Run, tmp_path: Path, damage: str) -> None:
    values = values_of(run)
    assert [one.name for one in kept_baselines(run)] == FITTED
    if damage == "other weights":
        damage = json.dumps(values | {"model_sha256": "0" * 64})
    if damage == "text":
        values["baselines"][0]["metrics"]["test"]["accuracy"] = "<b>1</b>"
        damage = json.dumps(values)
    (tmp_path / VALUES).write_text(damage, "utf-8")
    assert kept_baselines(Run(tmp_path, run.record)) == []


def test_a_failure_does_not_lose_the_training(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no more room")

    made = trained(tmp_path / "run", table)
    monkeypatch.setattr(writing, "contents", fail)
    report_once(made, table, baselines=False)
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"no report.html, the run itself is whole: .*no more room; the same command", said)
    assert open_run(made.path).record["status"] == "finished"
    assert not (made.path / PAGE).exists()


# --- the command ---


def test_the_command_trains_reports_and_says_baselines(htaf: Any, table: Table, tmp_path: Path) -> None:
    file = tmp_path / "made.csv"
    table.features.iloc[:, [0, 2]].set_axis(["a", "b"], axis=1).assign(y=table.features.iloc[:, 0]).to_csv(file)
    few = ["--target", "y", "--epochs", "1", "--hidden", "4"]
    words = ("train", "tabular", "--data", file, "--out", tmp_path / "r", *few)
    code, out, _ = htaf(*words)
    assert code == 0
    assert f"report: {tmp_path / 'r' / PAGE}" in out
    assert re.search(r"boosting +│ +\d\.\d{4} │ (better|worse) by", out)
    assert json.loads((tmp_path / "r" / VALUES).read_text())["verdict"]["text"] in " ".join(out.split())
    first = (tmp_path / "r" / PAGE).read_bytes()
    code, again, _ = htaf(*words, "--json")
    assert (code, json.loads(again)["verdict"]["text"] in " ".join(out.split())) == (0, True)
    (tmp_path / "r" / PAGE).unlink()
    assert htaf(*words)[0] == 0
    assert (tmp_path / "r" / PAGE).read_bytes() == first
    assert write_report(open_run(tmp_path / "r"), baselines=False)["baselines"] is None
    assert b"Beside baselines" not in (tmp_path / "r" / PAGE).read_bytes()


@pytest.mark.parametrize("lost", [(PAGE, VALUES), (PAGE,), (VALUES,)])
def test_a_repeat_writes_a_report_that_is_missing(
    htaf: Any, run: Run, table: Table, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    for name in lost:
        (tmp_path / "run" / name).unlink()
    record = (tmp_path / "run" / "record.json").read_bytes()
    again = trained(tmp_path / "run", table)
    assert not all((tmp_path / "run" / name).exists() for name in lost), "nobody asked for it"
    report_once(again, table, baselines=False)
    page = (tmp_path / "run" / PAGE).read_bytes()
    assert json.loads((tmp_path / "run" / VALUES).read_text())["key"] == run.record["key"]
    assert (tmp_path / "run" / "record.json").read_bytes() == record
    written = (tmp_path / "run" / PAGE).stat().st_mtime_ns
    report_once(again, table)
    assert (tmp_path / "run" / PAGE).stat().st_mtime_ns == written, "written again"
    assert (tmp_path / "run" / PAGE).read_bytes() == page


# --- progress without a terminal ---


def test_a_report_of_another_table_is_refused(run: Run) -> None:
    other = load("digits")
    with pytest.raises(Exception, match="was trained on other data than digits"):
        write_report(run, other)
    assert len(split(other, 0).train)
