"""Hardening step by step: at each stage further steps become exact for good, and what lies above them learns on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from htaf import convert, hardening
from htaf.activations import Heaviside
from htaf.contract import looks_smooth
from htaf.convert.modes import evaluating
from htaf.data.parts import Part
from htaf.hardening.report import expect_batches
from htaf.training._lightning import Callback, L
from htaf.training.recipe import Hardening, Schedule
from htaf.training.stages import Mask, Stages, momentum, rate

STRENGTHS = (None, 1.0)  # of the repair's ridge; None: each layer's own, by half of the batches
Batches = Sequence[Any]  # of (inputs, targets)
_KEPT = ("stage", "best", "best_loss", "best_epoch", "smooth", "smooth_epoch", "told")


def step_names(net: nn.Module, example: Tensor) -> list[str]:
    """The smooth steps of a network in order of first run, by their paths; those that never run come last."""
    found = convert.sites(net, example)
    return [site.path for site in found if site.module_type is not None and hasattr(site.module_type, "hardened")]


class Progressive(Callback):
    """Hardens the `net` of a LightningModule stage by stage, exactly so after a resume.

    At the beginning of a stage the best weights so far come back, the stage's steps become exact for good, the next
    layers are repaired, what no gradient reaches any more is frozen, and the optimizer starts anew (with `restart`).
    With `straight_through` nothing is frozen: the gradient of an exact step is that of the smooth one.
    The learning rate is then this callback's: the module has no scheduler of its own. The module logs val_loss_smooth,
    the validation loss of the network as it then is. At a stage `net` is exchanged for another module with the same
    parameter and buffer tensors: read the attribute each time. After the training it has the last weights; `best` has
    those of the last repair, of loss `best_loss`. All that is used of the module: docs/training-exact.md.

    Args:
        stages: when which steps become exact, of as many epochs as the trainer has.
        fitting: batches of the training part, not augmented, for the repair.
        validation: batches by whose loss the repair is chosen.
        loss: of outputs and targets.
        options: restart, repair, unit of the masks, distillation. Its noise, recalibrate and refit are not read: these
            are of `htaf.training.fit`.
        schedule, lr_end: of the learning rate; lr_end as a share of lr.
        seed: of the masks.
        settled: epoch from which the activation's parameters stay as they are; weights of before count with the worse
            of val_loss_smooth and val_loss, that of the exact network.

    Raises:
        ValueError: options without harden progressive, or no batches. In training also: a scheduler, other epochs than
            those of stages, or no val_loss_smooth.
        TypeError: batches that can be gone through only once. In training also: a module without net, or with distil
            without teach.
    """

    def __init__(
        self,
        stages: Stages,
        fitting: Batches,
        validation: Iterable[Any],
        loss: Callable[[Tensor, Tensor], Tensor],
        options: Hardening,
        *,
        schedule: Schedule = "one_cycle",
        lr_end: float = 0.0,
        seed: int = 0,
        settled: int = 0,
    ) -> None:
        if options.harden != "progressive":
            raise ValueError(f"expected options with harden progressive, got harden {options.harden}")
        expect_batches(fitting, validation)
        self.stages, self.fitting, self.validation, self.loss = stages, fitting, validation, loss
        self.options, self.lr_end, self.seed, self.settled = options, lr_end, seed, settled
        self.schedule: Schedule = schedule
        self.masks: dict[str, Mask] = {}
        self.stage = 0
        self.best: dict[str, Tensor] = {}
        self.best_loss, self.best_epoch = math.inf, -1
        self.smooth: dict[str, Tensor] = {}  # as the network was before the first stage, at its best
        self.smooth_epoch = -1
        self.still: list[str] = []  # norms whose inputs move no more
        self._handles: list[Any] = []
        self.told: list[dict[str, Any]] = []

    @property
    def done(self) -> bool:
        """Whether the last stage has begun: `best` is then the exact network as repair left it, of loss `best_loss`."""
        return self.stage == len(self.stages.begins)

    @property
    def partly(self) -> bool:
        """Whether some of the network's units are exact already."""
        return self.stage > 0 or any(mask.share > 0 for mask in self.masks.values())

    # ---- Lightning's calls ----

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        through = self.options.straight_through
        if self.options.restart and trainer.lr_scheduler_configs:
            raise ValueError("with restart the learning rate is this callback's: expected a module without a scheduler")
        if self.options.distil and not callable(getattr(pl_module, "teach", None)):
            raise TypeError(f"distil needs a LightningModule with teach(network), got {type(pl_module).__name__}")
        if trainer.max_epochs != self.stages.epochs:
            raise ValueError(f"expected max_epochs {self.stages.epochs}, as stages say, got {trainer.max_epochs}")
        if self.options.harden_unit != "layer" or through:
            net = _net(pl_module)
            for number, name in enumerate(self.stages.hard(len(self.stages.groups))):
                mask = Mask(self.options.harden_unit, self.seed * 1_000_003 + number, through)
                self.masks[name] = mask
                self._handles.append(net.get_submodule(name).register_forward_hook(mask))
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group.setdefault("initial_lr", group["lr"])
        if self.stage:  # resumed
            self._teach(pl_module)
            if not through:
                hard = [*self.stages.hard(self.stage)]
                self._exchange(pl_module, convert.harden(_net(pl_module), where=hard, share=True))
                self._freeze(pl_module)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        stage = self.stages.at(trainer.current_epoch)
        if stage > self.stage:
            self._begin(stage, trainer, pl_module)
        net = _net(pl_module)
        for name in self.still:
            net.get_submodule(name).eval()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        progress = trainer.global_step / self._steps(trainer)
        self.move(progress)
        if not self.options.restart:
            return
        stage, done = self.stages.within(progress)
        highest = self.options.restart if stage else 1.0
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * highest * rate(self.schedule, done, self.lr_end)
                if isinstance(optimizer, torch.optim.Adam) and self.schedule == "one_cycle":  # AdamW is one
                    group["betas"] = (momentum(done), group["betas"][1])

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.move(trainer.global_step / self._steps(trainer))  # what is validated is the network of this moment

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch = trainer.current_epoch
        if self.done:
            return
        if "val_loss_smooth" not in trainer.callback_metrics:
            logged = ", ".join(trainer.callback_metrics) or "nothing"
            raise ValueError(f"expected a module that logs val_loss_smooth in its validation, got {logged}")
        loss = float(trainer.callback_metrics["val_loss_smooth"])
        moving = epoch < self.settled or any(0 < mask.share < 1 for mask in self.masks.values())
        if moving:  # the curve that these weights would come back under lies nearer to the exact step
            loss = max(loss, float(trainer.callback_metrics.get("val_loss", math.inf)))
        if loss < self.best_loss or (moving and self.best_loss == loss == math.inf):  # of equally bad ones the newest
            self.best_loss, self.best_epoch = loss, epoch
            self.best = state_of(_net(pl_module))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for handle in self._handles:
            handle.remove()

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _KEPT}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in _KEPT:
            setattr(self, name, state_dict[name])

    # ---- what happens at a stage ----

    def move(self, progress: float) -> None:
        """Set the masks as they are when the share `progress` of the training is done; of whole layers, in the stage
        that has begun."""
        whole = self.options.harden_unit == "layer"
        for group, names in enumerate(self.stages.groups):
            for name in names:
                if name in self.masks:
                    share = float(group < self.stage) if whole else self.stages.share(group, progress)
                    self.masks[name].share = share

    def _begin(self, stage: int, trainer: L.Trainer, module: L.LightningModule) -> None:
        net, names = _net(module), self.stages.groups[stage - 1]
        progress = trainer.global_step / self._steps(trainer)
        self.move(progress)  # a resumed network has not been set yet
        _sharpen(module, progress)
        if self.stage == 0:
            self.smooth, self.smooth_epoch = self.best or state_of(net), self.best_epoch
            self._teach(module)
        restored = self.best_epoch if self.options.restart and self.best else None
        if restored is not None:
            net.load_state_dict(self.best)
            _sharpen(module, progress, (restored + 1) / self.stages.epochs)
        self.stage = stage
        told: dict[str, Any] = {"epoch": trainer.current_epoch, "steps": list(names), "restored": restored}
        before = loss_of(net, self.validation, self.loss)
        new = convert.harden(net, where=list(names), share=True)
        told |= {"loss_before": before, "loss_hardened": loss_of(new, self.validation, self.loss)}
        now = told["loss_hardened"]
        if self.options.repair and self.options.harden_unit == "layer":  # random units became exact one after another
            chosen, now = self._repair(new, net, names, now)
            told |= {"repair": chosen, "loss_repaired": now}
        self.best, self.best_loss, self.best_epoch = state_of(new), now, trainer.current_epoch - 1  # to be beaten
        if self.options.straight_through:
            self.move(progress)  # the network stays, with the weights of the new one, which are the same tensors
        else:
            self._exchange(module, new)
            self._freeze(module)
        if self.options.restart:
            for optimizer in trainer.optimizers:
                optimizer.state.clear()
        self.told.append(told)

    def _repair(self, new: nn.Module, old: nn.Module, names: Sequence[str], unrepaired: float) -> tuple[Any, float]:
        """Fit the layers that read the steps which are exact now, with the strength that validation likes best or not
        at all; what was chosen, and the loss."""
        best, chosen, state = unrepaired, "none", None
        device = next(new.parameters()).device
        fitting = [(x.to(device), y.to(device)) for x, y in self.fitting]
        layers = readers(new, names, fitting[0][0][:2])
        for strength in STRENGTHS:
            made, _ = hardening.repair(new, old, fitting, strength=strength, layers=layers)
            loss = loss_of(made, self.validation, self.loss)
            if loss < best:
                best, chosen, state = loss, "by layer" if strength is None else strength, state_of(made)
        if state is not None:
            new.load_state_dict(state)
        return chosen, best

    def _teach(self, module: L.LightningModule) -> None:
        """Give the module the smooth network of before the first stage as its teacher."""
        if not self.options.distil:
            return
        teacher = copy.deepcopy(_net(module))
        for step in teacher.modules():
            for key in [key for key, hook in step._forward_hooks.items() if isinstance(hook, Mask)]:
                del step._forward_hooks[key]
        teacher.load_state_dict(self.smooth)
        sharpen: Any = getattr(module, "sharpen_other", None)
        if sharpen is not None:
            sharpen(teacher, self.stages.begins[0] / self.stages.epochs)
        teach: Any = module.teach
        teach(teacher.eval().requires_grad_(False))

    def _exchange(self, module: L.LightningModule, net: nn.Module) -> None:
        module.net = net  # pyright: ignore[reportArgumentType]

    def _freeze(self, module: L.LightningModule) -> None:
        """Parameters that no gradient reaches learn no more; norms whose inputs no parameter moves keep their
        statistics."""
        net, (x, y) = _net(module), self.fitting[0]
        device = next(net.parameters()).device
        x, y = x[:8].to(device), y[:8].to(device)
        objective: Any = getattr(module, "objective", None)
        for name in unreached(
            net, lambda: net(x) if objective is None else objective(x, y), self.stages.hard(self.stage)
        ):
            parameter = net.get_parameter(name)
            parameter.requires_grad_(False)
            parameter.grad = None
        self.still = unmoved_norms(net, x)

    def _steps(self, trainer: L.Trainer) -> int:
        return int(trainer.estimated_stepping_batches)


