"""Hidden states of the original, computed once and kept on disk: a training of the last layers starts from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from filelock import FileLock
from jaxtyping import Float, Int
from torch import Tensor, nn

from htaf._ground.files import read_seal, sealed_tensors, write_atomic
from htaf.language.gates import decoder_of
from htaf.training.runs import content_hash
from htaf.transform.convert.modes import hooked

FORMAT = 2  # of the files
CHUNK = 16  # blocks in a file


@dataclass(frozen=True)
class Hidden:
    """Blocks of tokens with what the original computes of them, mapped from files.

    tokens: the blocks. parts: of each `CHUNK` blocks "inputs", of the first converted layer, and "outputs", of the last
    layer, before the final norm; [blocks, length, size] each.
    """

    tokens: Int[Tensor, "blocks length"]
    parts: list[dict[str, Tensor]]

    def at(self, rows: Tensor, device: torch.device | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens, inputs, outputs) of some blocks."""
        places = [divmod(row, CHUNK) for row in rows.tolist()]
        inputs, outputs = (
            torch.stack([self.parts[part][name][row] for part, row in places]) for name in ("inputs", "outputs")
        )
        return self.tokens[rows].to(device), inputs.to(device), outputs.to(device)


@torch.no_grad()
def hidden_states(
    model: nn.Module,
    tokens: Int[Tensor, "blocks length"],
    start: int,
    folder: str | Path,
    *,
    half: bool = False,
    identity: Any = None,
    tell: Callable[[int, int], None] | None = None,
) -> Hidden:
    """Run the original over all blocks and keep its hidden states; go on where an earlier call was stopped.

    Args:
        model: the original, in eval mode.
        tokens: blocks without padding.
        start: number of the first layer that will be converted.
        folder: for the files, which lie below it in a folder of their own for these tokens, layer and model.
        half: compute and keep them in bfloat16.
        identity: what the model is, such as a hash of its files.
        tell: called with (blocks done, of how many).

    Raises:
        OSError: the disk is full; what was done stays.
    """
    parameter, layers = next(model.parameters()), len(decoder_of(model).layers)
    dtype = torch.bfloat16 if half else parameter.dtype
    key = content_hash([FORMAT, identity, str(dtype), start, layers, tokens.tolist()])
    folder = Path(folder) / key[:16]  # other tokens, layers, models or formats have another

    def computed(some: Tensor) -> tuple[dict[str, Tensor], None]:
        with autocast(parameter.device, half):
            found = [states_of(model, block.to(parameter.device), start) for block in some.split(1)]
        inputs, outputs = (torch.cat(states).to("cpu", dtype) for states in zip(*found, strict=True))
        return {"inputs": inputs, "outputs": outputs}, None

    parts = []
    for number, some in enumerate(tokens.split(CHUNK)):
        part = kept(folder / f"{number:05}.safetensors", partial(computed, some))
        parts.append(part.tensors)
        if part.made and tell is not None:
            tell(number * CHUNK + len(some), len(tokens))
    return Hidden(tokens, parts)


def autocast(device: torch.device, half: bool, learning: bool = False) -> torch.autocast:
    """Products in bfloat16, sums and weights as they are; half: whether.

    learning: weights change while it is open, so that none is kept as it was when it was first rounded.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=not learning)


def states_of(model: nn.Module, tokens: Tensor, start: int, end: int | None = None) -> tuple[Tensor, Tensor]:
    """Return what goes into layer `start`, and what comes out of the last layer in front of `end`; None: of all
    layers."""
    layers, found = decoder_of(model).layers, list[Tensor]()
    with _skipping(model, range(len(layers) if end is None else end, len(layers))):
        before = layers[start].register_forward_pre_hook(
            lambda module, args, given: found.append(args[0] if args else given["hidden_states"]), with_kwargs=True
        )
        after = layers[-1].register_forward_hook(lambda module, args, output: found.append(output_of(output)))
        with hooked([before, after]):
            decoder_of(model)(input_ids=tokens, use_cache=False)
    return found[0], found[1]


def output_of(output: Any) -> Tensor:
    """Return the hidden states that a layer gives, some beside other things."""
    return output[0] if isinstance(output, tuple) else output


class _Skipped(nn.Module):
    """Stands where a layer is not run; gives `hidden` on."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name, value in vars(layer).items():  # a decoder asks its layers for the kind of their attention
            if not name.startswith("_") and name not in ("training", "forward"):
                self.__dict__[name] = value
        self.hidden: Tensor | None = None

    def forward(self, hidden_states: Tensor, *args: Any, **given: Any) -> Tensor:
        return hidden_states if self.hidden is None else self.hidden


