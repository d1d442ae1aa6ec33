"""The head against scikit-learn and closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from small import fresh, rows
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from htaf import HTAF, BinaryLinear, harden, refit_head
from htaf.models.mlp import MLP

X, HELD = rows(400, 6), rows(300, 6, seed=1)
CODES = (X[:, 0] + X[:, 1] ** 2 > 0.7).long() + (X[:, 2] > 1).long()
CODES_HELD = (HELD[:, 0] + HELD[:, 1] ** 2 > 0.7).long() + (HELD[:, 2] > 1).long()


def network(outputs: int = 3) -> nn.Module:
    return harden(fresh(lambda: MLP(6, outputs, (16, 12), HTAF)))


@torch.no_grad()
def standardised(net: Any, x: Tensor) -> tuple[np.ndarray, Tensor, Tensor]:
    h = net.hidden(x)
    ours = net.hidden(X)
    mean, std = ours.mean(0), ours.std(0, correction=0)
    alive = std > 0
    return ((h - mean) / std)[:, alive].numpy(), mean, std


def batched(x: Tensor, y: Tensor) -> list[Any]:
    return list(zip(x.split(100), y.split(100), strict=True))


def zeroed(net: Any) -> Any:
    nn.init.zeros_(net.head.weight)
    return net


def test_logistic_is_that_of_scikit_learn() -> None:
    net = zeroed(network())
    refitted, report = refit_head(net, batched(X, CODES), validation=batched(HELD, CODES_HELD), strengths=[0.01])
    z, _, _ = standardised(net, X)
    known = LogisticRegression(C=1 / (0.01 * len(X)), max_iter=1000, tol=1e-8).fit(z, CODES.numpy())
    with torch.no_grad():
        found = refitted(HELD).softmax(1).numpy()
    np.testing.assert_allclose(found, known.predict_proba(standardised(net, HELD)[0]), atol=2e-3)
    assert report.after["loss"] < report.before["loss"]  # pyright: ignore[reportOptionalSubscript]
    assert report.layers[0].strength == 0.01
    assert report.layers[0].note == "penalty 0.01 on the change of the weights"


@pytest.mark.parametrize("count", [3, 11, 12, 400])
def test_ridge_is_that_of_scikit_learn(count: int) -> None:
    net, few = zeroed(network(2)), X[:count]
    y = torch.stack([few[:, 0], few[:, 1] ** 2], 1)
    refitted, _ = refit_head(net, [(few, y)], validation=[(few, y)], strengths=[0.1])
    hidden = net.hidden(few).detach()
    inputs = ((hidden - hidden.mean(0)) / hidden.std(0, correction=0))[:, hidden.std(0, correction=0) > 0].numpy()
    known = Ridge(alpha=0.1 * count).fit(inputs, y.numpy())
    with torch.no_grad():
        np.testing.assert_allclose(refitted(few), known.predict(inputs), atol=1e-4)


@pytest.mark.parametrize("codes", [True, False])
def test_a_large_strength_gives_the_old_head_and_a_worse_one_is_refused(codes: bool) -> None:
    net = network(3 if codes else 1)
    y: Any = CODES if codes else X[:, :1]
    with torch.no_grad():
        held: Any = net(HELD).argmax(1) if codes else net(HELD)  # the old head is as good as can be
    kept, report = refit_head(net, batched(X, y), validation=batched(HELD, held))
    assert all(torch.equal(a, b) for a, b in zip(kept.state_dict().values(), net.state_dict().values(), strict=True))
    assert report.layers[0].strength is None
    assert report.layers[0].note == "kept: no other was better on validation"


def test_validation_chooses_and_a_fifth_of_the_rows_stands_in_for_it() -> None:
    net = network()
    noisy = torch.randint(0, 3, (400,), generator=torch.Generator().manual_seed(0))
    y = torch.where(torch.arange(400) % 3 == 0, noisy, CODES)
    strengths = (1e-6, 0.1)
    for validation in (None, batched(HELD, CODES_HELD)):
        report = refit_head(net, batched(X, y), validation=validation, strengths=strengths)[1]
        assert report.layers[0].strength == 0.1, report


class OverTime(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.act, self.head = how, HTAF(1.0, 5.0), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        steps = [x, x + 0.3, x - 0.3]
        if self.how == "loop":
            return torch.stack([self.head(self.act(step)) for step in steps]).mean(0)
        if self.how == "after":
            return self.head(torch.stack([self.act(step) for step in steps]).mean(0))
        return self.head(self.act(torch.stack(steps, 1))).mean(1)


@pytest.mark.parametrize("how", ["loop", "after", "second dimension"])
def test_logits_may_be_a_mean_over_time(how: str) -> None:
    net, same = (harden(fresh(lambda h=h: OverTime(h))) for h in (how, "after"))
    one, two = (refit_head(m, batched(X, CODES), validation=batched(HELD, CODES_HELD))[0] for m in (net, same))
    torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=1e-3, atol=1e-3)
    assert not torch.equal(one.get_parameter("head.weight"), net.get_parameter("head.weight"))


class Pixels(nn.Module):
    """A convolution as the head: four rows are the pixels of a line or an image."""

    def __init__(self, size: tuple[int, ...], how: str) -> None:
        super().__init__()
        conv = nn.Conv1d if len(size) == 1 else nn.Conv2d
        self.size, self.how, self.act, self.head = size, how, HTAF(1.0, 5.0), conv(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(x.unflatten(1, (-1, 6)).movedim(2, 1).unflatten(2, self.size))
        if self.how == "pooled":
            return self.head(x.mean(tuple(range(2, x.ndim)), keepdim=True)).flatten(1)
        return self.head(x).mean(tuple(range(2, x.ndim))) if self.how == "mean" else self.head(x)


@pytest.mark.parametrize(
    ("size", "how", "codes"), [((4,), "each", True), ((2, 2), "mean", False), ((2, 2), "pooled", True)]
)
def test_a_head_may_be_a_convolution_of_single_pixels(size: tuple[int, ...], how: str, codes: bool) -> None:
    """Per pixel, or over the mean of all; as the fit of a linear layer to the same rows."""
    x, held = X.reshape(100, 24), HELD[:200].reshape(50, 24)
    net: Any = harden(fresh(lambda: Pixels(size, how)))
    linear: Any = nn.Sequential(nn.Linear(6, 3))
    linear[0].weight.data, linear[0].bias.data = net.head.weight.data.flatten(1).clone(), net.head.bias.data.clone()

    def targets(rows: Tensor) -> tuple[Tensor, Tensor]:
        each = rows.unflatten(1, (4, 6))
        found = torch.stack([each[..., 0], each[..., 1] ** 2, each[..., 2]], 2)
        found = found.argmax(2) if codes else found
        if how != "each":
            return (found[:, 0], found[:, 0])
        flat = found.flatten() if codes else found.flatten(0, 1)
        return flat, found.unflatten(1, size) if codes else found.movedim(2, 1).unflatten(2, size)

    def bits(rows: Tensor) -> Tensor:
        each = net.act(rows.unflatten(1, (4, 6)))
        return each.flatten(0, 1) if how == "each" else each.mean(1)

    (flat, shaped), (flat_held, shaped_held) = targets(x), targets(held)
    found: Any = refit_head(net, [(x, shaped)], validation=[(held, shaped_held)])
    wanted: Any = refit_head(linear, [(bits(x), flat)], validation=[(bits(held), flat_held)])
    torch.testing.assert_close(found[0].head.weight.flatten(1), wanted[0][0].weight, rtol=1e-3, atol=1e-3)
    assert found[0].head.weight.shape == net.head.weight.shape
    assert not torch.equal(found[0].head.weight, net.head.weight)
    assert found[1].before == pytest.approx(wanted[1].before)
    assert found[1].after == pytest.approx(wanted[1].after, rel=1e-3)


def test_layers_that_see_more_than_a_pixel_are_no_head() -> None:
    x, y = torch.randn(20, 2, 5, 5), torch.randint(3, (20, 5, 5))
    for head in (nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(4, 4, 1, groups=2), nn.ConvTranspose2d(4, 3, 1)):
        net = harden(fresh(lambda head=head: nn.Sequential(nn.Conv2d(2, 4, 1), HTAF(), head)))
        with pytest.raises(
            ValueError, match=r"an nn.Linear or a convolution with kernels of size 1, .* another after 0"
        ):
            refit_head(net, [(x, y)])


def test_tokens_without_a_code_are_left_out() -> None:
    net = harden(fresh(lambda: nn.Sequential(nn.Linear(6, 8), HTAF(), nn.Linear(8, 3))))
    x, y = X.reshape(80, 5, 6), CODES.reshape(80, 5)
    hidden = torch.where(torch.arange(5) % 2 == 0, y, -100)
    one = refit_head(net, [(x, hidden)], strengths=[0.01])[0]
    two = refit_head(net, [(x[:, ::2], y[:, ::2])], strengths=[0.01])[0]
    torch.testing.assert_close(one.state_dict(), two.state_dict())


def test_dead_units_get_weight_zero_and_inputs_are_not_changed() -> None:
    net: Any = network()
    with torch.no_grad():
        net.hidden[1].linear.bias[0] = 50.0
        net.hidden[1].linear.bias[1] = -50.0
    before = {k: v.clone() for k, v in net.state_dict().items()}
    found: Any = refit_head(net, batched(X, CODES), validation=batched(HELD, CODES_HELD))[0]
    assert all(torch.isfinite(v).all() for v in found.state_dict().values())
    assert not torch.equal(found.head.weight, net.head.weight)
    assert (found.head.weight[:, :2] == 0).all()  # the constant is in the bias
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_errors() -> None:
    pairs = batched(X, CODES)
    with pytest.raises(ValueError, match=r"expected batches of \(inputs, targets\), got Tensor"):
        refit_head(network(), [X])
    with pytest.raises(ValueError, match="expected strengths >= 0, one or more, got"):
        refit_head(network(), pairs, strengths=[])
    ends = nn.Sequential(nn.Linear(6, 3), HTAF())
    with pytest.raises(
        ValueError, match=r"the output of an nn.Linear .* another after 0, .* and 1 \(Heaviside\) behind it"
    ):
        refit_head(harden(ends), pairs)
    with pytest.raises(ValueError, match="has none that runs"):
        refit_head(nn.Sequential(nn.ReLU()), pairs)
    with pytest.raises(ValueError, match="expected 5 rows or more to choose a strength"):
        refit_head(network(), [(X[:4], CODES[:4])])
    with pytest.raises(ValueError, match="expected batches with a row that has a target, got none"):
        refit_head(network(), [(X, torch.full_like(CODES, -100))], validation=pairs)
    with pytest.raises(ValueError, match="expected a class code for each of 100 rows of the output, got 50"):
        refit_head(network(), [(x, y[:50]) for x, y in pairs])
    with pytest.raises(ValueError, match="expected class codes below 2 for 2 outputs, got 2"):
        refit_head(network(2), pairs)
    shape = (
        r"float targets of the output's shape, 100 rows of 3, or int64 class codes, got torch.float32 of shape \(100,\)"
    )
    with pytest.raises(ValueError, match=shape):
        refit_head(network(), [(x, y.float()) for x, y in pairs])


def test_one_hot_rows_are_refused_and_other_floats_are_numbers() -> None:
    codes = "expected int64 class codes for a classifier, got one-hot rows of torch.float32: give targets.argmax"
    rows = nn.functional.one_hot(CODES, 3).float()
    with pytest.raises(ValueError, match=codes):
        refit_head(network(), batched(X, rows))
    for more in (rows + 0.5 * rows.roll(1, 1), rows.cumsum(1), torch.eye(3)[:1].expand(400, -1)):
        refit_head(network(), batched(X, more), strengths=[1.0])


class Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: BinaryLinear(8, 3), "2 its weights are binary"),
        (lambda: parametrizations.weight_norm(nn.Linear(8, 3)), "2 its weight is computed from others"),
        (lambda: Scaled(8, 3), "2 its output is not that of a plain Scaled"),
    ],
)
def test_a_head_whose_weights_cannot_be_written_is_refused(make: Any, why: str) -> None:
    net = harden(fresh(lambda: nn.Sequential(nn.Linear(6, 8), HTAF(), make())))
    with pytest.raises(ValueError, match=f"expected a head whose weights can be fitted, but of {why}"):
        refit_head(net, batched(X, CODES))


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_head_that_shares_its_weights_is_refused(name: str) -> None:
    net: Any = fresh(lambda: nn.Sequential(nn.Linear(6, 3), HTAF(), nn.Linear(3, 6), HTAF(), nn.Linear(6, 3)))
    setattr(net[4], name, getattr(net[0], name))
    with pytest.raises(ValueError, match=f"of 4 another module has the same {name}"):
        refit_head(harden(net), batched(X, CODES))


@pytest.mark.parametrize("codes", [True, False])
def test_a_head_without_bias_keeps_none(codes: bool) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), HTAF(), nn.Linear(16, 3 if codes else 2, bias=False))

    net: Any = harden(fresh(make))
    nn.init.zeros_(net[2].weight)
    y, held = (CODES, CODES_HELD) if codes else (X[:, :2], HELD[:, :2])
    refitted: Any = refit_head(net, batched(X, y), validation=batched(HELD, held), strengths=[0.1])[0]
    assert refitted[2].bias is None
    with torch.no_grad():
        h, scale = net[:2](X), net[:2](X).square().mean(0).sqrt()
        z, z_held = (h / scale).numpy(), (net[:2](HELD) / scale).numpy()
        found = refitted(HELD)
    if codes:
        known = LogisticRegression(C=1 / (0.1 * len(X)), fit_intercept=False, tol=1e-8).fit(z, y.numpy())
        np.testing.assert_allclose(found.softmax(1), known.predict_proba(z_held), atol=2e-3)
    else:
        known = Ridge(alpha=0.1 * len(X), fit_intercept=False).fit(z, y.numpy())
        np.testing.assert_allclose(found, known.predict(z_held), atol=1e-4)


def test_without_validation_the_chosen_fit_is_that_of_all_rows() -> None:
    net = zeroed(network())
    refitted, report = refit_head(net, batched(X, CODES), strengths=[0.01])
    assert report.layers[0].strength == 0.01
    known = LogisticRegression(C=1 / (0.01 * len(X)), max_iter=1000, tol=1e-8)
    known.fit(standardised(net, X)[0], CODES.numpy())
    with torch.no_grad():
        found = refitted(HELD).softmax(1).numpy()
    np.testing.assert_allclose(found, known.predict_proba(standardised(net, HELD)[0]), atol=2e-3)


def test_a_head_of_bfloat16_is_fitted() -> None:
    net = harden(fresh(lambda: MLP(6, 3, (16, 12), HTAF))).bfloat16()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    pairs = [(x.bfloat16(), y) for x, y in batched(X, CODES)]
    found, report = refit_head(net, pairs, validation=[(HELD.bfloat16(), CODES_HELD)])
    assert report.after["loss"] < report.before["loss"]  # pyright: ignore[reportOptionalSubscript]
    assert not torch.equal(found.state_dict()["head.weight"], before["head.weight"])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
def test_codes_may_be_of_any_integer_type(dtype: torch.dtype) -> None:
    net, codes, held = network(2), CODES.clamp(max=1), CODES_HELD.clamp(max=1)
    found, _ = refit_head(net, batched(X, codes), validation=[(HELD, held)])
    other, _ = refit_head(net, batched(X, codes.to(dtype)), validation=[(HELD, held.to(dtype))])
    assert torch.equal(other.state_dict()["head.weight"], found.state_dict()["head.weight"])


@dataclass(slots=True)
class Answer:
    hidden: Tensor
    values: Tensor


class Ends(nn.Module):
    """What a user's forward makes of the output of its head, `net`."""

    def __init__(self, net: nn.Module, end: Any) -> None:
        super().__init__()
        self.net, self.end = net, end

    def forward(self, x: Tensor) -> Any:
        return self.end(self.net(x))


