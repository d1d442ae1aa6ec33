"""What a folder of the paper's items holds: outcomes, read and checked, and the one of each item that is reported.

Only files are read: no study is imported, nothing is computed, no data set is needed.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from htaf._ground.files import to_json
from htaf_paper.items import EXPERIMENTS, ITEMS
from htaf_paper.protocol import (
    SCALES,
    Claim,
    Drawing,
    Figure,
    Kept,
    Outcome,
    PaperError,
    Scale,
    Table,
    Verdict,
    command_of,
)
from htaf_paper.records import read_lines, write_records

FORMAT, OUTCOMES = 1, "outcomes.jsonl"
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
TESTED: tuple[Verdict, ...] = ("holds", "does not hold", "not settled")
COMPARED = ("ours", "paper", "difference")  # columns in place of one whose figures the paper has
ABOUT_DIFFERENCE = (
    "Difference: ours less the paper's. In brackets: the standard error; of a difference that of both, as far as they "
    "are known."
)
# what can change between two runs of the same cells is written in this way alone
TIMES = re.compile(r"[0-9][0-9,.]* CPU s\b")
NUMBER = re.compile(r"[-+]?[0-9][0-9,]*(\.[0-9]+)?(e[-+]?[0-9]+)?%?|-")
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,80}")


def picture_file(out: Path, scale: Scale, name: str) -> Path:
    """Where a photograph of the outcomes at a scale lies."""
    return out / "pictures" / scale / name


def keep_outcomes(out: Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Write outcomes of items beside those that a folder has; of an item at a scale the new one counts.

    Raises:
        RecordsError: the outcomes that are there are damaged.
    """
    made = {(value["scale"], value["id"]) for value in values}
    kept = [one for one in read_lines(out / OUTCOMES) if (one.get("scale"), one.get("id")) not in made]
    write_records(out / OUTCOMES, [*kept, *values])


def without_times(text: str) -> str:
    """The text of a report without the times in it: the same for two runs that computed the same."""
    return TIMES.sub("- CPU s", text)


def seconds(value: float) -> str:
    """A time, such that `without_times` finds it."""
    return f"{value:,.1f} CPU s"


@dataclass(frozen=True)
class Measured(Kept):
    """Where cells were computed: their number and time, commit, machine, versions."""

    cells: int
    cpu_seconds: float
    commit: str | None
    platform: str | None
    device: str
    threads: int | None
    versions: Mapping[str, str] | None


@dataclass(frozen=True)
class Read(Kept):
    """The outcome of an item at one scale.

    status: `finished`, `failed` or `not run: ...`; command: that makes it.
    """

    id: str
    title: str
    paper: str
    scale: Scale
    about: str
    status: str
    message: str
    outcome: Outcome
    measured: tuple[Measured, ...]
    command: str = ""
    format: int = FORMAT

    def counts(self) -> Counter[Verdict]:
        """How many claims have each verdict."""
        return Counter(claim.verdict for claim in self.outcome.claims)


READ = TypeAdapter(Read)


@dataclass(frozen=True)
class Item:
    """An item of the paper. shown: at its largest finished scale, or None; others: at other scales, largest first.

    claims: of each scale those that are reported: a claim stands at the largest scale at which it was tested.
    """

    id: str
    shown: Read | None
    others: tuple[Read, ...] = ()

    @cached_property
    def claims(self) -> dict[Scale, tuple[Claim, ...]]:
        if self.shown is None:
            return {}
        reads = (self.shown, *(one for one in self.others if one.status == "finished" and one.scale != "smoke"))
        at: dict[tuple[str, str], Scale] = {}  # by text and place
        for untested in (False, True):
            for read in reads:
                for claim in read.outcome.claims:
                    if untested or claim.verdict in TESTED:
                        at.setdefault((claim.text, claim.place), read.scale)
        own: dict[Scale, tuple[Claim, ...]] = {
            read.scale: tuple(c for c in read.outcome.claims if at[c.text, c.place] == read.scale) for read in reads
        }
        return {scale: claims for scale, claims in own.items() if claims}

    @property
    def smaller(self) -> list[Read]:
        """Reads at other scales, some of whose claims are reported."""
        return [read for read in self.others if read.scale in self.claims and read is not self.shown]

    @property
    def title(self) -> str:
        known = self._known()
        return known.title if known else self.id

    @property
    def paper(self) -> str:
        known = self._known()
        return known.paper if known else ""

    def _known(self) -> Read | None:
        return self.shown or (self.others[0] if self.others else None)

    @property
    def reason(self) -> str:
        """Why it is not shown."""
        known = self._known()
        return "not run" if known is None else known.status

    @property
    def message(self) -> str:
        known = self._known()
        return "" if known is None else known.message

    @property
    def command(self) -> str:
        """That makes what is shown or, where nothing is, would make it."""
        known = self._known()
        return known.command if known else command_of(self.id, "full")


