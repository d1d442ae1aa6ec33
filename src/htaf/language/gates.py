"""Gates of a language model: the activation of its gated MLPs, which becomes a step.

A gated MLP is down(activation(gate(x)) * up(x)). With the exact step a neuron contributes s * up(x) where its gate is
open, gate(x) >= t, and nothing where it is closed: then its row of `up` and its column of `down` are not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from htaf.core.activations import Heaviside
from htaf.core.contract import StepFactory, expect_one_level
from htaf.language.options import LanguageError
from htaf.transform.convert.modes import hooked

_FUSED, _PLAIN = ("gate_up_proj", "down_proj"), ("gate_proj", "up_proj", "down_proj")


class Gate(nn.Module):
    """scale * step((g - threshold) / width), neuron by neuron: what takes the place of a gate's activation.

    With the exact step: scale where g >= threshold, else 0. It then contains no difference and no quotient, so a bit
    depends on g and the threshold alone, and `width` on nothing.

    Args:
        neurons: of the MLP.
        step: an exact or a smooth step, such as `htaf.HTAF(0.5, 4)`.

    Attributes:
        threshold, scale: parameters [neurons]. width: buffer [neurons], the unit in which a smooth step sees g.

    Shape: [..., neurons], output equal to input; dtype kept.
    """

    def __init__(self, neurons: int, step: nn.Module) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(neurons))
        self.scale = nn.Parameter(torch.ones(neurons))
        self.width = nn.Buffer(torch.ones(neurons))
        self.step = step

    @property
    def exact(self) -> bool:
        """Whether its step is the exact one."""
        return isinstance(self.step, Heaviside)

    def open(self, g: Float[Tensor, "*shape neurons"]) -> Bool[Tensor, "*shape neurons"]:
        """Return which gates the exact step opens."""
        return g >= self.threshold

    def forward(self, g: Float[Tensor, "*shape neurons"]) -> Float[Tensor, "*shape neurons"]:
        if self.exact:
            return self.open(g).to(g.dtype) * self.scale.to(g.dtype)
        return (self.scale * self.step((g - self.threshold) / self.width)).to(g.dtype)

    def extra_repr(self) -> str:
        return f"neurons={len(self.threshold)}"


@dataclass(frozen=True)
class GatedMLP:
    """A gated MLP of a decoder layer.

    layer: its number, from 0. path: of the MLP in the model. module: the MLP.
    attribute: the name under which it holds its activation. fused: whether gate and up are one projection.
    """

    layer: int
    path: str
    module: Any
    attribute: str
    fused: bool

    @property
    def activation(self) -> nn.Module:
        """Its activation, or the gate that stands there now."""
        return getattr(self.module, self.attribute)

    @property
    def neurons(self) -> int:
        """Of its hidden layer."""
        return self.module.down_proj.in_features

    def put(self, gate: Gate) -> None:
        """Let a gate take the place of the activation."""
        # its parameters stay in float32: a small rate could not move a threshold in bfloat16
        setattr(self.module, self.attribute, gate.to(self.module.down_proj.weight.device).train(self.module.training))

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(gate(x), up(x)), each [..., neurons]."""
        if self.fused:
            gate, up = self.module.gate_up_proj(x).chunk(2, dim=-1)
            return gate, up
        return self.module.gate_proj(x), self.module.up_proj(x)


