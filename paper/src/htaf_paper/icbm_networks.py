"""What the items on implicit concept bottleneck models have in common: networks that are trained, kept and measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from htaf.data.reading import DataError
from htaf_paper.cells import Made
from htaf_paper.computing import Task
from htaf_paper.icbm import Pair
from htaf_paper.plans import Plan, Trained, trained
from htaf_paper.protocol import Found, Outcome, Place, Scale, Setting
from htaf_paper.trainings import run_path

P = TypeVar("P")
V = TypeVar("V")

NAMES = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "cub": "CUB-200", "tiny-imagenet": "Tiny-ImageNet",
    "digits": "digits",
}  # fmt: skip
BACKBONES = {"resnet": "ResNet", "wide_resnet": "WideResNet", "vit": "ViT"}
METHODS = {"htaf": "HTAF", "ste": "STE", "ss": "SS", "bm": "BM", "relu": "plain"}
HERE = {"cub": "CUB, its first 50 classes"}  # data that are less than the paper's

REDUCED = (
    "on two cores: WRN-16-1 and ResNet-18 of width 16 from scratch, 5,000 training and 1,000 validation images "
    "of CIFAR (10 epochs), CUB's first 50 classes at 112 pixels (30 epochs); the paper: WRN-40-6, WRN-28-6, WRN-50-2, "
    "ResNet-18 with ImageNet weights, all images"
)
SEARCHED = (
    "each method gets six candidates at a third of the epochs, chosen on validation, and three seeds; HTAF and SS may "
    "sharpen in the training; the paper has five runs"
)
CIFAR100 = "CIFAR-100: one seed, with the activation that was chosen on CIFAR-10; nothing was searched"
TRAINED_AGAIN = (
    "networks that a figure reads are trained again where they were not kept: the same recipe and seed, a later commit"
)


class Gather:
    """Collects what an item wants next, while it reads what there is."""

    def __init__(self, found: Found, place: Place) -> None:
        self.found, self.place = found, place
        self.wanted: list[Task] = []
        self.absent: list[tuple[str, str, str]] = []  # rows that lack their data

    def each(self, plans: Mapping[Pair, P], read: Callable[[Pair, P], V]) -> dict[Pair, V]:
        """What is read of each pair whose data are here; the others are in `absent`.

        Raises:
            DataError: none is.
        """
        found: dict[Pair, V] = {}
        error: DataError | None = None
        for pair, plan in plans.items():
            try:
                found[pair] = read(pair, plan)
            except DataError as reason:
                error = reason
                self.absent.append((label_of(pair), "not run: data", str(reason)))
        if error is not None and not found:
            raise error
        return found

    def trained(self, *plans: Plan, seeds: Mapping[str, int] | None = None) -> Trained:
        """The networks of plans; those that are still to be trained are kept."""
        made = trained(plans, self.found, self.place, keep=True, again=False, seeds=seeds)
        self.wanted += made.wanted
        return made

    def measured(self, function: str, runs: Mapping[str, Task | None], title: str, **settings: Any) -> Any:
        """The record of a cell that reads kept networks, or None. Where it is not there, the cell is wanted, or first
        those of the networks that are not kept.

        Args:
            runs: the settings that name networks, each with its training or None. settings: the others.
        """

        def reads(name: Callable[[Task], str]) -> Task:
            named = {setting: None if run is None else name(run) for setting, run in runs.items()}
            return Made(function, named | settings, title).task(self.place.data_dir)

        task = reads(lambda run: run.key)
        record = self.found.get(task)
        if record is None:  # of the networks of the records that stand for these trainings
            record = self.found.get(reads(self._key_on_record))
        if record is None:
            trained = [run for run in runs.values() if run is not None]
            missing = [run for run in trained if not run_path(self.place.out, run.key).is_dir()]
            self.wanted += missing or [task]
        return record

    def _key_on_record(self, run: Task) -> str:
        return (self.found.get(run) or {}).get("key", run.key)

    def scores(self, made: Trained, label: str, method: str, seed: int) -> Any:
        """The scores of a network by `htaf_paper.icbm_scores`; method bm: of the plain one cut at medians."""
        plain = made.tasks.get((label, "relu"), {}).get(seed)
        own = plain if method == "bm" else made.tasks.get((label, method), {}).get(seed)
        if own is None:
            return None
        cut = "median" if method == "bm" else None
        beside = None if cut or plain is None else plain
        title = f"scores, {label}, {method}, seed {seed}"
        return self.measured("icbm-scores", {"run": own, "plain": beside}, title, cut=cut)

    def all_scores(self, made: Trained, label: str, method: str) -> dict[int, dict[str, Any]]:
        """By seed, those that are there."""
        seeds = made.tasks.get((label, "relu" if method == "bm" else method), {})
        found = {seed: self.scores(made, label, method, seed) for seed in seeds}
        return {seed: record for seed, record in found.items() if record is not None}


class Item(ABC):
    """An item on these models. `gathered` reads what there is and notes what is wanted; `outcome` makes tables of it.

    The other attributes are those of `htaf_paper.protocol.Study`.
    """

    id: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    settings: ClassVar[Mapping[Scale, Setting]]

    @abstractmethod
    def gathered(self, scale: Scale, gather: Gather) -> Any: ...

    @abstractmethod
    def outcome(self, scale: Scale, gathered: Any, gather: Gather, /) -> Outcome: ...

    def tasks(self, scale: Scale, found: Found, place: Place) -> Sequence[Task]:
        """As `htaf_paper.protocol.Study.tasks`."""
        gather = Gather(found, place)
        self.gathered(scale, gather)
        return gather.wanted

    def read(self, scale: Scale, found: Found, place: Place) -> Outcome:
        """As `htaf_paper.protocol.Study.read`."""
        gather = Gather(found, place)
        return self.outcome(scale, self.gathered(scale, gather), gather)


def label_of(pair: Pair) -> str:
    """Of a data set and a backbone, for tables and claims."""
    data, backbone = pair
    return f"{BACKBONES[backbone]}, {HERE.get(data, NAMES[data])}"


def paired(own: Mapping[int, float | None], other: Mapping[int, float | None], times: float = 100.0) -> list[float]:
    """Own less other on the seeds that both have, times 100."""
    both = [(own[seed], other[seed]) for seed in sorted(own.keys() & other.keys())]
    return [times * (a - b) for a, b in both if a is not None and b is not None]


def by_seed(made: Trained, label: str, row: str, network: str | None = None) -> dict[int, float | None]:
    """Test accuracy of a row's finals."""
    seeds = sorted(made.finals.get((label, row), {}))
    return dict(zip(seeds, made.values(label, row, network=network), strict=True))


def of_scores(records: Mapping[int, Mapping[str, Any]], *path: str) -> dict[int, float | None]:
    """One value of each record."""
    found: dict[int, float | None] = {}
    for seed, record in records.items():
        value: Any = record
        for name in path:
            value = value[name]
        found[seed] = value
    return found
