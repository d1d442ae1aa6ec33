"""Hardened networks of tables as ONNX files with the preparation inside: raw columns in, predictions out.

What a `Preprocessor` learned becomes operators of ONNX and ai.onnx.ml. Each kind of column is one function of `KINDS`,
which takes all columns of its kind and gives their inputs of the network.
"""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from htaf._ground.errors import option
from htaf._ground.files import check_output, write_atomic
from htaf.data import dates
from htaf.data.cells import BLANKS
from htaf.data.notes import MOST_NAMED, Note, warn_unlike
from htaf.data.preprocess import MISSING, OTHER, Column, category_values, relabelled, spelled, spellings
from htaf.data.reading import DataError, finite_numbers, listed
from htaf.program.export import integer
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


@dataclass(frozen=True)
class Piece:
    """Inputs of the network that a graph makes from raw columns.

    names: of the inputs, as `Preprocessor.feature_names` has them. value: the tensor float32 [batch, len(names)].
    """

    names: tuple[str, ...]
    value: str


class Graph(integer.Graph):
    """Nodes, constants and inputs of an ONNX graph while it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.op = "prepare"
        self.inputs: list[Any] = []
        self.columns: list[dict[str, Any]] = []

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

    def joined(self, values: Sequence[str]) -> str:
        """Tensors [batch, ...] side by side."""
        return values[0] if len(values) == 1 else self.add("Concat", *values, axis=1)


# ---- the kinds of columns ----


def numbers(graph: Graph, columns: Sequence[Column], preprocessor: Preprocessor) -> list[Piece]:
    """(x - low) / (high - low) with the median where x is NaN or a special code; one 0/1 input for each code."""
    said: list[dict[str, Any]] = [{"low": c.low, "high": c.high} if c.high > c.low else {} for c in columns]
    said = [one | ({"unit": c.unit} if c.unit else {}) for one, c in zip(said, columns, strict=True)]
    raw = graph.joined([graph.column(c, "float64", **more) for c, more in zip(columns, said, strict=True)])
    pieces: list[Piece] = []
    places = [i for i, c in enumerate(columns) if c.high > c.low]
    if places:
        x, scaled = _some(graph, raw, places, len(columns)), [columns[i] for i in places]
        absent = graph.add("IsNaN", x)
        for code in preprocessor.special_codes:
            absent = graph.add("Or", absent, graph.add("Equal", x, graph.constant(code, np.float64)))
        scale = np.array([1 / (c.high - c.low) for c in scaled])
        shift = np.array([0 - c.low * (1 / (c.high - c.low)) for c in scaled])
        known = graph.add("Where", absent, graph.constant([[c.fill for c in scaled]], np.float64), x)
        made = graph.add("Mul", known, graph.constant(scale[None], np.float64))
        made = graph.add("Add", made, graph.constant(shift[None], np.float64))
        pieces.append(Piece(tuple(c.name for c in scaled), graph.cast(made, "FLOAT")))
    codes = [(i, code) for i, c in enumerate(columns) for code in c.codes]
    if codes:
        x = _some(graph, raw, [i for i, _ in codes], len(columns))
        found = graph.add("Equal", x, graph.constant([[code for _, code in codes]], np.float64))
        names = tuple(f"{columns[i].name} is {code:g}" for i, code in codes)
        pieces.append(Piece(names, graph.cast(found, "FLOAT")))
    return pieces + _missing(graph, columns, graph.add("IsNaN", raw))


def _missing(graph: Graph, columns: Sequence[Column], absent: str) -> list[Piece]:
    """Return one 0/1 input for each column whose blanks are told; absent: of all columns, bool [batch, columns]."""
    places = [i for i, c in enumerate(columns) if c.missing]
    if not places:
        return []
    found = _some(graph, absent, places, len(columns))
    return [Piece(tuple(f"{columns[i].name} is missing" for i in places), graph.cast(found, "FLOAT"))]


def dates_of(graph: Graph, columns: Sequence[Column], preprocessor: Preprocessor) -> list[Piece]:
    """(part - low) / (high - low) of the parts of the date, by the calendar of `htaf.data.dates.numbers`."""
    raw, shape = [], {"unit": MICROSECONDS, "missing": MISSING_DATE}
    for c in columns:
        parts = dict(zip(c.outputs, map(list, zip(c.lows, c.highs, strict=True)), strict=True))
        raw.append(graph.column(c, "int64", **shape, order=c.order, zoned=c.zoned, first=c.first, parts=parts))
    given = graph.joined(raw)
    absent = graph.add("Equal", given, graph.constant(MISSING_DATE, np.int64))
    if not any(c.outputs for c in columns):
        return _missing(graph, columns, absent)
    filled = graph.constant([[_microseconds(c.filled) for c in columns]], np.int64)
    calendar = _Calendar(graph, graph.add("Where", absent, filled, given))
    first = [_microseconds(c.first) for c in columns]
    wanted = [part for part in dates.PARTS if any(part in c.outputs for c in columns)]
    parts = graph.joined([graph.cast(calendar.part(part, first), "DOUBLE") for part in wanted])
    places = [wanted.index(part) * len(columns) + i for i, c in enumerate(columns) for part in c.outputs]
    lows, highs = (np.array([[x for c in columns for x in getattr(c, name)]]) for name in ("lows", "highs"))
    made = graph.add("Sub", _some(graph, parts, places, len(wanted) * len(columns)), graph.constant(lows, np.float64))
    made = graph.add("Div", made, graph.constant(np.where(highs > lows, highs - lows, 1), np.float64))
    names = tuple(f"{c.name}: {part}" for c in columns for part in c.outputs)
    return [Piece(names, graph.cast(made, "FLOAT")), *_missing(graph, columns, absent)]


class _Calendar:
    """Parts of dates in whole-number arithmetic, of int64 microseconds [batch, columns]; proleptic Gregorian.

    Source: Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, 400 of them are one era.
    """

    def __init__(self, graph: Graph, moment: str) -> None:
        self.graph, self.moment = graph, moment
        self.time = graph.add("Mod", moment, dates.DAY)
        self.day = graph.add("Div", graph.add("Sub", moment, self.time), dates.DAY)

    def part(self, name: str, first: Sequence[int]) -> str:
        """Return one of `dates.PARTS`; int64, or double where it has a fraction. first: of each column, in
        microseconds."""
        graph = self.graph
        if name == "hour":
            return graph.add("Div", graph.cast(self.time, "DOUBLE"), graph.constant(dates.DAY / 24, np.float64))
        if name == "elapsed days":
            since = graph.cast(graph.add("Sub", self.moment, graph.constant([first], np.int64)), "DOUBLE")
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
        early = graph.add("Less", month, graph.constant(3, np.int64))
        if name == "month":
            return month
        eras = graph.add("Div", graph.add("Sub", since, of_era), 146_097)
        year = graph.add("Add", years, graph.add("Mul", eras, 400))
        year = graph.add("Where", early, graph.add("Add", year, 1), year)
        if name == "year":
            return year
        assert name == "day of year", name
        fourth, century, era = (
            graph.add("Equal", graph.add("Mod", year, n), graph.constant(0, np.int64)) for n in (4, 100, 400)
        )
        leap = graph.add("And", fourth, graph.add("Or", graph.add("Not", century), era))
        late = graph.add("Where", leap, graph.constant(61, np.int64), graph.constant(60, np.int64))
        shift = graph.add("Where", early, graph.constant(-305, np.int64), late)
        return graph.add("Add", of_year, shift)


def _microseconds(date: str) -> int:
    return int(np.datetime64(date, "us").astype(np.int64))


def encoded(graph: Graph, columns: Sequence[Column], preprocessor: Preprocessor) -> list[Piece]:
    """Return the row of a table that belongs to the category; its last row, the target's mean, to others."""
    names, found = [], []
    for column, raw in zip(columns, _texts(graph, columns), strict=True):
        codes = {category: i for i, category in enumerate(column.categories)}
        code = _lookup(graph, column, raw, codes, len(codes))
        lows, highs = np.array(column.lows), np.array(column.highs)
        table = (np.array([*column.values, column.otherwise]) - lows) / np.where(highs > lows, highs - lows, 1)
        found.append(graph.add("Flatten", graph.add("Gather", graph.constant(table, np.float32), code), axis=1))
        names += [f"{column.name}: {output}" for output in column.outputs]
    return [Piece(tuple(names), graph.joined(found))]


