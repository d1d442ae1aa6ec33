"""Label-free bottlenecks: cos cubed, planted concepts, a tiny CLIP, the folder of codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from htaf.concepts import store
from htaf.concepts.codes import PARTS, ConceptError, codes_key
from htaf.concepts.extract import extract
from htaf.concepts.naming.files import read_names
from htaf.concepts.store import Features, open_codes, open_folder
from htaf.concepts.where import Pictures
from htaf.data.images import FilePart
from htaf.training.runs import open_run
from htaf_paper.image_text import load_image_text
from htaf_paper.labelfree import (
    cos_cubed,
    image_vectors,
    learn_concepts,
    learn_projection,
    read_texts,
    top_mean,
    write_concepts,
)
from made_clip import LENGTH, SIDE, VECTOR, write_clip
from made_runs import PLAIN, digits, made_run

N, F_, TRAIN = 600, 24, 400


def table(seed: int, rows: int = 12, columns: int = 3) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.floats(-100, 100))
def test_cos_cubed_is_the_formula_and_knows_no_shift_or_scale(seed: int, scale: float, shift: float) -> None:
    p, q = table(seed), table(seed + 1)
    found = cos_cubed(p, q)
    a, b = ((v.numpy() - v.numpy().mean(0)) ** 3 for v in (p, q))
    expected = (a * b).sum(0) / np.sqrt((a**2).sum(0) * (b**2).sum(0))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert (found.abs() <= 1 + 1e-12).all()
    torch.testing.assert_close(cos_cubed(p, p), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(cos_cubed(q, p), found)
    torch.testing.assert_close(cos_cubed(p, scale * q + shift), found, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(cos_cubed(p, -q), -found)


def test_cos_cubed_has_its_gradient_and_is_0_for_a_constant_column() -> None:
    p, q = table(0), table(1).requires_grad_()
    torch.autograd.gradcheck(lambda made: cos_cubed(p, made), (q,))
    constant = torch.full((12, 3), 0.3, requires_grad=True)
    found = cos_cubed(p.float(), constant)
    found.sum().backward()
    assert found.tolist() == [0, 0, 0]
    assert constant.grad is not None
    assert torch.isfinite(constant.grad).all()
    small = 1e-9 * p.float()  # whose cubes float32 does not hold
    torch.testing.assert_close(cos_cubed(small, p.float()), torch.ones(3))


def planted(seed: int = 0) -> tuple[Features, np.ndarray, np.ndarray]:
    """Features of six causes; similarities with four of them, with three of no cause, and two that no image is like."""
    rng = np.random.default_rng(seed)
    causes = rng.gamma(1.0, size=(N, 6))
    mixing = rng.normal(size=(6, F_))
    values = (causes @ mixing + 0.05 * rng.normal(size=(N, F_)) + 3).astype(np.float32)
    real = 0.2 + 0.03 * causes[:, :4] + 0.002 * rng.normal(size=(N, 4))
    noise = 0.2 + 0.03 * rng.gamma(1.0, size=(N, 3))
    absent = 0.1 + 0.01 * rng.normal(size=(N, 2))
    labels = (causes[:, :4].argmax(1)).astype(np.int32)
    parts = np.repeat([0, 1, 2], [TRAIN, 100, 100]).astype(np.uint8)
    head = (np.zeros((4, F_), np.float32), np.zeros(4, np.float32))
    info = {"key": "planted", "settings": {"run": "r", "layer": "backbone"}, "columns": ["features"]}
    ids = list(map(str, range(N)))
    features = Features(values, tuple("abcd"), labels, parts, ids, *head, np.zeros(N, np.int32), info)
    return features, np.concatenate([real, noise, absent], 1).astype(np.float32), causes


TEXTS = ("one", "two", "three", "four", "noise 1", "noise 2", "noise 3", "absent 1", "absent 2")


def test_planted_concepts_are_kept_and_noise_is_dropped(tmp_path: Path) -> None:
    features, similarities, causes = planted()
    asked = []

    def of(rows: np.ndarray) -> np.ndarray:
        asked.append(rows)
        return similarities[rows]

    found = learn_concepts(features, TEXTS, of, steps=600)
    assert found.texts == TEXTS[:4]
    assert (found.similarity > 0.9).all()
    assert {row["text"]: row["why"] for row in found.dropped} == {
        **dict.fromkeys(TEXTS[4:7], "the features do not follow it"),
        **dict.fromkeys(TEXTS[7:], "no image is like it"),
    }
    assert max(np.concatenate(asked)) < TRAIN + 100  # no test image is looked at
    values = found.values(features.values)
    np.testing.assert_allclose(values[:TRAIN].mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(values[:TRAIN].std(0), 1, atol=1e-4)
    for j in range(4):
        assert np.corrcoef(values[TRAIN + 100 :, j], causes[TRAIN + 100 :, j])[0, 1] > 0.95
    median = learn_concepts(features, TEXTS, of, steps=600, threshold="median")
    assert (median.values(features.values)[:TRAIN] >= 0).sum(0).tolist() == [TRAIN // 2] * 4
    codes = write_concepts(found, features, {"tensors_sha256": "x"}, tmp_path / "codes")
    np.testing.assert_array_equal(codes.unpack(), values >= 0)
    np.testing.assert_array_equal(open_folder(tmp_path / "codes").features().values, values)
    margins = open_folder(tmp_path / "codes").margins()
    assert margins is not None
    np.testing.assert_array_equal(margins >= 0, values >= 0)
    np.testing.assert_array_equal(codes.logits().argmax(1), codes.exact)
    test = codes.part("test")
    assert (test.exact == test.labels).mean() > 0.6
    assert (test.smooth == test.labels).mean() > 0.85  # the soft concepts tell which is the largest
    names = read_names(tmp_path / "codes" / "names.json", 4, codes=codes_key(codes))
    assert [entry["name"] for entry in names] == list(TEXTS[:4])
    assert {(entry["source"], entry["verified"], entry["status"]) for entry in names} == {
        ("label-free", False, "not checked")
    }
    kept = safetensors.numpy.load_file(tmp_path / "codes" / "projection.safetensors")
    again = (features.values @ kept["weight"].T - kept["mean"]) / kept["scale"]
    np.testing.assert_allclose(again, values, atol=1e-3)


def test_the_best_weights_on_validation_are_kept() -> None:
    features, similarities, _ = planted()
    x, p = features.values[:TRAIN], similarities[:TRAIN, :4]
    held, held_p = features.values[TRAIN : TRAIN + 100], similarities[TRAIN : TRAIN + 100, :4]
    short = learn_projection(x, p, held, held_p, steps=60)
    long = learn_projection(x, p, held, held_p, steps=600)
    assert short.similarity.mean() < long.similarity.mean()
    expected = cos_cubed(torch.from_numpy(held_p), torch.from_numpy(held @ long.weight.T))
    np.testing.assert_allclose(long.similarity, expected, atol=1e-5)
    stopped = learn_projection(x, p, held, -held_p, steps=600)  # the better on one, the worse on the other
    assert (stopped.step, stopped.steps) == (1, 51)
    drawn = learn_projection(x, p, held, held_p, steps=600, batch=100)
    assert drawn.similarity.mean() > 0.8
    again = learn_projection(x, p, held, held_p, steps=600, batch=100)
    np.testing.assert_array_equal(drawn.weight, again.weight)


def test_top_mean_and_texts(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((20, 3)).astype(np.float32)
    np.testing.assert_allclose(top_mean(values), np.sort(values, 0)[-5:].mean(0), rtol=1e-6)
    np.testing.assert_allclose(top_mean(values[:2]), values[:2].mean(0), rtol=1e-6)
    file = tmp_path / "texts.txt"
    file.write_text("\ufeffa  red\twing\n\n Blue \nblue\nA red wing\r\n", encoding="utf-8")
    texts, notes = read_texts(file)
    assert texts == ["a red wing", "Blue"]  # the first of equals
    assert notes == ["2 of 4 texts of texts.txt are there twice and are left out"]
    file.write_text(" \n")
    with pytest.raises(ConceptError, match="expected texts of concepts, one a line, got none"):
        read_texts(file)


def test_what_cannot_be_learned_is_said() -> None:
    features, similarities, _ = planted()
    with pytest.raises(ConceptError, match=r"all 9 texts are dropped.*lower --clip-cutoff"):
        learn_concepts(features, TEXTS, lambda rows: similarities[rows], clip_cutoff=0.9)
    with pytest.raises(ConceptError, match=r"no concept is left of 3 texts.*lower --similarity"):
        learn_concepts(features, TEXTS[4:7], lambda rows: similarities[rows][:, 4:7], steps=60)
    with pytest.raises(ConceptError, match="cut-offs"):
        learn_concepts(features, TEXTS, lambda rows: similarities[rows], similarity=1.0)
    none = Features(**{**features.__dict__, "parts": np.zeros(N, np.uint8)})
    with pytest.raises(ConceptError, match="expected validation images"):
        learn_concepts(none, TEXTS, lambda rows: similarities[rows])
    with pytest.raises(ConceptError, match="steps >= 1"):
        learn_projection(features.values, similarities, features.values, similarities, steps=0)


# ---- with a tiny CLIP ----


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip"))


def test_vectors_are_those_of_the_model(clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer, CLIPModel

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, images = load_image_text(clip), digits()
    reference = CLIPModel.from_pretrained(clip).eval()
    rows = torch.tensor([3, 5, 8])
    pixels = images.train.batch(rows).float().expand(-1, 3, -1, -1) / 255
    pixels = F.interpolate(pixels, (SIDE, SIDE), mode="bicubic", antialias=True).clamp(0, 1)
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.2, 0.25, 0.3]).view(3, 1, 1)
    with torch.no_grad():
        expected = reference.visual_projection(reference.vision_model((pixels - mean) / std).pooler_output)
    found = image_vectors(model, images, "train", rows)
    np.testing.assert_allclose(found, F.normalize(expected), atol=1e-5)
    monkeypatch.setattr(type(model), "features", lambda self, x: torch.full((len(x), VECTOR), torch.nan))
    np.testing.assert_array_equal(image_vectors(model, images, "train", rows), found)  # from the disk
    texts = ["a closed loop", "round", "the top " * LENGTH]
    tokens = AutoTokenizer.from_pretrained(clip)(texts[0], return_tensors="pt")
    with torch.no_grad():
        one = reference.text_projection(reference.text_model(**tokens).pooler_output)
    vectors = model.texts(texts)
    torch.testing.assert_close(vectors[:1], F.normalize(one), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))
    assert model.too_long(texts) == [2]
    assert model.described["licence"] == "mit"
    assert model.described["files"].keys() == {"model.safetensors"}


def test_images_in_files_are_read_at_the_size_of_the_model(clip: Path, tmp_path: Path, monkeypatch) -> None:
    from dataclasses import replace

    from PIL import Image

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pixels = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    part = FilePart(tmp_path, ("one.png",), torch.zeros(1, dtype=torch.int64), (4, 4))
    images = replace(digits(), train=part)
    model = load_image_text(clip)
    expected = model.features(torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255)
    found = image_vectors(model, images, "train", torch.tensor([0]))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    (tmp_path / "one.png").unlink()
    with pytest.raises(FileNotFoundError):
        image_vectors(model, images, "train", torch.tensor([0]))


def test_folders_that_are_no_clip(clip: Path, tmp_path: Path) -> None:
    import shutil

    def copy(name: str) -> Path:
        return shutil.copytree(clip, tmp_path / name)

    empty = tmp_path / "empty"
    empty.mkdir()
    bert = copy("bert")
    (bert / "config.json").write_text(json.dumps({"model_type": "bert"}))
    code = copy("code")
    (code / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": {"AutoModel": "evil.Model"}}))
    plain, damaged, tokenless = copy("plain"), copy("damaged"), copy("tokenless")
    (plain / "preprocessor_config.json").unlink()
    (damaged / "model.safetensors").write_bytes(b"no tensors")
    for file in tokenless.glob("token*"):
        file.unlink()
    partial = copy("partial")
    tensors = safetensors.numpy.load_file(partial / "model.safetensors")
    del tensors["visual_projection.weight"]
    safetensors.numpy.save_file(tensors, partial / "model.safetensors", {"format": "pt"})
    for folder, said in (
        (empty, "lacks config.json"),
        (bert, "a bert, which does not take both"),
        (code, "CLIP or SigLIP.*mine"),
        (plain, "image_mean"),
        (damaged, "CLIP or SigLIP in"),
        (tokenless, "lacks a tokenizer"),
        (partial, "lack 1 tensors, such as visual_projection.weight"),
        (clip / "config.json", "a file"),
    ):
        with pytest.raises(ValueError, match=said):
            load_image_text(folder)


def test_the_command_makes_codes_that_the_others_read(
    htaf, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, texts, out = tmp_path / "run", tmp_path / "texts.txt", tmp_path / "codes"
    made_run(run, digits(), shares={"train_images": 300, "validation_images": 100})
    texts.write_text("a closed loop\nround\nround\nstroke at the top\n" + "left " * 30 + "\n")
    words = ("paper", "labelfree", run, "--texts", texts, "--clip", clip, "--out", out, "--steps", 120)
    code, text, err = htaf(*words, "--similarity", -0.99, "--clip-cutoff", -0.99, "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["concepts"] == 4
    assert found["texts"][:3] == ["a closed loop", "round", "stroke at the top"]
    assert found["image_text"]["licence"] == "mit"
    assert f"1 of 4 texts have more than {LENGTH} tokens" in err
    assert any("there twice" in note for note in found["notes"])
    codes = open_codes(out)
    assert codes.concepts == 4
    assert list(codes.ids) == list(open_folder(tmp_path / "codes-backbone").features().ids)
    # the similarities are those of the rows' own images
    features, model = open_folder(tmp_path / "codes-backbone").features(), load_image_text(clip)
    held = np.flatnonzero(features.parts == PARTS.index("validation"))
    pixels = Pictures(digits()).pixels([features.ids[row] for row in held.tolist()]).float() / 255
    wanted = model.features(pixels) @ model.texts(codes.info["texts"]).T
    made = torch.from_numpy(np.array(open_folder(out).features().values[held]))
    np.testing.assert_allclose(cos_cubed(wanted, made), codes.info["similarity"], atol=1e-3)
    for more in (
        ("paper", "leakage", out),
        ("explore", run, "--codes", out, "--names", out / "names.json", "--out", tmp_path / "page"),
        (*words, "--similarity", -0.99, "--clip-cutoff", -0.99, "--features", tmp_path / "codes-backbone"),
    ):
        code, text, err = htaf(*more)
        assert code == 0, err
        if more[0] == "explore":
            assert "4 concepts (4 named, 0 of them verified)" in text


def test_bad_words_of_the_command(htaf, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, texts = tmp_path / "run", tmp_path / "texts.txt"
    made_run(run, digits(), shares={"train_images": 100, "validation_images": 50})
    texts.write_text("round\n")
    (tmp_path / "none.txt").write_text("\n")
    good = {"--texts": texts, "--clip": clip, "--out": tmp_path / "codes"}
    for flag, value, status, said in (
        ("--texts", tmp_path / "none.txt", 1, "got none"),
        ("--texts", tmp_path / "gone.txt", 1, "gone.txt"),
        ("--clip", tmp_path, 2, "lacks config.json"),
        ("--similarity", 1, 2, "in [-1, 1)"),
        ("--steps", 0, 2, "--steps"),
        ("--clip-cutoff", 0.999, 1, "all 1 texts are dropped"),
        ("--out", run, 2, "is the same folder as the input"),
    ):
        words = [str(word) for pair in (good | {flag: value}).items() for word in pair]
        code, _, err = htaf("paper", "labelfree", run, *words)
        assert (code, said in " ".join(err.split())) == (status, True), (flag, code, err)
    assert not (tmp_path / "codes").exists()
    other = tmp_path / "other"
    made_run(other, digits(), PLAIN, shares={"train_images": 100, "validation_images": 50})
    extract(open_run(other), digits(), tmp_path / "other-features", keep=["backbone"])
    words = [str(word) for pair in good.items() for word in pair]
    code, _, err = htaf("paper", "labelfree", run, *words, "--features", tmp_path / "other-features")
    assert code == 1
    assert "expected features of the backbone of" in err


def test_a_stopped_writing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features, similarities, _ = planted()
    found = learn_concepts(features, TEXTS, lambda rows: similarities[rows], steps=300, similarity=0.2)
    whole = write_concepts(found, features, {}, tmp_path / "whole")
    monkeypatch.setattr(store.OpenFolder, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_concepts(found, features, {}, tmp_path / "stopped")
    monkeypatch.undo()
    with pytest.raises(ConceptError, match="not finished"):
        open_codes(tmp_path / "stopped")
    again = write_concepts(found, features, {}, tmp_path / "stopped")
    np.testing.assert_array_equal(again.bits, whole.bits)
    with pytest.raises(ConceptError, match="holds other codes"):
        write_concepts(found, features, {}, tmp_path / "stopped", threshold="median")
