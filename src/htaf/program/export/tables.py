"""Hardened networks of tables as ONNX files with the preparation inside: raw columns in, predictions out.

What a `Preprocessor` learned becomes operators of ONNX and ai.onnx.ml. Each kind of column is one function of `KINDS`,
which takes a column and gives its inputs of the network.
"""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from htaf._ground.errors import option
from htaf._ground.files import check_output, write_atomic
from htaf.data import dates
from htaf.data.columns import MISSING, Column, category_values, spelled, spellings
from htaf.data.notes import MOST_NAMED, Note, warn_unlike
from htaf.data.numerals import BLANKS
from htaf.data.reading import DataError, finite_numbers, listed
from htaf.data.targets import relabelled
from htaf.program.export.onnx import ExportError, network_proto, require
from htaf.transform.convert.exported import cause_of

if TYPE_CHECKING:
    from htaf.data.preprocess import Preprocessor

ML, ML_VERSION = "ai.onnx.ml", 3  # the version that came with opset 18
BATCH = "batch"
CHUNK = 8192  # rows that run at once
OUTPUTS = ("prediction", "probabilities", "inputs")  # names that no column may have
MICROSECONDS = "microseconds since 1970-01-01T00:00 UTC"
MISSING_DATE = -(2**63)  # NumPy's NaT as a number


class Graph:
    """Nodes, constants and inputs of an ONNX graph while it is made; numbers that stand for constants are int64."""

    def __init__(self, taken: frozenset[str]) -> None:
        self.onnx: Any = require("onnx")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.columns: list[dict[str, Any]] = []
        self.taken = taken  # names of inputs

    def _name(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        return name

    def add(self, operator: str, *given: Any, **attributes: Any) -> str:
        """A node with one output, whose name it gives. Numbers among what it takes become constants."""
        made = self._name(f"prepare/{operator}_{len(self.nodes)}")
        taken = [one if isinstance(one, str) else self.constant(one) for one in given]
        self.nodes.append(self.onnx.helper.make_node(operator, taken, [made], made, **attributes))
        return made

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        made = self._name(f"prepare/constant_{len(self.constants)}")
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value).astype(dtype), made))
        return made

    def cast(self, x: str, kind: str) -> str:
        return self.add("Cast", x, to=getattr(self.onnx.TensorProto, kind))

    def column(self, column: Column, dtype: str, **said: Any) -> str:
        """Return an input [batch, 1] of the raw column; `said` of it stands in the metadata.

        Args:
            dtype: "float64", "int64" or "string".
        """
        self.columns.append({"name": column.name, "kind": column.kind, "dtype": dtype, **said})
        kind = {"float64": "DOUBLE", "int64": "INT64", "string": "STRING"}[dtype]
        element = getattr(self.onnx.TensorProto, kind)
        self.inputs.append(self.onnx.helper.make_tensor_value_info(column.name, element, [BATCH, 1]))
        return column.name


# ---- the kinds of columns: each gives blocks [batch, inputs], in the preprocessor's order of the column's inputs ----


def numbers(graph: Graph, column: Column, special_codes: Sequence[float]) -> list[str]:
    """(x - low) / (high - low) with the median where x is NaN or a special code; one 0/1 input for each code, and one
    for a missing value where blanks are told."""
    ends = {"low": column.low, "high": column.high} if column.high > column.low else {}
    raw = graph.column(column, "float64", **ends, **({"unit": column.unit} if column.unit else {}))
    absent, blocks = graph.add("IsNaN", raw), list[str]()
    if ends:
        told = absent
        for code in special_codes:
            told = graph.add("Or", told, graph.add("Equal", raw, graph.constant(code, np.float64)))
        scale = 1 / (column.high - column.low)
        made = graph.add("Where", told, graph.constant(column.fill, np.float64), raw)
        made = graph.add("Mul", made, graph.constant(scale, np.float64))
        blocks.append(graph.add("Add", made, graph.constant(0 - column.low * scale, np.float64)))
    if column.codes:
        blocks.append(graph.add("Equal", raw, graph.constant([column.codes], np.float64)))
    return [*blocks, absent] if column.missing else blocks


