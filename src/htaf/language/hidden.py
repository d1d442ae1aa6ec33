"""Hidden states of the original, computed once and kept on disk: a training of the last layers starts from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Float, Int
from torch import Tensor, nn

from htaf._files import LOCK, naming, write_atomic
from htaf.language.gates import decoder_of
from htaf.runs import content_hash

CHUNK = 16  # blocks between two notes of what is done


@dataclass(frozen=True)
class Hidden:
    """Blocks of tokens with what the original computes of them, memory-mapped.

    tokens: the blocks. inputs: of the first converted layer. outputs: of the last layer, before the final norm.
    """

    tokens: Int[Tensor, "blocks length"]
    inputs: np.memmap
    outputs: np.memmap
    dtype: torch.dtype

    def at(self, rows: Tensor, device: torch.device | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens, inputs, outputs) of some blocks."""
        chosen = rows.numpy()
        found = self.tokens[rows], self._tensor(self.inputs[chosen]), self._tensor(self.outputs[chosen])
        return found if device is None else tuple(v.to(device) for v in found)  # pyright: ignore[reportReturnType]

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).view(self.dtype)


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
    decoder, parameter = decoder_of(model), next(model.parameters())
    dtype = torch.bfloat16 if half else parameter.dtype
    plain = np.dtype("float32") if dtype == torch.float32 else np.dtype("uint16")  # numpy has no bfloat16
    layers, size = len(decoder.layers), decoder.config.hidden_size
    key = content_hash([identity, str(dtype), start, layers, tokens.tolist()])
    folder = Path(folder) / key[:16]  # other tokens, layers or models have another
    folder.mkdir(parents=True, exist_ok=True)
    note, shape, row = (
        folder / "hidden.json",
        (len(tokens), tokens.shape[1], size),
        tokens.shape[1] * size * plain.itemsize,
    )
    files = [folder / name for name in ("inputs.bin", "outputs.bin")]
    with FileLock(folder / LOCK):  # another process may compute the same
        known, done = list[str](), 0
        for digest in _known(note, key) if all(file.is_file() for file in files) else []:
            end = min(done + CHUNK, len(tokens))
            if digest != _digest([_part(file, done * row, (end - done) * row) for file in files]):
                break  # damaged: computed again from here
            known, done = [*known, digest], end
        while done < len(tokens):
            end = min(done + CHUNK, len(tokens))
            found: list[list[bytes]] = [[], []]
            for number in range(done, end):
                with autocast(parameter.device, half):
                    states = _capture(model, tokens[number : number + 1].to(parameter.device), start)
                for kept, values in zip(found, states, strict=True):
                    values = values[0].to(dtype).cpu().contiguous()
                    kept.append((values if dtype == torch.float32 else values.view(torch.uint16)).numpy().tobytes())
            for file, kept in zip(files, found, strict=True):
                with naming(file), file.open("r+b" if file.exists() else "wb") as opened:
                    opened.seek(done * row)
                    opened.write(b"".join(kept))
                    opened.truncate()
            done = end
            known.append(_digest([b"".join(kept) for kept in found]))
            write_atomic(note, json.dumps({"key": key, "sha256": known}))
            if tell is not None:
                tell(done, len(tokens))
    read = [np.memmap(file, plain, "r", shape=shape) for file in files]
    return Hidden(tokens, read[0], read[1], dtype)


def autocast(device: torch.device, half: bool, learning: bool = False) -> torch.autocast:
    """Products in bfloat16, sums and weights as they are; half: whether.

    learning: weights change while it is open, so that none is kept as it was when it was first rounded.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=not learning)


def _known(note: Path, key: str) -> list[str]:
    """The SHA-256 of each `CHUNK` blocks of the same states that are there."""
    try:
        kept = json.loads(note.read_text())
        return list(kept["sha256"]) if kept["key"] == key else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _part(file: Path, begin: int, size: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(begin)
        return opened.read(size)


def _digest(parts: list[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def _capture(model: nn.Module, tokens: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """What goes into layer `start`, and what comes out of the last layer."""
    layers, kept = decoder_of(model).layers, list[Tensor]()

    def before(module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        kept.append(args[0] if args else given["hidden_states"])

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        kept.append(output[0] if isinstance(output, tuple) else output)

    handles = [
        layers[start].register_forward_pre_hook(before, with_kwargs=True),
        layers[-1].register_forward_hook(after),
    ]
    try:
        decoder_of(model)(input_ids=tokens, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return kept[0], kept[1]


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
def starting_at(
    model: nn.Module, start: int, caller: Any = None
) -> Iterator[Callable[[Tensor, Float[Tensor, "blocks length size"]], Tensor]]:
    """While it is open the layers below `start` are not run: the function takes (tokens, inputs of layer `start`) and
    returns the logits [blocks, length, vocabulary]. With `start` = the number of layers these are the head's alone.

    Tokens only say how many there are. `start` must be > 0.

    Args:
        caller: what is called instead of the model, such as its decoder; its first output is returned.
    """
    layers = decoder_of(model).layers
    kept = list(layers[:start])
    for number, layer in enumerate(kept):
        layers[number] = _Skipped(layer)
    last: Any = layers[start - 1]

    def run(tokens: Tensor, hidden: Tensor) -> Tensor:
        last.hidden = hidden
        try:
            return (model if caller is None else caller)(input_ids=tokens, use_cache=False)[0]
        finally:
            last.hidden = None

    try:
        yield run
    finally:
        for number, layer in enumerate(kept):
            layers[number] = layer


@contextmanager
def running(
    model: Any, start: int
) -> Iterator[tuple[Callable[[Tensor, Tensor], list[Tensor]], Callable[[Tensor], Tensor]]]:
    """The layers from `start` on as a function of (tokens, inputs of layer `start`), which gives the outputs of these
    layers, and the head as a function of outputs of the last layer, which gives logits."""
    decoder = decoder_of(model)
    kept: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        kept.append(output[0] if isinstance(output, tuple) else output)

    handles = [layer.register_forward_hook(keep) for layer in decoder.layers[start:]]

    def layers(tokens: Tensor, hidden: Tensor) -> list[Tensor]:
        kept.clear()
        if start == 0:
            decoder(input_ids=tokens, use_cache=False)
        else:
            with starting_at(model, start, decoder) as run:
                run(tokens, hidden)
        return list(kept)

    def head(hidden: Tensor) -> Tensor:
        tokens = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
        with starting_at(model, len(decoder.layers)) as run:
            return run(tokens, hidden)

    try:
        yield layers, head
    finally:
        kept.clear()
        for handle in handles:
            handle.remove()
