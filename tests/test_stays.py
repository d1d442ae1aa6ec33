"""What `replace` leaves by default: for each reason a model where the activation stays, and one where it does not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from htaf.core.activations import HTAF
from htaf.transform.convert import conversion, harden, replace, sites

X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Some linear maps `a`, `b`, ... of 8 features, and a formula over them."""

    def __init__(self, formula):
        super().__init__()
        self.formula = formula
        for name in "abcd":
            self.add_module(name, nn.Linear(8, 8))
        self.norm, self.scale = nn.LayerNorm(8), nn.Parameter(torch.ones(8))
        self.register_buffer("range", torch.full((8,), 2.0))
        self.spectrum = nn.Parameter(torch.randn(5, 5, dtype=torch.cfloat))

    def forward(self, *args):
        return self.formula(self, *args)


@dataclass
class Output:
    values: list[Tensor]
    loss: Tensor


def lstm(m, x):
    h = c = x.new_zeros(x.shape[0], 8)
    for t in range(x.shape[1]):
        z = x[:, t] + m.b(h)
        c = torch.sigmoid(m.a(z)) * c + torch.sigmoid(m.c(z)) * torch.tanh(z)
        h = torch.sigmoid(m.d(z)) * torch.tanh(c)
    return m.a(h)


def rnn(m, x):
    h = x.new_zeros(x.shape[0], 8)
    for t in range(x.shape[1]):
        h = torch.tanh(m.a(x[:, t]) + m.b(h))
    return m.c(h)


def attention(m, x, of):
    q, k, v = m.a(x), m.b(x), m.c(x)
    return m.d(of(q @ k.transpose(1, 2)) @ v)


def linear_attention(m, x):
    q, k, v = F.elu(m.a(x)) + 1, F.elu(m.b(x)) + 1, m.c(x)
    return m.d(q @ (k.transpose(1, 2) @ v))


def mamba(m, x):
    step = F.softplus(m.a(x))
    state, outputs = x.new_zeros(x.shape[0], 8), []
    for t in range(x.shape[1]):
        state = torch.exp(-m.scale * step[:, t]) * state + step[:, t] * m.b(x[:, t])
        outputs.append(state)
    return m.d(torch.stack(outputs, 1) * F.silu(m.c(x)))


def chosen(m, x):
    score = m.a(x).mean(-1).sigmoid()
    best = score.topk(2, dim=1).indices
    return m.d(x.gather(1, best[..., None].expand(-1, -1, 8)))


def graph(m, x):
    neighbours = x[..., :5].softmax(-1)  # of the input, as an adjacency matrix is
    return m.b(neighbours @ F.relu(m.a(neighbours @ x)))


def log_space(m, x):
    """A minimal GRU over all steps at once, as its authors compute it."""
    k, values = m.a(x), m.b(x)
    decays, opened = -F.softplus(k), -F.softplus(-k) + F.logsigmoid(values)
    total = decays.cumsum(1)
    return m.c(torch.exp(total + (opened - total).logcumsumexp(1)))


def fourier(m, x):
    """Layers of a Fourier operator: complex weights between two transforms."""
    for act in (F.gelu, F.gelu, F.silu):
        x = act(torch.fft.irfft(torch.fft.rfft(x) @ m.spectrum, n=8))
    return x


def excited(m, x, act=torch.relu):
    x = act(m.a(x))
    return m.d(x * torch.sigmoid(m.c(F.relu(m.b(x.mean(1, keepdim=True))))))


