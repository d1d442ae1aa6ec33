"""Items and studies of our own: what is committed follows from its records, by the command, and a tiny cell of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from htaf._ground.files import LOCK, parse_json
from htaf.concepts.llm import Message, Part, numbered, text_part
from htaf.concepts.naming.by_attributes import splits
from htaf.concepts.naming.job import album, naming_prompt, sorting_prompt
from htaf.concepts.regions import Map
from htaf.data.attributes import Attributes
from htaf_paper import ann_to_snn_report, drawn, named, pictured, planted, pretrained, reports, vision_model, where
from htaf_paper.computing import RECORD, Place, attempt, cell_folder
from htaf_paper.engine import run
from htaf_paper.items import EXPERIMENTS, item
from htaf_paper.outcomes import OUTCOMES
from htaf_paper.planted import Planting, common_columns
from htaf_paper.protocol import Found
from htaf_paper.protocol import Place as PaperPlace
from htaf_paper.records import read_lines, read_records
from htaf_paper.table_model import TableModel
from htaf_paper.where import SIZE, SPOT, covered, most_possible, overlap, scored, without_constant

RESULTS = Path(__file__).parents[1] / "results"
COMMITTED = read_lines(RESULTS / "paper" / OUTCOMES)
KEPT = {one["id"]: one["outcome"] for one in COMMITTED if one["scale"] == "full"}


def numbers(outcome: dict) -> tuple[list, list]:
    """What an outcome says, without notes: rows of tables, and claims."""
    return [table["rows"] for table in outcome["tables"]], outcome["claims"]


DATA, SLOW = pytest.mark.data, pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        "activation", "bounds", pytest.param("tabular", marks=DATA), pytest.param("pairs", marks=DATA),
        pytest.param("vanishing", marks=[DATA, SLOW]), pytest.param("theory", marks=[DATA, SLOW]),
    ],
)  # fmt: skip
def test_a_committed_outcome_is_that_of_its_records(name: str, tmp_path: Path) -> None:
    """The paper's figures beside ours, verdicts with their evidence."""
    run([item(name)], "full", tmp_path, records=[RESULTS], compute=False)
    assert numbers(read_lines(tmp_path / OUTCOMES)[0]["outcome"]) == numbers(KEPT[name])


def test_the_committed_outcome_of_ann_to_snn_is_that_of_its_record() -> None:
    (record,) = [one for one in read_records(RESULTS / "paper") if one.get("function") == "ann-to-snn"]
    (kept,) = [one["outcome"] for one in COMMITTED if (one["id"], one["scale"]) == ("ann-to-snn", "reduced")]
    found = ann_to_snn_report.outcome([record], "reduced").to_json()
    assert numbers(json.loads(json.dumps(found))) == numbers(kept)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_committed_report_is_that_of_its_records(name: str) -> None:
    study, records = item(name), read_records(RESULTS / name)
    records += [parse_json(file.read_bytes()) for file in sorted((RESULTS / name).glob("cells/*.json"))]
    plan = study.plan("full")  # pyright: ignore[reportAttributeAccessIssue]
    ours = [record for record in records if "cell" in record]  # others are of peers
    ordered = [record for settings in plan for record in ours if record["cell"].items() >= settings.items()]
    assert len(ordered) == len(ours) > 0
    ordered += [record for record in records if "cell" not in record]
    found = study.outcome(ordered, "full")  # pyright: ignore[reportAttributeAccessIssue]
    assert reports.text_of(study.title, found) == (RESULTS / name / "report.md").read_text()
    assert all((RESULTS / name / "figures" / f"{drawing.name}.svg").is_file() for drawing in found.drawings)


@pytest.mark.slow
def test_the_command_computes_one_and_writes_its_report(htaf, tmp_path: Path) -> None:
    code, text, err = htaf("paper", "run", "pictured", "--out", tmp_path)
    assert code == 0, err
    assert "pictured, smoke: finished, 1 cell" in text
    code, _, err = htaf("paper", "report", "--out", tmp_path)
    assert code == 0, err
    assert "| true, given | 100.0 ± 0.0 |" in (tmp_path / "pictured" / "report.md").read_text()
    code, _, err = htaf("paper", "run", "picture", "--out", tmp_path)
    assert code == 2
    assert "pictured" in err


# ---- checked names, and planted attributes ----


def planting_of(attributes: int) -> Planting:
    """Random attributes of 24 classes, 30 images each."""
    rng = np.random.default_rng(0)
    names, classes = tuple(f"a{i}" for i in range(attributes)), tuple(f"c{i}" for i in range(24))
    table = Attributes(names, classes, rng.random((24, attributes)).astype(np.float32))
    labels = np.repeat(np.arange(24), 30)
    return Planting(table, common_columns(table), labels, np.tile([0, 2], 360).astype(np.uint8))


