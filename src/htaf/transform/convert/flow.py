"""What becomes of the value of an activation in a run: does a layer read it, what it multiplies, is it returned.

A `Flow` sees every operator of the run. It marks storages, so that views and in-place operators need no care of their
own: a `Mark` says of which activations a storage holds the value (or a sum with it), and what else it comes from.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

# why an activation stays unless it is chosen
Stays = Literal["output", "gate", "scale", "softcap", "scores", "choice", "formula", "kept"]
WORDS: dict[Stays, str] = {
    "output": "its value reaches an output, no layer in between",
    "gate": "a gate: it multiplies another value",
    "scale": "a scale or a time step: it multiplies another value",
    "softcap": "a soft cap, c * tanh(x / c)",
    "scores": "scores of an attention: of a softmax, or of a product of two computed matrices",
    "choice": "its value is only compared or sorted, no layer reads it",
    "formula": "a part of a formula that is written out: call it by one function (F.silu), or make it a module",
    "kept": "chosen by keep=",
}
SQUASHING = {"sigmoid", "hardsigmoid", "tanh", "hardtanh", "softsign"}  # what gates are made of
_CONTRACTIONS = {
    *("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "matmul", "_trilinear"),
    *("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution", "cudnn_convolution"),
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "_addmm_activation"),
}
_ADDING = {"addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation"}  # their first argument is what they add to
_LAYERS = {  # where parameters are among the arguments
    *("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "rms_norm"),
    *("_native_batch_norm_legit_no_training", "_batch_norm_with_update", "cudnn_batch_norm", "_fused_rms_norm"),
    *("miopen_batch_norm", "batch_norm", "layer_norm", "group_norm"),
    *("embedding", "_embedding_bag", "_embedding_bag_forward_only"),
    *("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "lstm", "gru", "rnn_tanh", "rnn_relu"),
}
_PRODUCTS = {"mul", "div", "addcmul", "addcdiv", "_foreach_mul"}
_PLACING = {"cat", "stack", "where", "copy", "index_put", "scatter", "slice_scatter", "select_scatter", "index_copy"}
_EXPONENTIALS = {"exp", "exp2", "expm1", "logcumsumexp", "logsumexp", "logaddexp"}
_LOGARITHMS = {"log", "log2", "log10", "log1p"}
_SAME = {"_to_copy", "clone", "alias", "detach"}
_SHAPED_LIKE = {"zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"}
_RANDOM = {"rand", "randn", "rand_like", "randn_like", "normal", "uniform", "bernoulli", "normal_functional"}


@dataclass(eq=False)
class Made:
    """One value of an activation, and what became of it."""

    capped_at: float | None = None  # what its input was divided by
    root: object = None  # of its input, see `Mark`
    first: bool = False  # no activation comes before it
    work: int = 0  # products of its values with weights, in the layers that read it
    in_formula: bool = False  # a product, or sum of activations, of functions of its root
    read: bool = False  # by a layer
    read_in_a_sum: bool = False
    multiplies: bool = False  # something at least as large
    is_multiplied: bool = False  # with something smaller
    scores: bool = False
    is_logarithm: bool = False  # of what goes on
    compared: bool = False
    capped: bool = False
    returned: bool = False
    returned_in_a_sum: bool = False

    def stays(self, kind: str) -> Stays | None:
        """Why an activation of this kind is none between layers; None where it is one, as far as one can see."""
        if self.capped:
            return "softcap"
        if self.in_formula:
            return "formula"
        if self.returned:
            return "output"
        if not self.read:
            if self.multiplies and kind in SQUASHING | {"relu6"}:  # relu6(x + 3) / 6
                return "gate"
            if self.is_logarithm or ((self.multiplies or self.is_multiplied) and kind == "softplus"):
                return "scale"
            if self.scores:
                return "scores"
            if not self.read_in_a_sum and self.returned_in_a_sum:
                return "output"
            if not self.read_in_a_sum:
                return "choice" if self.compared else "output"
        return None


@dataclass
class Mark:
    """What a storage holds.

    Attributes:
        of: activations whose value it is -> whether nothing but constants were added; False: a sum with other values.
        own: parameters and buffers, and what is computed of them alone.
        data: comes from numbers of the example, or from random ones.
        computed: comes from a layer.
        behind: comes from an activation.
        divided_by: a number, if that is how it was made.
        layers: the parameters of the layers that it comes from, if nothing but elementwise operators follow them.
        root: the same of all that is an elementwise function of one tensor.
    """

    of: dict[Made, bool] = field(default_factory=dict)
    own: bool = False
    data: bool = False
    computed: bool = False
    behind: bool = False
    divided_by: float | None = None
    layers: frozenset[StorageWeakRef] = frozenset()
    root: object = field(default_factory=object)


_CONSTANT = Mark()


class Flow:
    """Where the values of activations go, in one run of a model."""

    def __init__(self) -> None:
        self._marks: dict[StorageWeakRef, Mark] = {}

    def begin(self, model: nn.Module, example: object) -> None:
        for tensor in tensors_of(example):
            self._set(tensor, Mark(data=_is_real(tensor)))
        for tensor in (*model.parameters(), *model.buffers()):
            self._set(tensor, Mark(own=True))

    def activation(self, x: object) -> Made:
        """Before an activation acts on `x`, which it may overwrite."""
        if not isinstance(x, Tensor):
            return Made()
        return Made(self._mark(x).divided_by, self._root(x), first=not self._mark(x).behind)

    def layers(self, used: object) -> frozenset[StorageWeakRef]:
        """What tells apart the values that one line of code computes behind different layers."""
        marks = [self._mark(tensor) for tensor in tree_leaves(used) if isinstance(tensor, Tensor)]
        return frozenset().union(*(mark.layers for mark in marks))

    def make(self, made: Made, result: object) -> None:
        """A tensor is the value of an activation."""
        if isinstance(result, Tensor) and (key := _key(result)) is not None:
            mark = self._marks.get(key, _CONSTANT)
            self._marks[key] = dataclasses.replace(
                mark, of=mark.of | {made: True}, behind=True, divided_by=None, root=made.root
            )

    def end(self, output: object) -> None:
        for tensor in tensors_of(output):
            for made, pure in self._mark(tensor).of.items():
                made.returned |= pure
                made.returned_in_a_sum |= not pure

    def operator(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        """Note what an operator made of its arguments."""
        name, writes, foreign = _described(function)
        outs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        ins = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if name.startswith(("lift_fresh", "new_", "empty")) or name in _SHAPED_LIKE:
            ins = []  # of its arguments it takes the shape alone, or none is marked
        marks = [self._mark(tensor) for tensor in ins]
        made = self._made(name, foreign, args, ins, marks, outs)
        if torch.Tag.pointwise in function.tags or name in _SAME:
            roots = {self._root(x) for x in ins if _is_real(x) and not self._is_constant(x)}
            if len(roots) == 1:
                made.root = roots.pop()
                self._look_for_formula(name, args, made.root)
        if any(not _is_real(out) for out in outs):
            for one in made.of:
                one.compared = True
        before = {_key(tensor) for tensor in ins}
        for out in outs:
            key = _key(out)
            if key is None or (key in before and not writes):  # a view of what is marked already
                continue
            if not _is_real(out):
                self._marks[key] = Mark(own=made.own)
                continue
            there = self._marks.get(key, _CONSTANT)
            if key in before and out.numel() * out.element_size() < out.untyped_storage().nbytes():  # a part of it
                data, computed = there.data or made.data, there.computed or made.computed
                behind, layers = there.behind or made.behind, there.layers | made.layers
                own = there.own and made.own
                self._marks[key] = Mark(there.of | made.of, own, data, computed, behind, None, layers)
            else:
                self._marks[key] = made

    def _made(
        self,
        name: str,
        foreign: bool,
        args: tuple[Any, ...],
        ins: list[Tensor],
        marks: list[Mark],
        outs: list[Tensor],
    ) -> Mark:
        """The mark of what an operator makes; its arguments' activations are told what became of them."""
        floats = [mark for tensor, mark in zip(ins, marks, strict=True) if _is_real(tensor)]
        own = bool(ins) and all(mark.own for mark in marks)
        data = name in _RANDOM or any(mark.data for mark in floats)
        computed, behind = any(mark.computed for mark in floats), any(mark.behind for mark in floats)
        operands = marks[-2:] if name in _ADDING else marks[:2] if name in _CONTRACTIONS else ()
        weights = any(mark.own and tensor.dim() > 1 for tensor, mark in zip(ins, marks, strict=True))
        layered = (name in _LAYERS and any(mark.own for mark in floats)) or (foreign and weights)
        if not own and (layered or any(mark.own for mark in operands)):
            work = _products(name, outs, [x for x, mark in zip(ins, marks, strict=True) if mark.own])
            for mark in floats:
                for made, pure in mark.of.items():
                    made.read |= pure
                    made.read_in_a_sum |= not pure
                    made.work += work
            keys = (_key(tensor) for tensor, mark in zip(ins, marks, strict=True) if mark.own)
            return Mark(
                data=True, computed=True, behind=behind, layers=frozenset(key for key in keys if key is not None)
            )
        scores = floats if "softmax" in name else []
        if "scaled_dot_product" in name or name == "_flash_attention_forward":
            scores = marks[:2]  # queries and keys
        elif name in _CONTRACTIONS:
            scores = [one for one in operands if any(o.computed or o.of for o in operands if o is not one)]
        for mark in scores:
            for made, pure in mark.of.items():
                made.scores |= pure
        for mark in floats if name in _EXPONENTIALS else ():
            for made in mark.of:
                made.is_logarithm = True
        of = self._carried(name, args, ins, marks)
        layers = frozenset().union(*(mark.layers for mark in floats))
        return Mark(of, own, data, computed, behind, self._divided_by(name, args, marks), layers)

    def _root(self, tensor: Tensor) -> object:
        """The root of a tensor; a part of a storage has one of its own."""
        if _key(tensor) is None:
            return object()
        root, offset = self._mark(tensor).root, tensor.storage_offset()
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        return root if whole else (root, offset, tensor.numel())

    def _is_constant(self, tensor: Tensor) -> bool:
        mark = self._mark(tensor)
        return mark is _CONSTANT or mark.own or (tensor.numel() == 1 and tensor.dim() == 0)

    def _look_for_formula(self, name: str, args: tuple[Any, ...], root: object) -> None:
        """Mark the activations in a product of functions of one tensor, or in a sum of two, as parts of a formula."""
        held = [self._mark(x).of for x in args if isinstance(x, Tensor) and not self._is_constant(x)]
        own = [{made for made in of if made.root == root} for of in held]
        if len(own) == 1 and name in _LOGARITHMS:
            found = own[0]
        elif len(own) == 2 and name in _PRODUCTS and args[-1] is not args[-2]:
            found = own[0] ^ own[1] or own[0]
        elif len(own) == 2 and name in ("add", "sub") and own[0] - own[1] and own[1] - own[0]:
            found = own[0] ^ own[1]
        else:
            return
        for made in found:
            made.in_formula = True

    def _carried(self, name: str, args: tuple[Any, ...], ins: list[Tensor], marks: list[Mark]) -> dict[Made, bool]:
        """The activations that are in the result, and whether alone."""
        if name in _PRODUCTS:
            factors = [(one, self._mark(one)) for one in args[-2:] if isinstance(one, Tensor)]
            self._multiply(factors)
            self._cap(name, args)
        elif name == "normal":  # a deviation, which stands second where there is one, multiplies what is drawn
            for deviation in [one for one in args[1:2] if isinstance(one, Tensor)]:
                for made, pure in self._mark(deviation).of.items():
                    made.multiplies |= pure
        elif name == "lerp" and isinstance(args[2], Tensor):  # a + w (b - a)
            for end in args[:2]:
                self._multiply([(args[2], self._mark(args[2])), (end, self._mark(end))])
        of: dict[Made, bool] = {}
        for tensor, mark in zip(ins, marks, strict=True):
            if not _is_real(tensor):
                continue
            for made, pure in mark.of.items():
                if not pure and made.read_in_a_sum:  # nothing more is to be learned
                    continue
                others = (
                    other
                    for one, other in zip(ins, marks, strict=True)
                    if other is not mark and other.data and _is_real(one)
                )
                alone = (
                    pure
                    and name != "normal"
                    and (name in _PLACING or all(other.of.get(made, False) for other in others))
                )
                of[made] = of.get(made, alone) and alone if name not in _PLACING else of.get(made, False) or alone
        return of

    def _multiply(self, factors: list[tuple[Tensor, Mark]]) -> None:
        for one, mark in factors:
            for other, against in factors:
                if other is one or not _is_real(other) or against.own:
                    continue
                unseen = not against.computed and not against.of
                if unseen and not _is_zero(other) and (not against.data or _is_mask(other)):  # (a state begins as 0)
                    continue
                for made, pure in mark.of.items():
                    if pure and not against.of.get(made, False):
                        made.multiplies |= one.numel() <= other.numel()
                        made.is_multiplied |= one.numel() > other.numel()

    def _cap(self, name: str, args: tuple[Any, ...]) -> None:
        scaled, factor = _scaled(name, args)
        if scaled is None:
            return
        for made, pure in self._mark(scaled).of.items():
            if pure and made.capped_at is not None and factor != 1:
                made.capped |= math.isclose(made.capped_at, factor, rel_tol=1e-4)

    def _divided_by(self, name: str, args: tuple[Any, ...], marks: list[Mark]) -> float | None:
        if name not in ("mul", "div") or len(args) < 2:
            same = name in _SAME and marks
            return marks[0].divided_by if same else None
        scaled, factor = _scaled(name, args)
        return None if scaled is None else 1 / factor

    def _mark(self, tensor: Tensor) -> Mark:
        key = _key(tensor)
        return _CONSTANT if key is None else self._marks.get(key, _CONSTANT)

    def _set(self, tensor: Tensor, mark: Mark) -> None:
        if (key := _key(tensor)) is not None:
            self._marks[key] = mark


