"""A trained ReLU network made spiking: rate coding with balanced thresholds, the yardstick of directly trained SNNs.

    ReLU(x) ~ (s / T) * (number of spikes in T steps of an integrate-and-fire neuron with threshold s)

`to_spiking` measures s for every activation on batches of training data and returns a `SpikingModel`.

Source: Rueckauer et al. 2017, doi:10.3389/fnins.2017.00682; balancing as in spikingjelly's `ann2snn.Converter`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf import convert
from htaf.activations import Remembering
from htaf.convert import functional_sites as functional
from htaf.convert.finding import Site, check_fit
from htaf.convert.transforms import with_account
from htaf.kernels.formulas import compute_dtype
from htaf.spiking.calibration import Mode, ThresholdRecorder, Watch, check, other_calls
from htaf.spiking.fusion import fuse_batch_norm

STEPS = (10, 30, 50, 100, 200)


@final
class BalancedIF(Remembering):
    """Integrate-and-fire neurons in the place of a ReLU: threshold s, reset by subtraction, spikes of height s.

        v[t] = u[t-1] + x[t],   z[t] = H(v[t] - s),   u[t] = v[t] - s z[t],   output s z[t],   u[0] = v0 s

    The same as `htaf.IF(Heaviside(), threshold=s, reset="soft")`, scaled by s and computed in place. It runs only
    inside a `SpikingModel`, which holds the membrane potentials.

    Args:
        thresholds: s > 0, [calls]: one for each time the module runs in a forward of its model.
        v0: membrane potential at rest in units of s.
    """

    thresholds: Tensor
    settings = ("v0",)

    def __init__(self, thresholds: Float[Tensor, " calls"], v0: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("thresholds", thresholds)
        self.v0 = float(v0)
        self._membrane: _Membrane | None = None

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        membrane = self._membrane
        if membrane is None:
            raise RuntimeError("BalancedIF: expected to run inside a SpikingModel, which holds its membrane potentials")
        call, membrane.calls = membrane.calls, membrane.calls + 1
        if call >= len(self.thresholds):
            raise RuntimeError(other_calls(len(self.thresholds), f"at least {call + 1}"))
        s = self.thresholds[call]
        if call == len(membrane.v):
            membrane.v.append(torch.full_like(x, self.v0, dtype=compute_dtype(x)).mul_(s))
            membrane.out.append(torch.empty_like(x))
        v, out = membrane.v[call], membrane.out[call]
        torch.ge(v.add_(x), s, out=out)
        v.sub_(out.mul_(s))
        return out

    def extra_repr(self) -> str:
        shown = ", ".join(f"{s:g}" for s in self.thresholds.tolist())
        return f"thresholds=[{shown}]" + (f", v0={self.v0:g}" if self.v0 else "")


class _Membrane:
    """Membrane potentials of one BalancedIF, one tensor a call, and the tensors that its outputs are written to."""

    def __init__(self) -> None:
        self.v: list[Tensor] = []
        self.out: list[Tensor] = []
        self.calls = 0


@final
class SpikingModel(nn.Module):
    """A network with `BalancedIF` neurons, run for T steps on a constant input; its output is the mean over the steps.

    Every call starts from rest and leaves nothing behind; runs may be interleaved, but not in threads. Inference
    only: without gradients, in eval mode.

    Attributes:
        network: the converted network, one step of time.

    Made by `to_spiking`; `htaf.convert.conversion` gives the account.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @property
    def neurons(self) -> dict[str, BalancedIF]:
        """Path in the network -> neuron, each once."""
        return {path: module for path, module in self.network.named_modules() if isinstance(module, BalancedIF)}

    def forward(self, x: Float[Tensor, " batch *shape"], steps: int = STEPS[-1]) -> Float[Tensor, " batch *out"]:
        """The mean output over `steps` steps, from rest.

        Raises:
            ValueError: steps < 1, or the model is in training mode.
        """
        return next(iter(self.run(x, (steps,))))[1]

    def run(
        self, x: Float[Tensor, " batch *shape"], steps: Sequence[int] = STEPS
    ) -> Iterator[tuple[int, Float[Tensor, " batch *out"]]]:
        """Mean outputs at several T in one pass of max(steps) steps.

        Args:
            x: the input, the same at every step.
            steps: values of T, increasing.

        Returns:
            (T, mean output over the first T steps), one after the other, as they are computed.

        Raises:
            ValueError: steps are not increasing integers >= 1, or the model is in training mode.
        """
        wanted = list(steps)
        whole = all(isinstance(t, int) and t >= 1 for t in wanted)
        if not wanted or not whole or any(a >= b for a, b in itertools.pairwise(wanted)):
            raise ValueError(f"steps must be increasing integers >= 1, got {wanted}")
        if self.training:
            raise ValueError("expected a SpikingModel in eval mode, got one in training mode: call eval()")
        return self._run(x, wanted)

    def _run(self, x: Tensor, steps: list[int]) -> Iterator[tuple[int, Tensor]]:
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        membranes, total = [(neuron, _Membrane()) for neuron in self.neurons.values()], None
        for t in range(1, steps[-1] + 1):
            with torch.no_grad():
                out = self._step(x, membranes)
                total = torch.zeros_like(out, dtype=compute_dtype(out)) if total is None else total
                total += out
                mean = (total / t).to(out.dtype) if t in steps else None
            if mean is not None:
                yield t, mean

    def _step(self, x: Tensor, membranes: list[tuple[BalancedIF, _Membrane]]) -> Tensor:
        try:
            for neuron, membrane in membranes:
                neuron._membrane, membrane.calls = membrane, 0
            out = self.network(x.clone())  # which may begin with an operation in place
        finally:
            for neuron, _ in membranes:
                neuron._membrane = None
        for neuron, membrane in membranes:
            if membrane.calls != len(neuron.thresholds):
                raise RuntimeError(other_calls(len(neuron.thresholds), str(membrane.calls)))
        return out