@contextmanager
def _skipping(model: nn.Module, numbers: Iterable[int]) -> Iterator[list[_Skipped]]:
    """While it is open some layers are not run; gives what stands in their places."""
    layers = decoder_of(model).layers
    away = {number: layers[number] for number in numbers}
    for number, layer in away.items():
        layers[number] = _Skipped(layer)
    try:
        yield [layers[number] for number in away]
    finally:
        for number, layer in away.items():
            layers[number] = layer


@contextmanager
def starting_at(
    model: nn.Module, start: int, caller: Any = None
) -> Iterator[Callable[[Tensor, Float[Tensor, "blocks length size"]], Tensor]]:
    """While it is open the layers below `start` are not run: the function takes (tokens, inputs of layer `start`) and
    returns the logits [blocks, length, vocabulary]. With `start` = the number of layers these are the head's alone.

    Tokens only say how many there are. `start` must be > 0.

    Args:
        caller: what is called instead of the model, such as its decoder; its first output is returned.
    """
    with _skipping(model, range(start)) as skipped:

        def run(tokens: Tensor, hidden: Tensor) -> Tensor:
            skipped[-1].hidden = hidden
            try:
                return (model if caller is None else caller)(input_ids=tokens, use_cache=False)[0]
            finally:
                skipped[-1].hidden = None

        yield run


@contextmanager
def running(
    model: Any, start: int, end: int | None = None
) -> Iterator[tuple[Callable[[Tensor, Tensor], list[Tensor]], Callable[[Tensor], Tensor]]]:
    """The layers from `start` on, or those in front of `end`, as a function of (tokens, inputs of layer `start`), which
    gives the outputs of these layers, and the head as a function of outputs of the last layer, which gives logits."""
    decoder = decoder_of(model)
    count = len(decoder.layers)
    end = count if end is None else end
    made: list[Tensor] = []

    def layers(tokens: Tensor, hidden: Tensor) -> list[Tensor]:
        made.clear()
        with _skipping(model, range(end, count)):
            if start == 0:
                decoder(input_ids=tokens, use_cache=False)
            else:
                with starting_at(model, start, decoder) as run:
                    run(tokens, hidden)
        return list(made)

    def head(hidden: Tensor) -> Tensor:
        tokens = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
        with starting_at(model, count) as run:
            return run(tokens, hidden)

    with hooked(
        layer.register_forward_hook(lambda module, args, output: made.append(output_of(output)))
        for layer in decoder.layers[start:end]
    ):
        yield layers, head
    made.clear()


class Kept(NamedTuple):
    """Tensors, mapped from their file, and what is said of them; made: whether they were computed just now."""

    tensors: dict[str, Tensor]
    about: Any
    made: bool


def kept(file: Path, make: Callable[[], tuple[Mapping[str, Tensor], Any]]) -> Kept:
    """Read a file of tensors, or compute it where it is missing or damaged. Other processes wait meanwhile.

    Args:
        make: gives the tensors, contiguous, and what is said of them, which JSON can hold.

    Raises:
        OSError: the disk is full.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        try:
            with file.open("rb") as opened:
                made = not read_seal(opened)[1]
        except (OSError, ValueError):
            made = True
        if made:
            tensors, about = make()
            write_atomic(file, sealed_tensors(tensors, {"about": json.dumps(about)}))
        with safetensors.safe_open(file, "pt") as opened:
            read = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return Kept(read, json.loads(opened.metadata()["about"]), made)
