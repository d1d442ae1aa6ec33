"""Notes on how a table was read, as data; `told` turns them into sentences where they are shown."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from htaf._ground.errors import counted, listed, option

MOST_NAMED = 1000  # values that a note keeps; with more it says "at least" so many
SHOWN = 10  # columns in a sentence about several


@dataclass(frozen=True)
class Note:
    """One thing that a user should know about how a table was read.

    Attributes:
        kind: one of `SENTENCES` or `OF_COLUMNS`.
        column: the column that it is about, "" for none.
        count: how many rows, or how many of what the kind counts.
        values: what else the sentence says: texts, numbers, tuples of them.
        row: the first row where it was seen, from 1; 0 for none.
    """

    kind: str
    column: str = ""
    count: int = 0
    values: tuple[Any, ...] = ()
    row: int = 0

    def __str__(self) -> str:
        """The sentence."""
        return told([self])[0]

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, as plain JSON values."""
        return {name: lists(value) for name, value in vars(self).items() if value or name == "kind"}

    @classmethod
    def from_json(cls, data: Any) -> Note:
        """Restore what `to_json` gave, as `json.load` has it.

        Raises:
            ValueError: it is something else.
        """
        kinds: dict[str, type] = {"kind": str, "column": str, "count": int, "values": list, "row": int}
        if not isinstance(data, dict) or data.get("kind") not in (*SENTENCES, *OF_COLUMNS):
            raise ValueError(f"expected a note, got {data!r:.80}")
        if wrong := [name for name, value in data.items() if type(value) is not kinds.get(name)]:
            raise ValueError(f"expected the fields of a note, got {wrong[0]!r}: {data[wrong[0]]!r:.80}")
        return cls(**{name: _tuples(value) for name, value in data.items()})


def lists(value: Any) -> Any:
    """Tuples as the lists of JSON, at any depth."""
    return [*map(lists, value)] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def from_record(notes: Iterable[Any]) -> list[Note | str]:
    """Return the notes of a record; those of a training are sentences.

    Raises:
        ValueError: one is neither a text nor a note.
    """
    return [note if isinstance(note, str) else Note.from_json(note) for note in notes]


def to_record(notes: Iterable[Note | str]) -> list[Any]:
    """Notes as plain JSON values; see `from_record`."""
    return [note if isinstance(note, str) else note.to_json() for note in notes]


def new_sentences(notes: Iterable[Note | str], before: Iterable[Any]) -> list[str]:
    """Return notes as sentences, without those in the record, which the training has told already."""
    known = {*told(from_record(before))}
    return [line for line in told(notes) if line not in known]


def together(notes: Iterable[Note]) -> list[Note]:
    """Merge notes of one kind and column: add their counts, and keep each value once."""
    found: dict[tuple[str, str], Note] = {}
    for note in notes:
        known = found.get((note.kind, note.column))
        if known is not None:
            values = tuple(dict.fromkeys((*known.values, *note.values)))
            if note.kind == "outside":
                lows, highs = zip(known.values[:2], note.values[:2], strict=True)
                values = (min(lows), max(highs), *note.values[2:])
            note = replace(known, count=known.count + note.count, values=values[:MOST_NAMED])
        found[note.kind, note.column] = note
    return [*found.values()]


def told(notes: Iterable[Note | str]) -> list[str]:
    """Return notes as sentences, one line each; notes of one kind of `OF_COLUMNS` share a line."""
    lines: dict[str, str | list[str]] = {}
    for place, note in enumerate(notes):
        if isinstance(note, str):
            lines[str(place)] = note
        elif note.kind in OF_COLUMNS:
            of_each = lines.setdefault(note.kind, [])
            assert isinstance(of_each, list)
            of_each.append(_said(OF_COLUMNS[note.kind][1], note))
        else:
            lines[str(place)] = _said(SENTENCES[note.kind], note)
    return [line if isinstance(line, str) else f"{OF_COLUMNS[kind][0]}: {some(line)}" for kind, line in lines.items()]


