"""What every table and figure of the paper is made of: cells to compute, a reader of their records, claims with a rule.

An item of the paper is an object with the methods of `Study`. `htaf paper run` asks it for the cells that it wants,
has them computed, and asks again with what was found, until it wants no more: a search for parameters is two such
rounds. Then it asks for the outcome, which is data alone. `htaf paper report` reads outcomes.

Cells are those of `htaf_paper.computing`, so one machine and many use one way. Their keys are hashes of what they are a
function of; a finished cell is never computed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

from htaf._ground.errors import HtafError

if TYPE_CHECKING:
    from htaf_paper.computing import Task

Scale = Literal["smoke", "reduced", "cpu", "full"]
SCALES: tuple[Scale, ...] = get_args(Scale)  # from small to large
ABOUT_SCALES: dict[Scale, str] = {
    "smoke": "seconds; shows that all parts work, no claim is tested",
    "reduced": "small networks, few images; the order of methods can be compared, not the paper's figures",
    "cpu": "all training images or a real pretrained network, hours of two cores",
    "full": "the paper's own protocol",
}
Verdict = Literal["holds", "does not hold", "not settled", "not testable at this scale", "not run"]


class PaperError(HtafError):
    """An item, a scale or a folder of results that makes no sense: says what was expected and what came."""


class MissingError(HtafError):
    """An item that cannot be computed here. what: `data`, `GPU` or `time`; the message says how it could be."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what


@dataclass(frozen=True)
class Setting:
    """An item at one scale.

    about: what is done, for people. cpu_seconds: of all its cells, measured on the machine of `REFERENCE`. gpu:
    it needs one. data: what it needs beside the package, for people. shared: (group, seconds): so much of it are
    cells that the other items of the group want at this scale too. by_hand: commands for what has no cells here.
    """

    about: str
    cpu_seconds: float
    gpu: bool = False
    data: tuple[str, ...] = ()
    shared: tuple[str, float] = ("", 0.0)
    by_hand: str = ""


@dataclass(frozen=True)
class Place:
    """Where an item is computed and read: data_dir, of the named data sets; out, with the records of its cells;
    device, of trainings."""

    out: Path
    data_dir: str | None = None
    device: str = "cpu"


class Kept:
    """What is kept as JSON; where it is read no other field, no other type and no infinite number passes."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True, "allow_inf_nan": False}


@dataclass(frozen=True)
class Figure(Kept):
    """A mean, as tables show it.

    Args:
        mean: in the unit of its column. error: its standard error, None of one value. count: of values.
        paper: the figure that the paper prints; paper_error: its standard error, where it is printed.
        digits: after the point. note: one or two words instead of a number, such as "not run: GPU".
    """

    mean: float | None = None
    error: float | None = None
    count: int = 0
    paper: float | None = None
    paper_error: float | None = None
    digits: int = 1
    note: str = ""

    @staticmethod
    def of(values: Sequence[float | None], paper: float | None = None, *, digits: int = 1, **more: Any) -> Figure:
        """The mean of the values that are known and its standard error, s / sqrt(n)."""
        known = [value for value in values if value is not None]
        if not known:
            return Figure(paper=paper, digits=digits, **more)
        mean, error = sum(known) / len(known), None
        if len(known) > 1:
            error = (sum((v - mean) ** 2 for v in known) / (len(known) - 1) / len(known)) ** 0.5
        return Figure(mean, error, len(known), paper, digits=digits, **more)

    def text(self) -> str:
        """Mean (standard error) [paper]; "-" for none."""
        found = self.note or "-"
        if self.mean is not None:
            found = f"{self.mean:.{self.digits}f}"
            found += "" if self.error is None else f" ({self.error:.{self.digits}f})"
            found += f" {self.note}" if self.note else ""
        if self.paper is None:
            return found
        printed = f"{self.paper:.{self.digits}f}"
        return f"{found} [{printed}]"

    def difference(self) -> str:
        """Ours less the paper's, with the standard error of both, where both are there."""
        if self.mean is None or self.paper is None:
            return ""
        errors = [error for error in (self.error, self.paper_error) if error is not None]
        spread = f" ({sum(e * e for e in errors) ** 0.5:.{self.digits}f})" if errors else ""
        return f"{self.mean - self.paper:+.{self.digits}f}{spread}"