def categories(graph: Graph, columns: Sequence[Column], preprocessor: Preprocessor) -> list[Piece]:
    """Return one 0/1 input for each category seen in training, and one for rare ones and others where the column has
    it."""
    names, owners, found = [], [], []
    for place, (column, raw) in enumerate(zip(columns, _texts(graph, columns), strict=True)):
        codes = {category: len(names) + i for i, category in enumerate(column.categories)}
        shown = [*(category or "missing" for category in column.categories), *([OTHER] if column.other else [])]
        names += [f"{column.name}={category}" for category in shown]
        owners += [place] * len(shown)
        found.append(_lookup(graph, column, raw, codes, len(names) - 1 if column.other else -1))
    codes = _some(graph, graph.joined(found), owners, len(columns))
    one_hot = graph.add("Equal", codes, graph.constant([range(len(names))], np.int64))
    return [Piece(tuple(names), graph.cast(one_hot, "FLOAT"))]


def _texts(graph: Graph, columns: Sequence[Column]) -> list[tuple[str, str]]:
    """Return each column as it comes, and with a to z in place of A to Z where that may be another spelling of a
    category."""
    raw = [graph.column(c, "string", categories=list(c.categories)) for c in columns]
    cased = [i for i, c in enumerate(columns) if any(k.lower() != k.upper() for k in c.categories)]
    if not cased:
        return [(name, "") for name in raw]
    some = graph.joined([raw[i] for i in cased])
    flat = graph.add("Reshape", some, graph.constant([-1], np.int64))
    flat = graph.add("Concat", flat, graph.constant([""], object), axis=0)  # the next operator refuses no rows
    low = graph.add("StringNormalizer", flat, case_change_action="LOWER", is_case_sensitive=1, locale="C")
    low = graph.add("Slice", low, graph.constant([0], np.int64), graph.constant([-1], np.int64))
    low = graph.add("Reshape", low, graph.add("Shape", some))
    return [(name, _some(graph, low, [cased.index(i)], len(cased)) if i in cased else "") for i, name in enumerate(raw)]


