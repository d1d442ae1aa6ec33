"""Modules over `functional` and `surrogates`: three that train, and the exact step that replaces them.

`HTAF`, `ScaledSigmoid` and `StraightThrough` keep the contract `htaf.SmoothStep`: `.hardened()` makes the `Heaviside`
that holds the same state-dict entries. Switching is separate from `train()` and `eval()`: see `htaf.harden`.

Plain numbers (alpha0, alpha1, beta; thresholds; the tau of neurons) add no keys to a state dict. Its metadata hold
them: `torch.save` writes the metadata and `load_state_dict` reads them. A safetensors file, or a dict made from the
items, has no metadata: load it into a network that was made with the same numbers.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf._ground.errors import check_finite, check_positive
from htaf.core import functional, surrogates
from htaf.core.contract import ContractError, SmoothStep, levels_of, sharpness_of

BINARY_BELOW, BINARY_ABOVE = 0.01, 0.99  # a smooth output beyond these counts as binary
SATURATION = math.log(BINARY_ABOVE / BINARY_BELOW)  # sigma(alpha1) > BINARY_ABOVE needs alpha1 above this: ln 99


class Remembering(nn.Module):
    """Keeps the plain numbers of a module in the metadata of its state dict, and takes them up when one is loaded.

    As keys they would make the state dicts of the smooth, the exact and the ReLU network differ.
    """

    numbers: tuple[str, ...] = ()  # attributes > 0; those that are tensors have keys of their own
    places: tuple[str, ...] = ()  # attributes that are any finite number
    settings: tuple[str, ...] = ()  # attributes that change the output, and must be equal
    fitted: frozenset[str] = frozenset()  # of the first two those that change the output and were taken from data

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None:
            metadata["htaf"] = self._remembered()

    def _remembered(self) -> dict[str, Any]:
        held = {name: getattr(self, name, None) for name in (*self.numbers, *self.places)}
        numbers = {name: value for name, value in held.items() if isinstance(value, float)}
        return numbers | {name: getattr(self, name) for name in self.settings}

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        kept = local_metadata.get("htaf")
        kept = kept if isinstance(kept, dict) else {}
        for name in sorted(self.fitted):
            if name not in kept:
                warnings.warn(
                    f"{prefix[:-1] or 'the module'}: this state dict has no {name} of the step. The metadata hold it, "
                    f"which torch.save keeps and safetensors do not. The step keeps {getattr(self, name):.6g}, from "
                    f"the example of htaf.replace: set step.{name} to the value of the network that was saved",
                    stacklevel=2,
                )
        for name in self.settings:
            own = getattr(self, name)
            came = kept.get(name, own)
            if type(came) is not type(own) or came != own:
                told = f"expected {name}={own}, got a state dict with {name}={came}"
                error_msgs.append(f"{prefix[:-1] or 'the module'}: {told}")
        for name in (*self.numbers, *self.places):
            if name in kept and isinstance(getattr(self, name, None), float):
                check = check_finite if name in self.places else check_positive
                try:
                    setattr(self, name, check(f"{prefix}{name} in the state dict", kept[name]))
                except (TypeError, ValueError) as error:
                    error_msgs.append(str(error))
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


@final
class HTAF(Remembering):
    """HTAF(x) = sigma(alpha1 tanh(alpha0 x)), the smooth stand-in for the step; 2 HTAF(x) - 1 with `bipolar`.

    Gradient: `htaf.functional.htaf`. Range: sigma(-alpha1) to sigma(alpha1), so alpha1 <= ln 99 = 4.595 never
    passes 0.99 (a warning says so).

    Args:
        alpha0: > 0, float or tensor. A tensor is a buffer. A float is a plain attribute, which the metadata of a state
            dict hold (safetensors do not).
        alpha1: > 0, float or tensor, likewise. Tensors broadcast to the input: [C, 1, 1] for channels of images.
        learnable: make both trainable; their logarithms are the parameters (`log_alpha0`, `log_alpha1`), so they
            stay positive.
        bipolar: outputs in (-1, 1), hardened to {-1, +1}.
        levels: how many thresholds each pre-activation has. The output is the mean of HTAF(x - t_k); hardened, it is
            0, 1 / 2 or 1 for levels=2. It is still one value with one weight in the next layer. The scale and shift of
            a norm before it learn where two thresholds lie.
        spacing: distance between two thresholds, > 0: t_k = (k - (levels + 1) / 2) spacing. None: 2.8 / levels, which
            suits normalised pre-activations; for others multiply it by their standard deviation.

    Shape: any, output equal to input; dtype kept.

    Raises:
        ValueError: an alpha is not from 9.4e-38 to 1.06e37. TypeError, ValueError: levels or spacing, as
            `htaf.functional.thresholds`.

    Source: the paper, equation (1).
    """

    kind = "htaf"
    sharpness = ("alpha0", "alpha1")
    numbers, settings = (*sharpness, "spacing"), ("bipolar", "levels")
    levels: int
    spacing: float

    def __init__(
        self,
        alpha0: float | Tensor = 2.0,
        alpha1: float | Tensor = 11.0,
        *,
        learnable: bool = False,
        bipolar: bool = False,
        levels: int = 1,
        spacing: float | None = None,
    ) -> None:
        super().__init__()
        self.learnable, self.bipolar = learnable, bipolar
        _set_levels(self, levels, spacing)
        _register(self, "alpha0", alpha0)
        _register(self, "alpha1", alpha1)
        if _least(alpha1) <= SATURATION:
            warnings.warn(
                f"alpha1 = {_show(alpha1)} is not above ln 99 = {SATURATION:.3f}: no output passes 0.99 or falls below "
                "0.01, so binarity is 0 however well the network trains; choose a larger alpha1 if that matters",
                stacklevel=2,
            )

    @property
    def alphas(self) -> tuple[float | Tensor, float | Tensor]:
        """The current (alpha0, alpha1), whatever they are stored as."""
        return _current(self, "alpha0"), _current(self, "alpha1")

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return functional.htaf(x, *self.alphas, bipolar=self.bipolar, levels=self.levels, spacing=self.spacing)

    def hardened(self) -> Heaviside:
        """The exact step with the same state-dict entries."""
        return Heaviside.of(self)

    def extra_repr(self) -> str:
        alpha0, alpha1 = self.alphas
        return f"alpha0={_show(alpha0)}, alpha1={_show(alpha1)}{_flags(self)}"


@final
class ScaledSigmoid(Remembering):
    """Scaled sigmoid (SS), sigma(beta x); 2 sigma(beta x) - 1 with `bipolar`. The limit of HTAF for alpha0 -> 0.

    Args:
        beta: > 0, float (an attribute, as the alphas of `HTAF`) or tensor (a buffer).
        learnable, bipolar, levels, spacing: as for `HTAF`.

    Raises:
        ValueError: beta is not from 9.4e-38 to 1.06e37. TypeError, ValueError: as `htaf.functional.thresholds`.
    """

    kind = "scaled_sigmoid"
    sharpness = ("beta",)
    numbers, settings = (*sharpness, "spacing"), ("bipolar", "levels")
    levels: int
    spacing: float

    def __init__(
        self,
        beta: float | Tensor = 22.0,
        *,
        learnable: bool = False,
        bipolar: bool = False,
        levels: int = 1,
        spacing: float | None = None,
    ) -> None:
        super().__init__()
        self.learnable, self.bipolar = learnable, bipolar
        _set_levels(self, levels, spacing)
        _register(self, "beta", beta)

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        beta = _current(self, "beta")
        return functional.scaled_sigmoid(x, beta, bipolar=self.bipolar, levels=self.levels, spacing=self.spacing)

    def hardened(self) -> Heaviside:
        """The exact step with the same state-dict entries."""
        return Heaviside.of(self)

    def extra_repr(self) -> str:
        return f"beta={_show(_current(self, 'beta'))}{_flags(self)}"


@final
class StraightThrough(Remembering):
    """The exact step forward, slope((x - threshold) / w) / w backward (STE), w = width * stretch; sign and twice that
    with `bipolar`.

    stretch: 1 until `sharpen` changes it during a training; not part of the state dict.

    Args:
        slope: function x -> dH/dx; see `htaf.surrogates` (sigmoid, tanh, rectangular, atan, approx_sign, htaf).
            Set parameters with functools.partial.
        width: > 0, the scale of the pre-activations. The metadata of a state dict hold it.
        bipolar: outputs in {-1, +1}.
        levels, spacing: as for `HTAF`; the slope is the mean of those at the thresholds.
        threshold: where the step rises; of several thresholds the middle. The metadata hold it too.

    Source: Bengio et al. 2013, arXiv:1308.3432.
    """

    kind, sharpness = "straight_through", ()
    numbers, places, settings = ("width", "spacing"), ("threshold",), ("bipolar", "levels")
    levels: int
    spacing: float
    stretch, least = 1.0, 0.0  # least: of the widths that replace and tune give it

    def __init__(
        self,
        slope: surrogates.Slope = surrogates.sigmoid,
        *,
        width: float = 1.0,
        bipolar: bool = False,
        levels: int = 1,
        spacing: float | None = None,
        threshold: float = 0.0,
    ) -> None:
        super().__init__()
        if not callable(slope):
            raise TypeError(f"slope must be a function from a tensor to a tensor, got {type(slope).__name__}")
        self.slope, self.width, self.bipolar = slope, check_positive("width", width), bipolar
        self.threshold = check_finite("threshold", threshold)
        _set_levels(self, levels, spacing)

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        places = {"levels": self.levels, "spacing": self.spacing, "threshold": self.threshold}
        return surrogates.straight_through(x, self.current_slope(), bipolar=self.bipolar, **places)

    def current_slope(self) -> surrogates.Slope:
        """The slope at its width and stretch. Without gradients at its width alone: then a graph compiled for a
        forward serves on when `sharpen` moves the stretch."""
        width = self.width * self.stretch if torch.is_grad_enabled() else self.width
        return self.slope if width == 1 else surrogates.stretched(self.slope, width)

    def hardened(self) -> Heaviside:
        """The exact step with the same (empty) state dict."""
        return Heaviside.of(self)

    def extra_repr(self) -> str:
        width = "" if self.width == 1 else f", width={self.width:.3g}"
        return f"slope={_name_of(self.slope)}{width}{_flags(self)}"


def sharpen(model: nn.Module, progress: float) -> int:
    """Narrow the gradient of every `StraightThrough` step of a model, in place, as its training goes on.

    A step's gradient is `stretch` times as wide as its `width`: stretch = 2^(1 - k / 2), k = min(round(8 progress), 4).
    So it is twice as wide at first, where units far from their threshold learn too, and half as wide from 7/16 of the
    training on, where it follows the step closely. These are five widths, and `torch.compile` compiles for each.
    The forward pass does not change.

    Args:
        progress: the share of the training that is done, in [0, 1]: `step / steps`. Nothing else decides the width, so
            a resumed training passes its own. The width stays until the next call; a state dict does not hold it.

    Returns:
        How many steps there are.

    Raises:
        ValueError: the model has no such step, or progress lies outside [0, 1].

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), StraightThrough(), nn.Linear(2, 1))
        >>> [(sharpen(net, step / 10), net[1].stretch)[1] for step in range(0, 10, 2)]
        [2.0, 1.0, 0.7071067811865476, 0.5, 0.5]
    """
    progress = float(progress)
    if not 0 <= progress <= 1:
        raise ValueError(f"progress must be the share of the training that is done, in [0, 1], got {progress!r}")
    steps = [module for module in model.modules() if isinstance(module, StraightThrough)]
    if not steps:
        raise ValueError(
            "expected a model with StraightThrough steps, as htaf.replace(model, example=x) puts in, got one without; "
            "htaf.core.sharpening.set_sharpness moves smooth curves"
        )
    for step in steps:
        step.stretch = 2 ** (1 - min(round(8 * progress), 4) / 2)
    return len(steps)


@final
class Heaviside(Remembering):
    """The exact step, 1 if x >= 0 else 0; with `bipolar` the sign in {-1, +1}.

    With a `threshold` it is 1 if x >= threshold. With several `levels` it is the share of the thresholds that x
    reaches, see `HTAF`.

    For 0, -0.0 and NaN see `htaf.functional.heaviside`. The gradient is 0, so no layer before it is trained. In train
    mode it warns once if its input requires a gradient (not inside `torch.compile`).
    """

    numbers, places, settings = ("spacing",), ("threshold",), ("bipolar", "levels")
    levels: int
    spacing: float

    def __init__(
        self, *, bipolar: bool = False, levels: int = 1, spacing: float | None = None, threshold: float = 0.0
    ) -> None:
        super().__init__()
        self.bipolar, self.threshold = bipolar, check_finite("threshold", threshold)
        _set_levels(self, levels, spacing)

    @classmethod
    def of(cls, step: SmoothStep) -> Heaviside:
        """The exact step for a smooth one, with its state-dict entries and its numbers; what `hardened()` returns.

        Raises:
            TypeError: `step` is no module, or its threshold is no number. ContractError: a module inside the step has
                entries in the state dict.
        """
        if not isinstance(step, nn.Module):
            raise TypeError(f"step must be a module, got {type(step).__name__}")
        exact = cls(bipolar=step.bipolar, **_places(step))
        exact.numbers = (*step.sharpness, "spacing")
        kept = step.state_dict().keys()
        if inside := [name for name in kept if "." in name]:
            raise ContractError(
                f"{type(step).__name__} holds {inside[0]} in a module inside it, which Heaviside.of cannot take over: "
                "keep it in the step itself, or write hardened() without Heaviside.of"
            )
        for name, tensor in step.named_buffers():
            exact.register_buffer(name, tensor, persistent=name in kept)
        for name, parameter in step.named_parameters():
            exact.register_parameter(name, parameter)
        for name, value in sharpness_of(step).items():
            setattr(exact, name, value)
        exact.fitted = getattr(step, "fitted", frozenset[str]())
        return exact.train(step.training)

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        warn_untrained(self, x)
        return exact_step(self, x)

    def extra_repr(self) -> str:
        return _flags(self).removeprefix(", ")


def exact_step(step: nn.Module, x: Tensor) -> Tensor:
    """What the exact step in place of a smooth one gives."""
    exact = functional.sign if getattr(step, "bipolar", False) else functional.heaviside
    return exact(x, **_places(step))


def thresholds_of(step: nn.Module) -> tuple[float, ...]:
    """The thresholds of a step, smooth or exact; (0.0,) of most."""
    return functional.thresholds(**_places(step))


def _places(step: object) -> dict[str, Any]:
    return {
        "levels": levels_of(step),
        "spacing": getattr(step, "spacing", None),
        "threshold": getattr(step, "threshold", 0.0),
    }


def level_of(step: nn.Module, x: Tensor) -> Tensor:
    """How many of its thresholds pre-activations reach, uint8 of the shape of x: of most steps a bit."""
    reached = [(x >= threshold).to(torch.uint8) for threshold in thresholds_of(step)]
    return torch.stack(reached).sum(0, dtype=torch.uint8) if len(reached) > 1 else reached[0]


def share_binary(step: nn.Module, y: Tensor) -> Tensor:
    """Which smooth outputs are nearly what the exact step gives, a bool tensor: above 0.99 or below 0.01, after mapping
    bipolar outputs to [0, 1]; with several levels, within 0.01 of a level's share of one."""
    y = (y + 1) / 2 if getattr(step, "bipolar", False) else y
    if (levels := levels_of(step)) > 1:
        y = (levels * y).frac()
    return (y > BINARY_ABOVE) | (y < BINARY_BELOW)