@dataclass(frozen=True)
class Judged:
    """A claim, and where it was tested."""

    item: Item
    scale: Scale
    claim: Claim


def read_items(out: Path) -> list[Item]:
    """Every item of the paper, in its order, with what the folder has of it.

    Raises:
        PaperError: the folder is not there, or a line of its outcomes is no outcome of an item. RecordsError: they
            cannot be read.
    """
    if not out.is_dir():
        raise PaperError(f"expected a folder of `htaf paper run --out`, {out} is not there")
    found: dict[str, list[Read]] = {name: [] for name in ITEMS}
    for read in _all(out):
        if read.id in found:  # a study of ours has a report of its own
            found[read.id].append(read)
    return [_chosen(name, reads) for name, reads in found.items()]


def read_experiments(out: Path) -> list[Read]:
    """Our own studies that are finished, each at its largest scale. Raises as `read_items`."""
    finished = [read for read in _all(out) if read.id in EXPERIMENTS and read.status == "finished"]
    largest = {read.id: read for read in sorted(finished, key=lambda read: SCALES.index(read.scale))}
    return [largest[name] for name in EXPERIMENTS if name in largest]


def _all(out: Path) -> list[Read]:
    return [_read(value, f"{out / OUTCOMES}, line {n}") for n, value in enumerate(read_lines(out / OUTCOMES), 1)]


def _chosen(name: str, reads: Sequence[Read]) -> Item:
    """Finished before failed, large before small; what was not run has nothing to show."""
    ordered = sorted(reads, key=lambda read: -SCALES.index(read.scale))
    for status in ("finished", "failed"):
        if shown := next((read for read in ordered if read.status == status), None):
            return Item(name, shown, tuple(read for read in ordered if read is not shown))
    return Item(name, None, tuple(ordered))


def judged(items: Iterable[Item]) -> dict[Scale, list[Judged]]:
    """All claims by scale, the largest first: claims that were tested at different scales do not compare."""
    found: dict[Scale, list[Judged]] = {scale: [] for scale in reversed(SCALES)}
    for item in items:
        for scale, claims in item.claims.items():
            found[scale] += [Judged(item, scale, one) for one in claims]
    return {scale: claims for scale, claims in found.items() if claims}


def counted(claims: Iterable[Judged]) -> dict[Verdict, int]:
    """How many claims have each verdict, 0 too."""
    counts = Counter(one.claim.verdict for one in claims)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def spoken(counts: Mapping[Verdict, int]) -> str:
    """Counts in words: `3 hold, 1 does not hold`."""
    many = {"holds": "hold", "does not hold": "do not hold"}
    known = [(verdict, count) for verdict, count in counts.items() if count]
    return ", ".join(f"{count} {verdict if count == 1 else many.get(verdict, verdict)}" for verdict, count in known)


def sentence(words: str) -> str:
    """With a capital first letter and a full stop; no words are no sentence."""
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") or not words else ".")


# tables in the words of every format


def ours(figure: Figure) -> str:
    """What was measured."""
    return dataclasses.replace(figure, paper=None).text()


def printed(figure: Figure) -> str:
    """What the paper prints; "" where it prints nothing."""
    if figure.paper is None:
        return ""
    error = "" if figure.paper_error is None else f" ({figure.paper_error:.{figure.digits}f})"
    return f"{figure.paper:.{figure.digits}f}{error}"


@dataclass(frozen=True)
class Column:
    """A column of a table in words. name: of it; parts: of `COMPARED`, or one empty name; numbers: its cells are."""

    name: str
    parts: tuple[str, ...]
    numbers: bool
    cells: tuple[tuple[str, ...], ...]


