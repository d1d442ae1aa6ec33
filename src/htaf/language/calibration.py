"""Calibration: thresholds and scales of gates, and `down`, in closed form from a stream of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from htaf.core.activations import Heaviside
from htaf.language.gates import Gate, GatedMLP, replaceable
from htaf.language.hidden import running, states_of
from htaf.language.options import Calibration, LanguageError
from htaf.transform.convert.modes import hooked
from htaf.transform.hardening.layerwise import Sums, error, ridge

COLUMNS = 64  # neurons at once
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of the ridge, as shares of the mean square of a neuron's output
CHUNK = 1024  # tokens whose products are summed at once
HELD = 5  # every fifth block chooses the strength


@dataclass(frozen=True)
class CalibratedLayer:
    """What calibration did with one layer. Errors are relative squared errors.

    layer: its number. open: share of open gates. dead, always: shares of neurons whose gate never or always opens.
    gate: of the gated products, against those of the activation on the same inputs; mean over neurons.
    before, after: of what the layer adds, without and with `down` refitted, on every fifth block, which chooses the
        strength of the ridge; after is None where it was not. strength: None likewise.
    """

    layer: int
    open: float
    dead: float
    always: float
    gate: float
    before: float
    after: float | None
    strength: float | None


def fit_gate(
    a: Float[Tensor, "tokens neurons"], g: Float[Tensor, "tokens neurons"], u: Float[Tensor, "tokens neurons"]
) -> tuple[Float[Tensor, " neurons"], Float[Tensor, " neurons"], Float[Tensor, " neurons"]]:
    """Fit threshold t and scale s >= 0 of each neuron that minimise sum (a u - s [g >= t] u)^2; exact.

    For a given t, s = sum a u^2 / sum u^2 over the open tokens, and the error falls by (sum a u^2)^2 / sum u^2. All t
    that differ are tried: one for each token, in the order of g.

    Args:
        a: the activation of g. g: pre-activations of the gate. u: outputs of `up`.

    Returns:
        t, midway between the last open and the first closed g; s; and the relative squared error that is left.
    """
    threshold, scale, error = [], [], []
    for columns in torch.arange(g.shape[1], device=g.device).split(COLUMNS):
        gs, order = g[:, columns].T.float().contiguous().sort(1, descending=True)  # a neuron's tokens lie together
        weight = u[:, columns].T.contiguous().gather(1, order).double().square()
        value = a[:, columns].T.contiguous().gather(1, order).double()
        product, mass = (value * weight).cumsum(1), weight.cumsum(1)
        gain = product.clamp_min(0).square() / mass.clamp_min(1e-30)
        gain[:, :-1].masked_fill_(gs[:, :-1] == gs[:, 1:], -1.0)  # equal values of g open together
        at = gain.argmax(1, keepdim=True)
        below = gs.gather(1, (at + 1).clamp_max(gs.shape[1] - 1))[:, 0]
        above = gs.gather(1, at)[:, 0]
        middle = above + (below - above) / 2
        threshold.append(torch.where(middle > below, middle, above))
        scale.append((product.gather(1, at) / mass.gather(1, at).clamp_min(1e-30))[:, 0].clamp_min(0).float())
        whole = (value.square() * weight).sum(1)
        error.append(torch.where(whole > 0, 1 - gain.gather(1, at)[:, 0] / whole.clamp_min(1e-30), 0.0).float())
    return torch.cat(threshold), torch.cat(scale), torch.cat(error)


@torch.no_grad()
def calibrate(
    model: nn.Module,
    tokens: Int[Tensor, "blocks length"],
    last_k: int,
    *,
    calibration: Calibration = "down",
    tell: Callable[[CalibratedLayer], None] | None = None,
) -> list[CalibratedLayer]:
    """Put gates with the exact step into the last layers, in place, and fit them; layer after layer from below, each
    on what the converted layers below it really give.

    Threshold and scale: `fit_gate`. Then `down` learns to make up for the rest: W += argmin_D |z (W + D)^T - r|^2 +
    lambda |D|^2, z the gated products and r what the layer should add so that the residual stream is that of the
    original. lambda is chosen on every fifth block, and then all blocks fit.

    Args:
        model: a causal language model of transformers as it was loaded.
        tokens: blocks of text without padding; ten times as many tokens as neurons are enough.
        last_k: how many layers.
        calibration: plain: threshold 0 and scale 1; gates: thresholds and scales are fitted; down: also `down`.
        tell: called after each layer.

    Raises:
        LanguageError: as `replace_gates`; less than two blocks; unknown tokens; another calibration.
    """
    if tokens.ndim != 2 or len(tokens) < 2:
        raise LanguageError(f"expected two blocks of tokens or more, [blocks, length], got {tuple(tokens.shape)}")
    if calibration not in get_args(Calibration):
        raise LanguageError(f"calibration must be {', '.join(get_args(Calibration))}, got {calibration}")
    known = model.get_input_embeddings().num_embeddings  # pyright: ignore
    if tokens.min() < 0 or tokens.max() >= known:
        raise LanguageError(f"expected tokens in 0 to {known - 1}, got {tokens.min()} to {tokens.max()}")
    training = model.training
    model.eval()
    tokens = tokens.to(next(model.parameters()).device)
    blocks, mlps, report = tokens.split(1), replaceable(model, last_k), list[CalibratedLayer]()
    first = mlps[0].layer
    truth = inputs = [states_of(model, block, first, first)[0] for block in blocks]
    adds = _adds(model, mlps[0], blocks[0], inputs[0])
    for mlp in mlps:
        activation = mlp.activation
        originals = _inside(model, mlp, blocks, truth)
        truth = [one.output for one in originals]
        seen = _inside(model, mlp, blocks, inputs)
        g, u = mlp.projections(torch.cat([one.into.flatten(0, 1) for one in seen]))
        mlp.put(gate := Gate(mlp.neurons, Heaviside()))
        if calibration != "plain":
            threshold, scale, _ = fit_gate(activation(g), g, u)
            gate.threshold.copy_(threshold)
            gate.scale.copy_(scale)
        gate.width.copy_(g.float().std(0).clamp_min(1e-6))
        opened = gate.open(g).float()
        z = gate(g) * u
        if adds:  # what lies beside the MLP in the stream is taken off
            r = torch.cat([_rest(wanted, one) for wanted, one in zip(truth, seen, strict=True)])
        else:  # a norm stands behind the MLP: its own output is the target
            r = torch.cat([one.made.flatten(0, 1) for one in originals])
        wanted = (activation(g) * u).float()
        of_gates = (wanted - z.float()).square().sum(0) / wanted.square().sum(0).clamp_min(1e-30)
        before, after, strength = _refit(mlp.module.down_proj, z, r, len(tokens), calibration == "down")
        told = CalibratedLayer(
            mlp.layer, opened.mean().item(), (opened.sum(0) == 0).float().mean().item(),
            opened.all(0).float().mean().item(), of_gates.mean().item(), before, after, strength,
        )  # fmt: skip
        report.append(told)
        if tell is not None:
            tell(told)
        inputs = [one.output for one in _inside(model, mlp, blocks, inputs)]
    model.train(training)
    return report


def _refit(down: Any, z: Tensor, r: Tensor, blocks: int, repair: bool) -> tuple[float, float | None, float | None]:
    """Refit the weight of `down` to r in place: error on the held blocks before and after, and the strength."""
    bias = 0.0 if down.bias is None else down.bias.float()
    rest = r.float() - down(z).float()
    z = z.float()
    held = (torch.arange(len(z), device=z.device) // (len(z) // blocks)) % HELD == HELD - 1
    held = held if held.any() else torch.arange(len(z), device=z.device) >= len(z) // 2
    whole = max((r.float() - bias)[held].square().sum().item(), 1e-30)
    before = rest[held].square().sum().item() / whole
    if not repair:
        return before, None, None
    fitted, tried = (_sums(z, rest, at) for at in (~held, held))
    best, chosen = before, None
    for strength in STRENGTHS:
        change = ridge(fitted.hh, fitted.hr, strength)
        left = error(change, (tried.hh, tried.hr, tried.rr)).sum().item() / whole
        if left < best:
            best, chosen = left, strength
    if chosen is None:
        return before, before, None
    both = fitted + tried
    down.weight.copy_((down.weight.double() + ridge(both.hh, both.hr, chosen)[0].T).to(down.weight.dtype))
    return before, best, chosen


def _sums(z: Tensor, r: Tensor, at: Tensor) -> Sums:
    """Return sums of z and r about 0 over some tokens: float32 within a chunk, float64 over chunks."""
    sums = Sums(z.new_zeros(1, 1, z.shape[1]), r.new_zeros(1, 1, r.shape[1]))
    for x, y, chosen in zip(z.split(CHUNK), r.split(CHUNK), at.split(CHUNK), strict=True):
        sums.add(x[None, chosen], y[None, chosen], y[None, chosen])
    return sums


class _Inside(NamedTuple):
    """Of a block of tokens input and output of a layer's MLP, and the output of the layer."""

    into: Tensor
    made: Tensor
    output: Tensor


