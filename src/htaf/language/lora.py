"""Training of the last layers: LoRA, thresholds and scales learn to do with 0/1 gates what the original does.

A step costs the last layers and the head alone: it starts from the original's hidden states, which are kept on disk.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from htaf._ground.compat import no_trace
from htaf._ground.files import write_atomic
from htaf.core.activations import HTAF, Heaviside, ScaledSigmoid, StraightThrough
from htaf.core.sharpening import Geometric, set_sharpness
from htaf.language.gates import decoder_of, gates_of
from htaf.language.hidden import Hidden, autocast, running
from htaf.language.losses import hidden_losses, next_token_losses
from htaf.language.options import SHARPEN, LanguageError, Training
from htaf.training.runs import content_hash

CHECKPOINT = "checkpoint.pt"


def first_step(training: Training) -> nn.Module:
    """Return a step as the training begins."""
    match training.method:
        case "htaf":
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="alpha1")  # it grows
                return HTAF(*training.ends[0])
        case "ss":
            return ScaledSigmoid(*training.ends[0])
        case "ste":
            return StraightThrough()


@dataclass(frozen=True)
class Measured:
    """A validation after so many steps; all in nats.

    train: mean training loss since the validation before, None in front of the first step.
    kl, loss: of the network with exact gates, the KL divergence from the original and the negative log-likelihood of
        the text.
    """

    step: int
    train: float | None
    kl: float
    loss: float


class _Through(nn.Module):
    """The exact step with the gradient of a smooth one: of gates that are exact already."""

    def __init__(self, smooth: nn.Module) -> None:
        super().__init__()
        self.smooth = smooth

    def forward(self, x: Tensor) -> Tensor:
        soft = self.smooth(x)
        return soft + ((x >= 0).to(soft.dtype) - soft).detach()


def adapted(model: Any, training: Training) -> Any:
    """Return a calibrated model with LoRA on every projection of the layers that have gates, as peft's model; only LoRA
    and the gates learn."""
    with no_trace():
        from peft import LoraConfig, get_peft_model

    decoder, layers = decoder_of(model), gates_of(model)
    inside = {id(module) for number in layers for module in decoder.layers[number].modules()}
    targets = [p for p, m in model.named_modules() if isinstance(m, nn.Linear) and id(m) in inside]
    config = LoraConfig(r=training.rank, lora_alpha=training.lora_alpha, target_modules=targets, lora_dropout=0.0)
    device = next(model.parameters()).device
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing")  # peft asks by its old name
        torch.manual_seed(training.seed)
        made = get_peft_model(model, config)
    for gate in layers.values():
        for parameter in (gate.threshold, gate.scale):
            parameter.requires_grad_(True)
    return made


def train(
    model: Any,
    training: Training,
    hidden: Hidden,
    validation: Hidden,
    folder: str | Path,
    *,
    tell: Callable[[Measured], None] | None = None,
    advance: Callable[[int, int], None] | None = None,
    checkpoint_seconds: float = 120.0,
) -> list[Measured]:
    """Train a calibrated model in place, and leave it with exact gates, the best weights and LoRA merged.

    Args:
        model: calibrated, see `calibrate`.
        hidden: of the training blocks. validation: of others, by which the best step is chosen.
        folder: for the checkpoint; a training that was stopped goes on from it to the same bits.
        tell: called after each validation. advance: called after each step with how many are done, and of how many.
        checkpoint_seconds: between two checkpoints; there is one after each validation too.

    Returns:
        The validations, the one before the first step included.

    Raises:
        LanguageError: the loss became NaN or infinite, or the checkpoint is damaged or of another training. OSError:
            the disk is full; what was done stays.
    """
    folder, layers = Path(folder), sorted(gates_of(model))
    folder.mkdir(parents=True, exist_ok=True)
    key = content_hash([asdict(training), layers, list(hidden.tokens.shape), hidden.tokens.sum().item()])
    wrapped = adapted(model, training)
    learned = {name: p for name, p in wrapped.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(learned.values(), training.lr, weight_decay=0.0)
    state = _restored(folder / CHECKPOINT, key, learned, optimizer)
    done, told, best = state["step"], [Measured(**row) for row in state["told"]], state["best"]
    for gate in gates_of(model).values():
        gate.step = first_step(training)
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    start, summed, count = layers[0], state["summed"], state["count"]
    schedule = Geometric(*training.ends, SHARPEN) if training.method != "ste" else None
    half = training.precision == "bfloat16"
    with ExitStack() as stack:
        run, head = stack.enter_context(running(model, start))
        stack.enter_context(_frozen_in_half(model, half))
        stack.enter_context(autocast(device, half, learning=True))
        if not told:
            told.append(_validate(model, run, head, validation, dtype, 0, None))
            best = {name: p.detach().clone() for name, p in learned.items()}
            if tell is not None:
                tell(told[-1])
        kept = time.monotonic()
        while done < training.steps:
            exact = training.exact(done, layers)
            _settle(model, exact, None if schedule is None else schedule.at(done / training.steps))
            tokens, inputs, outputs = hidden.at(_rows(training, len(hidden.tokens), done), device)
            made = run(tokens, inputs.to(dtype))
            weights = (training.distil, 1 - training.distil)
            loss = next_token_losses(head, made[-1], outputs.to(dtype), tokens, weights).weighted
            if not torch.isfinite(loss):
                raise LanguageError(f"the training loss became {loss.item()} at step {done}: choose a smaller lr")
            optimizer.param_groups[0]["lr"] = training.lr * training.rate(done)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(list(learned.values()), 1.0)
            optimizer.step()
            done, summed, count = done + 1, summed + loss.item(), count + 1
            validated = done % training.validate == 0 or done == training.steps
            if validated:
                told.append(_validate(model, run, head, validation, dtype, done, summed / count))
                summed, count = 0.0, 0
                if _score(told[-1], training) <= min(_score(row, training) for row in told):
                    best = {name: p.detach().clone() for name, p in learned.items()}
                if tell is not None:
                    tell(told[-1])
            if advance is not None:
                advance(done, training.steps)
            if validated or time.monotonic() - kept >= checkpoint_seconds:
                kept = time.monotonic()
                _keep(folder / CHECKPOINT, key, learned, optimizer, done, told, best, summed, count)
    with torch.no_grad():
        for name, parameter in learned.items():
            parameter.copy_(best[name])
    for gate in gates_of(model).values():
        gate.step = Heaviside()
    wrapped.merge_and_unload()
    return told


def _score(row: Measured, training: Training) -> float:
    return training.distil * row.kl + (1 - training.distil) * row.loss


def _rows(training: Training, blocks: int, step: int) -> Tensor:
    """Return the blocks of a step: every block once, in random order, before any comes again."""
    each = min(training.batch_size, blocks)
    steps = blocks // each
    generator = torch.Generator().manual_seed(training.seed * 1_000_003 + step // steps)
    return torch.randperm(blocks, generator=generator)[(step % steps) * each :][:each].sort().values


@contextmanager
def _frozen_in_half(model: nn.Module, half: bool) -> Iterator[None]:
    """While it is open float32 weights that do not learn are bfloat16; then they are what they were."""
    frozen = [p for p in model.parameters() if half and not p.requires_grad and p.dtype == torch.float32]
    kept = [(p, p.data.cpu(), p.device) for p in frozen]  # an accelerator holds the rounded ones alone
    for parameter in frozen:
        parameter.data = parameter.data.bfloat16()
    try:
        yield
    finally:
        for parameter, values, device in kept:
            parameter.data = values.to(device)


def _settle(model: nn.Module, exact: Sequence[int], values: tuple[float, ...] | None) -> None:
    """Make some layers exact, and give all smooth steps their sharpness."""
    if values is None:
        return
    for number, gate in gates_of(model).items():
        if number in exact and not isinstance(gate.step, _Through):
            gate.step = _Through(gate.step)
    set_sharpness(model, values)


@contextmanager
def exact_gates(model: nn.Module) -> Iterator[None]:
    """While it is open all gates have the exact step."""
    kept = {number: gate.step for number, gate in gates_of(model).items()}
    for gate in gates_of(model).values():
        gate.step = Heaviside()
    try:
        yield
    finally:
        for number, gate in gates_of(model).items():
            gate.step = kept[number]


@torch.no_grad()
def _validate(
    model: Any, run: Any, head: Any, hidden: Hidden, dtype: torch.dtype, step: int, train: float | None
) -> Measured:
    with exact_gates(model):
        found = hidden_losses(run, head, hidden, next(model.parameters()).device, dtype)
    return Measured(step, train, found.kl, found.likelihood)


def _keep(
    file: Path, key: str, learned: dict[str, Any], optimizer: Any, step: int, told: Sequence[Measured],
    best: dict[str, Tensor], summed: float, count: int,
) -> None:  # fmt: skip
    content = {
        "key": key, "step": step, "weights": {n: p.detach() for n, p in learned.items()}, "best": best,
        "optimizer": optimizer.state_dict(), "told": [asdict(row) for row in told], "summed": summed, "count": count,
    }  # fmt: skip
    buffer = BytesIO()
    torch.save(content, buffer)
    write_atomic(file, buffer.getvalue())


def _restored(file: Path, key: str, learned: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """Return the state of a training that was stopped, put back; that of a new one where there is no checkpoint."""
    if not file.is_file():
        return {"step": 0, "told": [], "best": {}, "summed": 0.0, "count": 0}
    try:
        state = torch.load(file, weights_only=True, map_location="cpu")
        found = state["key"]
    except Exception as error:
        raise LanguageError(f"{file} is damaged ({error}): delete it to train anew") from None
    if found != key:
        raise LanguageError(f"{file} is of another training: give another folder, or delete it")
    with torch.no_grad():
        for name, parameter in learned.items():
            parameter.copy_(state["weights"][name])
    optimizer.load_state_dict(state["optimizer"])
    return state
