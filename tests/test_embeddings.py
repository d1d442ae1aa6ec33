"""`ConceptBottleneck`: concepts on any embedding, shown on the docstrings of libraries, with a planted keyword."""

from __future__ import annotations

import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from htaf import ConceptBottleneck
from htaf._ground.files import sealed
from htaf.concepts.codes import ConceptError
from htaf.concepts.store import open_codes, write_codes
from made_pages import read_page, read_script

SMALL = {"n_concepts": 16, "epochs": 5}
WORD = "zebra"


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@parametrize_with_checks([ConceptBottleneck(n_concepts=64, epochs=200)])
def test_checks_of_scikit_learn(estimator, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    found: Any = load_digits(return_X_y=True)
    x, y = found
    return x[:600], y[:600]


@pytest.fixture(scope="module")
def model(digits) -> ConceptBottleneck:
    x, y = digits
    return ConceptBottleneck(n_concepts=32, epochs=60).fit(x[:400], y[:400])


def test_predictions_are_sums_over_bits(model: ConceptBottleneck, digits) -> None:
    x, y = digits[0][400:], digits[1][400:]
    bits = model.concepts(x)
    assert bits.dtype == np.uint8
    assert {*np.unique(bits)} == {0, 1}
    assert_array_equal(bits, x @ model.bits_.directions.T + model.bits_.offsets >= 0)
    logits = bits @ model.head_.weight.T + model.head_.bias
    assert_allclose(model.decision_function(x), logits)
    assert_allclose(model.predict_proba(x), np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    assert_array_equal(model.predict(x), model.classes_[logits.argmax(1)])
    assert model.score(x, y) > 0.6


def test_a_flip_takes_from_the_margin_what_its_reason_says(model: ConceptBottleneck, digits) -> None:
    x = digits[0][400:420]
    found, bits = model.reasons(x), model.concepts(x)
    assert {*found["row"]} == {*range(20)}
    place = {label: k for k, label in enumerate(model.classes_)}
    for line in found.to_dict("records"):
        row, concept = line["row"], line["concept"]
        assert bits[row, concept] == line["on"]
        changed = bits[row].copy()
        changed[concept] ^= 1
        logits = changed @ model.head_.weight.T + model.head_.bias
        margin = logits[place[line["prediction"]]] - logits[place[line["runner_up"]]]
        assert margin == pytest.approx(line["margin"] - line["worth"])


def test_codes_are_what_the_concepts_room_takes(model: ConceptBottleneck, digits, tmp_path: Path, htaf) -> None:
    x, y = digits[0][400:], digits[1][400:]
    codes = model.codes(x, y)
    assert [len(codes.part(part)) for part in ("train", "validation", "test")] == [360, 40, 200]
    test = codes.part("test")
    assert_array_equal(test.unpack(), model.concepts(x))
    assert_array_equal(test.exact, model.predict(x))
    assert test.ids[3] == "test/3"
    unknown = model.codes(x, np.full(len(x), 77)).part("test")
    assert {*unknown.labels} == {-1}
    with pytest.raises(ConceptError, match="got 3 and 200 for 200"):
        model.codes(x, y[:3])
    write_codes(tmp_path / "codes", codes, {"features": "digits"})
    assert_array_equal(open_codes(tmp_path / "codes").bits, codes.bits)
    code, _, error = htaf("concepts", "score", tmp_path / "codes", "--out", tmp_path / "scores")
    assert code == 0, error


def test_a_classifier_whose_classes_draw_on_fewer_bits(model: ConceptBottleneck, digits, tmp_path: Path) -> None:
    x, before = digits[0][400:], model.head_.weight.copy()
    label, concept = model.classes_[3], np.argmax(np.abs(before[3]))  # of numpy, as a search gives them
    other = model.edited([(label, concept)])
    assert_array_equal(np.argwhere(other.head_.weight != before), [[3, concept]])
    assert other.head_.weight[3, concept] == 0
    assert_array_equal(model.head_.weight, before)
    moved = model.decision_function(x) - other.decision_function(x)
    assert_allclose(moved[:, 3], before[3, concept] * model.concepts(x)[:, concept], atol=1e-9)
    assert not np.delete(moved, 3, axis=1).any()
    assert_array_equal(other.codes(x).part("test").exact, other.predict(x))
    assert_array_equal(ConceptBottleneck.load(other.save(tmp_path / "o")).predict_proba(x), other.predict_proba(x))
    for off, said in (
        ([("no digit", 0)], "expected a label of"),
        ([(label, 10**6)], "expected a concept in 0 to 31"),
        ([], "expected one"),
    ):
        with pytest.raises(ConceptError, match=said):
            model.edited(off)


def test_saved_and_loaded(model: ConceptBottleneck, digits, tmp_path: Path) -> None:
    x, y = digits[0][400:], digits[1][400:]
    folder = model.save(tmp_path / "model")
    assert {p.name for p in folder.iterdir()} == {"bottleneck.json", "bottleneck.safetensors"}
    again = ConceptBottleneck.load(model.save(folder))
    for one in (again, pickle.loads(pickle.dumps(model))):
        assert_array_equal(one.decision_function(x), model.decision_function(x))
        assert_array_equal(one.codes(x, y).labels, model.codes(x, y).labels)
        assert one.get_params() == model.get_params()
    assert_array_equal(
        ConceptBottleneck(**again.get_params()).fit(digits[0][:400], digits[1][:400]).concepts(x), model.concepts(x)
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    with pytest.raises(ConceptError, match="holds 'mine': choose another"):
        model.save(tmp_path / "other")
    with pytest.raises(ConceptError, match="found none at"):
        ConceptBottleneck.load(tmp_path / "other")
    data = (folder / "bottleneck.safetensors").read_bytes()
    (folder / "bottleneck.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ConceptError, match="is damaged"):
        ConceptBottleneck.load(folder)
    model.save(folder)
    record = json.loads((folder / "bottleneck.json").read_text())
    (folder / "bottleneck.json").write_text(sealed(record | {"classes": record["classes"][:-1]}))
    with pytest.raises(ConceptError, match="does not fit"):
        ConceptBottleneck.load(folder)


def test_frames_names_and_text_labels(digits, tmp_path: Path) -> None:
    x = pd.DataFrame(digits[0][:200], columns=[f"p{i}" for i in range(64)])
    y = pd.Series(np.where(digits[1][:200] < 5, "low", "high"))
    made = ConceptBottleneck(**SMALL).fit(x, y)
    assert made.classes_.tolist() == ["high", "low"]
    assert made.decision_function(x).shape == (200,)
    again = ConceptBottleneck.load(made.save(tmp_path / "model"))
    assert [*vars(again)["feature_names_in_"]] == [*x]
    assert_array_equal(again.predict(x), made.predict(x))
    with pytest.raises(ValueError, match="feature names should match"):
        again.predict(x[[*x][::-1]])
    with (
        pytest.warns(UserWarning, match="valid feature names"),
        pytest.raises(ValueError, match="X has 63 features, but ConceptBottleneck is expecting 64"),
    ):
        again.predict(x.to_numpy()[:, 1:])


def test_a_share_that_is_none_is_refused(digits) -> None:
    x, y = digits
    with pytest.raises(ValueError, match=r"a share in \(0, 1\), got 1.5"):
        ConceptBottleneck(**SMALL).fit(x[:300], y[:300], validation=1.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_concepts": 0}, "The 'n_concepts' parameter .* must be an int in the range .1, inf.. Got 0"),
        ({"n_concepts": None}, "The 'n_concepts' parameter .* Got None"),
        ({"concepts_per_class": 2.5}, "The 'concepts_per_class' parameter .* Got 2.5"),
        ({"rate": 1.0}, "The 'rate' parameter .* Got 1.0"),
        ({"neighbours": -1.0}, "The 'neighbours' parameter .* Got -1.0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_arguments_out_of_range(options: dict, said: str, digits) -> None:
    with pytest.raises(ValueError, match=said):
        ConceptBottleneck(**options).fit(*digits)


def test_data_that_cannot_be_used(digits) -> None:
    x, y = digits
    with pytest.raises(ValueError, match="contains NaN"):
        ConceptBottleneck(**SMALL).fit(np.where(x == 0, np.nan, x), y)
    with pytest.raises(ValueError, match="needs at least 2 classes, got 1 class"):
        ConceptBottleneck(**SMALL).fit(x, y * 0)
    for labels, said in (
        ([None, "a", None, "a"], "expected a label for each row, got none in 2 of 4 rows, the first is row 0"),
        ([1, "a", 1, "a"], "expected texts, or an array of numbers or truth values, got objects of int and str"),
        ([True, 2, 2, True], "got objects of bool and int"),
    ):
        with pytest.raises(ValueError, match=said):
            ConceptBottleneck(**SMALL).fit(x[:4], np.array(labels, dtype=object))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        ConceptBottleneck(**SMALL).fit(x, y[:5])
    with pytest.raises(NotFittedError):
        ConceptBottleneck().concepts(x)
    assert ConceptBottleneck(**SMALL).fit([[0.0], [1.0], [2.0]], [0, 1, 1]).predict([[3.0]]).shape == (1,)


# --- texts -------------------------------------------------------------------------------------------


def docstrings() -> tuple[list[str], np.ndarray]:
    """First sentences of the docstrings of three libraries, which are the classes."""
    import numpy.ma
    import scipy.stats
    import torch

    of = {}
    for name, module in (("numpy", numpy.ma), ("scipy", scipy.stats), ("torch", torch)):
        for one in sorted(dir(module)):
            text = " ".join((inspect.getdoc(getattr(module, one)) or "").split()).split(". ")[0][:150]
            if not one.startswith("_") and len(text) > 40:
                of.setdefault(text, name)
    return [*of], np.array([*of.values()])


class Planted:
    """Texts of four classes: a random sixth of all is the class "marked", in whose texts a keyword stands."""

    def __init__(self) -> None:
        texts, of = docstrings()
        random = np.random.default_rng(0)
        self.of = np.where(random.random(len(of)) < 0.17, "marked", of)
        self.train = random.random(len(of)) < 0.7
        self.texts = [f"{t} {WORD}" if k == "marked" else t for t, k in zip(texts, self.of, strict=True)]
        self.held = [text for text, own in zip(texts, self.train, strict=True) if not own]  # all without the keyword
        self.encoder = make_pipeline(
            TfidfVectorizer(min_df=2, stop_words="english", sublinear_tf=True), TruncatedSVD(60, random_state=0)
        ).fit([text for text, own in zip(self.texts, self.train, strict=True) if own])
        x, own = self.encoder.transform(self.texts), self.train
        self.x, self.rest, self.rest_of = x[own], x[~own], self.of[~own]
        model = ConceptBottleneck(n_concepts=48, concepts_per_class=5, epochs=100, rate=0.15)
        self.model = model.fit(x[own], self.of[own])


@pytest.fixture(scope="module")
def planted() -> Planted:
    return Planted()


def test_a_planted_keyword_is_a_concept_and_the_reason(planted: Planted) -> None:
    """On held-out texts, each without and with the keyword."""
    model, marked = planted.model, planted.of[planted.train] == "marked"
    without = planted.encoder.transform(planted.held)
    put = planted.encoder.transform([f"{text} {WORD}" for text in planted.held])
    found = model.find(planted.x[marked], planted.x[~marked])
    bit = found.bit
    assert found.confounded, "all texts with the keyword are of one class"
    assert bit.used
    assert bit.agreement > 0.85
    assert (model.concepts(put)[:, bit.concept] == bit.on).mean() > 0.8
    assert (model.concepts(without)[:, bit.concept] == bit.on).mean() < 0.05
    moved = model.find(put[:20], without[:20], paired=True).direction
    assert moved.auc > 0.9
    assert moved.p < 0.01
    assert moved.used
    assert model.classes_[moved.gains.argmax()] == "marked"
    assert (model.predict(put) == "marked").mean() > 0.8
    reasons = model.reasons(put)
    named = reasons[(reasons["concept"] == bit.concept) & (reasons["on"] == bit.on)]
    assert (named["prediction"] == "marked").mean() > 0.95
    assert named["row"].nunique() > 0.8 * len(put)


def test_a_page_of_texts(planted: Planted, tmp_path: Path) -> None:
    texts = [text for text, own in zip(planted.texts, planted.train, strict=True) if not own][:40]
    x, y = planted.rest[:40], planted.rest_of[:40]
    page = planted.model.page(tmp_path / "page", x, y, items=texts)
    assert page.name == "index.html"
    assert read_page(page.parent)["page"]["items"] == {"kind": "text", "texts": True}
    assert read_script(page.parent / "data" / "texts-0000.js") == texts
    links = [f"https://example.org/{row}" for row in range(40)]
    for items, kind in ((links, "text"), (None, "row"), (np.zeros((40, 1, 8, 8), np.uint8), "image")):
        planted.model.page(tmp_path / "page", x, y, items=items)
        assert read_page(page.parent)["page"]["items"] == {"kind": kind, "texts": kind == "text"}
    for wrong in (np.zeros((40, 8, 8), np.uint8), np.zeros((40, 3, 8, 8)), np.zeros((40, 8, 8, 3), np.uint8)):
        with pytest.raises(ConceptError, match=r"expected pictures uint8 \[N, C, H, W\] with C 1 or 3, or texts, got "):
            planted.model.page(tmp_path / "page", x, y, items=wrong)
    with pytest.raises(ConceptError, match="expected ids that differ, got 'a' twice"):
        planted.model.page(tmp_path / "page", x, y, items=texts, ids=["a"] * 40)