def _lookup(graph: Graph, column: Column, raw: tuple[str, str], codes: dict[str, int], otherwise: int) -> str:
    """int64 [batch, 1]: the code of each text, by its own spelling first, as `preprocess.places` looks it up."""
    text, lowered = raw
    known = {**codes, **(dict.fromkeys(BLANK_TEXTS, codes[MISSING]) if MISSING in codes else {})}

    def encoder(value: str, found: dict[str, int], default: int) -> str:
        keys = {"keys_strings": [*found], "values_int64s": [*found.values()], "default_int64": default}
        return graph.add("LabelEncoder", value, domain=ML, **keys)

    if not lowered:
        return encoder(text, known, otherwise)
    alike = {text: code for category, code in codes.items() for text in _lower_spellings(category)}
    if not alike:  # single letters, which keep their case
        return encoder(text, known, otherwise)
    exact = encoder(text, known, NO_CODE)
    nowhere = graph.add("Equal", exact, graph.constant(NO_CODE, np.int64))
    return graph.add("Where", nowhere, encoder(lowered, alike, otherwise), exact)


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
KINDS: dict[str, Callable[[Graph, Sequence[Column], Preprocessor], list[Piece]]] = {
    "number": numbers,
    "date": dates_of,
    "encoded": encoded,
    "category": categories,
}  # in the order of the inputs


def _spellings(text: str) -> list[str]:
    """Return a text in every mix of upper and lower case."""
    return ["".join(letters) for letters in itertools.product(*({c.lower(): 0, c.upper(): 0} for c in text))]


BLANK_TEXTS = [spelling for blank in sorted(BLANKS) for spelling in _spellings(blank)]


def _some(graph: Graph, x: str, places: Sequence[int], width: int) -> str:
    """Return columns of a tensor [batch, width], in any order and number."""
    if list(places) == [*range(width)]:
        return x
    return graph.add("Gather", x, graph.constant(places, np.int64), axis=1)


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
    graph = Graph()
    graph.taken = frozenset(column.name for column in columns)
    groups = [[c for c in columns if c.kind == kind] for kind in KINDS]
    pieces = [piece for group in groups if group for piece in KINDS[group[0].kind](graph, group, preprocessor)]
    made = [name for piece in pieces for name in piece.names]
    if sorted(made) != sorted(preprocessor.feature_names):
        raise ExportError(
            f"expected the inputs {listed(preprocessor.feature_names, 5)}, the graph has {listed(made, 5)}"
        )
    places: dict[str, list[int]] = {}
    for i, name in enumerate(made):
        places.setdefault(name, []).append(i)
    order = [places[name].pop(0) for name in preprocessor.feature_names]
    return graph, _some(graph, graph.joined([piece.value for piece in pieces]), order, len(made))


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