def shown(title: str, names: Sequence[str]) -> list[Part]:
    return [text_part(f"{title}:\n{numbered(names)}")]


def naming(a: Sequence[str], b: Sequence[str]) -> list[Message]:
    return naming_prompt(shown("Group A", a), shown("Group B", b), "classes")


def sorting(label_1: str, label_0: str, classes: Sequence[str]) -> list[Message]:
    labels = {"concept": "x", "label_1": label_1, "label_0": label_0}
    return sorting_prompt(labels, shown("Classes", classes), len(classes), "classes")


def test_the_table_answers() -> None:
    plan = planting_of(12)
    have, classes = plan.attributes.binary(), plan.attributes.classes
    inside = [name for name, has in zip(classes, have[:, 3], strict=True) if has]
    others = [name for name in classes if name not in inside]
    model = TableModel(plan.attributes)
    assert json.loads(model.answer(naming(inside, others)))["label_1"] == "a3"
    assert json.loads(model.answer(naming(others, inside)))["label_1"] == "not a3"
    said = json.loads(model.answer(sorting("not a3", "a3", classes)))
    assert [classes[n - 1] for n in said["label_0"]] == inside
    flawed = TableModel(plan.attributes, "errs on 20%").answer(sorting("a3", "not a3", classes * 4))
    wrong = [n for n in json.loads(flawed)["label_1"] if (classes * 4)[n - 1] not in inside]
    assert 0 < len(wrong) < 40


def test_a_cell_accepts_true_names_and_refuses_others() -> None:
    found, scores = named.cell(planting_of(12), 0.05, 0)
    assert found["bits"] == len(planting_of(12).columns)
    assert found["accepted"]["true"] == found["accepted"]["made"] == found["found"] == 1
    assert found["accepted"]["shuffled"] <= 0.1
    for key in ("null", *named.BAD):
        assert found["accepted"][key] <= 0.1
        assert found["held_out"][key] == pytest.approx(0.5, abs=0.1)
        assert found["auc"][key] > 0.95
    assert len(scores["found"]) == found["bits"]


def test_planted_bits_are_the_classes_attributes_flipped_so_often() -> None:
    plan = planting_of(20)
    clean = planted.planted_codes(plan, 0.0, np.random.default_rng(0)).unpack()
    np.testing.assert_array_equal(clean, plan.attributes.values[plan.labels][:, plan.columns] >= 0.5)
    noisy = planted.planted_codes(plan, 0.2, np.random.default_rng(0)).unpack()
    assert np.mean(noisy != clean) == pytest.approx(0.2, abs=0.015)
    null = planted.planted_codes(plan, 0.0, np.random.default_rng(0), null=True)
    counts = [null.unpack()[plan.labels == k][0] for k in range(24)]
    np.testing.assert_array_equal(np.sum(counts, axis=0), plan.bits.sum(0))  # as many classes, but others
    assert np.mean(np.array(counts) != plan.bits) > 0.3


def test_check_against_scikit_learn() -> None:
    plan, rng = planting_of(20), np.random.default_rng(1)
    inside = rng.random(24) < 0.5
    held = splits(inside, 6, 0.3, rng)
    attribute, negated = rng.integers(0, 20, 6), rng.random(6) < 0.5
    found = planted.check(inside, held, plan.attributes, attribute, negated)
    for i in range(6):
        said = plan.attributes.binary()[held[i], attribute[i]] != negated[i]
        assert found[i] == pytest.approx(balanced_accuracy_score(inside[held[i]], said))


def test_a_cell_finds_what_is_planted_and_nothing_else() -> None:
    found = planted.cell(planting_of(20), 0.05, 0)
    assert found["bits"] == found["usable"] == len(planting_of(20).columns)
    assert found["name_concepts"]["found"] == found["20 splits"]["found"] == 1
    assert found["name_concepts"]["verified_right"] == 1
    assert found["name_concepts"]["null_verified"] < 0.2
    assert found["20 splits"]["auc"]["shuffled"] > 0.95
    assert found["20 splits"]["auc"]["null"] > 0.95
    assert found["20 splits"]["null_held_out"]["all rounds"] == pytest.approx(0.5, abs=0.1)


@pytest.mark.data
def test_cub_plan(data_dir: Path) -> None:
    plan = planted.planting(data_dir)
    count = plan.bits.sum(0)
    classes = len(plan.attributes.classes)
    assert len(plan.columns) >= 40
    assert count.min() >= 5
    assert count.max() <= classes - 5
    assert (np.bincount(plan.labels, minlength=classes) > 0).all()
    assert set(plan.parts.tolist()) == {0, 2}