def stage_line(told: Mapping[str, Any], stage: int, stages: Stages) -> str:
    """The beginning of a stage in a line for people, whose epochs count from 1.

    Args:
        told: of `Progressive.told`. stage: its number, from 1.
    """
    names, restored = told["steps"], told["restored"]
    what = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} steps)"
    weights = ""
    if restored is not None:
        again = stage > 1 and restored == stages.begins[stage - 2] - 1  # no epoch since was better
        weights = f", with the weights {'as they were before' if again else 'of'} epoch {restored + 1 + again}"
    losses = f"this network's validation loss {told['loss_before']:.4f} -> {told['loss_hardened']:.4f}"
    if "repair" in told:
        helped = told["repair"] != "none"
        losses += f", repaired {told['loss_repaired']:.4f}" if helped else ", no repair lowers it"
    return (
        f"epoch {told['epoch'] + 1}/{stages.epochs}: stage {stage} of {len(stages.begins)}, {what} exact from here"
        f"{weights}; {losses}"
    )


def _net(module: L.LightningModule) -> nn.Module:
    net = getattr(module, "net", None)
    if not isinstance(net, nn.Module):
        raise TypeError(f"expected a LightningModule with its network in .net, got {type(module).__name__}")
    return net


def _sharpen(module: L.LightningModule, *shares: float) -> None:
    sharpen: Any = getattr(module, "sharpen", None)
    if sharpen is not None:
        sharpen(*shares)