@pytest.mark.parametrize(
    "end",
    [
        lambda y: y.softmax(1),
        lambda y: y.log_softmax(-1),
        lambda y: (y.square(), y),
        lambda y: {"parts": [torch.arange(len(y)), {"values": y.softmax(1)}]},
        lambda y: Answer(y.mean(1), y),
    ],
)
def test_logits_may_be_squashed_or_one_of_several_outputs(end: Any) -> None:
    net = network()
    found, report = refit_head(Ends(net, end), batched(X, CODES), validation=batched(HELD, CODES_HELD))
    wanted, plain = refit_head(net, batched(X, CODES), validation=batched(HELD, CODES_HELD))
    assert torch.equal(found.get_parameter("net.head.weight"), wanted.get_parameter("head.weight"))
    assert (report.before, report.after) == (plain.before, plain.after)
    assert report.after["loss"] < report.before["loss"]  # pyright: ignore[reportOptionalSubscript]


@pytest.mark.parametrize("end", [lambda y: y.squeeze(1), lambda y: y[:, 0], lambda y: y.view(-1), lambda y: y[None]])
def test_one_column_may_lose_its_dimension(end: Any) -> None:
    net, y, held = network(1), X[:, 0] * X[:, 1], HELD[:, 0] * HELD[:, 1]
    found, _ = refit_head(Ends(net, end), batched(X, y), validation=batched(HELD, held))
    wanted, _ = refit_head(net, batched(X, y[:, None]), validation=batched(HELD, held[:, None]))
    assert torch.equal(found.get_parameter("net.head.weight"), wanted.get_parameter("head.weight"))
    assert not torch.equal(found.get_parameter("net.head.weight"), net.get_parameter("head.weight"))
    pixels: Any = harden(fresh(lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), HTAF(), nn.Conv2d(4, 1, 1))))
    x = X[:, :6].reshape(100, 1, 4, 6)
    found, _ = refit_head(Ends(pixels, lambda y: y.squeeze(1)), [(x, x[:, 0])], strengths=[0.01])
    wanted, _ = refit_head(pixels, [(x, x)], strengths=[0.01])
    assert torch.equal(found.get_parameter("net.2.weight"), wanted.get_parameter("2.weight"))