def _products(name: str, outs: list[Tensor], own: list[Tensor]) -> int:
    """How many products of numbers with weights an operator takes; of a norm, which has no sums of them, none."""
    if name not in _CONTRACTIONS or not outs:
        return 0
    largest = max(own, key=Tensor.numel)
    outputs = largest.shape[0] if "conv" in name else outs[0].shape[-1]
    return outs[0].numel() * largest.numel() // max(outputs, 1)


@functools.cache
def _described(function: Any) -> tuple[str, bool, bool]:
    """The name of an operator without namespace and underscore, whether it writes into an argument, and whether it is
    none of PyTorch's."""
    schema = function._schema
    writes = any(one.alias_info is not None and one.alias_info.is_write for one in schema.arguments)
    return schema.name.partition("::")[2].removesuffix("_"), writes, function.namespace not in ("aten", "prims")


def _key(tensor: Tensor) -> StorageWeakRef | None:
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):  # nested and sparse tensors have none
        return None


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _number(value: object) -> float | None:
    """A number, also as a tensor of one entry whose value is at hand."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            return None
        try:
            return float(value)
        except (RuntimeError, NotImplementedError):  # on the meta device, fake
            return None
    return float(value) if isinstance(value, (int, float)) else None


def _scaled(name: str, args: tuple[Any, ...]) -> tuple[Tensor | None, float]:
    """What a product or quotient with one number scales, and by how much; None where it is no such one."""
    if len(args) < 2:
        return None, 1.0
    for scaled, by in (args[:2], args[1::-1]) if name == "mul" else (args[:2],):
        number = _number(by)
        if isinstance(scaled, Tensor) and number is not None and number != 0:
            return scaled, number if name == "mul" else 1 / number
    return None, 1.0


def _is_mask(tensor: Tensor) -> bool:
    """Whether a tensor holds 0 and 1 alone."""
    return holds(lambda: ((tensor == 0) | (tensor == 1)).all())


def _is_zero(tensor: Tensor) -> bool:
    return tensor.dim() > 0 and holds(lambda: (tensor == 0).all())


def holds(test: Callable[[], Tensor | bool]) -> bool:
    """False where a tensor has no values to look at: on the meta device, fake, nested."""
    try:
        return bool(test())
    except (RuntimeError, NotImplementedError):
        return False


def tensors_of(value: object, depth: int = 6) -> Iterator[Tensor]:
    """The tensors that an output holds: in lists, mappings, dataclasses and other objects."""
    if isinstance(value, Tensor):
        yield value
    elif depth == 0 or isinstance(value, (str, bytes, int, float, type, nn.Module)) or value is None:
        return
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors_of(one, depth - 1)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        for one in value:
            yield from tensors_of(one, depth - 1)
    else:
        declared = (getattr(kind, "__slots__", ()) for kind in type(value).__mro__)
        slots = [name for names in declared for name in ([names] if isinstance(names, str) else names)]
        held = [getattr(value, name, None) for name in slots]
        for one in (*held, *getattr(value, "__dict__", {}).values()):
            yield from tensors_of(one, depth - 1)
