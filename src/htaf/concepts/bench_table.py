"""What each figure of the bench shows, and what not; the bench as tables in Markdown and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from htaf._console import markdown_text
from htaf._files import csv_text
from htaf.concepts.reasons import SHOWN

PROBE = "linear probe, no bits"
SURE = 2.0  # standard errors of a difference: of less none is told
ERRORS = (
    "Standard errors of accuracies are of images and seeds, the others of seeds alone: of three seeds one in nine rows "
    "that are alike is told apart all the same, of a single one beside three, one in five."
)
FEW, FOLLOWS = "accuracy_5", "attributes"  # two figures that other bits rarely have at once


@dataclass(frozen=True)
class Column:
    """A figure: its key and name, how it is written, what it shows, what not.

    ahead: more of it is better. short: its name in a narrow table, which the others are not in.
    """

    key: str
    name: str
    form: str
    shows: str
    not_shown: str
    ahead: bool = False
    short: str = ""


COLUMNS = (
    Column(
        "accuracy", "accuracy, %", ".1%", "accuracy of a linear head on all bits: what they keep of the features.",
        "Not meaning: random class splits, which mean nothing, can keep as much.", ahead=True, short="all, %",
    ),
    Column(
        "accuracy_5", "5 a class, %", ".1%", "accuracy of a head in which a class draws on at most 5 bits: whether "
        "decisions can be short.",
        "Not that what is read means something: random class splits, which mean nothing, can win here.",
        ahead=True, short="5, %",
    ),
    Column("accuracy_10", "10 a class, %", ".1%", "the same with 10 bits.", "Not meaning, as before.", ahead=True),
    Column(
        "ncc", "NCC", ".0f", "how many bits make up 95% of a logit of the head on all bits.",
        "Not how few would do: the head was not asked to be sparse.",
    ),
    Column(
        "attributes", "attributes, AUROC", ".3f", "how well a bit follows one attribute of the table, the one that it "
        "follows best on half of the classes, on images of the other half. 0.5: chance.",
        "Not that it is this attribute: bits of groups of similar classes can do well. Concepts that the table lacks, "
        "or that differ within a class, do not count.", ahead=True, short="AUROC",
    ),
    Column(
        "clear", "clear pairs", ".2f", "share of (bit, class) pairs in which at most 10%, or at least 90%, of the "
        "class's images have the bit.", "Not meaning: class splits can be clear, and rare bits, see the next column.",
    ),
    Column(
        "clear_by_chance", "by chance", ".2f", "the clear pairs of bits that are on as often, in random images.",
        "Nothing of the bits but how rare they are.",
    ),
    Column(
        "one_class", "of one class", ".2f", "share of bits that half or more of the images have of exactly one class: "
        "detectors of a class, not what classes share.", "Not that the other bits are concepts.", short="1 class",
    ),
    Column(
        "rate", "on, %", ".0%", "share of the bits that an image has.", "No quality: clear pairs depend on it.",
    ),
    Column(
        "stability", "stability", ".2f", "mean |correlation| of bits with those of another seed, matched one to one: "
        "whether another training finds the same.", "Not meaning: what the features fix is stable too.",
        ahead=True, short="stable",
    ),
    Column(
        "undone", "undone, all", ".2f", f"share of decisions of the head on all bits that change when the {SHOWN} "
        "reasons shown are flipped: whether these hold the decision.",
        "Not that they make sense. A poor head can have small margins, and is then undone easily.", short="undone",
    ),
    Column(
        "undone_5", "undone, 5 a class", ".2f", "the same of the head of 5 a class.",
        "Not that they make sense: with so few bits it can always be 1.",
    ),
)  # fmt: skip


def cell(row: Mapping[str, Any], column: Column, *, spread: bool = True) -> str:
    """A figure of a row as it is shown, with the standard deviation over its seeds."""
    value, sd = row["mean"].get(column.key), row["sd"].get(column.key)
    text = "-" if value is None else format(value, column.form).rstrip("%")
    return f"{text} ± {format(sd, column.form).rstrip('%')}" if spread and sd is not None else text


def rows_of(result: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(name, how many bits, row) of all bits, then of the probe."""
    for row in result["rows"]:
        size = f"{row['concepts']:.0f}"
        yield row["bits"], size if row["live"] == row["concepts"] else f"{row['live']:.0f} of {size}", row
    yield PROBE, "-", {"mean": {"accuracy": result["probe"]["accuracy"]}, "sd": {}}