@pytest.mark.parametrize("how", ["column", "row of floats", "codes"])
def test_behind_a_sigmoid_it_is_the_logistic_regression_of_scikit_learn(how: str) -> None:
    net, y, held = zeroed(network(1)), CODES > 0, CODES_HELD > 0
    end: Any = torch.sigmoid if how == "column" else (lambda y: y.sigmoid()[:, 0])
    targets, wanted = (
        (t.long() if how == "codes" else t[:, None].float() if how == "column" else t.float()) for t in (y, held)
    )
    found, report = refit_head(Ends(net, end), batched(X, targets), validation=batched(HELD, wanted), strengths=[0.01])
    z, _, _ = standardised(net, X)
    known = LogisticRegression(C=1 / (0.01 * len(X)), max_iter=1000, tol=1e-8).fit(z, y.numpy())
    likely = known.predict_proba(standardised(net, HELD)[0])[:, 1]
    with torch.no_grad():
        output = found(HELD)
        loss = nn.functional.binary_cross_entropy(output.flatten(), held.float()).item()
    np.testing.assert_allclose(output.flatten(), likely, atol=2e-3)
    assert report.after == pytest.approx(
        {"loss": loss, "accuracy": ((output.flatten() > 0.5) == held).float().mean().item()}
    )


def test_behind_a_sigmoid_targets_are_shares() -> None:
    with pytest.raises(ValueError, match=r"expected targets in \[0, 1\] behind a sigmoid, got 0 to 2"):
        refit_head(Ends(network(1), torch.sigmoid), batched(X, 2.0 * (CODES > 0)[:, None]), validation=None)