def dates_of(graph: Graph, column: Column, special_codes: Sequence[float]) -> list[str]:
    """(part - low) / (high - low) of the parts of the date, by the calendar of `htaf.data.dates.numbers`; before them
    one 0/1 input for a missing value where blanks are told."""
    parts = dict(zip(column.outputs, map(list, zip(column.lows, column.highs, strict=True)), strict=True))
    said = {"unit": MICROSECONDS, "missing": MISSING_DATE, "order": column.order, "zoned": column.zoned}
    raw = graph.column(column, "int64", **said, first=column.first, parts=parts)
    absent = graph.add("Equal", raw, MISSING_DATE)
    blocks = [absent] if column.missing else []
    if parts:
        filled = graph.add("Where", absent, graph.constant(_microseconds(column.filled)), raw)
        calendar = _Calendar(graph, filled, _microseconds(column.first))
        for part, (low, high) in parts.items():
            made = graph.add("Sub", graph.cast(calendar.part(part), "DOUBLE"), graph.constant(low, np.float64))
            blocks.append(graph.add("Div", made, graph.constant(high - low if high > low else 1, np.float64)))
    return blocks


class _Calendar:
    """Parts of dates in whole-number arithmetic, of int64 microseconds [batch, 1]; proleptic Gregorian.

    Source: Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, 400 of them are one era.
    """

    def __init__(self, graph: Graph, moment: str, first: int) -> None:
        self.graph, self.moment, self.first = graph, moment, first
        self.time = graph.add("Mod", moment, dates.DAY)
        self.day = graph.add("Div", graph.add("Sub", moment, self.time), dates.DAY)

    def part(self, name: str) -> str:
        """Return one of `dates.PARTS`; int64, or double where it has a fraction."""
        graph = self.graph
        if name == "hour":
            return graph.add("Div", graph.cast(self.time, "DOUBLE"), graph.constant(dates.DAY / 24, np.float64))
        if name == "elapsed days":
            since = graph.cast(graph.add("Sub", self.moment, self.first), "DOUBLE")
            return graph.add("Div", since, graph.constant(dates.DAY, np.float64))
        if name == "weekday":
            return graph.add("Mod", graph.add("Add", self.day, 3), 7)
        since = graph.add("Add", self.day, 719_468)  # the first of March of the year 0
        of_era = graph.add("Mod", since, 146_097)
        years = graph.add("Div", of_era, 36_524)
        years = graph.add("Add", graph.add("Sub", of_era, graph.add("Div", of_era, 1_460)), years)
        years = graph.add("Div", graph.add("Sub", years, graph.add("Div", of_era, 146_096)), 365)
        gone = graph.add("Add", graph.add("Mul", years, 365), graph.add("Div", years, 4))
        of_year = graph.add("Sub", of_era, graph.add("Sub", gone, graph.add("Div", years, 100)))
        month = graph.add("Div", graph.add("Add", graph.add("Mul", of_year, 5), 2), 153)  # from March, 0
        month = graph.add("Add", graph.add("Mod", graph.add("Add", month, 2), 12), 1)
        early = graph.add("Less", month, 3)
        if name == "month":
            return month
        eras = graph.add("Div", graph.add("Sub", since, of_era), 146_097)
        year = graph.add("Add", years, graph.add("Mul", eras, 400))
        year = graph.add("Where", early, graph.add("Add", year, 1), year)
        if name == "year":
            return year
        assert name == "day of year", name
        fourth, century, era = (graph.add("Equal", graph.add("Mod", year, n), 0) for n in (4, 100, 400))
        leap = graph.add("And", fourth, graph.add("Or", graph.add("Not", century), era))
        shift = graph.add("Where", early, -305, graph.add("Where", leap, 61, 60))
        return graph.add("Add", of_year, shift)


def _microseconds(date: str) -> int:
    return int(np.datetime64(date, "us").astype(np.int64))


def encoded(graph: Graph, column: Column, special_codes: Sequence[float]) -> list[str]:
    """Return the row of a table that belongs to the category; its last row, the target's mean, to others."""
    codes = {category: i for i, category in enumerate(column.categories)}
    lows, highs = np.array(column.lows), np.array(column.highs)
    table = (np.array([*column.values, column.otherwise]) - lows) / np.where(highs > lows, highs - lows, 1)
    row = graph.add("Gather", graph.constant(table, np.float32), _lookup(graph, column, codes, len(codes)))
    return [graph.add("Flatten", row, axis=1)]