def warn_untrained(step: Heaviside, x: Tensor) -> None:
    """Say once that a step which runs in a training passes no gradient."""
    if torch.compiler.is_compiling() or not step.training or "_htaf_told" in step.__dict__:
        return
    if torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad:
        step.__dict__["_htaf_told"] = True
        warnings.warn(
            "the exact step has gradient 0, so the layers before it will not be trained: train the smooth network and "
            "harden it afterwards, or use StraightThrough; to measure only, call .eval() or use torch.no_grad()",
            stacklevel=3,
        )


def _set_levels(module: Any, levels: int, spacing: float | None) -> None:
    functional.thresholds(levels, spacing)  # raises for what is out of range
    module.levels, module.spacing = levels, float(functional.spacing_of(levels) if spacing is None else spacing)


def _register(module: nn.Module, name: str, value: float | Tensor) -> None:
    """Keep a parameter as a float attribute, a buffer, or (learnable) a parameter holding its logarithm."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise ValueError(f"{name} must be a float or a floating-point tensor, got dtype {value.dtype}")
        for entry in [] if value.is_meta else value.flatten().tolist():  # a meta tensor has no values to check
            check_positive(name, entry)
        value = value.detach().clone()
    else:
        value = check_positive(name, value)
    if module.learnable:
        module.register_parameter(f"log_{name}", nn.Parameter(torch.as_tensor(value, dtype=None).log()))
    elif isinstance(value, Tensor):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def _current(module: nn.Module, name: str) -> float | Tensor:
    return getattr(module, f"log_{name}").exp() if module.learnable else getattr(module, name)


def _least(value: float | Tensor) -> float:
    if not isinstance(value, Tensor):
        return value
    return math.inf if value.is_meta else value.min().item()


def _show(value: float | Tensor) -> str:
    if isinstance(value, Tensor) and (value.numel() > 1 or value.is_meta):
        return f"tensor{tuple(value.shape)}"
    return f"{value.item() if isinstance(value, Tensor) else value:g}"


def _name_of(slope: surrogates.Slope) -> str:
    """As `htaf(alpha0=1, alpha1=4)`; of a function that is no partial its name alone."""
    if not isinstance(slope, functools.partial):
        return getattr(slope, "__name__", str(slope))
    given = ", ".join(f"{key}={value:g}" for key, value in slope.keywords.items() if isinstance(value, float | int))
    return f"{getattr(slope.func, '__name__', slope.func)}({given})"


def _flags(module: nn.Module) -> str:
    flags = {"learnable": False, "bipolar": False, "threshold": 0.0, "levels": 1}
    changed = {name: getattr(module, name, usual) for name, usual in flags.items()}
    changed = {name: value for name, value in changed.items() if value != flags[name]}
    if "threshold" in changed:
        changed["threshold"] = f"{module.threshold:.6g}"
    if "levels" in changed:
        changed["spacing"] = f"{module.spacing:g}"
    return "".join(f", {name}={value}" for name, value in changed.items())