def _inside(
    model: nn.Module, mlp: GatedMLP, blocks: Sequence[Tensor], inputs: Sequence[Tensor], factor: float = 1.0
) -> list[_Inside]:
    """Run a layer on its inputs, block by block. factor: of the output of its MLP."""
    seen: list[_Inside] = []
    kept: list[Tensor] = []

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        kept[:] = args[0], output
        return factor * output

    with running(model, mlp.layer, mlp.layer + 1) as (run, _), hooked([mlp.module.register_forward_hook(hook)]):
        for block, x in zip(blocks, inputs, strict=True):
            (output,) = run(block, x)
            seen.append(_Inside(kept[0], kept[1], output))
    return seen


def _rest(wanted: Tensor, seen: _Inside) -> Tensor:
    """Return what an MLP should add so that the stream behind its layer is as wanted; differences of the stream are
    small."""
    return (wanted.float() - (seen.output.float() - seen.made.float())).flatten(0, 1)


def _adds(model: nn.Module, mlp: GatedMLP, block: Tensor, x: Tensor) -> bool:
    """Return whether a layer's output is its MLP's output plus something that does not depend on it."""
    (plain,), (doubled,) = (_inside(model, mlp, [block], [x], factor) for factor in (1.0, 2.0))
    change, made = doubled.output - plain.output, plain.made
    return torch.allclose(change.float(), made.float(), rtol=0.02, atol=0.02 * float(made.abs().max()))