def to_spiking(
    model: nn.Module,
    batches: Iterable[Tensor | Sequence[Tensor]],
    *,
    mode: Mode = "max",
    percentile: float = 99.9,
    momentum: float | None = 0.1,
    fuse: bool = True,
    v0: float = 0.0,
    strict: bool = True,
) -> SpikingModel:
    """Convert a trained ReLU network to a spiking one by threshold balancing.

    Every ReLU, module or functional call, becomes a `BalancedIF` whose threshold s is measured on the batches. The
    output tends to that of the ReLU network as T grows if no activation passes its s and everything else is affine
    (convolutions, linear maps, batch normalisation, average pooling, sums); for one layer the error is at most s / T.

    Args:
        model: a trained network; not changed, and copied in eval mode.
        batches: inputs, or (inputs, ...) of which the first counts; training data. The first one also serves as the
            example by which functional calls are found.
        mode: "max": s is the largest activation of a batch; "percentile": that percentile of all its activations
            (zeros too); a float in (0, 1]: that fraction of the largest.
        percentile: in (0, 100], with linear interpolation.
        momentum: s is the moving average s + momentum (s_batch - s) over the batches, as in spikingjelly; None: the
            largest s_batch.
        fuse: fold batch normalisation into the convolution whose output it takes, if nothing else does; elsewhere it
            stays, an affine map too.
        v0: membrane potential at rest in units of s; 0 as published, 0.5 halves the error bound (Bu et al. 2022,
            arXiv:2202.01440).
        strict: raise where something known not to be affine is found beside ReLU (max pooling, other activations,
            softmax, layer norm); False: keep it, applied at every step, with a warning.

    Returns:
        The spiking model in eval mode, weights in channels-last layout.

    Raises:
        ValueError: a bad argument, no batch, no ReLU, something that `strict` forbids, or an activation whose s is
            not > 0 and finite.
        TypeError: the model is no module, `batches` cannot be gone through, a batch is no tensor, or the model takes
            more than one.
    """
    check(mode, percentile, momentum, v0)
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a model that is a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(batches, Iterable):
        shown = type(batches).__name__
        raise TypeError(f"batches must be batches of training data, such as a list of tensors, got {shown}")
    inputs = _inputs(batches, model)
    first = next(inputs, None)
    if first is None:
        raise ValueError("batches must hold at least one batch, got none")
    check_fit(model, (first,), {})
    plain = fuse_batch_norm(model, first.clone()) if fuse else functional.duplicate(model).eval()
    found = convert.sites(plain, first.clone())
    if not any(map(_is_relu, found)):
        seen = ", ".join(map(str, found)) or "no activation"
        raise ValueError(f"expected a ReLU that runs in {type(model).__name__}, got {seen}")
    recording = convert.replace(
        plain, partial(ThresholdRecorder, mode, percentile, momentum), where=_is_relu, example=first.clone()
    ).eval()
    account = convert.conversion(recording)
    recorders = {path: module for path, module in recording.named_modules() if isinstance(module, ThresholdRecorder)}
    watch = Watch()
    for x in itertools.chain([first], inputs):
        with torch.no_grad(), watch:
            recording(x.clone())
        for path, recorder in recorders.items():
            recorder.end_batch(path)
    _refuse(account, watch.seen, strict)
    neurons = {id(recorder): BalancedIF(recorder.thresholds(path), v0) for path, recorder in recorders.items()}
    spiking = SpikingModel(recording)
    for path, module in list(spiking.named_modules(remove_duplicate=False)):
        if id(module) in neurons:
            parent, _, name = path.rpartition(".")
            functional.keep_hooks(neurons[id(module)], module)
            spiking.get_submodule(parent)._modules[name] = neurons[id(module)]
    spiking.requires_grad_(False).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    with_account(spiking, account)
    return spiking.eval()


def _is_relu(site: Site) -> bool:
    return site.kind == "relu" and site.calls != 0


def _refuse(account: convert.Conversion, functions: set[str], strict: bool) -> None:
    others = [str(site) for site in account.left if site.calls != 0] + [*account.beyond, *sorted(functions)]
    if not others:
        return
    text = f"expected only affine maps and ReLU, got {', '.join(others)}"
    if strict:
        raise ValueError(f"{text}: use average pooling and ReLU, or strict=False to keep them with their error")
    warnings.warn(f"{text}: they act at every step, so the mean output need not tend to the network's", stacklevel=3)


def _inputs(batches: Iterable[Tensor | Sequence[Tensor]], model: nn.Module) -> Iterator[Tensor]:
    """The inputs of the batches, on the device of the model."""
    device = next((tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())), None)
    for batch in batches:
        x = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        if not isinstance(x, Tensor):
            raise TypeError(
                f"batches must hold tensors, or tuples that begin with one, got {type(x).__name__}; a model that takes "
                "something else needs a module around it that takes one tensor"
            )
        if len(x) == 0:
            raise ValueError(f"a batch must hold at least one input, got shape {tuple(x.shape)}")
        yield x.to(device)