def state_of(net: nn.Module) -> dict[str, Tensor]:
    """A copy of the state dict on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in net.state_dict().items()}


@torch.no_grad()
def loss_of(net: nn.Module, batches: Iterable[Any], loss: Callable[..., Tensor]) -> float:
    """The mean loss over the rows of all batches, in eval mode; infinite where it is not a number.

    Rows of a `Part` with weights count by these: its loss takes them third.
    """
    total, rows = 0.0, 0
    device = next(net.parameters()).device
    weights = batches.weights if isinstance(batches, Part) else None
    with evaluating(net):
        for x, y in batches:
            of = [] if weights is None else [weights[rows : rows + len(x)].to(device)]
            total += loss(net(x.to(device)), y.to(device), *of).item() * len(x)
            rows += len(x)
    return total / rows if math.isfinite(total) else math.inf


def unreached(net: nn.Module, run: Callable[[], Tensor], hard: Sequence[str]) -> list[str]:
    """Trained parameters from which every way to what `run` gives leads through one of the exact steps `hard`."""

    def cut(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return args[0].detach(), *args[1:]

    known = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    handles = [net.get_submodule(name).register_forward_pre_hook(cut) for name in hard]
    try:
        with evaluating(net), torch.enable_grad():
            found = run()
        if not found.requires_grad:
            return [name for name, _ in known]
        grads = torch.autograd.grad(found.float().sum(), [p for _, p in known], allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return [name for (name, _), grad in zip(known, grads, strict=True) if grad is None]


@torch.no_grad()
def readers(net: nn.Module, steps: Sequence[str], x: Tensor) -> list[str]:
    """The layers whose inputs change with the outputs of some steps by ways that lead through no other step."""
    layers = [(name, m) for name, m in net.named_modules() if isinstance(m, nn.Linear | _ConvNd)]
    others = [m for m in net.modules() if (isinstance(m, Heaviside) or looks_smooth(m))]
    chosen = {net.get_submodule(name) for name in steps}
    outputs: dict[nn.Module, list[Tensor]] = {}
    inputs: dict[str, list[list[Tensor]]] = {name: [[], []] for name, _ in layers}

    def run(second: bool) -> None:
        def act(module: nn.Module, _: Any, output: Tensor) -> Tensor | None:
            if module in chosen:
                return output + 1 if second else None
            if second:  # as it was
                return outputs[module].pop(0)
            outputs.setdefault(module, []).append(output)
            return None

        def look(name: str) -> Callable[..., None]:
            return lambda _, args: inputs[name][second].append(args[0])

        handles = [module.register_forward_hook(act) for module in others]
        handles += [module.register_forward_pre_hook(look(name)) for name, module in layers]
        try:
            net(x)
        finally:
            for handle in handles:
                handle.remove()

    with evaluating(net):
        run(False)
        run(True)
    return [name for name, (a, b) in inputs.items() if any(not torch.equal(p, q) for p, q in zip(a, b, strict=True))]


def unmoved_norms(net: nn.Module, x: Tensor) -> list[str]:
    """Batch norms whose inputs depend on no parameter that is trained, and that train none of their own."""
    found: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            if not args[0].requires_grad and not any(p.requires_grad for p in module.parameters()):
                found.append(name)

        return hook

    norms = [(name, module) for name, module in net.named_modules() if isinstance(module, _BatchNorm)]
    handles = [module.register_forward_pre_hook(look(name)) for name, module in norms]
    try:
        with evaluating(net), torch.enable_grad():
            net(x)
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(found))
