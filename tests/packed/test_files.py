"""Files of packed models: whole or refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import htaf
from htaf._ground import files as _files
from htaf.program.packed import PackedError, load, operators, pack, save
from htaf.program.packed.instructions import Call
from htaf.program.packed.program import Input, Program, check

FUZZ = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), htaf.Heaviside(), nn.MaxPool2d(2), htaf.BinaryConv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4),
        htaf.Heaviside(), nn.Flatten(), nn.Linear(36, 2), nn.ReLU(),
    ).eval()  # fmt: skip
    path = tmp_path_factory.mktemp("packed") / "model.htaf"
    save(pack(net, torch.randn(2, 1, 8, 8)), path, {"note": "é"})
    load(path)
    return path.read_bytes()


def _refused(data: bytes, folder: Path) -> str:
    path = folder / "bad.htaf"
    path.write_bytes(data)
    with pytest.raises(PackedError) as caught:
        load(path)
    return str(caught.value)


def test_text_that_cannot_be_printed_is_refused(written: bytes, tmp_path: Path) -> None:
    whole = tmp_path / "whole.htaf"
    whole.write_bytes(written)
    save(load(whole), tmp_path / "half.htaf", {"note": "half a pair: \ud800"})
    assert "surrogates" in _refused((tmp_path / "half.htaf").read_bytes(), tmp_path)


@FUZZ
@given(data=st.data())
def test_a_truncated_file_is_refused(written: bytes, tmp_path: Path, data: st.DataObject) -> None:
    _refused(written[: data.draw(st.integers(0, len(written) - 1))], tmp_path)


@FUZZ
@given(data=st.data())
def test_a_file_with_a_flipped_bit_is_refused(written: bytes, tmp_path: Path, data: st.DataObject) -> None:
    place, bit = data.draw(st.integers(0, len(written) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(written)
    changed[place] ^= 1 << bit
    _refused(bytes(changed), tmp_path)


def _parts(data: bytes) -> tuple[dict, bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def _forged(written: bytes, change) -> bytes:
    """A file whose graph is changed and whose digest is right."""
    header, body = _parts(written)
    metadata = header["__metadata__"]
    graph = json.loads(metadata["graph"])
    change(graph, metadata)
    metadata["graph"] = json.dumps(graph)
    metadata["sha256"] = _files._seal_of_tensors(header, [body])
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _step(graph: dict, kind: str) -> dict:
    return next(step for step in graph["steps"] if step["step"] == kind)


def _more(graph: dict, **fields) -> None:
    """One more step at the end."""
    made = [graph["steps"][-1][key] for key in ("y", "bits") if graph["steps"][-1].get(key) is not None]
    graph["steps"].append({"name": "more", "y": made[-1] + 1, **fields})


def _call(graph: dict, operator: str, *args, **kwargs) -> None:
    """One more call, of the input."""
    _more(graph, step="call", operator=operator, args=[{"v": 0}, *args], kwargs=kwargs)


UNPACK = {"step": "unpack", "axis": 1, "low": 0.0, "high": 1.0}
SAID = {
    "no report": (lambda g, m: m.pop("report"), "is no packed model"),
    "another operator": (lambda g, m: _step(g, "call").update(operator="from_file.default"), "expected an operator"),
    "dunder": (lambda g, m: _step(g, "call").update(operator="__class__"), "expected an operator"),
    "no such value": (lambda g, m: _step(g, "layer").update(input=99), "made before"),
    "later value": (lambda g, m: _step(g, "layer").update(input=_step(g, "layer")["bits"]), "made before"),
    "value that is a flag": (lambda g, m: _step(g, "layer").update(input=True), "expected an integer"),
    "negative output": (lambda g, m: g.update(outputs={"v": -1}), "made before"),
    "huge input": (lambda g, m: g["inputs"][0]["sizes"].__setitem__(2, 2**62), "expected an integer"),
    "large input": (lambda g, m: g["inputs"][0].update(sizes=[None, 1, 2**23, 2**23]), "expected"),
    "dtype": (lambda g, m: g["inputs"][0].update(dtype="float64"), "a dtype, one of float32, bool"),
    "no dtype": (lambda g, m: g["inputs"][0].pop("dtype"), "expected sizes and a dtype"),
    "negative padding": (lambda g, m: _step(g, "layer")["geometry"][4].__setitem__(0, -1), "padding >= 0"),
    "no stride": (lambda g, m: _step(g, "layer")["geometry"][3].__setitem__(0, 0), "sizes >= 1"),
    "many outputs": (lambda g, m: _step(g, "layer")["geometry"].__setitem__(1, 2**24), "expected"),
    "no steps": (lambda g, m: g.update(steps={}), "expected a list"),
    "argument": (lambda g, m: _step(g, "call").update(args=[{"x": 0}]), "an argument of an operator"),
    "size": (lambda g, m: _call(g, "repeat.default", [2**40, 2**20, 1, 1]), "overflow"),
    "list of extras": (lambda g, m: m.update(extra="[]"), "expected an object"),
    "other version": (lambda g, m: m.update(version="6"), "version 7"),
    "other format": (lambda g, m: m.update(format="safetensors"), "expected a file of format htaf-packed"),
    "residual": (lambda g, m: _step(g, "layer").update(residual=0), r"float32 \[2, 4, 3, 3\]"),
    "one end": (lambda g, m: _step(g, "layer").update(lower=None), "both ends"),
    "no output": (lambda g, m: _step(g, "layer").update(lower=None, upper=None, bits=None), "made before"),
    "scale": (lambda g, m: _step(g, "layer").update(scale=_step(g, "layer")["weight"]), r"float32 \[4\]"),
    "weight": (lambda g, m: _step(g, "layer").update(weight=_step(g, "threshold")["lower"]), r"uint8 \[4, 3, 3, 8\]"),
    "floats": (lambda g, m: _step(g, "layer").update(input=0), "expected bits"),
    "floats to pool": (lambda g, m: _step(g, "pool").update(input=0), "expected bits"),
    "padding": (lambda g, m: _step(g, "pool").update(padding=[2, 1]), "half a window"),
    "end": (lambda g, m: _step(g, "threshold").update(lower=_step(g, "layer")["weight"]), r"float32 \[3\]"),
    "axis": (lambda g, m: _step(g, "threshold").update(axis=9), "a dimension 9"),
    "unpack": (lambda g, m: _more(g, **UNPACK, input=_step(g, "pool")["bits"], channels=65), "16 bytes"),
    "unpack floats": (lambda g, m: _more(g, **UNPACK, input=0, channels=64), "8 bytes"),
    "unpack along": (lambda g, m: _more(g, **UNPACK | {"axis": 7}, input=_step(g, "pool")["bits"], channels=3), "of 4"),
    "order": (lambda g, m: g["steps"][-1].update(y=g["steps"][-1]["y"] + 1), "make value"),
    "itself": (lambda g, m: _step(g, "pool").update(input=_step(g, "pool")["bits"]), "made before"),
    "outputs": (lambda g, m: g.update(outputs={"v": 1000}), "made before"),
    "flag": (lambda g, m: g.update(outputs={"v": True}), "made before"),
    "more": (lambda g, m: _step(g, "pool").update(more=1), "expected fields"),
    "tensor": (lambda g, m: _step(g, "layer").update(weight="nothing"), "a tensor of the file"),
    "deep": (lambda g, m: g.update(outputs=json.loads('{"list":[' * 200 + '{"v":0}' + "]}" * 200)), "expected outputs"),
    "overflow": (
        lambda g, m: _more(g, step="call", operator="expand.default", kwargs={},
                           args=[{"v": 0}, [2**30, 2, 2**30, 2**30, 1, 2, 1, 8, 8]]),
        "at most|overflow",
    ),
    "device": (lambda g, m: _call(g, "_to_copy.default", device="meta"), "no argument device"),
    "layout": (lambda g, m: _call(g, "full_like.default", 1, layout=2), "no argument layout"),
    "place": (lambda g, m: _call(g, "clone.default", memory_format=1), "no argument memory_format"),
    "half": (lambda g, m: _call(g, "_to_copy.default", dtype={"d": "float16"}), "an argument of an operator"),
    "a dtype by number": (lambda g, m: _call(g, "_to_copy.default", dtype=2**31 - 1), "a dtype as .*, got 2147"),
    "another one": (lambda g, m: _call(g, "softmax.int", 1, -1), "a dtype as .*, got -1"),
    "a text": (lambda g, m: _call(g, "mul.Scalar", "2"), "more: "),
    "a list of numbers": (lambda g, m: _call(g, "permute.default", [0, 1, 2.0, 3]), "more: "),
    "a tensor": (lambda g, m: _call(g, "mul.Scalar", {"v": 0}), "more: "),
    "too many": (lambda g, m: _call(g, "relu.default", 1), "more: "),
    "unknown": (lambda g, m: _call(g, "relu.default", other=1), "more: "),
    "twice": (lambda g, m: _call(g, "relu.default", self={"v": 0}), "more: "),
    "an item of a tensor": (lambda g, m: _call(g, "getitem", 0), "a list of values and an integer"),
    "random": (lambda g, m: _call(g, "rand_like.default"), "an operator of a packed model"),
    "memory as it is found": (lambda g, m: _call(g, "empty_like.default"), "an operator of a packed model"),
    "strides": (lambda g, m: _call(g, "as_strided.default", [1], [1]), "an operator of a packed model"),
    "in place": (lambda g, m: _call(g, "relu_.default"), "an operator of a packed model"),
    "training": (lambda g, m: _call(g, "native_layer_norm_backward.default"), "an operator of a packed model"),
    "size of the data": (lambda g, m: _call(g, "nonzero.default"), "an operator of a packed model"),
    "namespace": (lambda g, m: _call(g, "__class__.default"), "an operator of a packed model"),
    "method": (lambda g, m: _call(g, "add.decompose"), "an operator of a packed model"),
    "another library": (lambda g, m: _call(g, "htaf.pack_bits.default"), "an operator of a packed model"),
    "mask": (lambda g, m: _call(g, "index.Tensor", [{"v": 0}]), "expected|meta|bool|indices"),
    "a large range": (
        lambda g, m: _more(g, step="call", operator="arange.start_step", kwargs={}, args=[0, 2**40, 1]), "at most"
    ),
    "planes": (lambda g, m: _step(g, "layer").update(planes=3), "one plane"),
    "large": (
        lambda g, m: _more(g, step="call", operator="repeat.default", kwargs={}, args=[{"v": 0}, [2**22, 1, 1, 1]]),
        "at most 1,073,741,824 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_wrong_is_said(written: bytes, tmp_path: Path, name: str) -> None:
    change, said = SAID[name]
    assert re.search(said, message := _refused(_forged(written, change), tmp_path)), message


def test_values_may_be_as_large_as_large_inputs_make_them() -> None:
    step = Call("relu", "relu.default", [{"v": 0}], {}, 1)
    check(Program((Input((None, 1 << 28)),), (step,), 1, {}))
    with pytest.raises(PackedError, match="at most"):
        check(
            Program(
                (Input((None, 1 << 10)),),
                (replace(step, operator="repeat.default", args=[{"v": 0}, [1 << 18, 1]]),),
                1,
                {},
            )
        )


@FUZZ
@given(data=st.data())
def test_any_number_of_a_graph_may_be_anything(written: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """A forged number gives another model or an error: no crash, no hang."""
    values = st.one_of(st.integers(-(2**63), 2**63), st.integers(-3, 70), st.none(), st.text(max_size=3), st.booleans())

    def change(graph: dict, _: dict) -> None:
        places = list(_leaves(graph))
        holder, key = places[data.draw(st.integers(0, len(places) - 1))]
        holder[key] = data.draw(values)

    path = tmp_path / "forged.htaf"
    path.write_bytes(_forged(written, change))
    try:
        model = load(path)
        model(torch.zeros(2, *(size or 0 for size in model.program.inputs[0].sizes[1:])))
    except PackedError:
        pass


def _leaves(value):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, (dict, list)):
            yield from _leaves(item)
        else:
            yield value, key


def test_a_file_is_written_whole_or_not_at_all(written: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.htaf"
    path.write_bytes(written)
    model = load(path)
    with pytest.raises(PackedError, match="JSON"):
        save(model, path, {"x": object()})
    with pytest.raises(PackedError, match="cannot be written"):
        save(model, tmp_path / "no" / "model.htaf")
    assert path.read_bytes() == written
    save(model, path)
    assert path.read_bytes() == written
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(PackedError, match="cannot be read"):
        load(tmp_path / "none.htaf")


class Repeating(nn.Module):
    """What once was kept several times: planes of sums, channels of ones, shared layers, ends of flattened pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.sums, self.shared = nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.folded, self.last = nn.Linear(8, 8), nn.Linear(8 * 12 * 12, 2)

    def forward(self, x):
        y = self.norm(self.first(x))
        x = self.sums(sum(htaf.functional.heaviside(y - c) for c in (-1, 0, 1)))
        for _ in range(3):
            x = self.shared(htaf.functional.heaviside(x))
        for i in range(2):
            x = torch.tanh(self.folded(x.movedim(1, -1)).movedim(-1, 1) * (i + 2))
        return self.last(htaf.functional.heaviside(x.flatten(1)))