def columns(table: Table) -> list[Column]:
    """The columns of a table; one that the paper has too becomes three."""
    found = []
    for place, name in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        figures = [cell for cell in cells if isinstance(cell, Figure)]
        compared = any(figure.paper is not None for figure in figures)
        words = []
        for cell in cells:
            if isinstance(cell, str):
                words.append((cell, "", "") if compared else (cell,))
            else:
                words.append((ours(cell), printed(cell), cell.difference()) if compared else (ours(cell),))
        numbers = bool(figures) or (place > 0 and all(NUMBER.fullmatch(str(cell)) for cell in cells))
        found.append(Column(name, COMPARED if compared else ("",), numbers, tuple(words)))
    return found


def notes(table: Table) -> list[str]:
    """What is said below a table: its own note, and of how many values means are."""
    figures = [cell for row in table.rows for cell in row if isinstance(cell, Figure)]
    counts = {figure.count for figure in figures if figure.error is not None}
    said = [sentence(table.note)] if table.note else []
    if counts:
        low, high = min(counts), max(counts)
        said.append(f"Means of {low if low == high else f'{low} to {high}'} values (standard error).")
    if any(figure.paper is not None for figure in figures):
        said.append(ABOUT_DIFFERENCE)
    return said


def figure_names(items: Iterable[Item]) -> dict[tuple[str, str], str]:
    """The name of the files of each drawing, by item and its own name. Raises PaperError where two are the same."""
    found: dict[tuple[str, str], str] = {}
    for item in items:
        for one in item.shown.outcome.drawings if item.shown else ():
            own = one.name == item.id or one.name.startswith(f"{item.id}-")
            name = one.name if own else f"{item.id}-{one.name}"
            if name in found.values() or (item.id, one.name) in found:
                raise PaperError(f"expected drawings with names of their own, {item.id} has another {one.name!r}")
            found[item.id, one.name] = name
    return found


# files that nobody has checked yet


def _read(value: Mapping[str, Any], place: str) -> Read:
    """Raises PaperError for what is no outcome of an item."""
    if value.get("format") != FORMAT:
        raise PaperError(f"{place}: expected format {FORMAT}, got {value.get('format')!r:.60}: make it again")
    try:
        read = READ.validate_json(to_json(value))
        if read.id not in ITEMS and read.id not in EXPERIMENTS:
            raise ValueError(f"expected an item ({', '.join((*ITEMS, *EXPERIMENTS))}), got {read.id!r:.60}")
        if read.status not in ("finished", "failed") and not read.status.startswith("not run"):
            raise ValueError(f"expected a status, got {read.status!r:.60}")
        for drawing in read.outcome.drawings:
            _check(drawing)
    except ValidationError as error:
        found = max(error.errors(), key=lambda one: len(one["loc"]))
        reason = found["msg"].replace("Input should be", "expected").removeprefix("Value error, ")
        got = "" if found["type"] in ("missing", "value_error") else f", got {found['input']!r:.60}"
        field = ".".join(map(str, found["loc"]))
        raise PaperError(
            f"{place} is damaged: expected an outcome of `htaf paper run`: {field}: {reason}{got}"
        ) from None
    except ValueError as error:
        raise PaperError(f"{place} is damaged: expected an outcome of `htaf paper run`: {error}") from None
    message = read.message
    if message.startswith(f"htaf paper run {read.id} "):  # what cannot run here says how it could, then what it is
        command, _, message = message.partition(": ")
    else:
        command = command_of(read.id, read.scale)
    return dataclasses.replace(read, message=message, command=command)


def _check(drawing: Drawing) -> None:
    """Raises ValueError for names that are no names of files, and for what cannot be drawn."""
    if not NAME.fullmatch(drawing.name):
        raise ValueError(f"expected a name of small letters, digits, - and _, got {drawing.name!r:.60}")
    picture = drawing.picture
    if picture is not None and (not NAME.fullmatch(picture.removesuffix(".png")) or picture[-4:] != ".png"):
        raise ValueError(f"expected the name of a PNG file beside the outcome, got {picture!r:.60}")
    if not 1 <= drawing.columns <= 6 or (picture is None and not drawing.panels):
        raise ValueError(f"expected 1 to 6 columns, and panels or a picture, in {drawing.name!r}")
    for series in (series for panel in drawing.panels for series in panel.series):
        edges = len(series.y) + (series.style == "steps")
        if not series.y or len(series.x) != edges or len(series.error) not in (0, len(series.y)):
            got = f"{len(series.x)}, {len(series.y)} and {len(series.error)}"
            raise ValueError(f"expected as many x, y and errors (steps: one x more) in {series.label!r:.60}, got {got}")