def categories(graph: Graph, column: Column, special_codes: Sequence[float]) -> list[str]:
    """Return one 0/1 input for each category seen in training, and one for rare ones and others where the column has
    it."""
    codes = {category: i for i, category in enumerate(column.categories)}
    code = _lookup(graph, column, codes, len(codes) if column.other else -1)
    return [graph.add("Equal", code, graph.constant([range(len(codes) + column.other)]))]


def _lookup(graph: Graph, column: Column, codes: dict[str, int], otherwise: int) -> str:
    """int64 [batch, 1]: the code of each text, by its own spelling first, as `htaf.data.columns.places` looks it up;
    then with a to z in place of A to Z, where that may be another spelling of a category."""
    text = graph.column(column, "string", categories=list(column.categories))
    known = {**codes, **(dict.fromkeys(BLANK_TEXTS, codes[MISSING]) if MISSING in codes else {})}
    alike = {text: code for category, code in codes.items() for text in _lower_spellings(category)}

    def encoder(value: str, found: dict[str, int], default: int) -> str:
        keys = {"keys_strings": [*found], "values_int64s": [*found.values()], "default_int64": default}
        return graph.add("LabelEncoder", value, domain=ML, **keys)

    if not alike or all(c.lower() == c.upper() for c in codes):  # single letters keep their case
        return encoder(text, known, otherwise)
    flat = graph.add("Reshape", text, graph.constant([-1]))
    flat = graph.add("Concat", flat, graph.constant([""], object), axis=0)  # the next operator refuses no rows
    low = graph.add("StringNormalizer", flat, case_change_action="LOWER", is_case_sensitive=1, locale="C")
    low = graph.add("Slice", low, graph.constant([0]), graph.constant([-1]))
    low = graph.add("Reshape", low, graph.add("Shape", text))
    exact = encoder(text, known, NO_CODE)
    return graph.add("Where", graph.add("Equal", exact, NO_CODE), encoder(low, alike, otherwise), exact)


NO_CODE = -2
MOST_LETTERS = 8  # beyond a to z in a category of which every mix of upper and lower case is looked up


def _lower_spellings(category: str) -> list[str]:
    """Spellings that count as this category, with a to z in place of A to Z. Of many other letters only the common."""
    found: list[str] = []
    for text in dict.fromkeys((category, category.casefold(), category.upper(), category.lower(), category.title())):
        each = [[*({c.lower(): 0, c.upper(): 0, c: 0} if not c.isascii() else [c])] for c in text]
        mixed = sum(len(letters) > 1 for letters in each) <= MOST_LETTERS
        found += ["".join(letters) for letters in itertools.product(*each)] if mixed else [text]
    lowered = dict.fromkeys(text.translate(_LOWER) for text in found)
    # a single letter that is no y, n, t or f keeps its case
    return [text for text in lowered if spelled(text.upper()) == spelled(text) == spelled(category)]


_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


# A kind of column is added here: its function, the Preprocessor's own arithmetic in terms of ONNX. Where its raw values
# are neither numbers nor texts, `raw_columns` must learn to read them too. The property test in
# tests/test_export_tables.py compares with `Preprocessor.transform`.
KINDS: dict[str, Callable[[Graph, Column, Sequence[float]], list[str]]] = {
    "number": numbers,
    "date": dates_of,
    "encoded": encoded,
    "category": categories,
}


def _spellings(text: str) -> list[str]:
    """Return a text in every mix of upper and lower case."""
    return ["".join(letters) for letters in itertools.product(*({c.lower(): 0, c.upper(): 0} for c in text))]


BLANK_TEXTS = [spelling for blank in sorted(BLANKS) for spelling in _spellings(blank)]


# ---- the file ----