def _said(sentence: str | Callable[[Note], str], note: Note) -> str:
    return sentence(note) if callable(sentence) else sentence.format(**_words(note))


def some(said: list[str], limit: int = SHOWN) -> str:
    """Return the first of many, with a count of the rest."""
    rest = len(said) - limit
    return ", ".join(said[:limit]) + (f" and {counted(rest, 'more column')}" if rest > 0 else "")


class _Count(int):
    """A count that is written with what it counts: of 2 `:row` is "2 rows"."""

    def __format__(self, what: str) -> str:
        return format(int(self), what) if what in ("", ",") else counted(self, what)


def _words(note: Note) -> Mapping[str, Any]:
    """Return the words for the fields of a sentence; `names` are the values, the others ways to do something else."""
    by_time, name = option(f"--time {note.column!r}", f"htaf.fit(..., time={note.column!r})"), f"{note.column!r}"
    groups = (group for group in note.values if isinstance(group, tuple))
    spellings = some([" = ".join(map(repr, group)) for group in groups], 5)  # of one thing each
    in_python = f"sklearn.model_selection.GroupKFold with groups=frame[{name}]"
    return {
        "by_time": by_time, "by_group": option(f"--group {name}", in_python),
        "own": option("Without --data they are", "Without other data they are"),
        "column": note.column, "count": _Count(note.count), "values": note.values, "row": f"row {note.row}",
        "names": listed([*note.values]), "spellings": spellings,
    }  # fmt: skip


def _unseen(note: Note) -> str:
    """count: of rows. values: which categories, what stands for them, and the first ones."""
    which, instead, *names = note.values
    more, least = len(names) - 3, "at least " if len(note.values) >= MOST_NAMED else ""
    shown = ", ".join(repr(value or "missing") for value in names[:3])
    rest = f" and {least}{more:,} more" if more > 0 else ""
    return f"column {note.column!r}: {counted(note.count, 'row')} with categories {which} ({shown}{rest}), {instead}"


def _dates(note: Note) -> str:
    """values: first and last day, an example and the order in which it is read, the share of texts with a time zone,
    and whether no row says which of day and month comes first."""
    first, last, example, order, zoned, unsure = note.values
    said = f"column {note.column!r}: dates" + (f", {first} to {last}" if first else "")
    if example:
        said += f", {example!r} read as {order}"
    if zoned:
        said += "; times are UTC" + (", those without a zone too" if zoned < 1 else "")
    return said + ("; no row says whether day or month comes first, write 2012-01-31 to be sure" if unsure else "")


def _outside(note: Note) -> str:
    """values: the smallest and the largest one outside, and the range of training; dates as ISO 8601."""
    shown = [value[:10] if isinstance(value, str) else f"{value:g}" for value in note.values]
    if len({*shown}) < len({*note.values}):  # dates of one day are told apart by their time
        shown = [str(value) for value in note.values]
    low, high, least, most = note.values
    beyond = " and ".join([f"down to {shown[0]}"] * (low < least) + [f"up to {shown[1]}"] * (high > most))
    return f"{note.column} ({counted(note.count, 'row')}, {beyond} where training had {shown[2]} to {shown[3]})"


def _few_to_choose_by(note: Note) -> str:
    """count: of rows that would be enough. values: the names of the classes, and the rows of each."""
    each = ", ".join(f"{counted(rows, 'row')} of {name!r}" for name, rows in zip(*note.values, strict=True))
    return (
        f"target {note.column!r}: {each} in the validation part, fewer than {note.count}: they count "
        "less than their class weight when the epoch is chosen, so that no single row decides"
    )


def _say_most(note: Note) -> str:
    """count: of rows. values: the names of one or two columns, the measure, theirs, that of all others."""
    names, what, own, rest = note.values
    say, exclude = f"column {names[0]!r} alone predicts", "it unless it is"
    if len(names) > 1:
        say, exclude = f"columns {listed(names)} together predict", "them unless both are"
    return (
        f"WARNING: {say} the target {note.column!r} far better than all others ({what} {own:.4g}, a forest of the rest "
        f"{rest:.4g}, on {note.count:,} training rows): exclude {exclude} known when you predict"
    )


