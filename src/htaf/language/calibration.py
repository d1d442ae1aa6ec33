"""Calibration: thresholds and scales of gates, and `down`, in closed form from a stream of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from htaf.activations import Heaviside
from htaf.language.errors import LanguageError
from htaf.language.gates import Gate, GatedMLP, decoder_of, replaceable
from htaf.language.options import Calibration

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
    """Threshold t and scale s >= 0 of each neuron that minimise sum (a u - s [g >= t] u)^2; exact.

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
    layers, mlps, report = decoder_of(model).layers, replaceable(model, last_k), list[CalibratedLayer]()
    inputs, arguments = _streams(model, tokens, [mlp.layer for mlp in mlps])
    truth, adds = inputs, _adds(layers[mlps[0].layer], mlps[0], inputs[0], arguments[mlps[0].layer])
    for mlp in mlps:
        layer, given, activation = layers[mlp.layer], arguments[mlp.layer], mlp.activation
        originals = [_inside(layer, mlp, x, given) for x in truth]
        truth = [output for _, _, output in originals]
        seen = [_inside(layer, mlp, x, given) for x in inputs]
        hidden = torch.cat([h.flatten(0, 1) for h, _, _ in seen])
        g, u = mlp.projections(hidden)
        mlp.put(gate := Gate(mlp.neurons, Heaviside()))
        if calibration != "plain":
            threshold, scale, _ = fit_gate(activation(g), g, u)
            gate.threshold.copy_(threshold)
            gate.scale.copy_(scale)
        gate.width.copy_(g.float().std(0).clamp_min(1e-6))
        opened = gate.open(g).float()
        z = gate(g) * u
        if adds:  # what lies beside the MLP in the stream is taken off
            r = torch.cat([_rest(t, made, out) for t, (_, made, out) in zip(truth, seen, strict=True)])
        else:  # a norm stands behind the MLP: its own output is the target
            r = torch.cat([made.flatten(0, 1) for _, made, _ in originals])
        wanted = (activation(g) * u).float()
        error = (wanted - z.float()).square().sum(0) / wanted.square().sum(0).clamp_min(1e-30)
        before, after, strength = _refit(mlp.module.down_proj, z, r, len(tokens), calibration == "down")
        told = CalibratedLayer(
            mlp.layer, opened.mean().item(), (opened.sum(0) == 0).float().mean().item(),
            opened.all(0).float().mean().item(), error.mean().item(), before, after, strength,
        )  # fmt: skip
        report.append(told)
        if tell is not None:
            tell(told)
        inputs = [_output(layer(x, **given)) for x in inputs]
    model.train(training)
    return report


def _refit(down: Any, z: Tensor, r: Tensor, blocks: int, repair: bool) -> tuple[float, float | None, float | None]:
    """Refit the weight of `down` to r in place: error on the held blocks before and after, and the strength."""
    bias = 0.0 if down.bias is None else down.bias.float()
    rest = r.float() - down(z).float()
    z = z.float()
    whole = (r.float() - bias).square()
    held = (torch.arange(len(z), device=z.device) // (len(z) // blocks)) % HELD == HELD - 1
    held = held if held.any() else torch.arange(len(z), device=z.device) >= len(z) // 2
    before = rest[held].square().sum().item() / max(whole[held].sum().item(), 1e-30)
    if not repair:
        return before, None, None
    sums = [_products(z, rest, at) for at in (~held, held)]
    best, chosen = before, None
    for strength in STRENGTHS:
        change = _ridge(*sums[0], strength)
        error = (rest[held] - z[held] @ change.float()).square().sum().item() / max(whole[held].sum().item(), 1e-30)
        if error < best:
            best, chosen = error, strength
    if chosen is None:
        return before, before, None
    change = _ridge(sums[0][0] + sums[1][0], sums[0][1] + sums[1][1], chosen)
    down.weight.copy_((down.weight.double() + change.T).to(down.weight.dtype))
    return before, best, chosen


def _rest(wanted: Tensor, made: Tensor, output: Tensor) -> Tensor:
    """What an MLP should add so that the stream behind its layer is as wanted; differences of the stream are small."""
    return (wanted.float() - (output.float() - made.float())).flatten(0, 1)


def _products(z: Tensor, r: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Z^T Z and Z^T R over some tokens: float32 within a chunk, float64 over chunks."""
    squares = torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64, device=z.device)
    products = torch.zeros(z.shape[1], r.shape[1], dtype=torch.float64, device=z.device)
    for x, y, kept in zip(z.split(CHUNK), r.split(CHUNK), at.split(CHUNK), strict=True):
        x, y = x[kept], y[kept]
        squares += x.T @ x
        products += x.T @ y
    return squares, products


def _ridge(squares: Tensor, products: Tensor, strength: float) -> Tensor:
    """(Z^T Z + lambda I)^-1 Z^T R, lambda as a share of the mean of Z^T Z's diagonal."""
    ridge = strength * squares.diagonal().mean().clamp_min(1e-12)
    eye = torch.eye(len(squares), dtype=squares.dtype, device=squares.device)
    return torch.linalg.solve(squares + ridge * eye, products)


class _Stop(Exception):
    """Ends a forward pass whose rest is not needed."""


def _streams(
    model: nn.Module, tokens: Tensor, numbers: Sequence[int]
) -> tuple[list[Tensor], dict[int, dict[str, Any]]]:
    """The inputs of the first of some layers, block by block, and what else each of these layers is called with."""
    layers, arguments, inputs = decoder_of(model).layers, dict[int, dict[str, Any]](), list[Tensor]()

    def note(number: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
            rest = dict(given)
            x = args[0] if args else rest.pop("hidden_states")
            arguments.setdefault(number, rest)
            if number == numbers[0]:
                inputs.append(x)
                if len(inputs) > 1:  # the first block goes through all layers
                    raise _Stop

        return hook

    handles = [layers[n].register_forward_pre_hook(note(n), with_kwargs=True) for n in numbers]
    try:
        for block in tokens:
            try:
                _run_decoder(model, block[None])
            except _Stop:
                continue
    finally:
        for handle in handles:
            handle.remove()
    return inputs, arguments


def _run_decoder(model: nn.Module, tokens: Tensor) -> None:
    """Run the decoder without the head."""
    decoder_of(model)(input_ids=tokens, use_cache=False)


def _inside(layer: nn.Module, mlp: GatedMLP, x: Tensor, given: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Input and output of a layer's MLP, and the output of the layer."""
    kept: list[Tensor] = []
    handle = mlp.module.register_forward_hook(lambda module, args, output: kept.extend((args[0], output)))
    try:
        output = _output(layer(x, **given))
    finally:
        handle.remove()
    return kept[0], kept[1], output


def _output(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _adds(layer: nn.Module, mlp: GatedMLP, x: Tensor, given: dict[str, Any]) -> bool:
    """Whether a layer's output is its MLP's output plus something that does not depend on it."""
    _, made, plain = _inside(layer, mlp, x, given)
    handle = mlp.module.register_forward_hook(lambda module, args, output: 2 * output)
    try:
        doubled = _output(layer(x, **given))
    finally:
        handle.remove()
    return torch.allclose((doubled - plain).float(), made.float(), rtol=0.02, atol=0.02 * float(made.abs().max()))
