"""Flips, counterfactuals against brute force, edited heads that open as runs."""

import hashlib
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.counterfactuals import counterfactual
from htaf.concepts.heads import edited
from htaf.concepts.run_heads import edit_run, write_edited
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


# ---- counterfactuals ----


def brute_force(codes: Codes, row: int, target: int, margin: float) -> int | None:
    """The smallest number of flips over all 2^C sets."""
    bits = codes.unpack()[row].astype(np.float64)
    sets = np.array(list(itertools.product((0.0, 1.0), repeat=codes.concepts)))
    logits = np.abs(sets - bits) @ codes.weight.T.astype(np.float64) + codes.bias.astype(np.float64)
    wins = (logits[:, [target]] >= np.delete(logits, target, axis=1) + margin).all(1)
    return int(sets[wins].sum(1).min()) if wins.any() else None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(2, 6), st.sampled_from([0.0, 0.5, 2.0]), st.booleans())
def test_counterfactuals_against_all_sets(seed: int, concepts: int, classes: int, bias: float, whole: bool) -> None:
    """Whole weights make ties, a large bias makes classes that cannot win."""
    rng = np.random.default_rng(seed)
    weight = rng.integers(-2, 3, (classes, concepts)) if whole else rng.normal(size=(classes, concepts))
    codes = codes_of(rng.random((3, concepts)) < 0.5, [0, 1, 1], weight, bias * rng.normal(size=classes))
    for row, target in ((0, None), (1, classes - 1), (2, 0)):
        goal = int(codes.labels[row]) if target is None else target
        wanted = brute_force(codes, row, goal, 1e-4)
        found = counterfactual(codes, row, target)
        assert found.proven
        assert found.upper == wanted
        assert found.feasible is (wanted is not None)
        if found.concepts is not None:
            bits = codes.unpack()[row].astype(np.float32)
            bits[[*found.concepts]] = 1 - bits[[*found.concepts]]
            after = bits @ codes.weight.T + codes.bias
            assert after.argmax() == goal == found.target
            others = np.delete(after.astype(float), goal)
            assert found.margin == pytest.approx(after[goal] - others.max(), abs=1e-4)
            assert found.margin >= 1e-4


def test_a_tie_is_broken_even_for_the_lower_class() -> None:
    codes = codes_of(np.array([[1, 0]]), [0], np.array([[1.0, 0.5], [1.0, 0.0]]), np.zeros(2))
    assert codes.exact[0] == 0
    assert counterfactual(codes, 0).concepts == (1,)


def hard() -> Codes:
    """Flips one at a time, the best first, take four; three are enough, and each competitor alone needs one."""
    weight = [[0] * 6, [1, -2, 0, -2, -2, 0], [1, -1, 2, -2, 0, -3], [-3, 0, -3, 1, -1, 0]]
    return codes_of(np.zeros((1, 6)), [0], np.array(weight), np.array([0, 1, 1, 1]))


def test_no_flip_at_a_time_finds_the_fewest() -> None:
    found = counterfactual(hard(), 0)
    assert (found.lower, found.upper, found.proven) == (3, brute_force(hard(), 0, 0, 1e-4), True)


def test_without_time_nothing_is_proven() -> None:
    rng = np.random.default_rng(3)
    codes = codes_of(rng.random((2, 300)) < 0.5, [0, 1], rng.normal(size=(100, 300)), np.zeros(100))
    found = counterfactual(codes, 0, 50, time_limit=1e-9)
    assert not found.proven
    assert found.upper is None or found.lower < found.upper
    with pytest.raises(ConceptError, match="time_limit > 0"):
        counterfactual(codes, 0, time_limit=0)


def test_a_class_that_one_competitor_always_beats() -> None:
    codes = codes_of(np.array([[0, 1]]), [0], np.array([[1.0, 1.0], [1.0, 1.0]]), np.array([0.0, 0.1]))
    found = counterfactual(codes, 0)
    assert (found.concepts, found.feasible, found.proven) == (None, False, True)
    assert found.margin == pytest.approx(-0.1, abs=1e-6)


def test_a_class_that_only_several_competitors_together_beat() -> None:
    """Each competitor alone can be passed, by opposite values of the one bit."""
    codes = codes_of(np.array([[0]]), [0], np.array([[0.0], [1.0], [-1.0]]), np.array([0.0, -0.5, 0.5]))
    assert brute_force(codes, 0, 0, 1e-4) is None
    found = counterfactual(codes, 0)
    assert (found.concepts, found.feasible, found.proven) == (None, False, True)


# ---- curves ----


# ---- edited heads ----


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


def test_an_image_by_its_id_or_row(run: Run) -> None:
    codes = codes_of(np.eye(4), [0, 1, 0, 1], np.ones((2, 4)), np.array([0.0, 1.0]), ids=["a.png", "2", "b.png", "c"])
    assert [codes.row(image) for image in ("a.png", "2", "3")] == [0, 1, 3]
    with pytest.raises(ConceptError, match=r"a row below 4, got 'b.pgn' \(did you mean 'b.png'\?\); ids are such as"):
        codes.row("b.pgn")
    with pytest.raises(ConceptError, match="got 'test/0'"):
        codes.row("test/0")


def test_an_edited_run_opens_and_predicts(run: Run, tmp_path: Path) -> None:
    metrics = {"smooth": {}, "exact": {"test": {"accuracy": 0.5}}}
    write_edited(run, tmp_path / "edited", [("3", 2), (7, 10)], metrics)
    new = open_run(tmp_path / "edited")
    assert new.record["edited"]["off"] == [[3, 2], [7, 10]]
    assert new.record["edited"]["from"] == str(run.path)
    assert new.record["edited"]["key"] == run.record["key"] != new.record["key"]
    assert new.record["metrics"] == metrics
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
    again = write_edited(run, tmp_path / "edited", [(7, 10), (3, 2)], {})  # the same edit: nothing is written
    assert again.record["metrics"] == metrics
    twice = write_edited(new, tmp_path / "twice", [(3, 2)], metrics)
    assert "none before" in twice.record["notes"][-1]
    with pytest.raises(RunError, match="holds another run"):
        write_edited(run, tmp_path / "edited", [(3, 2)], {})
    with pytest.raises(RunError, match="holds another run"):
        write_edited(run, run.path, [(3, 2)], {})


def test_what_the_edited_training_began_with_is_kept(run: Run, tmp_path: Path) -> None:
    started = Run(run.path, run.record | {"attributes": "aa", "pretrained_sha256": "bb"})
    new = write_edited(started, tmp_path / "edited", [(3, 2)], {}).record
    assert (new["attributes"], new["pretrained_sha256"]) == ("aa", "bb")
    assert new["model_sha256"] == hashlib.sha256((tmp_path / "edited" / "model.safetensors").read_bytes()).hexdigest()
    for name in ("attributes", "pretrained_sha256"):
        other = Run(run.path, started.record | {name: "other"})
        with pytest.raises(RunError, match=f"holds another run .*{name}: '..' there, 'other' here"):
            write_edited(other, tmp_path / "edited", [(3, 2)], {})
