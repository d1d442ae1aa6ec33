"""Edited heads, which open as runs."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.heads import edited
from htaf.concepts.run_heads import edit_run, edited_run
from htaf.data.images import ImagePreprocessor
from htaf.models.icbm import ICBM
from htaf.training.runs import Run, RunError, forward, open_run
from made_runs import digits, made_run


def made(images: int = 60, concepts: int = 13, classes: int = 4, seed: int = 0) -> Codes:
    """Two thirds to train on, one third to test on; classes differ in their bits."""
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    typical = rng.random((classes, concepts)) < 0.5
    values = typical[labels] ^ (rng.random((images, concepts)) < 0.25)
    weight = rng.normal(size=(classes, concepts)) + 0.5 * typical
    parts = np.where(np.arange(images) % 3 == 2, 2, 0).astype(np.uint8)
    names = [f"k{i}" for i in range(classes)]
    return codes_of(values, labels, weight, rng.normal(size=classes), classes=names, parts=parts)


def test_edited_codes() -> None:
    codes = made()
    changed = edited(codes, [("k1", 3), (2, 5), (1, 3)])
    assert np.argwhere(changed.weight != codes.weight).tolist() == [[1, 3], [2, 5]]
    assert changed.weight[1, 3] == changed.weight[2, 5] == 0
    np.testing.assert_array_equal(changed.exact, (codes.unpack() @ changed.weight.T + codes.bias).argmax(1))
    assert (changed.exact != codes.exact).any()
    assert (changed.smooth == -1).all()
    assert changed.info["off"] == [[1, 3], [2, 5]]
    for off, message in (
        ([], "expected one"),
        ([("k9", 0)], "expected a class, by name or a number from 0 to 3, got 'k9'"),
        ([(4, 0)], "a number from 0 to 3, got 4"),
        ([(0, 13)], "expected a concept in 0 to 12, got 13"),
    ):
        with pytest.raises(ConceptError, match=message):
            edited(codes, off)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("runs") / "run", digits(), concepts=11)


def test_an_edit_is_measured_again(run: Run, tmp_path: Path) -> None:
    made = edit_run(run, tmp_path / "edited", [(3, 2), (7, 10)])
    metrics, again = made.record["metrics"], open_run(tmp_path / "edited")
    data = run.data()
    for part in ("validation", "test"):
        found = again.evaluate(part, data)
        assert metrics["exact"][part] == found["exact"]
        assert metrics["smooth"][part] == found["smooth"]
    assert metrics["exact"]["test"]["accuracy"] > 0
    assert metrics["exact"] != {part: run.evaluate(part, data)["exact"] for part in ("validation", "test")}
    with pytest.raises(RunError, match="trained on other data"):
        edit_run(run, tmp_path / "other", [(3, 2)], data=replace(digits(), fingerprint="other"))
    assert not (tmp_path / "other").exists()


def test_an_edited_run_opens_and_predicts(run: Run, tmp_path: Path) -> None:
    edited_run(run, [("3", 2), (7, 10)]).save(tmp_path / "edited")
    new = open_run(tmp_path / "edited")
    data = (tmp_path / "edited" / "model.safetensors").read_bytes()
    assert new.record["model_sha256"] == hashlib.sha256(data).hexdigest()
    assert new.record["edited"]["off"] == [[3, 2], [7, 10]]
    assert new.record["edited"]["from"] == str(run.path)
    assert new.record["edited"]["key"] == run.record["key"] != new.record["key"]
    assert "concept 2 of class 3, concept 10 of class 7" in new.record["notes"][-1]
    assert new.record["model"] == run.record["model"]
    for exact in (True, False):
        before, after = run.model(exact=exact), new.model(exact=exact)
        assert isinstance(before, ICBM)
        assert isinstance(after, ICBM)
        expected = before.head.weight.detach().clone()
        expected[3, 2] = expected[7, 10] = 0
        assert torch.equal(after.head.weight, expected)
        preprocessor = new.preprocessor()
        assert isinstance(preprocessor, ImagePreprocessor)
        x = preprocessor.normalise(digits().test.batch(torch.arange(50)))
        old, now = forward(before, x), forward(after, x)
        assert torch.equal(old[:, [0, 1, 2, 4, 5, 6, 8, 9]], now[:, [0, 1, 2, 4, 5, 6, 8, 9]])
        assert not torch.equal(old, now)
    again = edited_run(run, [(7, 10), (3, 2)]).save(tmp_path / "edited")  # the same edit
    assert again.record == new.record
    twice = edited_run(new, [(3, 2)]).save(tmp_path / "twice")
    assert "none before" in twice.record["notes"][-1]
    for other in (tmp_path / "edited", run.path):
        with pytest.raises(RunError, match="holds another run"):
            edited_run(run, [(3, 2)]).save(other)
