"""A language model: its texts, hidden states kept on disk, the training of its last layers, and its answers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.language.models import MORE, tiny

from htaf.language import LanguageError, calibrate, gates_of
from htaf.language.hidden import hidden_states, kept, starting_at
from htaf.language.lora import train
from htaf.language.options import Training
from htaf.language.text import documents

GENERATOR = torch.Generator().manual_seed(1)
TOKENS = torch.randint(3, 64, (24, 16), generator=GENERATOR)
QUICK = Training(steps=18, batch_size=4, lr=0.005, validate=6, rank=4)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """Of the blocks to learn and to validate on."""
    model, folder = tiny("llama"), tmp_path_factory.mktemp("hidden")
    return [hidden_states(model, part, 2, folder) for part in (TOKENS[:18], TOKENS[18:])]


def prepared():
    model = tiny("llama")
    calibrate(model, TOKENS[:18], 2)
    return model


@pytest.mark.parametrize(
    ("method", "precision"), [("htaf", "float32"), ("ste", "float32"), ("ss", "float32"), ("htaf", "bfloat16")]
)
def test_it_comes_nearer_to_the_original(method, precision, hidden, tmp_path):
    model = prepared()
    told = train(model, dataclasses.replace(QUICK, method=method, precision=precision), *hidden, tmp_path)
    assert [row.step for row in told] == [0, 6, 12, 18]
    best = min(row.kl for row in told)
    assert best < told[0].kl
    assert all(gate.exact for gate in gates_of(model).values())
    assert not any("lora" in name for name, _ in model.named_parameters())
    with torch.no_grad():  # what was measured is what is left
        mine, other = model(TOKENS[18:]).logits[:, :-1].log_softmax(-1), tiny("llama")(TOKENS[18:]).logits[:, :-1]
    other = other.log_softmax(-1)
    left = (other.exp() * (other - mine)).sum(-1).mean().item()
    assert left == pytest.approx(best, rel=1e-3 if precision == "float32" else 0.05)


def test_a_stopped_training_ends_with_the_same_bits(hidden, tmp_path):
    weights, told = [], []
    for stopped in (False, True):
        folder = tmp_path / str(stopped)
        if stopped:
            with pytest.raises(KeyboardInterrupt):
                train(prepared(), QUICK, *hidden, folder, tell=_stop_at(12), checkpoint_seconds=0.0)
        model = prepared()
        told.append(train(model, QUICK, *hidden, folder, checkpoint_seconds=0.0))
        weights.append(model.state_dict())
    assert str(told[0]) == str(told[1])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def _stop_at(step):
    def tell(row):
        if row.step == step:
            raise KeyboardInterrupt

    return tell


def test_layers_become_exact_from_below():
    training = Training(steps=100)
    assert [len(training.exact(step, [5, 6, 7])) for step in (0, 39, 40, 60, 80, 99)] == [0, 0, 1, 2, 3, 3]
    assert training.exact(60, [5, 6, 7]) == [5, 6]
    assert dataclasses.replace(training, method="ste", start=(), end=()).exact(99, [5]) == []
    assert training.rate(0) == pytest.approx(1 / 6)
    assert training.rate(5) == 1
    assert training.rate(99) == pytest.approx(1 / 94)


def test_errors(hidden, tmp_path):
    for change, said in (
        ({"steps": -1}, "steps must be in 0 to"),
        ({"lr": -1.0}, "lr must be > 0 and finite, got -1"),
        ({"distil": 2.0}, r"distil must lie in \[0, 1\], got 2"),
        ({"start": (1.0,)}, "start and end of htaf must be 2 numbers"),
    ):
        with pytest.raises(LanguageError, match=said):
            Training(**change)
    train(prepared(), dataclasses.replace(QUICK, steps=1), *hidden, tmp_path)
    with pytest.raises(LanguageError, match=r"checkpoint.pt is of another training"):
        train(prepared(), QUICK, *hidden, tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"x")
    with pytest.raises(LanguageError, match=r"checkpoint.pt is damaged"):
        train(prepared(), QUICK, *hidden, tmp_path)


# ---- documents, read from files of others ----


@pytest.mark.parametrize("mark", ["\n\n", "\n", "\r\n\r\n", " "])
def test_one_text_or_two_are_cut_into_documents(mark, tmp_path):
    words = [f"word {i} and more of it." for i in range(3000)]
    (tmp_path / "a.txt").write_bytes(mark.join(words).encode())
    found, notes = documents(tmp_path / "a.txt")
    assert notes == []
    assert 200 <= len(found) <= 400
    assert all(document.text.strip() for document in found)
    assert "".join(document.text for document in found) == mark.replace("\r", "").join(words)
    (tmp_path / "b.txt").write_text("short")
    assert len(documents(tmp_path)[0]) > 200


def test_files_that_are_left_out_are_told(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("some text " * 50)
        (tmp_path / f"old{number}.txt").write_bytes("später".encode("latin-1"))
    (tmp_path / "x.png").write_bytes(b"\x89")
    found, notes = documents(tmp_path)
    assert all(document.name.startswith(("0", "1", "2")) for document in found)
    assert "1 file left out (read are .txt" in notes[0]
    assert "3 of 6 files left out, not UTF-8 (old0.txt, old1.txt, old2.txt)" in notes[1]
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "a.txt").write_bytes(b"\xff")
    with pytest.raises(LanguageError, match="not UTF-8"):
        documents(bad)
    with pytest.raises(LanguageError, match="there is nothing at"):
        documents(tmp_path / "none")


# ---- hidden states on disk: the rest of the model computes from them what the whole one does ----


FEW = TOKENS[:20]


@pytest.mark.parametrize("kind", MORE)
def test_the_rest_of_a_model(kind, tmp_path):
    model = tiny(kind)
    kept = hidden_states(model, FEW, 3, tmp_path)
    tokens, inputs, outputs = kept.at(torch.tensor([4, 17]))
    with torch.no_grad():
        whole = model(FEW[[4, 17]]).logits
        for start, given in ((3, inputs), (4, outputs)):
            with starting_at(model, start) as run:
                torch.testing.assert_close(run(tokens, given), whole, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(model(FEW[[4, 17]]).logits, whole, rtol=0, atol=0)


ALL = torch.arange(20)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.at(ALL), other.at(ALL), strict=True))


def test_it_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    model, told = tiny("llama"), []

    def stop(done, of):
        told.append((done, of))
        if len(told) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hidden_states(model, FEW, 2, tmp_path, tell=stop)
    kept = hidden_states(model, FEW, 2, tmp_path, tell=stop)
    assert told == [(16, 20), (20, 20)]
    assert same(kept, hidden_states(model, FEW, 2, tmp_path / "whole"))
    hidden_states(model, FEW[:16], 2, tmp_path, tell=stop)  # other tokens have another folder
    assert told[2:] == [(16, 16)]
    assert same(hidden_states(model, FEW, 2, tmp_path, tell=stop), kept)
    assert len(told) == 3
    monkeypatch.setattr("htaf.language.hidden.FORMAT", 0)
    hidden_states(model, FEW[:16], 2, tmp_path, tell=stop)  # so have files of another format
    assert told[3:] == [(16, 16)]


@pytest.mark.parametrize("change", [lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], lambda data: data[:-3]])
def test_what_was_damaged_is_computed_again(tmp_path, change):
    model, told = tiny("llama"), []
    whole = hidden_states(model, FEW, 2, tmp_path / "whole")
    hidden_states(model, FEW, 2, tmp_path / "kept")
    file = next((tmp_path / "kept").glob("*/00001.safetensors"))
    file.write_bytes(change(file.read_bytes()))
    assert same(hidden_states(model, FEW, 2, tmp_path / "kept", tell=lambda done, of: told.append(done)), whole)
    assert told == [20]


# ---- what is computed once: kept, and computed again where its file was damaged ----


def test_what_was_kept_and_has_changed_is_computed_again(tmp_path):
    file = tmp_path / "kept.safetensors"
    asked = [kept(file, lambda loss=loss: ({}, {"loss": loss})) for loss in (1.25, 9.0)]
    file.write_bytes(file.read_bytes().replace(b"1.25", b"1.24"))  # one bit
    asked.append(kept(file, lambda: ({}, {"loss": 2.5})))
    assert asked == [({}, {"loss": 1.25}, True), ({}, {"loss": 1.25}, False), ({}, {"loss": 2.5}, True)]