def shown(result: Mapping[str, Any]) -> list[Column]:
    """The columns of which some of the given bits have a figure."""
    given = [row["mean"] for row in result["rows"] if not row["made"]]
    return [column for column in COLUMNS if any(mean.get(column.key) is not None for mean in given)]


def ahead(other: Mapping[str, Any], row: Mapping[str, Any], key: str) -> int | None:
    """1: the other row has more by over two standard errors of the difference, -1: less, 0: neither; None: not known.

    One seed varies as those of the other row. The errors of both rows are added as those of different images, though
    they are of the same: rather too careful.
    """

    def error(one: Mapping[str, Any], beside: Mapping[str, Any]) -> float | None:
        own = one["error"].get(key)
        return beside["sd"].get(key) if own is None else own

    one, two = error(other, row), error(row, other)
    if other["mean"][key] is None or one is None or two is None or one == two == 0:
        return None
    difference = other["mean"][key] - row["mean"][key]
    return 0 if abs(difference) <= SURE * np.hypot(one, two) else int(np.sign(difference))


def verdicts(result: Mapping[str, Any]) -> list[str]:
    """Of each of the given bits, which of the baselines are surely better in which figures, which cannot be told from
    them, and which are not behind in two figures at once."""
    said, made = [], [row for row in result["rows"] if row["made"]]
    for row in result["rows"]:
        if row["made"]:
            continue
        found = {
            column.key: (column.name, {other["bits"]: ahead(other, row, column.key) for other in made})
            for column in COLUMNS
            if column.ahead and row["mean"].get(column.key) is not None
        }
        known = {key: pair for key, pair in found.items() if any(one is not None for one in pair[1].values())}

        def names(of: Mapping[str, int | None], *wanted: int) -> list[str]:
            return [name for name, one in of.items() if one in wanted]

        listed = []
        for name, of in known.values():
            level = f" (not told apart: {', '.join(names(of, 0))})" if names(of, 0) else ""
            listed.append(f"{name}: {', '.join(names(of, 1)) or 'none'}{level}")
        said.append(f"{row['bits']}: better by over two standard errors are, in {'; '.join(listed)}.")
        if FEW in known and FOLLOWS in known:
            (few, one), (follows, two) = known[FEW], known[FOLLOWS]
            both = ", ".join(name for name in names(one, 0, 1) if name in names(two, 0, 1))
            said[-1] += f" Behind neither in {few} nor in {follows}: {both or 'none'}."
    return said


def table(result: Mapping[str, Any], *, title: str = "Are they concepts?") -> str:
    """The result of `htaf.concepts.bench.bench` as Markdown."""
    part, p = result["part"], result["probe"]["accuracy"]
    error = 100 * np.sqrt(p * (1 - p) / result["images"][part])
    about = (
        f"{result['concepts']} bits, {result['classes']} classes, {result['features']:,} features, "
        f"{result['images'][part]:,} images of the part {part!r} (standard error of an accuracy: some {error:.1f} "
        "points). Means; ±: standard deviation over seeds. All bits are of the same images, read by heads fitted alike."
    )
    columns = shown(result)
    names = ("bits", "live bits", *(column.name for column in columns))
    lines = [f"# {markdown_text(title)}", "", about, "", _line(names), _line(["---"] * len(names))]
    lines += [
        _line([markdown_text(name), size, *(cell(row, column) for column in columns)])
        for name, size, row in rows_of(result)
    ]
    lines += ["", *(f"- {markdown_text(line)}" for line in verdicts(result)), "", ERRORS, ""]
    lines += [f"- *{c.name}*: {c.shows} {c.not_shown}" for c in columns]
    return "\n".join([*lines, "", f"Heads: {result['algorithm']}", ""])


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def as_csv(result: Mapping[str, Any]) -> str:
    """A line for each bits and seed, and for the mean, the standard deviation and the error over seeds."""
    keys = [column.key for column in COLUMNS]
    lines: list[list[object]] = [["bits", "seed", "concepts", "live", *keys]]
    for row in result["rows"]:
        for number, one in enumerate(row["seeds"]):
            lines.append([row["bits"], number, one["concepts"], one["live"], *(one.get(key) for key in keys)])
        for what in ("mean", "sd", "error"):
            lines.append([row["bits"], what, row["concepts"], row["live"], *(row[what][key] for key in keys)])
    return csv_text([*lines, [PROBE, "mean", "", "", result["probe"]["accuracy"], *[""] * (len(keys) - 1)]])