# ---- names from pictures ----


def test_drawn_attributes_are_read_from_what_is_sent() -> None:
    pictures = drawn.drawn(4, 60, np.random.default_rng(0))
    sent = vision_model.images_in(album(pictures.pixels, 64, title="Pictures"))["Pictures"]
    assert (drawn.read(sent) == pictures.has).all()
    assert {*drawn.FIXED, *drawn.LINKED, *drawn.FREE} == set(range(len(drawn.NAMES)))


def test_a_small_cell_of_pictures() -> None:
    (settings,) = pictured.STUDY.plan("smoke")
    found = pictured.cell(settings["classes"], settings["errs"], settings["seed"], settings["images"])
    assert found["accepted"]["true"] == found["accepted"]["made"] == found["found"] == found["accepted"]["class"] == 1
    for key in ("random", "null", "random sorting", "fits always"):
        assert found["accepted"][key] == 0
    assert found["beyond_class"]["true"] == 1
    assert found["beyond_class"]["class"] < 1
    assert set(found["auc"]) == set(pictured.WRONG)
    first, *_ = pictured.outcome([found], "full").tables
    assert first.rows[0] == ("true, given", "100.0 ± 0.0")


# ---- planted spots ----


def test_scores_of_spots() -> None:
    assert overlap((0, 0, 4, 4), (2, 0, 6, 4)) == pytest.approx(8 / 24)
    assert overlap((0, 0, 2, 2), (2, 2, 4, 4)) == 0
    values = np.full((4, 4), -1.0)
    values[0, 0], values[2, 2] = 3.0, 1.0
    found = Map(0, values, float(values.sum()), -16.0, (SIZE, SIZE))
    spot = (0, 0, SPOT, SPOT)
    assert scored([found], [spot]) == pytest.approx({"mass": 0.75, "pointing": 1.0, "iou": 1.0})
    assert scored([found], [(12, 12, 18, 18)]) == pytest.approx({"mass": 0.25, "pointing": 0.0, "iou": 0.0})
    np.testing.assert_array_equal(without_constant(found).values, values + 1)
    assert most_possible((4, 4), [spot]) == 1
    assert most_possible((4, 4), [(3, 0, 9, 6)]) == pytest.approx(0.5)
    assert most_possible((2, 2), [spot]) == pytest.approx(0.25)


class Sum(torch.nn.Module):
    """Its bit needs the upper left corner."""

    def pre_activations(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0, :SPOT, :SPOT].sum((1, 2))[:, None] - 1


def test_what_covering_the_box_does() -> None:
    data = where.Planted(torch.ones(1, 3, SIZE, SIZE), np.ones((1, 1), bool), np.array([[[0, 0, SPOT, SPOT]]]))
    values = np.zeros((4, 4))
    values[0, 0] = 1
    found = Map(0, values, 1.0, 0.0, (SIZE, SIZE))
    assert covered(Sum(), data, [(0, 0)], [found], np.random.default_rng(0)) == {"box": 1.0, "elsewhere": 0.0}


@pytest.mark.slow
def test_a_cell_finds_the_spots() -> None:
    found = where.cell("WideResNet-10-1", 0)
    assert found["accuracy"] > 0.95
    assert found["largest_difference"] < 1e-4
    assert found["methods"]["exact"]["mass"] > 3 * found["area"]
    assert found["covered"]["box"] > 0.9
    (table,) = where.outcome([found], "full").tables
    assert [row[0] for row in table.rows[:6]] == list(where.METHODS)


# ---- over a pretrained backbone ----


@pytest.mark.slow
def test_cells_on_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "RANDOM_SEEDS", 1)
    found = {}
    for task in pretrained.STUDY.tasks("smoke", Found(lambda task: None), PaperPlace(tmp_path)):
        folder = cell_folder(tmp_path, task.key)
        record = attempt(task, Place(folder)).record
        assert record is not None
        found[record["method"]] = record
        assert {path.name for path in folder.iterdir()} <= {RECORD, LOCK}  # runs and codes are not kept
    assert found["htaf"]["exact"] == pytest.approx(pretrained.right(found["htaf"], "exact").mean())
    assert {row["bits"] for row in found["htaf"]["sparse"]["summary"]} == {"these", "random hyperplanes"}
    assert {row["bits"] for row in found["relu"]["sparse"]["summary"]} == {"these"}
    assert pretrained.outcome([*found.values()], "full").tables[0].title == "digits, frozen"
