"""The experiment on checked names: the stand-in for a language model, and the report on a small made set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from htaf.concepts.naming.job import naming_prompt, sorting_prompt
from htaf.data.attributes import Attributes
from htaf.llm.messages import Message, Part, numbered, text_part
from htaf_paper import named
from htaf_paper.computing import Place
from htaf_paper.named import area, cell
from htaf_paper.planted import Planting, common_columns
from htaf_paper.table_model import TableModel, read_lists


def made() -> Planting:
    rng = np.random.default_rng(0)
    attributes = Attributes(
        tuple(f"a{i}" for i in range(12)), tuple(f"c{i}" for i in range(24)), rng.random((24, 12)).astype(np.float32)
    )
    labels = np.repeat(np.arange(24), 30)
    return Planting(attributes, common_columns(attributes), labels, np.tile([0, 2], 360).astype(np.uint8))


def shown(title: str, names: Sequence[str]) -> list[Part]:
    return [text_part(f"{title}:\n{numbered(names)}")]


def naming(a: Sequence[str], b: Sequence[str]) -> list[Message]:
    return naming_prompt(shown("Group A", a), shown("Group B", b), "classes")


def sorting(label_1: str, label_0: str, classes: Sequence[str]) -> list[Message]:
    labels = {"concept": "x", "label_1": label_1, "label_0": label_0}
    return sorting_prompt(labels, shown("Classes", classes), len(classes), "classes")


def test_prompts_are_read_back() -> None:
    assert read_lists(naming(["x", 'y "z"'], ["w"])[1]["content"]) == {"Group A": ["x", 'y "z"'], "Group B": ["w"]}
    assert read_lists(sorting("b", "c", ["x", "w"])[1]["content"])["Classes"] == ["x", "w"]


def test_the_table_answers() -> None:
    plan = made()
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


def test_area_leaves_out_names_without_a_score() -> None:
    assert area(np.array([0.9, np.nan, 0.8]), np.array([0.1, 0.8])) == 0.875
    assert area(np.array([np.nan]), np.array([0.5])) is None


def test_a_cell_accepts_true_names_and_refuses_others() -> None:
    found, scores = cell(made(), 0.05, 0)
    assert found["bits"] == len(made().columns)
    assert found["accepted"]["true"] == found["accepted"]["made"] == found["found"] == 1
    assert found["accepted"]["shuffled"] <= 0.1
    for key in ("null", *named.BAD):
        assert found["accepted"][key] <= 0.1
        assert found["held_out"][key] == pytest.approx(0.5, abs=0.1)
        assert found["auc"][key] > 0.95
    assert len(scores["found"]) == found["bits"]


def test_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(named, "planting", lambda _: made())
    place = Place(tmp_path)
    found = named.outcome([named.compute({"noise": noise, "seeds": [0]}, place) for noise in (0.0, 0.1)], "full")
    assert found.tables[0].rows[0] == ("true, given", "100.0 ± 0.0", "100.0 ± 0.0")
    assert "720 images of 24 CUB classes" in found.notes[0]
    assert [len(panel.series) for panel in found.drawings[0].panels] == [5, 2, 2]
