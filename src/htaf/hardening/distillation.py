"""Distillation: what still has an ordinary gradient in the exact network learns the smooth network's outputs."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from htaf.convert.functional_sites import Model, duplicate
from htaf.convert.modes import evaluating
from htaf.hardening.report import (
    Batches,
    Report,
    call,
    expect_batches,
    inputs_of,
    is_regression,
    measured,
    pair_of,
)
from htaf.hardening.weights import BINARY_WEIGHTS


def distil(
    model: Model,
    teacher: nn.Module,
    batches: Batches,
    *,
    epochs: int = 20,
    lr: float = 1e-3,
    patience: int = 5,
    temperature: float = 1.0,
    validation: Batches | None = None,
) -> tuple[Model, Report]:
    """Train by Adam, on the outputs of a teacher, the parameters of a hardened network that a gradient reaches.

        KL(softmax(t / T), softmax(s / T)) T^2 of classes, (t - s)^2 of numbers

    Outputs are numbers where there is one, or where the validation targets are floats. Without validation several
    outputs are taken as logits of classes: a regression with several outputs needs it.

    Those are the layers above the last step and what a shortcut past the steps leads to; no surrogate is used. All
    modules are in eval mode, so running statistics stay. Layers with binary weights stay as they are.

    Args:
        model: hardened; not changed. teacher: mostly the smooth network; not changed.
        batches: inputs, with or without targets, which are not used.
        epochs: at most. lr: of Adam. patience: epochs without a better validation loss until it ends.
        temperature: T.
        validation: (inputs, targets): the network of the lowest loss is kept, the first one included; None: the last.

    Returns:
        The new model in eval mode, and the report.

    Raises:
        ValueError: no parameter has a gradient, no batches, validation has no targets, or an argument is out of range.
        TypeError: batches or validation can be gone through only once.

    Source: Hinton et al. 2015, arXiv:1503.02531.
    """
    begin = time.perf_counter()
    if epochs < 1 or patience < 1 or lr <= 0 or temperature <= 0:
        raise ValueError(f"expected numbers > 0, got {epochs=}, {lr=}, {patience=}, {temperature=}")
    first = inputs_of(expect_batches(batches, validation))
    numbers = validation is not None and is_regression(pair_of(next(iter(validation)))[1])
    net = duplicate(model)
    before = best = measured(model, validation)
    state, waited, ran = None, 0, 0
    with evaluating(net, teacher), torch.enable_grad():
        flags = {p: p.requires_grad for p in net.parameters()}
        chosen = _reached(net, first)
        for p in net.parameters():
            p.requires_grad_(p in chosen)
        optimizer = torch.optim.Adam(list(chosen), lr=lr)
        for _ in range(epochs):
            ran += 1
            for batch in batches:
                x = inputs_of(batch)
                with torch.no_grad():
                    wanted = call(teacher, x)
                optimizer.zero_grad(set_to_none=True)
                _loss(call(net, x), wanted, temperature, numbers=numbers).backward()
                optimizer.step()
            found = measured(net, validation)
            if best is None or found is None:
                continue
            if found["loss"] < best["loss"]:
                best, state, waited = found, copy.deepcopy(net.state_dict()), 0
            else:
                waited += 1
            if waited >= patience:
                break
        for p, flag in flags.items():
            p.grad = None
            p.requires_grad_(flag)
    if validation is not None:
        net.load_state_dict(copy.deepcopy(model.state_dict()) if state is None else state)
    seconds = time.perf_counter() - begin
    notes = (f"{sum(p.numel() for p in chosen):,} parameters in {len(chosen)} tensors, {ran} epochs",)
    return net.eval(), Report("distil", seconds, before, measured(net, validation), notes=notes)


def _reached(net: nn.Module, x: Any) -> dict[Tensor, None]:
    """The parameters that a gradient reaches: it is 0 behind an exact step."""
    binary = {p for m in net.modules() if isinstance(m, BINARY_WEIGHTS) for p in m.parameters()}
    parameters = [p.requires_grad_() for p in net.parameters() if p.is_floating_point() and p not in binary]
    output: Tensor = call(net, x)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(output.shape, generator=generator).to(output)  # of softmax outputs the plain sum is constant
    found = torch.autograd.grad((output * weights).sum(), parameters, allow_unused=True)
    reached = {p: None for p, g in zip(parameters, found, strict=True) if g is not None and bool(g.any())}
    if not reached:
        raise ValueError("expected parameters that a gradient reaches, got none: the network ends in its step")
    return reached


def _loss(output: Tensor, wanted: Tensor, temperature: float, *, numbers: bool) -> Tensor:
    if numbers or output.shape[-1] == 1:
        return mse_loss(output, wanted)
    output, wanted = (v.reshape(-1, v.shape[-1]) / temperature for v in (output, wanted))
    return cross_entropy(output, wanted.softmax(1)) * temperature**2