def table_to_onnx(
    model: nn.Module,
    preprocessor: Preprocessor,
    path: str | Path,
    *,
    about: dict[str, str] | None = None,
) -> None:
    """Write a hardened network of a table with its preparation: raw columns in, predictions out.

    Inputs: one for each raw column that the network reads, by the column's name, [batch, 1]; float64 for numbers (NaN
    is missing), int64 for dates (microseconds since 1970 in UTC, as numpy.datetime64[us] holds them; -2^63, which is
    its NaT, is missing), string for categories ("" is missing, so are "NA", "?" and the others that `htaf predict`
    takes for it). Outputs: `prediction` [batch], the class as string, or float64 in the target's units; of a
    classification also `probabilities` float32 [batch, classes]. The metadata hold `task`, `target`, `classes`
    (JSON), `columns` (JSON) and, where the run has one, `threshold`, by which `prediction` is decided.

    The preparation computes as `Preprocessor.transform` does, in float64, and gives the same bits. A graph raises no
    errors: numbers that are infinite or beyond float32 are not refused, and texts keep blanks at their ends. Spellings
    that differ in A to Z are one category, and most that differ in other letters; `raw_columns` sees to the rest.

    Args:
        model: hardened, on the CPU, [rows, inputs] -> [rows, classes or 1]; not changed.
        preprocessor: of its inputs.
        path: of the file, which is written whole or not at all.
        about: more entries of the metadata.

    Raises:
        ExportError: as `to_onnx`; a kind of column that has no form in ONNX here; a column that is named as an output.
    """
    check_output(Path(path), flag="path")
    onnx = require("onnx")
    classes, target = preprocessor.target.classes, preprocessor.target
    graph, features = _prepared(preprocessor)
    network = network_proto(model, torch.zeros(2, len(preprocessor.feature_names)))
    made = onnx.compose.add_prefix(network, "network/")
    body = made.graph
    (given,), (logits,) = body.input, body.output
    body.node.insert(0, onnx.helper.make_node("Identity", [features], [given.name]))
    value = graph.cast(logits.name, "DOUBLE")
    after = len(graph.nodes) - 1
    info, kinds = onnx.helper.make_tensor_value_info, onnx.TensorProto
    if classes:
        probability = graph.add("Softmax", value, axis=1)
        if target.threshold is None:
            place = graph.add("ArgMax", probability, axis=1, keepdims=0)
        else:
            second = graph.add("Gather", probability, graph.constant(1, np.int64), axis=1)
            reached = graph.add("GreaterOrEqual", second, graph.constant(target.threshold, np.float64))
            place = graph.cast(reached, "INT64")
        labels = {"keys_int64s": [*range(len(classes))], "values_strings": [*classes], "default_string": ""}
        prediction = graph.add("LabelEncoder", place, domain=ML, **labels)
        outputs = {"prediction": prediction, "probabilities": graph.cast(probability, "FLOAT")}
        shown = [info("prediction", kinds.STRING, [BATCH]), info("probabilities", kinds.FLOAT, [BATCH, len(classes)])]
    else:
        value = graph.add("Reshape", value, graph.constant([-1], np.int64))
        value = graph.add("Mul", value, graph.constant(target.std, np.float64))
        outputs = {"prediction": graph.add("Add", value, graph.constant(target.mean, np.float64))}
        shown = [info("prediction", kinds.DOUBLE, [BATCH])]
    for name, value in outputs.items():
        graph.nodes.append(onnx.helper.make_node("Identity", [value], [name]))
    nodes = [*graph.nodes[:after], *body.node, *graph.nodes[after:]]
    whole = onnx.helper.make_graph(
        nodes, "htaf", graph.inputs, shown, [*graph.constants, *body.initializer], value_info=body.value_info
    )
    del made.graph.node[:]
    made.graph.CopyFrom(whole)
    made.opset_import.append(onnx.helper.make_opsetid(ML, ML_VERSION))
    made.producer_name = "htaf"
    said = {"task": target.task, "target": target.name, "classes": json.dumps([*classes], ensure_ascii=False)}
    if target.threshold is not None:
        said["threshold"] = repr(target.threshold)
    said |= {"columns": json.dumps(graph.columns, ensure_ascii=False), **(about or {})}
    onnx.helper.set_model_props(made, said)
    try:
        onnx.checker.check_model(made)
    except onnx.checker.ValidationError as error:
        raise ExportError(f"the table's graph is not valid ONNX: {cause_of(error)}") from None
    write_atomic(Path(path), made.SerializeToString())


def _prepared(preprocessor: Preprocessor) -> tuple[Graph, str]:
    """Return the preparation, and the value in it that the network reads: float32 [batch, inputs]."""
    columns = [column for column in preprocessor.columns if column.kind != "dropped"]
    if unknown := [column for column in columns if column.kind not in KINDS]:
        kind = unknown[0].kind
        names = listed([column.name for column in unknown if column.kind == kind], 5)
        raise ExportError(
            f"a column of the kind {kind} cannot be written as ONNX yet ({names}); those that can: "
            f"{', '.join(KINDS)}. Write the network alone with {option('--raw False', 'raw=False')}"
        )
    if taken := [column.name for column in columns if column.name in OUTPUTS]:
        raise ExportError(
            f"expected columns with other names than {', '.join(OUTPUTS)}, which the file uses, got {listed(taken)}: "
            f"rename them and train again, or write the network alone with {option('--raw False', 'raw=False')}"
        )
    graph = Graph(frozenset(column.name for column in columns))
    blocks, places = list[str](), list[int]()
    for column in columns:
        made = KINDS[column.kind](graph, column, preprocessor.special_codes)
        blocks += [graph.cast(block, "FLOAT") for block in made]
        places += preprocessor.inputs_of(column.name).tolist()
    joined = graph.add("Concat", *blocks, axis=1)
    return graph, graph.add("Gather", joined, graph.constant(np.argsort(places)), axis=1)


