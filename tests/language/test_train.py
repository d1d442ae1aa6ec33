"""Training of the last layers: it helps, it is resumed to the same bits, and what is left is exact and merged."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.language.models import tiny

from htaf.language import LanguageError, calibrate, gates_of
from htaf.language.hidden import hidden_states
from htaf.language.lora import train
from htaf.language.options import Training

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