def _never_predicted(note: Note) -> str:
    """count: of rows. values: the names of the classes, and the fields of a recipe, with their values, that would find
    more of them."""
    names = note.values[0]
    ways = [option(f"--{name.replace('_', '-')} {value}", f"{name}={value!r}") for name, value in note.values[1]]
    words = _words(note)
    return (
        "WARNING: on the validation part the network never predicts "
        f"{listed(names)} of {note.column!r} ({words['count']:row}): "
        + (f"{' or '.join(ways)} finds more of a rare class" if ways else "add rows of the rare class")
    )


NUMBERS_AS_TEXT = "its values are numbers: pandas.to_numeric(..., errors='coerce') makes it a number column"


def why_text(written: str) -> str:
    """Return why a text is not read as a number or a date, and how to write it."""
    return (
        f"{written!r} is no plain number or date; write all in one unit, numbers as 1234.5 and dates as 2012-01-31, or "
        "read the file with decimal=','"
    )


_NOT_TRUSTED = (
    "on the validation part the loss {values[0]}: do not trust the probabilities ({values[1]}). Lower lr, or set clip"
)
# what a caller may not have intended: `fit` warns of it
UNEXPECTED = frozenset(
    {"dropped", "dropped in training", "number as text", "learned nothing", "diverged", "mixed", "text as missing",
     "gives the target away", "say most", "repeated values", "rows in time", "class without weight", "total row",
     "far value", "classes alike", "never predicted", "few for a threshold"}
)  # fmt: skip
# how other rows are unlike those of training: `predict` of an estimator warns of it
UNLIKE = frozenset({"ignored", "without", "unseen", "outside"})
SENTENCES: dict[str, str | Callable[[Note], str]] = {
    # a file
    "encoding": "not UTF-8: read as {values[0]}, as in {values[1]!r}; if that is not right, save the file as UTF-8",
    "header of numbers": "the first line looks like data, but was taken for the column names: add a line of names if "
    "it is data",
    "decimal commas": "column {column!r}: decimal commas read as points",
    "open dots": "column {column!r}: {values[0]!r} read as a decimal number; write {values[1]} if its dot "
    "separates thousands; no row shows which is meant",
    "empty rows": "left out: {count} rows without any value",
    "name again": "duplicate column name: column {values[1]}, {values[0]!r}, is called {column!r}",
    "no name": "left out, having no name: column {values[0]} of {count}",
    # what a column is
    "dates": _dates,
    "read as": "column {column!r}: numbers as people write them, {values[0]!r} read as {values[1]}",
    "leading zeros": "column {column!r} is text: {values[0]!r} begins with 0, as codes do; write numbers without zeros "
    "at the front to have them as such",
    "unit": "column {column!r}: numbers in {values[0]!r}, {values[1]!r} read as {values[2]:g}; # is the number",
    "without": "column {column!r}: {count:row} without {values[0]} of the training, read as {values[1]}",
    "rounded": "column {column!r}: whole numbers beyond 2^53 are rounded (first {values[0]}, {row}); if they are "
    "names, put a letter before each",
    "mixed": "column {column!r} mixes {values[0]} with {count:text} (first {values[1]!r}, {row}): read as a "
    "category{values[2]}",
    # a set known by name
    "source": "{values[0]}",
    # a table
    "no target": "{count:row} without a target {column!r} dropped",
    "no weight": "{count:row} of weight 0 in {column!r} dropped",
    "weights": "{count:row} weighted by {column!r}, {values[0]:g} to {values[1]:g}",
    "weight missing": "no column {column!r}: every row counts the same, unlike in the training",
    "class without weight": "target {column!r}: every row of {names} has weight 0, as if there were no such class",
    "no group": "column {column!r}: {count:row} without a group; each is a group of its own",
    "dropped": "column {column!r} dropped: {values[0]}",
    "number as text": lambda note: f"column {note.column!r} is text: {why_text(*note.values)}",
    "total row": "{row} looks like a total of the others ({values[0]}): delete it, else it counts as a row",
    "far value": "column {column!r}: {count:row} with {values[0]}, far from all others ({values[1]} to {values[2]}): "
    "leave it blank where it stands for a missing value",
    "repeated": "{count:row} repeating an earlier row; a grouped split keeps them on one side",
    # its target
    "task": "task {values[0]} inferred: target {column!r} holds {values[1]}",
    "classes alike": "target {column!r}: each spelling is a class of its own: {spellings}. If they are one class, "
    "unify them with y.str.strip().str.lower(), or use htaf.fit on a frame with the target in it",
    "one row": "target {column!r}: one row only of {names}; it can be in one part of a split only",
    "positive": "class 1 (positive) is {values[1]!r}, class 0 is {values[0]!r}",
    "no rows": "target {column!r}: no rows of {names}",
    "no training rows": "target {column!r}: no training rows of {names}",
    # what its training part says
    "dropped in training": "column {column!r} dropped: {values[0]} in the training part",
    "one category": "column {column!r}: one category each: {spellings}",
    # its parts, before a training
    "gives the target away": "WARNING: column {column!r} alone predicts the target {values[2]!r} almost perfectly "
    "({values[0]} {values[1]:.4g} on {count:,} training rows): exclude it unless it is known when you predict",
    "say most": _say_most,
    "repeated values": "WARNING: column {column!r}: {count:,} values repeat, and test rows share them with training: "
    "new values may be predicted far worse: a forest of {values[0]:,} training rows has {values[1]} {values[2]:.4g} on "
    "values that it has seen, {values[3]:.4g} on others. {by_group} measures on others",
    "rows in time": "column {column!r}: {count:,} different dates, about one a row, but rows are split at random, so "
    "test rows lie between training rows. Later rows may be predicted far worse: {by_time} measures it",
    # what its network learned
    "learned nothing": "WARNING: on the validation part the network is no better than a constant ({values[0]}): it has "
    "learned nothing. Lower lr, train for more epochs, or check the data",
    "never predicted": _never_predicted,
    "threshold": "{values[2]!r} is predicted from a probability of {values[0]:.4g}: the best {values[1]} on the "
    "{count:row} of the validation part ({values[3]:.4f}; {values[4]:.4f} from 0.5)",
    "few to choose by": _few_to_choose_by,
    "few for a threshold": "only {count:validation row} of the rarer class {column!r} choose the threshold, so chance "
    "decides much of it: validate on more rows, or give a number",
    "diverged": "WARNING: " + _NOT_TRUSTED,
    "loss above a constant": _NOT_TRUSTED,
    # other rows
    "ignored": "ignored, not used in training: {names}",
    "text as missing": "column {column!r}: {count:row} with a text that is no number or date read as missing ({names})",
    "ignored target": "ignored: {column!r}, the target",
    "trained on": "{count:,} of {values[0]:,} rows are in the training part too, with the same target, so the figures "
    "are too good. {own} of the run's own test part",
    "unseen": _unseen,
}
OF_COLUMNS: dict[str, tuple[str, str | Callable[[Note], str]]] = {
    "asked": ("no inputs, as asked", "{column!r} ({values[0]})"),
    "missing": ("missing values", "{count:,} in {column!r}"),
    "median": ("missing values set to the training median", "{count:,} in {column!r} ({values[0]})"),
    "outside": ("values outside the range of training", _outside),
}


def warn_unlike(notes: Sequence[Note]) -> None:
    """Warn, at the caller's caller, of categories, units and zones that were not in the training."""
    if known := [str(note) for note in notes if note.kind in UNLIKE - {"outside", "ignored"}]:
        warnings.warn(UNLIKE_TRAINING + "; ".join(known), UserWarning, stacklevel=3)


UNLIKE_TRAINING = "rows unlike those of training: "