def test_a_file_is_no_larger_than_the_weights_but_for_its_graph(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Repeating().eval(), torch.randn(3, 1, 12, 12)
    packed = pack(net, x)
    assert packed.report.layers == 5, packed.report
    save(packed, path := tmp_path / "model.htaf")
    header, _ = _parts(path.read_bytes())
    plain = len(safetensors.torch.save(net.state_dict()))
    assert path.stat().st_size <= plain + len(json.dumps(header)) + 500
    save(again := load(path), tmp_path / "again.htaf")
    assert (tmp_path / "again.htaf").read_bytes() == path.read_bytes()
    assert torch.equal(again(x), packed(x))


def test_operators_are_pure() -> None:
    """Of those that may be called, none changes an argument, is random or has a size that depends on the data."""
    names = {n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")}
    found = {n: f for n in names if (f := operators.allowed(n if "." in n else f"{n}.default")) is not None}
    assert {"add.Tensor", "pad", "conv_transpose2d.input", "slice_scatter", "adaptive_max_pool2d"} <= found.keys()
    for name, function in found.items():
        assert not function._schema.is_mutable, name
        if name not in ("index.Tensor", "scaled_dot_product_attention"):  # masks are refused; dropout is 0
            assert not operators._DEPENDS & set(function.tags), name


@pytest.mark.slow
def test_loading_needs_none_of_what_training_needs(written: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.htaf"
    path.write_bytes(written)
    heavy = ("lightning", "timm", "transformers", "torchvision", "pandas", "sklearn", "matplotlib")
    code = f"""
import sys
from htaf.program.packed import load
import torch
load({str(path)!r})(torch.zeros(3, 1, 8, 8))
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