@dataclass(frozen=True)
class Table(Kept):
    """Rows of figures and words. title: what it shows, with the unit. columns: names; the first is of the rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | Figure, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        if bad := [row for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(f"{self.title}: expected {len(self.columns)} cells in a row, got {len(bad[0])}")


@dataclass(frozen=True)
class Series(Kept):
    """Points of one kind in a panel. style: line, points, bars, or steps (of a histogram: x are edges)."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Literal["line", "points", "bars", "steps"] = "line"
    error: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel(Kept):
    """One pair of axes. ticks: names in place of numbers on the x axis, at 0, 1, ...; hline: a value to mark."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    x_log: bool = False
    y_log: bool = False
    ticks: tuple[str, ...] = ()
    hline: float | None = None


@dataclass(frozen=True)
class Drawing(Kept):
    """A figure as data, drawn by `htaf_paper.drawing`; name: of its files. alternative: what it shows, in words.
    picture: a PNG in the folder of results, in place of panels, for photographs."""

    name: str
    title: str
    alternative: str
    panels: tuple[Panel, ...] = ()
    columns: int = 3
    picture: str | None = None


@dataclass(frozen=True)
class Claim(Kept):
    """What the paper says, and whether it holds.

    Args:
        text: the claim in our words. place: where the paper has it. rule: when it holds, when it does not.
        verdict: by the rule. evidence: the figures that decided.
    """

    text: str
    place: str
    rule: str
    verdict: Verdict
    evidence: str


@dataclass(frozen=True)
class Outcome(Kept):
    """What an item gave at one scale: data alone.

    errata: errors of the paper that this item shows. deviations: from the paper's protocol. missing: rows that could
    not run here, (row, reason, command).
    """

    tables: tuple[Table, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    claims: tuple[Claim, ...] = ()
    errata: tuple[str, ...] = ()
    deviations: tuple[str, ...] = ()
    missing: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON, for `htaf_paper.outcomes`."""
        return dataclasses.asdict(self)


class Found:
    """Records of finished cells, by the tasks that would compute them.

    Args:
        read: gives the record of a task, or None. failed: keys of cells that failed in this run, with the reason.
    """

    def __init__(self, read: Callable[[Task], dict[str, Any] | None], failed: Mapping[str, str] | None = None) -> None:
        self._read, self.failed = read, failed if failed is not None else {}
        self._known: dict[str, dict[str, Any]] = {}
        self.used: dict[str, dict[str, Any]] = {}

    def get(self, task: Task) -> dict[str, Any] | None:
        """The record of a cell; None when it is not there. What was asked for counts as used."""
        key = task.key
        if key not in self._known:
            record = self._read(task)
            if record is None:
                return None
            self._known[key] = record
        self.used[key] = self._known[key]
        return self._known[key]

    def __contains__(self, task: Task) -> bool:
        return self.get(task) is not None

    def __getitem__(self, task: Task) -> dict[str, Any]:
        record = self.get(task)
        if record is None:
            raise KeyError(task.key)
        return record


@runtime_checkable
class Study(Protocol):
    """A table or figure of the paper.

    id: its name in `htaf paper`. title, paper: what it is, and where the paper has it. settings: what is done at each
    scale that it has. An item whose largest scale takes seconds has that one alone.
    """

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def paper(self) -> str: ...
    @property
    def settings(self) -> Mapping[Scale, Setting]: ...

    def tasks(self, scale: Scale, found: Found, place: Place) -> Sequence[Task]:
        """All cells that are wanted, given what was found; called again until nothing new is wanted.

        Raises:
            MissingError: they cannot be computed here. DataError: a data set is not there.
        """
        ...

    def read(self, scale: Scale, found: Found, place: Place) -> Outcome:
        """The outcome, from the records of its cells; what is not there is a row that says so."""
        ...


def command_of(study_id: str, scale: str, flags: str = "") -> str:
    """The command that computes an item; flags: more of them, such as " --device cuda"."""
    return f"htaf paper run {study_id} --scale {scale}{flags} --out DIR"


def nearest(settings: Mapping[Scale, Setting], wanted: Scale) -> Scale:
    """The scale at which an item is run when one is wanted: that one, else the next smaller, else its smallest."""
    own: list[Scale] = [scale for scale in SCALES if scale in settings]
    smaller: list[Scale] = [scale for scale in own if SCALES.index(scale) <= SCALES.index(wanted)]
    return smaller[-1] if smaller else own[0]