# what it is, model, what its sites are and why they stay
CASES = [
    ("relu between layers", lambda m, x: m.b(F.relu(m.a(x))), {"relu_0": None}),
    ("sigmoid at the end", lambda m, x: m.b(F.relu(m.a(x))).sigmoid(), {"relu_0": None, "sigmoid_1": "output"}),
    ("relu at the end", lambda m, x: F.relu(m.a(x)), {"relu_0": "output"}),
    ("one in front of a norm", lambda m, x: m.norm(torch.tanh(m.a(x))), {"tanh_0": None}),
    ("written into a part of the output", lambda m, x: in_place(m.a(x)), {"sigmoid_0": "output"}),
    ("in a dict", lambda m, x: {"p": [torch.sigmoid(m.a(x))], "n": 3}, {"sigmoid_0": "output"}),
    (
        "in an object",
        lambda m, x: Output([m.a(x)], (torch.sigmoid(m.a(x)) - x).square().mean()),
        {"sigmoid_0": "output"},
    ),
    (
        "in a distribution",
        lambda m, x: torch.distributions.Normal(m.a(x), F.softplus(m.b(x))),
        {"softplus_0": "output"},
    ),
    ("a bottleneck that is returned too", lambda m, x: bottleneck(m, x), {"sigmoid_0": "output"}),
    ("residual stream at the end", lambda m, x: (h := F.relu(m.a(x))) + m.b(h), {"relu_0": None}),
    ("softcap at the end", lambda m, x: torch.tanh(m.a(x) / 30) * 30, {"tanh_0": "output"}),
    (
        "softcap of scores",
        lambda m, x: attention(m, x, lambda s: (torch.tanh(s / 50) * 50).softmax(-1)),
        {"tanh_0": "scores"},
    ),
    ("scaled tanh between layers", lambda m, x: m.b(1.7159 * torch.tanh(m.a(x) * 2 / 3)), {"tanh_0": None}),
    ("squeeze and excite", excited, {"relu_0": None, "relu_1": None, "sigmoid_2": "gate"}),
    (
        "highway",
        lambda m, x: m.d((t := torch.sigmoid(m.a(x))) * F.relu(m.b(x)) + (1 - t) * x),
        {"sigmoid_0": "gate", "relu_1": None},
    ),
    ("gated linear unit", lambda m, x: m.c(torch.sigmoid(m.a(x)) * m.b(x)), {"sigmoid_0": "gate"}),
    ("SwiGLU of an MLP", lambda m, x: m.c(F.silu(m.a(x)) * m.b(x)), {"silu_0": None}),
    ("a SwiGLU written out", lambda m, x: m.c((z := m.a(x)) * torch.sigmoid(z) * m.b(x)), {"sigmoid_0": "formula"}),
    (
        "a deviation that multiplies noise of its shape",
        lambda m, x: m.c(m.a(x) + (sd := F.softplus(m.b(x))) * torch.randn_like(sd)),
        {"softplus_0": "scale"},
    ),
    (
        "a gate between two values",
        lambda m, x: m.d(torch.lerp(m.a(x), F.relu(m.b(x)), torch.sigmoid(m.c(x)))),
        {"relu_0": None, "sigmoid_1": "gate"},
    ),
    ("a learned scale", lambda m, x: m.b(torch.tanh(m.a(x)) * m.scale), {"tanh_0": None}),
    (
        "LSTM",
        lstm,
        dict.fromkeys(("sigmoid_0", "sigmoid_1", "tanh_2", "sigmoid_3", "tanh_4"), "gate"),
    ),
    ("RNN", rnn, {"tanh_0": None}),
    ("time step", mamba, {"softplus_0": "scale", "silu_1": None}),
    (
        "noise of a variational autoencoder",
        lambda m, x: m.c(m.a(x) + F.softplus(m.b(x)) * torch.randn_like(x)),
        {"softplus_0": "scale"},
    ),
    (
        "noise of a given deviation",
        lambda m, x: m.c(torch.normal(m.a(x), F.softplus(m.b(x)))),
        {"softplus_0": "scale"},
    ),
    (
        "a draw of its own",
        lambda m, x: m.c(F.softplus(m.a(x)) + torch.normal(m.a(x)) + torch.empty_like(x).normal_()),
        {"softplus_0": None},
    ),
    (
        "a distribution's draw",
        lambda m, x: m.c(torch.distributions.Normal(m.a(x), F.softplus(m.b(x))).rsample()),
        {"softplus_0": "scale"},
    ),
    ("gates in log space", log_space, dict.fromkeys(("softplus_0", "softplus_1", "logsigmoid_2"), "scale")),
    ("between complex layers", fourier, {"gelu_0": None, "silu_1": "output"}),
    ("scores without softmax", lambda m, x: attention(m, x, torch.relu), {"relu_0": "scores"}),
    (
        "scores under softmax",
        lambda m, x: attention(m, x, lambda s: F.leaky_relu(s).softmax(-1)),
        {"leaky_relu_0": "scores"},
    ),
    ("linear attention", linear_attention, {"elu_0": "scores", "elu_1": "scores"}),
    ("neighbours of a graph", graph, {"relu_0": None}),
    ("objectness", chosen, {"sigmoid_0": "choice"}),
]


def in_place(x):
    x[..., :2] = x[..., :2].sigmoid()
    return x


def bottleneck(m, x):
    bits = torch.sigmoid(m.a(x))
    return m.b(bits), bits


@pytest.mark.parametrize(("formula", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_stays_and_why(formula, expected):
    torch.manual_seed(0)
    model = Net(formula).eval()
    assert {site.name: site.stays for site in sites(model, X)} == expected
    if not any(stays is None for stays in expected.values()):
        with pytest.raises(ValueError, match="that acts between layers"):
            replace(model, HTAF, example=X)
    everything = replace(model, HTAF, where="*", example=X)
    assert {site.name for site in conversion(everything).replaced} == expected.keys()
    if None in expected.values():
        new = replace(model, HTAF, example=X)
        account = conversion(new)
        assert {site.name: site.stays for site in account.left} == {n: s for n, s in expected.items() if s}
        assert {site.name for site in account.replaced} == {n for n, s in expected.items() if not s}
        harden(new)(X)


def test_where_takes_in_what_stays():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
    for where in ("3", "*", nn.Sigmoid, lambda site: site.kind == "sigmoid", ["1", "3"]):
        replaced = conversion(replace(model, HTAF, where=where, example=X)).replaced
        assert "3" in [site.name for site in replaced]
        assert "stays" not in " ".join(map(str, replaced))
    assert [site.name for site in conversion(replace(model, HTAF, example=X)).replaced] == ["1"]
    with pytest.raises(ValueError, match=r"between layers, got none of these 1 sites; .*where=:\s+1 \(relu, 1"):
        replace(model[:2], HTAF, example=X)


def test_a_step_that_is_there_never_stays():
    model = replace(nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()), HTAF, where="*", example=X)
    assert [site.stays for site in sites(model, X)] == [None]
    assert [site.stays for site in sites(harden(model), X)] == [None]


def test_one_module_in_several_places_stays_if_one_of_them_does():
    act = nn.Sigmoid()
    (site,) = sites(nn.Sequential(nn.Linear(8, 8), act, nn.Linear(8, 8), act), X)
    assert (site.calls, site.stays) == (2, "output")


def test_a_model_that_is_an_activation_is_chosen_by_being_given():
    assert isinstance(replace(nn.Sigmoid(), HTAF, example=X), HTAF)
