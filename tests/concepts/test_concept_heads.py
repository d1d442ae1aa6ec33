"""Heads on concepts: scikit-learn fits, planted concepts, the test part chooses nothing; NEC and NCC."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from htaf.concepts import codes as codes_room
from htaf.concepts import heads, run_heads
from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.counts import Same, labelled
from htaf.concepts.heads import (
    STRENGTHS,
    by_importance,
    correct,
    effective,
    fit_of,
    head_of,
    sparse_heads,
)
from htaf.concepts.run_heads import about_heads, keep_readable
from htaf.data.images import Images
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.runs import Run, RunError, open_run
from htaf.transform.hardening import linear
from htaf.transform.hardening.linear import LinearFit, largest_of_each
from made_runs import digits, made_run


def parts_of(*sizes: int) -> np.ndarray:
    return np.repeat(np.arange(len(sizes), dtype=np.uint8), sizes)


def planted(seed: int = 0, classes: int = 10, each: int = 3, junk: int = 30, sizes=(600, 300, 300)) -> Codes:
    """Each class has `each` concepts of its own, present in 90% of its images and 10% of the others, among others."""
    r = np.random.default_rng(seed)
    n = sum(sizes)
    labels = r.integers(0, classes, n)
    own = np.repeat(np.arange(classes), each)
    told = r.random((n, len(own))) < np.where(labels[:, None] == own, 0.9, 0.1)
    noise = r.random((n, junk)) < r.random(junk)
    dead = np.stack([np.ones(n), np.zeros(n)], 1)
    bits = np.concatenate([told, noise, dead], 1).astype(bool)
    concepts = bits.shape[1]
    return codes_of(bits, labels, r.normal(size=(classes, concepts)), r.normal(size=classes), parts=parts_of(*sizes))


def random_weights(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    r = np.random.default_rng(seed)
    return torch.from_numpy(r.normal(size=(10, 62))), torch.from_numpy(r.normal(size=10))


def objective(fit: LinearFit, w: np.ndarray, b: np.ndarray, strength: float, mix: float) -> float:
    logits = fit.z.numpy() @ w.T + b
    chosen = logits[np.arange(len(logits)), fit.y]
    entropy = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1) - chosen
    return float(entropy.mean() + strength * (mix * np.abs(w).sum() + (1 - mix) / 2 * (w**2).sum()))


def test_the_gradient_is_that_of_the_loss() -> None:
    fit, (w, b), step = fit_of(labelled(planted(), "train")), random_weights(0), random_weights(1)
    value, slope, of_bias = fit.loss((w, b))
    assert float(value) == pytest.approx(objective(fit, w.numpy(), b.numpy(), 0, 0))
    ahead, behind = (objective(fit, (w + e * step[0]).numpy(), (b + e * step[1]).numpy(), 0, 0) for e in (1e-5, -1e-5))
    assert float((slope * step[0]).sum() + of_bias @ step[1]) == pytest.approx((ahead - behind) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("mix", [0.5, 0.99])
def test_elastic_net_is_scikit_learns(mix: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MIX", mix), ("PRECISION", 1e-9), ("STEPS", 5000)):
        monkeypatch.setattr(linear, name, value)
    fit = fit_of(labelled(planted(), "train"))
    z = fit.z.numpy()
    for strength in (0.03, 0.01):
        w, b = (found.numpy() for found in fit.elastic_net(fit.constant(10), strength))
        solver = LogisticRegression(C=1 / (strength * len(z)), solver="saga", l1_ratio=mix, tol=1e-5, max_iter=3000)
        solver.fit(z, fit.y)
        theirs = objective(fit, solver.coef_, np.asarray(solver.intercept_), strength, mix)
        assert objective(fit, w, b, strength, mix) == pytest.approx(theirs, rel=1e-5)
        np.testing.assert_allclose(w, solver.coef_, atol=3e-3)
        assert abs(effective(w) - effective(np.where(np.abs(solver.coef_) > 1e-4, solver.coef_, 0))) < 0.5
        assert (w[:, -2:] == 0).all()  # dead concepts


def test_the_path_starts_at_nothing_and_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "POINTS", 12)
    fit = fit_of(labelled(planted(), "train"))
    found = [(strength, effective(w.numpy())) for strength, (w, _) in fit.path(10)]
    assert len(found) == 12
    assert found[0][1] == 0
    assert found[1][1] > 0
    assert found[-1][0] == pytest.approx(found[0][0] / 1000)
    assert all(later >= sooner - 0.5 for (_, sooner), (_, later) in itertools.pairwise(found))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_the_largest_weights_of_each_class(seed: int, most: int) -> None:
    r = np.random.default_rng(seed)
    weight = r.normal(size=(4, 6)) * (r.random((4, 6)) < 0.6)
    kept = largest_of_each(torch.from_numpy(weight), most).numpy()
    for line, here in zip(weight, kept, strict=True):
        assert here.sum() == min(most, np.count_nonzero(line))
        assert not here.any() or np.abs(line[here]).min() >= np.abs(line[~here]).max(initial=0)


def test_a_fit_to_some_weights_leaves_all_else_at_nothing() -> None:
    fit = fit_of(labelled(planted(), "train"))
    kept = torch.zeros(10, 62, dtype=torch.bool)
    kept[:, :7] = True
    w = fit.logistic(random_weights(0), 0.1, kept=kept)[0].numpy()
    assert (w[:, 7:] == 0).all()
    assert (w[:, :7] != 0).all()
    solver = LogisticRegression(C=1 / (0.1 * len(fit.z)), tol=1e-8, max_iter=1000).fit(fit.z[:, :7].numpy(), fit.y)
    np.testing.assert_allclose(w[:, :7], solver.coef_, atol=1e-4)


def test_a_head_on_bits_gives_the_logits_of_the_fit() -> None:
    train = labelled(planted(), "train")
    fit, (w, b) = fit_of(train), random_weights(1)
    head = head_of(fit, (w, b))
    np.testing.assert_allclose(train.unpack() @ head.weight.T + head.bias, fit.z @ w.T + b, atol=1e-5)


def test_the_strongest_penalty_stands_until_a_weaker_one_is_clearly_better(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter(np.repeat([0.5, 0.8, 0.8], heads.FOLDS))
    monkeypatch.setattr(heads, "correct", lambda some, _: np.arange(len(some)) < next(shares) * len(some))
    (found,) = sparse_heads(planted(), (3,))
    assert found.ridge == STRENGTHS[1]
    assert found.validation == pytest.approx(0.8, abs=0.01)
    assert not list(shares)  # the fourth was not tried


def test_a_validation_image_is_judged_by_heads_that_have_not_seen_it() -> None:
    r = np.random.default_rng(0)  # more bits than images: a head is right on all that it was fitted to
    bits, labels = r.random((120, 200)) < 0.5, r.integers(0, 4, 120)
    codes = codes_of(bits, labels, np.zeros((4, 200)), np.zeros(4), parts=parts_of(60, 60))
    (found,) = sparse_heads(codes, (None,))
    assert correct(labelled(codes, "validation"), found.head).mean() > 0.9
    assert found.validation == found.right.mean() < 0.5


def test_planted_concepts_carry_the_sparse_head() -> None:
    codes = planted()
    three, ten, whole, again = sparse_heads(codes, (3, 10, None, 3))
    test = labelled(codes, "test")
    assert again is three
    assert three.nec <= 3 < ten.nec <= 10
    assert whole.target is None
    assert whole.nec == 60  # all but the dead
    own = np.repeat(np.arange(10), 3)
    for label in range(10):
        assert set(np.flatnonzero(three.head.weight[label])) <= set(np.flatnonzero(own == label))
    shares = [correct(test, found.head).mean() for found in (three, ten, whole)]
    assert shares[0] > 0.85
    assert min(shares[1:]) > shares[0] - 0.05
    labels = test.labels
    logits = test.unpack().astype(float) @ three.head.weight.T + three.head.bias
    assert shares[0] == pytest.approx((logits.argmax(1) == labels).mean())
    assert three.validation > 0.85


def test_the_test_part_chooses_nothing() -> None:
    codes = planted(sizes=(300, 150, 150))
    other = np.array(codes.labels)
    other[codes.parts == 2] = 0
    one, two = (sparse_heads(each, (3,))[0] for each in (codes, replace(codes, labels=other)))
    np.testing.assert_array_equal(one.head.weight, two.head.weight)


def test_a_class_without_images_to_fit_to_is_never_predicted() -> None:
    codes = planted()
    labels = np.array(codes.labels)
    labels[(codes.parts < 2) & (labels == 4)] = 3
    found_heads = sparse_heads(replace(codes, labels=labels), (2, None))
    for found in found_heads:
        logits = codes.unpack().astype(float) @ found.head.weight.T + found.head.bias
        assert not (logits.argmax(1) == 4).any()
    assert all((found.head.weight[4] == 0).all() for found in found_heads)


def test_one_class_and_dead_concepts_alone() -> None:
    codes = codes_of(np.zeros((30, 4)), np.zeros(30), np.zeros((2, 4)), np.zeros(2), parts=parts_of(10, 10, 10))
    for found in sparse_heads(codes):
        assert (found.head.weight == 0).all()
        assert found.validation == 1


def test_bad_input_is_refused() -> None:
    codes = planted(sizes=(100, 50, 50))
    with pytest.raises(ConceptError, match="numbers of concepts >= 1"):
        sparse_heads(codes, (0,))
    with pytest.raises(ConceptError, match="numbers of concepts >= 1"):
        sparse_heads(codes, ())
    with pytest.raises(ConceptError, match="cap must be >= 1"):
        sparse_heads(codes, cap=0)
    with pytest.raises(ConceptError, match="validation"):
        sparse_heads(codes.part("train"))


def test_a_head_draws_on_one_bit_of_a_concept() -> None:
    """Two classes whose bits are all the class: five weights a class were five times the same."""
    labels = np.arange(60) % 2
    bits = np.stack([labels, 1 - labels] * 8, 1)
    codes = codes_of(bits, labels, np.zeros((2, 16)), np.zeros(2), parts=parts_of(30, 15, 15))
    for head in sparse_heads(codes, (5, None)):
        assert (head.head.weight != 0).sum(1).tolist() == [1, 1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 5))
def test_a_subsample_is_even_over_classes(labels: list[int], cap: int, seed: int) -> None:
    of = np.array(labels, dtype=np.int32)
    rows = heads.balanced_rows(of, cap, seed)
    assert len(rows) == min(cap, len(of))
    assert (np.diff(rows) > 0).all()
    taken, there = np.bincount(of[rows], minlength=5), np.bincount(of, minlength=5)
    for k in range(5):  # a class has fewer than another by more than one only where it has no more
        assert taken[k] >= min(there[k], taken.max() - 1)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = planted(sizes=(100, 50, 50))
    head = heads.Head(codes.weight.astype(float), codes.bias.astype(float))
    whole = correct(codes, head)
    monkeypatch.setattr(codes_room, "CHUNK", 13)
    np.testing.assert_array_equal(correct(codes, head), whole)


@pytest.fixture(scope="module")
def images() -> Images:
    return digits()


@pytest.fixture
def run(images: Images, tmp_path: Path) -> Run:
    return made_run(tmp_path / "run", images, concepts=21, shares={"train_images": 300, "validation_images": 100})


def kept(run: Run) -> dict[str, Any]:
    (row,) = (row for row in run.record["heads"]["rows"] if row["kept"])
    return row


def used(run: Run) -> int:
    head: Any = run.model().get_submodule("head")
    return int((head.weight != 0).sum(1).max())


def test_the_head_of_a_run_over_a_frozen_backbone(images: Images, tmp_path: Path) -> None:
    small: dict[str, Any] = {"backbone": "wide_resnet", "pretrained": "", "depth": 10, "concepts": 16, "epochs": 1}
    recipe = ready_recipe("icbm", "frozen").replace(**small, train_images=200, validation_images=100)
    before = fit(recipe, images, tmp_path / "run", source={"name": "digits"})
    assert used(before) == 10  # the other six are groups of images that look alike
    after = keep_readable(before, images, 3)
    head: Any = after.model().get_submodule("head")
    assert not head.weight[:, 10:].any()
    assert open_run(after.path).record == after.record
    assert after.record["key"] == before.record["key"]  # the same training
    rows = after.record["heads"]["rows"]
    assert [(row["kind"], row["target"]) for row in rows] == [("trained", None), ("fitted", 3), ("fitted", None)]
    assert kept(after)["target"] == 3
    assert used(after) <= 3
    for part in ("validation", "test"):  # what is measured on kept features is what the whole network gives
        found = open_run(after.path).evaluate(part, images)
        if part == "test":  # that of validation images is by heads that have not seen them
            assert kept(after)[part] == pytest.approx(found["exact"]["accuracy"])
        for network in ("smooth", "exact"):
            assert after.record["metrics"][network][part]["loss"] == pytest.approx(found[network]["loss"], rel=1e-4)
    again = fit(recipe, images, tmp_path / "run", source={"name": "digits"})
    assert again.record == after.record  # the same command finds it done
    assert keep_readable(again, images, 3).record == after.record
    with pytest.raises(RunError, match="--concepts-per-class 3, not auto"):
        keep_readable(again, images)


@pytest.mark.parametrize("near", [-1.0, 1.0])
def test_auto_keeps_the_sparsest_that_is_near_enough(
    run: Run, images: Images, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_heads, "NEAR", near)
    after = keep_readable(run, images)
    said = about_heads(after.record["heads"])
    assert open_run(run.path).record["heads"] == after.record["heads"]
    if near > 0:
        assert kept(after)["target"] == 5
        assert used(after) <= 5
        assert "each class draws on at most 5 concepts: " in said
    else:
        dense = [row for row in after.record["heads"]["rows"] if row["target"] is None]
        assert kept(after) is max(dense, key=lambda row: row["validation"])  # the first of equals: the trained one
        same = after.record["model_sha256"] == run.record["model_sha256"]
        assert same is (kept(after)["kind"] == "trained")
        assert re.search(
            r"of 100 validation images with at most 5, [\d.]+ points \(95% interval [-\d.]+ to [-\d.]+\) fewer, ", said
        )
        assert re.search(r"with at most 10, [\d.]+ points \(95% interval .*?\) fewer would be right; ", said)


@pytest.mark.parametrize("enough", [1, 10**6])
def test_few_validation_images_choose_nothing(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enough: int
) -> None:
    monkeypatch.setattr(run_heads, "FEWEST", 50)
    monkeypatch.setattr(run_heads, "ENOUGH", enough)  # training images that show that bits are the same
    pair = Same(np.array([0, 0, *range(2, 21)]), np.zeros(21, bool))
    monkeypatch.setattr(run_heads, "same_bits", lambda *_: pair)
    few = made_run(tmp_path / "few", images, concepts=21, shares={"train_images": 300, "validation_images": 49})
    after = keep_readable(few, images)
    assert kept(after)["kind"] == "trained"
    found = after.evaluate("test", images)["exact"]["accuracy"]  # of the head that is kept
    assert kept(after)["test"] == pytest.approx(found)
    assert (after.record["model_sha256"] == few.record["model_sha256"]) == (enough > 1)
    assert "49 validation images are too few to choose a sparser head by, it takes 50" in about_heads(
        after.record["heads"]
    )


def test_a_kill_leaves_a_training_to_be_made_again(run: Run, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        keep_readable(run, images, 5)
    with pytest.raises(RunError, match="has not finished"):
        open_run(run.path)


@pytest.mark.parametrize(
    ("cost", "error", "near"), [(0.01, 0.01, True), (0.02, 0.02, True), (0.021, 0.0, False), (0.0, 0.05, False)]
)
def test_few_images_do_not_show_that_a_head_is_near(cost: float, error: float, near: bool) -> None:
    assert run_heads._is_near({"cost": cost, "error": error}) is near  # pyright: ignore[reportPrivateUsage]


def test_the_interval_of_a_cost_holds_the_true_cost_in_nearly_all_draws() -> None:
    rng = np.random.default_rng(0)
    for images, chances in ((20, (0.8, 0.8)), (150, (0.7, 0.9)), (40, (1.0, 1.0))):
        base, kept = chances  # of being right: of the first head; of the other, where the first is and is not
        dense = rng.random((1000, images)) < base
        other = np.where(dense, rng.random(dense.shape) < kept, rng.random(dense.shape) < 0.1)
        true = base * (1 - kept) - (1 - base) * 0.1
        found = [run_heads.fewer_right(*both) for both in zip(dense, other, strict=True)]
        assert found[0]["cost"] == pytest.approx(dense[0].mean() - other[0].mean())
        assert np.mean([low <= true <= high for low, high in (one["interval"] for one in found)]) > 0.93
        assert all(one["error"] > 0 for one in found)  # also where no image tells the heads apart


def test_worked_examples() -> None:
    weight = np.array([[1.0, 0, -0.5], [0, 0.3, 0]])
    assert effective(weight) == 1.5


def some(seed: int = 0, n: int = 50, concepts: int = 11, classes: int = 3) -> Codes:
    r = np.random.default_rng(seed)
    bits = r.random((n, concepts)) < r.random(concepts)
    return codes_of(bits, r.integers(0, classes, n), r.normal(size=(classes, concepts)), r.normal(size=classes))


def test_the_order_ignores_what_changes_no_prediction() -> None:
    codes = some()
    rates = codes.unpack().mean(0)
    shift = np.random.default_rng(1).normal(size=11) * 100  # the same for every class
    np.testing.assert_array_equal(by_importance(codes.weight, rates), by_importance(codes.weight + shift, rates))
    spread = [np.std([codes.weight[k, j] for k in range(3)]) * np.std(codes.unpack()[:, j]) for j in range(11)]
    assert by_importance(codes.weight, rates).tolist() == np.argsort(spread)[::-1].tolist()


def test_a_dead_concept_comes_last_and_ties_go_by_number() -> None:
    weight, rates = np.array([[9.0, 1.0, 1.0], [-9.0, -1.0, -1.0]]), np.array([1.0, 0.5, 0.5])
    assert by_importance(weight, rates).tolist() == [1, 2, 0]
