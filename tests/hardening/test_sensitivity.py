"""Which steps cost most: made real, or with more levels, one at a time; what is chosen for the next training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import htaf
from htaf.transform.convert.finding import module_of
from htaf.transform.hardening.trials import _Scaled

X = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, :1] + X[:, 1:2].sin()) / 2
TRAINING, HELD = [(X[:200], Y[:200]), (X[200:400], Y[200:400])], (X[400:], Y[400:])


@pytest.fixture(scope="module")
def narrow() -> nn.Module:
    """Three bits at first, through which hardly anything of the inputs passes, then many."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 1))
    net = htaf.replace(made, example=TRAINING)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for step in range(150):
        htaf.sharpen(net, step / 150)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(X[:400]), Y[:400]).backward()
        optimizer.step()
    return net.eval()


def test_the_step_through_which_little_passes_is_found_and_chosen(narrow: nn.Module) -> None:
    state = {name: value.clone() for name, value in narrow.state_dict().items()}
    found = htaf.sensitivity(narrow, TRAINING, valid=HELD, steps=80, budget=1.4)
    first = found.changes[0]
    assert (first.paths, first.real, found.keep) == (("1",), True, ("1",))
    assert first.gain == pytest.approx(found.unchanged - first.measure)
    assert first.gain > 0.2 * found.unchanged
    assert [one.gain for one in found.changes] == sorted((one.gain for one in found.changes), reverse=True)
    assert {(one.paths[0], one.real) for one in found.changes} == {(p, r) for p in "13" for r in (True, False)}
    work = {one.paths[0]: one.work for one in found.changes}
    assert work == pytest.approx({"1": 0.75, "3": 0.25})  # 3 x 64 and 64 x 1 products
    assert sum(work[path] for path in found.levels) <= 0.4
    assert all(torch.equal(value, state[name]) for name, value in narrow.state_dict().items())
    assert "keep=['1']" in str(found)
    assert len(found.draw().axes[0].patches) == 4
    kept = htaf.replace(nn.Sequential(*narrow[:1], nn.ReLU(), *narrow[2:]), example=X, keep=found.keep, where="*")  # pyright: ignore
    assert type(kept[1]) is nn.ReLU


def test_ones_own_training_and_score_in_the_time_that_is_given(narrow: nn.Module) -> None:
    trained = []

    def score(net: nn.Module) -> float:
        return -nn.functional.mse_loss(net(HELD[0]), HELD[1]).item()

    found = htaf.sensitivity(narrow, [X], measure=score, higher=True, train=trained.append, levels=1)
    assert len(trained) == 2 + 2 + 1  # as it is, twice; each step real; all of them
    assert all(net.training for net in trained)
    assert found.trained == found.unchanged == pytest.approx(score(narrow))
    found = htaf.sensitivity(narrow, TRAINING, valid=HELD, steps=1, seconds=1e-9)
    assert found.notes == ("1: no time was left", "3: no time was left")
    assert (found.changes, found.keep, found.levels) == ((), (), {})


def test_the_only_step_is_never_advised_away() -> None:
    def real(net: nn.Module) -> float:
        return float(any(isinstance(module, nn.ReLU) for module in net.modules()))

    net = htaf.replace(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)), example=X, where="*")
    found = htaf.sensitivity(net, TRAINING, measure=real, higher=True, train=lambda _: None, levels=1)
    assert (found.changes[0].gain, found.keep, found.kept, len(found.notes)) == (1, (), None, 1)


def test_bad_input_says_what_to_do(narrow: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"expected a model made by htaf\.replace"):
        htaf.sensitivity(nn.Linear(4, 1), TRAINING, valid=HELD)
    with pytest.raises(TypeError, match="higher=True"):
        htaf.sensitivity(narrow, TRAINING, measure=lambda net: 1.0)
    with pytest.raises(ValueError, match=r"expected batches of \(inputs, targets\)"):
        htaf.sensitivity(narrow, [X], valid=HELD)


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "prelu", "tanh", "gelu_tanh", "somebodys"])
def test_an_activation_that_is_put_back_is_as_near_to_the_step_as_a_line_makes_it(kind: str) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    y = (x >= 0.3).float()
    activation = module_of(kind)
    made = _Scaled(activation, x, y)
    wanted = np.polyfit(activation(x).detach().numpy(), y.numpy(), 1)
    assert (made.scale, made.shift) == pytest.approx(tuple(wanted), rel=1e-3)
    assert torch.allclose(made(x), float(wanted[0]) * activation(x) + float(wanted[1]), atol=1e-4)