# ---- running it ----


def raw_columns(rows: pd.DataFrame, columns: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the raw columns of a frame as a file of `table_to_onnx` takes them.

    Args:
        rows: any dtypes, as `htaf.runs.Run.predict` takes them.
        columns: the metadata's entry `columns`.

    Returns:
        By name arrays [rows, 1]: float64, NaN where missing; int64 microseconds since 1970, -2^63 where missing; or
        object of str, "" where missing.

    Raises:
        DataError: a missing column, text in a column of numbers, or what is no date in one of dates.
    """
    found: dict[str, np.ndarray] = {}
    absent = [c["name"] for c in columns if c["name"] not in rows.columns]
    if absent:
        raise DataError(f"expected the columns {listed(absent)} too, got only {listed([*map(str, rows.columns)])}")
    for column in columns:
        name, raw = column["name"], rows[column["name"]]
        if column["dtype"] == "string":
            found[name] = _as_known(category_values(raw), column)[:, None]
            continue
        if column["dtype"] == "int64":
            moments = dates.read(name, raw, column["order"], column.get("zoned", False))
            found[name] = moments.astype("datetime64[us]").astype(np.int64)[:, None]
            continue
        found[name] = finite_numbers(raw, name, unit=column.get("unit", "")).astype(column["dtype"])[:, None]
    return found


def _as_known(values: np.ndarray, column: dict[str, Any]) -> np.ndarray:
    """Return texts [rows]; another spelling of a category becomes the category."""
    known = column.get("categories", ())
    alike = spellings(known)
    found = {value: alike.get(spelled(value), value) for value in set(values) - set(known)}
    return np.array([found.get(value, value) for value in values], dtype=object)


def _unseen(column: dict[str, Any], values: np.ndarray) -> list[Note]:
    """Return a note if texts are none of the column's categories."""
    others = (
        [value for value in values if value and value not in column["categories"]] if "categories" in column else []
    )
    names = ("rare in training or not seen", "of which the network knows nothing", *dict.fromkeys(others))
    return [Note("unseen", column["name"], len(others), names[:MOST_NAMED])] if others else []


def onnx_table(path: str | Path, *, threads: int = 0) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Load a file of `table_to_onnx` as a function of raw rows, run by onnxruntime; predictions as
    `htaf.runs.Run.predict`.

    Args:
        threads: of onnxruntime; 0: as it chooses.

    Raises:
        ExportError: onnxruntime is not installed or does not take the file, or it is no such file.
        DataError: when called, as `raw_columns`.
    """
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        said = session.get_modelmeta().custom_metadata_map
        columns, classes = json.loads(said["columns"]), json.loads(said["classes"])
        labels = json.loads(said.get("labels", "null"))
    except KeyError:
        raise ExportError(f"expected a file with raw columns (htaf export --to onnx of a table), got {path}") from None
    except Exception as error:  # its exceptions have no base of their own
        raise ExportError(f"onnxruntime does not run {path}: {cause_of(error)}") from None

    def predict(rows: pd.DataFrame) -> pd.DataFrame:
        given = raw_columns(rows, columns)
        pieces = [  # what onnxruntime holds between layers is many times the rows
            session.run(None, {name: values[start : start + CHUNK] for name, values in given.items()})
            for start in range(0, max(len(rows), 1), CHUNK)
        ]
        outputs = [np.concatenate(each) for each in zip(*pieces, strict=True)]
        made = {"prediction": outputs[0]}
        made |= {f"probability_{name}": outputs[1][:, i] for i, name in enumerate(classes)}
        warn_unlike([note for column in columns for note in _unseen(column, given[column["name"]][:, 0])])
        return relabelled(pd.DataFrame(made, index=rows.index), classes, labels)

    return predict