def decoder_of(model: Any) -> Any:
    """Return the decoder of a causal language model of transformers: what holds `layers`.

    Raises:
        LanguageError: it has none.
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    for part in (decoder, getattr(decoder, "language_model", None)):
        if isinstance(getattr(part, "layers", None), nn.ModuleList) and len(part.layers):  # pyright: ignore
            return part
    raise LanguageError(f"expected a decoder with a list of layers, got {type(model).__name__}, which has none")


def gated_mlps(model: nn.Module) -> list[GatedMLP]:
    """Return the gated MLPs of a language model of transformers, by layer.

    Raises:
        LanguageError: a layer has none; the message says what it has instead.
    """
    decoder = decoder_of(model)
    paths = {id(module): path for path, module in model.named_modules()}
    found = []
    for number, layer in enumerate(decoder.layers):
        mlp, fused = _mlp_of(layer, number, type(model).__name__)
        found.append(GatedMLP(number, paths[id(mlp)], mlp, _activation_of(mlp, number), fused))
    seen: dict[int, str] = {}
    for mlp in found:
        for name in _FUSED if mlp.fused else _PLAIN:
            this = f"{name} of layer {mlp.layer}"
            if (other := seen.setdefault(id(getattr(mlp.module, name).weight), this)) != this:
                raise LanguageError(f"{other} and {this} share one projection: expected one for each")
    return found


def replaceable(model: nn.Module, last_k: int) -> list[GatedMLP]:
    """Return the MLPs of the last layers, after a check that they can take gates. Arguments and errors:
    `replace_gates`."""
    mlps = gated_mlps(model)
    if not 1 <= last_k <= len(mlps):
        raise LanguageError(f"last_k must be in 1 to {len(mlps)}, the layers of this model, got {last_k}")
    chosen = mlps[-last_k:]
    if any(isinstance(mlp.activation, Gate) for mlp in chosen):
        raise LanguageError(f"expected a model without gates in its last {last_k} layers, got one with some")
    for mlp in chosen:
        _expect_gated(mlp)
    return chosen


def replace_gates(model: nn.Module, last_k: int, step: StepFactory = Heaviside) -> list[GatedMLP]:
    """Put a `Gate` into the MLPs of the last layers, in place: a language model is too large for a copy.

    Args:
        model: a causal language model of transformers.
        last_k: how many layers, counted from the end.
        step: makes the step of each gate, such as `partial(HTAF, 0.5, 4)`; the exact one by default.

    Returns:
        The MLPs. Thresholds are 0 and scales 1 until `calibrate` or a training sets them.

    Raises:
        LanguageError: the model has no gated MLPs, not so many layers, or gates in some already.
        ContractError: a step of several levels.
    """
    chosen = replaceable(model, last_k)
    for mlp in chosen:
        made = step()
        expect_one_level(made, "the gates of a language model", "a gate is open or closed, so give a step of one")
        mlp.put(Gate(mlp.neurons, made))
    return chosen


def gates_of(model: nn.Module) -> dict[int, Gate]:
    """Return the gates of a model by the number of their layer."""
    found: dict[int, Gate] = {}
    for number, layer in enumerate(decoder_of(model).layers):
        for module in layer.modules():
            if isinstance(module, Gate):
                found[number] = module
    return found


@torch.no_grad()
def read_gates(
    model: nn.Module,
    blocks: Int[Tensor, "blocks length"],
    see: Callable[[int, Gate, Tensor], None],
) -> None:
    """Let a model read text, block by block, and show what its gates are given.

    Args:
        see: called with the number of a layer, its gate, and what this is given of a block, [length, neurons].
    """

    def shown(number: int, gate: Any, args: tuple[Tensor, ...]) -> None:
        see(number, gate, args[0].flatten(0, -2))

    device = next(model.parameters()).device
    with hooked(gate.register_forward_pre_hook(partial(shown, number)) for number, gate in gates_of(model).items()):
        for block in blocks:
            model(input_ids=block[None].to(device), use_cache=False, logits_to_keep=1)


def open_gates(model: nn.Module, blocks: Int[Tensor, "blocks length"]) -> dict[int, Bool[Tensor, "tokens neurons"]]:
    """Return the bits of a model's gates by the number of their layer: which are open at each token of `blocks`, in its
    order.

    Raises:
        LanguageError: no gates.
    """
    found: dict[int, list[Tensor]] = {number: [] for number in gates_of(model)}
    if not found:
        raise LanguageError("expected a model with gates, got one without")
    read_gates(model, blocks, lambda number, gate, g: found[number].append(gate.open(g).cpu()))
    return {number: torch.cat(bits) for number, bits in found.items()}


def _mlp_of(layer: nn.Module, number: int, model: str) -> tuple[Any, bool]:
    """Return the gated MLP of a layer, and whether its gate and up are one projection."""
    experts = any(path.rpartition(".")[2] == "experts" for path, _ in layer.named_modules())
    for module in () if experts else layer.children():
        for names, fused in ((_FUSED, True), (_PLAIN, False)):
            if all(isinstance(getattr(module, name, None), nn.Module) for name in names):
                if not all(hasattr(getattr(module, name), "weight") for name in names):
                    continue
                return module, fused
    names = sorted({name for path, _ in layer.named_modules() if (name := path.rpartition(".")[2]) and "." in path})
    raise LanguageError(
        f"expected a gated MLP, down(activation(gate(x)) * up(x)), in every layer, got {model}, whose layer {number} "
        f"has {', '.join(names) or 'no modules'}: mixtures of experts and plain MLPs are not taken"
    )


def _activation_of(mlp: nn.Module, number: int) -> str:
    """Return the name of the one child of an MLP that has no weights and is no dropout, or is a gate."""
    names = [
        name
        for name, child in mlp.named_children()
        if isinstance(child, Gate) or (not isinstance(child, nn.Dropout) and not any(True for _ in child.parameters()))
    ]
    if len(names) != 1:
        raise LanguageError(
            f"expected one activation in the MLP of layer {number}, got {', '.join(names) or 'none'} in "
            f"{type(mlp).__name__}"
        )
    return names[0]


@torch.no_grad()
def _expect_gated(mlp: GatedMLP) -> None:
    """Raise LanguageError where an MLP computes something else than down(activation(gate(x)) * up(x))."""
    module = mlp.module
    weight = (module.gate_up_proj if mlp.fused else module.gate_proj).weight
    if weight.device.type == "meta":  # no values yet
        return
    x = torch.linspace(-1, 1, weight.shape[1], device=weight.device).to(weight.dtype)[None, None]
    gate, up = mlp.projections(x)
    expected, got = module.down_proj(mlp.activation(gate) * up), module(x)
    if not torch.allclose(expected.float(), got.float(), rtol=0.05, atol=1e-3 * float(got.float().abs().max() + 1e-9)):
        raise LanguageError(
            f"expected the MLP of layer {mlp.layer} to compute down(activation(gate(x)) * up(x)), "
            f"{type(module).__name__} computes something else"
        )