def test_several_labels_a_row_behind_a_sigmoid_are_fitted_each_by_itself() -> None:
    labels, held = ((torch.stack([c > 0, c > 1, c == 0], 1)).float() for c in (CODES, CODES_HELD))
    net, strengths = zeroed(network(3)), [0.1]
    found, _ = refit_head(
        Ends(net, torch.sigmoid), batched(X, labels), validation=batched(HELD, held), strengths=strengths
    )
    for i in range(3):
        one: Any = network(1)
        with torch.no_grad():
            one.load_state_dict({k: v[i : i + 1] if k.startswith("head") else v for k, v in net.state_dict().items()})
        y, y_held = labels[:, i : i + 1], held[:, i : i + 1]
        alone, _ = refit_head(
            Ends(one, torch.sigmoid), batched(X, y), validation=batched(HELD, y_held), strengths=strengths
        )
        row = found.get_parameter("net.head.weight")[i]
        torch.testing.assert_close(alone.get_parameter("net.head.weight")[0], row, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("codes", [True, False])
def test_without_a_sigmoid_a_measure_chooses_what_zeros_and_ones_are(codes: bool) -> None:
    net, y, held = network(1), CODES.clamp(max=1), CODES_HELD.clamp(max=1).float()

    def measure(other: Any) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(other(HELD), held[:, None])

    pairs = batched(X, y if codes else y[:, None].float())
    found, _ = refit_head(net, pairs, measure=measure)
    wanted, _ = refit_head(Ends(net, torch.sigmoid), pairs, measure=lambda other: measure(other.net))
    assert torch.equal(found.get_parameter("head.weight"), wanted.get_parameter("net.head.weight"))
    assert not torch.equal(found.get_parameter("head.weight"), net.get_parameter("head.weight"))


@pytest.mark.parametrize(("end", "y", "wanted"), [
    (nn.Conv2d(5, 3, 1), torch.randint(3, (40, 32, 32), generator=torch.Generator().manual_seed(0)), 2 * (4096 + 1)),
    (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)), torch.arange(40) % 3, 40),
])  # fmt: skip
def test_of_many_pixels_a_sample_is_enough(end: nn.Module, y: Tensor, wanted: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 2, 32, 32)
    net = harden(nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), HTAF(1.0, 5.0), end))
    _, report = refit_head(net, [(x[:20], y[:20]), (x[20:], y[20:])], validation=[(x, y)])
    assert report.layers[0].rows == wanted
