"""Why an ICBM takes an image for its class: what flipping a bit does to the margin, and the columns of `predict`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from htaf.concepts.codes import ConceptError, codes_key
from htaf.concepts.extract import extract
from htaf.concepts.known import keep_known
from htaf.concepts.naming.files import write_names
from htaf.concepts.reasons import predict_with_bits, reasons_of
from htaf.training.runs import Run
from made_runs import digits, made_run


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(1, 9))
def test_worth_is_what_a_flip_takes_from_the_margin(seed: int, classes: int, concepts: int) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (4, concepts)).astype(np.uint8)
    weight, bias = rng.normal(size=(classes, concepts)), rng.normal(size=classes)
    found = reasons_of(bits, weight, bias)
    for row in range(4):
        logits = weight @ bits[row] + bias
        first, second = found.predicted[row], found.runner_up[row]
        assert first == logits.argmax()
        assert second == np.argsort(-logits)[1]
        assert found.margin[row] == pytest.approx(logits[first] - logits[second])
        for concept in range(concepts):
            flipped = bits[row].astype(float)
            flipped[concept] = 1 - flipped[concept]
            after = weight @ flipped + bias
            assert found.worth[row, concept] == pytest.approx(found.margin[row] - (after[first] - after[second]))
        strongest = found.strongest(row, 3)
        assert all(found.worth[row, concept] > 0 for concept in strongest)
        flipped = np.where(np.isin(np.arange(concepts), strongest), 1 - bits[row].astype(float), bits[row])
        after = (weight @ flipped + bias)[[first, second]] @ [1, -1]  # the margin without these reasons
        left = max(0.0, after) / found.margin[row]
        assert found.shown(row, 3) == pytest.approx(1 - left)
        assert 0 <= found.shown(row, 3) <= 1
        assert [*found.worth[row, strongest]] == sorted(found.worth[row, strongest], reverse=True)


def test_one_class_has_no_reasons() -> None:
    with pytest.raises(ConceptError, match="two classes or more, got 1"):
        reasons_of(np.zeros((1, 2), np.uint8), np.zeros((1, 2)), np.zeros(1))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = made_run(tmp_path_factory.mktemp("runs") / "run", digits())
    keep_known(made, digits())
    return made


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for row, pixels in enumerate(digits().test.batch(np_rows(6))):
        Image.fromarray(pixels[0].numpy()).save(folder / f"{row}.png")
    (folder / "broken.png").write_bytes(b"no picture")
    return folder


def np_rows(count: int):
    import torch

    return torch.arange(count)


def test_the_command_gives_bits_names_and_reasons(htaf, run: Run, pictures: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.json"
    names.write_text(json.dumps([{"concept": c, "name": f"stroke {c}"} for c in range(21)]))
    words = ("predict", run.path, pictures, "--bits", "--explain", "--names", names)
    code, out, err = htaf(*words)
    assert code == 3  # a file could not be read
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [bool(row["error"]) for row in rows] == [False] * 6 + [True]
    plain = list(csv.DictReader(io.StringIO(htaf("predict", run.path, pictures)[1])))
    assert [row["prediction"] for row in rows] == [row["prediction"] for row in plain]
    net = run.model()
    bits = np.array(
        [[int(row[f"concept_{c} stroke {c} (unverified)"]) for c in range(21)] for row in rows[:6]], np.uint8
    )
    reasons = reasons_of(bits, net.head.weight.detach().numpy(), net.head.bias.detach().numpy())  # pyright: ignore
    assert [row["prediction"] for row in rows[:6]] == [str(number) for number in reasons.predicted]
    assert [row["runner_up"] for row in rows[:6]] == [str(number) for number in reasons.runner_up]
    best = reasons.strongest(0)[0]
    assert [float(row["shown"]) for row in rows[:6]] == pytest.approx([reasons.shown(i) for i in range(6)], abs=1e-4)
    assert f"explain {np.mean([reasons.shown(i) for i in range(6)]):.0%} of the margin on average" in err
    assert "so they are guesses; in these reasons '" in err
    state = "on" if bits[0, best] else "off"
    assert rows[0]["reasons"].startswith(f"concept {best} (stroke {best}, unverified) is {state}, +")
    assert "note: 21 of 21 names did not pass a check" in err
    assert not rows[6]["concept_0 stroke 0 (unverified)"]
    assert not rows[6]["reasons"]
    made = json.loads(htaf(*words, "--json")[1])
    assert made[0]["reasons"][0]["concept"] == best
    assert [(one["name"], one["verified"]) for one in made[0]["reasons"]] == [
        (f"stroke {one['concept']}", False) for one in made[0]["reasons"]
    ]
    assert made[6]["reasons"] == []
    code, _, err = htaf(*words, "--strict")
    assert code == 1
    assert "broken.png" in err


def test_verified_names_alone_stand_without_a_word(run: Run, pictures: Path) -> None:
    names = [{"concept": c, "name": f"n{c}", "verified": c % 2 == 0} for c in range(20)]
    frame, listed = predict_with_bits(run, [pictures / "0.png"], bits=True, explain=True, names=names)
    assert [column for column in map(str, frame) if column.startswith("concept_")][-4:] == [
        "concept_17 n17 (unverified)", "concept_18 n18", "concept_19 n19 (unverified)", "concept_20",
    ]  # fmt: skip
    assert [one["verified"] for one in listed[0]] == [
        None if one["concept"] == 20 else one["concept"] % 2 == 0 for one in listed[0]
    ]
    told = [", unverified)" in text for text in frame["reasons"].iloc[0].split("; ")]
    assert told == [one["verified"] is False for one in listed[0]]


def test_names_of_another_network_are_refused(htaf, run: Run, pictures: Path, tmp_path: Path) -> None:
    """A file that says whose its names are; of this run's codes they are taken."""
    codes, names = extract(run, digits(), tmp_path / "codes", parts=["test"]).codes(), tmp_path / "names.json"
    write_names([{"concept": 0, "name": "stroke"}], names, codes=codes_key(codes))
    assert htaf("predict", run.path, pictures / "0.png", "--bits", "--names", names)[0] == 0
    write_names([{"concept": 0, "name": "stroke"}], names, codes="abcdefghijkl")
    code, _, err = htaf("predict", run.path, pictures / "0.png", "--bits", "--names", names)
    assert code == 1
    assert "expected names of this network's concepts" in err
