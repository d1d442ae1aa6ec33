"""What the bits of a run are compared with: medians and quantiles of a plain network, soft values, baselines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.concepts.codes import PARTS, Codes, ConceptError, codes_of
from htaf.concepts.store import Features, open_codes, open_folder, write_codes
from htaf_paper import binarise as module
from htaf_paper.binarise import binarise, rate_thresholds
from htaf_paper.other_bits import BASELINES
from made_runs import PLAIN, digits, made_run

N, C, K = 200, 13, 4


def values(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(N, C)) * rng.uniform(0.5, 3, C) + rng.normal(size=C)).astype(np.float32)


def written(path: Path, features: np.ndarray, parts: np.ndarray | None = None, layer: str = "") -> Path:
    """Features of a plain network on disk: 120 training, 30 validation and 50 test images, in no order."""
    rng = np.random.default_rng(1)
    n, c = features.shape
    if parts is None:
        parts = rng.permutation(np.repeat([0, 1, 2], [120, 30, 50])).astype(np.uint8)
    head = rng.normal(size=(K, c)).astype(np.float32), rng.normal(size=K).astype(np.float32)
    labels = rng.integers(0, K, n).astype(np.int32)
    smooth = (features @ head[0].T + head[1]).argmax(1).astype(np.int32)
    made = Features(features, tuple("abcd"), labels, parts, list(map(str, range(n))), *head, smooth, {})
    write_codes(path, made, {"features": str(path), "layer": layer}, info={"run": "/runs/plain", "method": "relu"})
    return path


def like(rates: np.ndarray, n: int = 300) -> Codes:
    """Codes whose bits are one for these shares of the training images, and for no others."""
    bits = np.zeros((2 * n, len(rates)), bool)
    for j, rate in enumerate(rates):
        bits[np.random.default_rng(j).permutation(n)[: round(rate * n)], j] = True
    parts = np.repeat([PARTS.index("train"), PARTS.index("test")], n).astype(np.uint8)
    return codes_of(bits, np.zeros(2 * n), np.zeros((K, len(rates))), np.zeros(K), parts=parts)


def train(path: Path) -> np.ndarray:
    return np.asarray(open_folder(path).features().parts) == PARTS.index("train")


@pytest.mark.parametrize("memory", [1, module.MEMORY])
def test_the_median_of_each_node_on_the_training_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    monkeypatch.setattr(module, "MEMORY", memory)
    monkeypatch.setattr(module, "ROWS", 7 if memory == 1 else module.ROWS)
    source, x = written(tmp_path / "f", values()), values()
    codes = binarise(source, tmp_path / "bm")
    ordered = np.sort(x[train(source)].astype(np.float64), axis=0)
    bits = x >= (ordered[59] + ordered[60]) / 2
    np.testing.assert_array_equal(codes.unpack(), bits)
    np.testing.assert_array_equal(codes.part("train").unpack().sum(0), 60)
    features = open_folder(source).features()
    logits = np.stack([features.weight @ row + features.bias for row in bits.astype(np.float32)])
    np.testing.assert_array_equal(codes.exact, logits.argmax(1))
    np.testing.assert_array_equal(codes.smooth, features.smooth)
    assert set(codes.saturated) == {-1}
    for name in ("labels", "parts", "weight", "bias"):
        np.testing.assert_array_equal(getattr(codes, name), getattr(features, name))
    assert list(codes.ids) == list(features.ids)
    thresholds = safetensors.numpy.load_file(tmp_path / "bm" / "head.safetensors")["thresholds"]
    np.testing.assert_array_equal(codes.unpack(), x >= thresholds)
    assert (codes.info["how"], codes.info["run"], codes.info["method"]) == ("median", "/runs/plain", "relu")


def test_a_feature_at_the_median_fires(tmp_path: Path) -> None:
    x = np.zeros((201, 1), np.float32)
    x[:100], x[101:] = -1, 1
    codes = binarise(written(tmp_path / "f", x, np.zeros(201, np.uint8)), tmp_path / "bm")
    assert codes.unpack()[:, 0].tolist() == [0] * 100 + [1] * 101


def test_rates_are_copied_by_number(tmp_path: Path) -> None:
    rates = np.linspace(0, 1, C)
    source = written(tmp_path / "f", values())
    codes = binarise(source, tmp_path / "r", "rates", like=like(rates))
    np.testing.assert_allclose(codes.part("train").unpack().mean(0), rates, atol=0.5 / 120 + 1e-9)
    assert codes.info["rate_error"] == 0
    # higher features fire before lower ones
    x, bits = values()[train(source)], codes.part("train").unpack().astype(bool)
    for j in range(1, C - 1):
        assert x[bits[:, j], j].min() > x[~bits[:, j], j].max()


def test_rates_are_copied_by_order(tmp_path: Path) -> None:
    rates = np.random.default_rng(5).permutation(np.linspace(0.1, 0.9, C))
    source, x = written(tmp_path / "f", values()), values()
    codes = binarise(source, tmp_path / "r", "rates", like=like(rates), sorted=True)
    activity = (x[train(source)] > 0).mean(0)
    assert len(set(activity)) == C
    got = codes.part("train").unpack().mean(0)
    np.testing.assert_allclose(got[np.argsort(activity)], np.sort(rates), atol=0.5 / 120 + 1e-9)
    other = binarise(source, tmp_path / "n", "rates", like=like(rates))
    assert not np.array_equal(other.unpack(), codes.unpack())


@settings(deadline=None, max_examples=200)
@given(column=st.lists(st.integers(-3, 3), min_size=1, max_size=12), count=st.integers(0, 12), extra=st.integers(0, 12))
def test_with_ties_the_nearest_rate_there_is(column: list[int], count: int, extra: int) -> None:
    n = len(column)
    x = np.array([column, column[::-1]], np.float32).T
    wanted = np.array([min(count, n), min(extra, n)])
    none = np.zeros(n, np.int32)
    head = np.zeros((1, 2), np.float32), np.zeros(1, np.float32)
    features = Features(x, ("a",), none, none.astype(np.uint8), [""] * n, *head, none, {})
    thresholds, achieved = rate_thresholds(features, np.arange(n), wanted)
    possible = {sum(v >= t for v in column) for t in [*column, np.inf]}
    for j in range(2):
        fired = int((x[:, j] >= thresholds[j]).sum())
        assert fired == achieved[j]
        assert abs(fired - wanted[j]) == min(abs(p - wanted[j]) for p in possible)


def test_what_cannot_be_done(tmp_path: Path) -> None:
    source = written(tmp_path / "f", values())
    some = like(np.full(C, 0.5))
    with pytest.raises(ConceptError, match="for how='rates'"):
        binarise(source, tmp_path / "a", "median", like=some)
    with pytest.raises(ConceptError, match="needs like"):
        binarise(source, tmp_path / "a", "rates")
    with pytest.raises(ConceptError, match="expected 13 concepts, as many as features, got 5"):
        binarise(source, tmp_path / "a", "rates", like=like(np.full(5, 0.5)))
    with pytest.raises(ConceptError, match="codes to be like, got none"):
        binarise(source, tmp_path / "a", "rates", like=replace(some, parts=np.full(600, 2, np.uint8)))
    with pytest.raises(ConceptError, match="expected training images, whose features"):
        binarise(written(tmp_path / "g", values(), np.full(N, 2, np.uint8)), tmp_path / "a")
    codes = binarise(source, tmp_path / "bm")
    with pytest.raises(ConceptError, match="has no features: "):
        binarise(tmp_path / "bm", tmp_path / "a")
    assert not (tmp_path / "a").exists()
    np.testing.assert_array_equal(binarise(source, tmp_path / "bm").bits, codes.bits)
    with pytest.raises(ConceptError, match=r"holds other codes \(how: 'median' there, 'rates' here"):
        binarise(source, tmp_path / "bm", "rates", like=some)


def test_bits_of_a_backbone_get_a_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for name, parts in (
        ("f", None),
        ("g", np.repeat(np.array([0, 2], np.uint8), [150, 50])),
    ):  # g: no validation images
        plain = written(tmp_path / name, np.zeros((N, C), np.float32), parts)
        labels = np.asarray(open_folder(plain).features().labels)
        told = (rng.normal(size=(N, C)) + 4 * rng.normal(size=(K, C))[labels]).astype(np.float32)
        source = written(tmp_path / f"{name}-told", told, parts, layer="backbone")
        codes = binarise(source, tmp_path / f"{name}-bits", progress=name == "f")
        test = codes.part("test")
        assert (test.exact == test.labels).mean() > 0.8
        np.testing.assert_array_equal(test.exact, test.logits().argmax(1))
        assert (f"head on {C} bits" in capsys.readouterr().err) == (name == "f")


# ---- verbs ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, images = tmp_path_factory.mktemp("verbs"), digits()
    made_run(root / "run", images, concepts=21, shares={"train_images": 300, "validation_images": 100})
    made_run(root / "plain", images, PLAIN)
    return root


def test_leakage(htaf, folder: Path) -> None:
    for words in (("extract", folder / "run", "--out", folder / "soft", "--keep", "features"),
                  ("extract", folder / "run", "--out", folder / "hard", "--parts", "test", "train"),
                  ("name", folder / "soft", "--attributes", "digits", "--out", folder / "names.json")):  # fmt: skip
        code, _, err = htaf("concepts", *words)
        assert code == 0, err
    words = ("paper", "leakage", folder / "soft", "--names", folder / "names.json")
    code, text, err = htaf(*words, "--attributes", "digits", "--json")
    assert code == 0, err
    found = json.loads(text)
    assert len(found["soft"]["per_concept"]["ctl"]) == 21
    names = json.loads((folder / "names.json").read_text())
    assert found["named"]["verified"] == [entry["concept"] for entry in names if entry["verified"]]
    assert len(found["named"]["beyond"]) == len(found["named"]["verified"])
    code, text, err = htaf(*words)
    assert code == 0, err
    assert "leakage of soft values (CTL)" in text
    code, _, err = htaf("paper", "leakage", folder / "hard", "--attributes", "digits")
    assert (code, "--attributes needs --names" in err) == (2, True)
    code, _, err = htaf("paper", "leakage", folder / "hard")
    assert code == 2
    assert "has no pre-activations" in " ".join(err.split())


def test_the_plain_network_binarised(htaf, folder: Path, tmp_path: Path) -> None:
    codes = tmp_path / "codes"
    assert htaf("concepts", "extract", folder / "run", "--out", codes)[0] == 0
    code, out, err = htaf("concepts", "extract", folder / "plain", "--out", tmp_path / "f", "--json")
    assert code == 0, err
    assert all(row["exact"] is None for row in json.loads(out)["parts"])
    assert "features: accuracy" in htaf("concepts", "extract", folder / "plain", "--out", tmp_path / "f")[1]
    code, out, err = htaf("paper", "binarise", tmp_path / "f", "--out", tmp_path / "bm")
    assert code == 0, err
    assert "concepts: accuracy" in out
    np.testing.assert_allclose(open_codes(tmp_path / "bm").part("train").unpack().mean(0), 0.5)
    words = ("paper", "binarise", tmp_path / "f", "--out", tmp_path / "rates", "--how", "rates", "--like", codes)
    code, out, err = htaf(*words, "--sorted", "--json")
    assert code == 0, err
    rates = [np.sort(open_codes(path).part("train").unpack().mean(0)) for path in (tmp_path / "rates", codes)]
    np.testing.assert_allclose(rates[0], rates[1], atol=0.01)
    code, _, err = htaf("concepts", "score", tmp_path / "f")
    assert code == 1
    assert "htaf paper binarise" in " ".join(err.split())
    for words, said in (
        (("--how", "rates"), "--how rates needs --like CODES"),
        (("--sorted",), "--sorted are for --how rates alone"),
    ):
        code, _, err = htaf("paper", "binarise", codes, "--out", tmp_path / "x", *words)
        assert (code, said in " ".join(err.split())) == (2, True)


def test_codes_beside_the_baselines(htaf, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(BASELINES) - {"median cut"}:
        monkeypatch.delitem(BASELINES, name)
    codes, features = tmp_path / "codes", tmp_path / "features"
    assert htaf("concepts", "extract", folder / "run", "--out", codes)[0] == 0
    assert htaf("concepts", "extract", folder / "run", "--out", features, "--keep", "backbone")[0] == 0
    words = ("paper", "bench", codes, "--features", features, "--attributes", "digits", "--out", tmp_path / "out")
    code, text, err = htaf(*words, "--others", f"these={codes}", f"other={codes}", "--seeds", 2)
    assert code == 0, err
    result = json.loads((tmp_path / "out" / "bench.json").read_text())
    rows = {row["bits"]: row for row in result["rows"]}
    assert list(rows) == ["these", "other", "median cut"]
    assert (result["images"]["test"], result["features"]) == (359, 64)
    assert rows["these"]["mean"]["stability"] == pytest.approx(1)
    assert rows["other"]["mean"]["stability"] is None
    assert (tmp_path / "out" / "bench.md").read_text().strip() == text.strip()
    for flag, value in (
        ("--others", str(codes)), ("--seeds", "0"), ("--attributes", "birds"), ("--features", str(codes))
    ):  # fmt: skip
        given = {"--features": features} | {flag: value}
        code, _, err = htaf("paper", "bench", codes, "--out", tmp_path / "bad", *(w for p in given.items() for w in p))
        assert (code != 0, "error:" in err) == (True, True), (flag, err)
        assert not (tmp_path / "bad").exists()
