"""Programs that compute the same with fewer or cheaper operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from htaf.program.integer.ops import Array, Conv, Linear, Neuron, Op, Pool, Steps
from htaf.program.integer.program import IntegerProgram


def simplify(program: IntegerProgram) -> IntegerProgram:
    """The same outputs: steps come before poolings, filters are negated so that steps rise, unused values go."""
    return needed(_rising(_steps_first(program)))


def needed(program: IntegerProgram) -> IntegerProgram:
    """Without operations that the output does not need."""
    wanted = {program.output}
    for number in range(len(program.ops), 0, -1):
        if number in wanted:
            wanted.update(program.ops[number - 1].reads)
    kept = [0, *sorted(wanted - {0})]
    places = {number: place for place, number in enumerate(kept)}
    ops = tuple(_reading(program.ops[number - 1], places.__getitem__) for number in kept[1:])
    return replace(program, ops=ops, output=places[program.output])


def _reading(op: Op, place: Callable[[int], int]) -> Op:
    """The operation on values with other numbers."""
    return replace(op, **{name: place(getattr(op, name)) for name in op.READS})


def _readers(program: IntegerProgram) -> dict[int, list[int]]:
    """The numbers of the values that are made of each; the output is read by -1."""
    found: dict[int, list[int]] = {number: [] for number in range(len(program.ops) + 1)}
    for number, op, _ in program:
        for read in op.reads:
            found[read].append(number)
    found[program.output].append(-1)
    return found


def _steps_first(program: IntegerProgram) -> IntegerProgram:
    """A pooling whose only reader is a step pools the step's bits: the least where the step falls."""
    ops, readers = [*program.ops], _readers(program)
    for number, op, _ in reversed([*program]):  # of several poolings the last first
        if isinstance(op, Pool) and len(readers[number]) == 1 and readers[number][0] == number + 1:
            after = ops[number]
            if isinstance(after, Steps):
                ops[number - 1] = replace(after, x=op.x)
                ops[number] = replace(op, x=number, smallest=op.smallest ^ (after.sign < 0))
    return replace(program, ops=tuple(ops))


def _rising(program: IntegerProgram) -> IntegerProgram:
    """The filters of a layer negated where the only reader, behind poolings too, is a step or neuron that falls."""
    ops, readers = [*program.ops], _readers(program)
    for number, layer, _ in program:
        if not isinstance(layer, (Conv, Linear)):
            continue
        path = [number]
        while len(readers[path[-1]]) == 1 and readers[path[-1]] != [-1]:
            path += readers[path[-1]]
            if not isinstance(ops[path[-1] - 1], Pool):
                break
        last = ops[path[-1] - 1]
        if not isinstance(last, (Steps, Neuron)) or not (last.sign < 0).any():
            continue
        falls = last.sign < 0
        ops[number - 1] = _negated(layer, falls)
        for place in path[1:-1]:
            pool = ops[place - 1]
            assert isinstance(pool, Pool)
            ops[place - 1] = replace(pool, smallest=pool.smallest ^ falls)
        ops[path[-1] - 1] = replace(last, sign=np.ones_like(last.sign))
    return replace(program, ops=tuple(ops))


def _negated(layer: Conv | Linear, where: Array) -> Conv | Linear:
    by = np.where(where, -1, 1)
    weight = layer.weight * by.reshape(-1, *[1] * (layer.weight.ndim - 1))
    return replace(layer, weight=weight, bias=None if layer.bias is None else layer.bias * by)
