"""What a study is to do, in Python or in a TOML file."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from htaf._errors import HtafError, expect_seed, meant
from htaf._files import regular
from htaf.names import Method
from htaf.training.families import make_recipe
from htaf.training.recipe import DataOptions, Recipe, RecipePart, TableData, expect

if TYPE_CHECKING:
    from htaf.data.tabular import Table


class PlanError(HtafError, ValueError):
    """A plan that makes no sense: says what was expected and what came."""


@dataclass(frozen=True)
class Source(RecipePart):
    """Where data come from: the arguments of `htaf.data.tabular.load` and how rows are split, or those of
    `htaf.data.images.load` for a family that takes images."""

    name: str
    target: str | None = None
    task: Literal["regression", "classification"] | None = None
    drop_empty: bool = False
    text_as_missing: bool = False
    split: Literal["random", "grouped", "stratified"] = "random"
    size: int | None = None
    exclude: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    test: str | None = None
    shares: tuple[float, ...] = ()
    group: str | None = None
    time: str | None = None
    weight: str | None = None

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ValueError as error:
            raise PlanError(f"{self.name}: {error}") from None

    def check(self) -> None:
        if self.group is not None and self.split == "stratified":
            raise ValueError("a group keeps rows together and does not go with split stratified")
        if self.time is not None and (self.split != "random" or self.group is not None):
            raise ValueError("time divides by time and goes with no other split and no group")
        expect(self.size is None or self.size >= 1, "size must be >= 1", self.size)

    def expect_read(self, family: str, data: DataOptions) -> None:
        """Raises PlanError where something is set that a family's data do not have."""
        ignored = ("size",) if isinstance(data, TableData) else ("split", *_OF_TABLES)
        given = [f.name for f in dataclasses.fields(self) if f.name in ignored and getattr(self, f.name) != f.default]
        if given:
            raise PlanError(f"{self.name}: the data of family {family} have no {' and no '.join(given)}")

    @property
    def label(self) -> str:
        """The name in tables."""
        return Path(self.name).stem + ("" if self.mode == "random" else f" ({self.mode})")

    @property
    def mode(self) -> Literal["random", "grouped", "stratified", "time"]:
        """How rows are divided, for `htaf.data.tabular.split`."""
        return "time" if self.time is not None else "grouped" if self.group is not None else self.split

    def arguments(self) -> dict[str, Any]:
        """Those of `htaf.data.tabular.load` but the name, the ones alone that are given."""
        return {name: value for name in _OF_TABLES if (value := getattr(self, name)) not in (None, False, ())}

    def table(self, data_dir: str | None = None) -> Table:
        """The table; raises as `htaf.data.tabular.load`."""
        from htaf.data.tabular import load

        return load(self.name, data_dir=data_dir, **self.arguments())

    def remembered(self, data_dir: str | None = None, *, images: bool = False) -> dict[str, Any]:
        """Where the data came from as a run remembers it: whole paths, which hold from any working folder."""
        from htaf.data import named
        from htaf.data.images import is_named
        from htaf.data.tabular import located

        if images:
            known, place = {"size": self.size}, None if is_named(self.name) else self.name
        else:
            kept = ("shares", "group", "time", "weight")  # by the record, as part of what the data are
            known = {name: value for name, value in self.arguments().items() if name not in kept}
            known |= {"test": os.path.realpath(located(self.test, data_dir))} if self.test else {}
            place = None if named.is_named(self.name) else located(self.name, data_dir)
        name = self.name if place is None else os.path.realpath(place)
        return {"name": name, "data_dir": data_dir and os.path.realpath(data_dir), **known}

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self) | {name: list(getattr(self, name)) for name in ("exclude", "ids", "shares")}


_OF_TABLES = (  # arguments of `htaf.data.tabular.load`
    "target",
    "task",
    "drop_empty",
    "text_as_missing",
    "exclude",
    "ids",
    "test",
    "shares",
    "group",
    "time",
    "weight",
)


Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Plan:
    """Data sets x methods; per pair candidates from a grid on split 0, then the chosen one on every split.

    name: of the study.
    sources: the data sets.
    methods: row -> grid: recipe field -> values. Fields that go together share a key: "alpha0,alpha1": ((2, 11), ...).
        A row is a method, or has one in `variants`.
    base: the recipe whose fields the grid replaces.
    candidates: at most so many per method, drawn once (the same for every data set) without repetition.
    splits: seeds 0, 1, ... of the final trainings.
    search_epochs: length of a candidate's training; None: as long as a final one. A shorter one, and any on images, is
        not measured on the test part.
    seed: of the draw.
    reference: (data label, row) -> (mean, error) to print beside, such as a paper's.
    variants: row -> method, of rows with names of their own, such as a method with another recipe.
    compare: rows to which all others are compared, split by split.
    """

    name: str
    sources: tuple[Source, ...]
    methods: Mapping[str, Grid]
    base: Recipe = field(default_factory=make_recipe)
    candidates: int = 12
    splits: int = 5
    seed: int = 0
    search_epochs: int | None = None
    reference: Mapping[tuple[str, str], tuple[float, float | None]] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    compare: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PlanError(f"expected a text for name, got {self.name!r}")
        if not self.sources or not self.methods:
            raise PlanError("a plan needs at least one data set and one method")
        for name, least in (("candidates", 1), ("splits", 1), ("seed", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise PlanError(f"{name} must be a whole number >= {least}, got {value!r}")
        expect_seed(self.seed, PlanError)
        short, longest = self.search_epochs, self.base.optimization.epochs
        if short is not None and (type(short) is not int or not 1 <= short <= longest):
            raise PlanError(f"search_epochs must lie in [1, epochs = {longest}], got {short!r}")
        labels = [source.label for source in self.sources]
        if len(set(labels)) < len(labels):
            raise PlanError(f"expected data sets with different names, got {', '.join(labels)}")
        for source in self.sources:
            source.expect_read(self.base.family, self.base.data)
        fields = self.base.fields.keys() - {*_NOT_PLANNED}
        for name, given in (("variants", self.variants), ("compare", self.compare)):
            if unknown := {*map(str, given)} - {*self.methods}:
                raise PlanError(f"{name}: expected rows of methods, got {_named(unknown, self.methods)}")
        for method, grid in self.methods.items():
            self._expect_method(method)
            for names, values in grid.items():
                unknown = set(names.split(",")) - fields
                if unknown:
                    raise PlanError(
                        f"{method}: expected fields of a recipe ({', '.join(sorted(fields))}), got "
                        f"{_named(unknown, fields)}"
                    )
                if not isinstance(values, (list, tuple)) or not values:
                    raise PlanError(f"{method}: expected a list of values for {names!r}, got {values!r}")
                if len({json.dumps(v) for v in values}) < len(values):
                    raise PlanError(f"{method}: expected different values for {names!r}, got {values!r}")
            # a bad value shows before hours of work, not after
            self.expect_read(method, {field for names in grid for field in names.split(",")})

    def _expect_method(self, row: str) -> None:
        known, method = get_args(Method), self.method_of(row)
        if method not in known:
            hint = "" if row in self.variants else "; a row with another name needs a method"
            raise PlanError(f"expected the methods {', '.join(known)}, got {_named([method], known)}{hint}")
        if row in known and row != method:
            raise PlanError(f"{row}: expected a row of method {method} to have a name of its own")

    def method_of(self, row: str) -> str:
        """The method of a row: its name, unless `variants` says another."""
        return self.variants.get(row, row)

    def recipe(self, method: str, candidate: Mapping[str, str]) -> Recipe:
        """The base recipe with the fields of one candidate; raises PlanError when they do not make a recipe."""
        changes: dict[str, Any] = {"method": self.method_of(method)}
        for names, text in candidate.items():
            value, parts = json.loads(text), names.split(",")
            if len(parts) > 1 and (not isinstance(value, list) or len(value) != len(parts)):
                raise PlanError(f"{method}: expected {len(parts)} values for {names!r}, got {value!r}")
            changes |= zip(parts, value, strict=True) if len(parts) > 1 else [(names, value)]
        try:
            return self.base.replace(**changes)
        except (TypeError, ValueError) as error:
            raise PlanError(f"{method}: {error}") from None

    def recipes(self, method: str) -> list[Recipe]:
        """Those of all candidates of a method."""
        return [self.recipe(method, candidate) for candidate in self._product(method)]

    def expect_read(self, method: str, fields: Collection[str]) -> None:
        """Raises PlanError where a candidate of a method is no recipe, or where none of them reads a field."""
        candidates = self.recipes(method)
        unread = [recipe.unread() for recipe in candidates]
        ignored = [field for field in fields if all(field in one for one in unread)]
        try:
            candidates[0].refuse_unread(ignored)
        except ValueError as error:
            raise PlanError(f"methods.{method}: {error}") from None

    def trial(self, method: str, candidate: Mapping[str, str]) -> Recipe:
        """The recipe by which a candidate is judged."""
        recipe = self.recipe(method, candidate)
        return recipe if self.search_epochs is None else recipe.replace(epochs=self.search_epochs)

    @property
    def search_sees_test(self) -> bool:
        """Whether a candidate's training is also the final one of split 0, which is measured on the test part."""
        return self.search_epochs is None and isinstance(self.base.data, TableData)

    def number(self, method: str) -> int:
        """How many candidates a search of this method has: the grid may hold fewer than wanted."""
        return min(self.candidates, math.prod(len(v) for v in self.methods[method].values()))

    def draw(self, method: str) -> list[dict[str, str]]:
        """The candidates of a method, values as JSON text."""
        everything = list(self._product(method))
        order = np.random.default_rng(self.seed).permutation(len(everything))
        return [everything[i] for i in order[: self.number(method)]]

    def describe(self) -> dict[str, Any]:
        """What bears on the choice of candidates and recipes, as JSON."""
        return {
            "sources": [source.describe() for source in self.sources],
            "methods": {m: {k: [*map(_plain, v)] for k, v in grid.items()} for m, grid in self.methods.items()},
            "base": {k: _plain(v) for k, v in self.base.flat().items() if k not in _NOT_PLANNED},
            "candidates": self.candidates,
            "splits": self.splits,
            "seed": self.seed,
            "search_epochs": self.search_epochs,
            "variants": dict(self.variants),
        }

    def _product(self, method: str) -> list[dict[str, str]]:
        grid = self.methods[method]
        return [dict(zip(grid, map(json.dumps, values), strict=True)) for values in itertools.product(*grid.values())]


_NOT_PLANNED = ("method", "sharpness")  # named apart; only of steps from outside htaf, which no plan has


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def read_plan(path: str | Path) -> Plan:
    """A plan from a TOML file.

        name = "mine"
        candidates = 6
        splits = 3
        compare = ["ste"]
        data = [{name = "churn.csv", target = "Churn"}, {name = "wine"}]
        [recipe]
        epochs = 50
        [methods.htaf]
        "alpha0,alpha1" = [[2, 11], [1, 22]]
        lr = [1e-3, 3e-3]
        [methods.ste]
        slope = ["sigmoid", "tanh"]
        [methods."htaf, short"]
        method = "htaf"
        sharpen_fraction = [0.3]

    Raises:
        PlanError: the file is missing or not TOML, or a key or value is not one that a plan has.
    """
    path = Path(path)
    try:
        content = tomllib.loads(regular(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: expected a TOML file with a plan: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError(f"{path} is not TOML: {error}") from None
    own = {field.name for field in dataclasses.fields(Plan)} - {"sources", "base", "reference", "variants"}
    known = own | {"data", "recipe"}
    if unknown := content.keys() - known:
        raise PlanError(f"{path}: expected the keys {', '.join(sorted(known))}, got {_named(unknown, known)}")
    try:
        for name in ("recipe", "methods"):
            if not isinstance(content.get(name, {}), dict):
                raise PlanError(f"expected a table [{name}], got {content[name]!r}")
        for method, grid in content.get("methods", {}).items():
            if not isinstance(grid, dict):
                raise PlanError(f"expected a table [methods.{method}], got {grid!r}")
        grids: dict[str, dict[str, Any]] = content.pop("methods", {})
        variants = {row: grid.pop("method") for row, grid in grids.items() if "method" in grid}
        for row, method in variants.items():
            if not isinstance(method, str):
                raise PlanError(f"methods.{row}: expected a text for method, got {method!r}")
        content["compare"] = tuple(_listed("compare", content.pop("compare", [])))
        recipe: dict[str, Any] = content.pop("recipe", {})
        sources = tuple(_source(entry) for entry in _listed("data", content.pop("data", [])))
        methods = {
            method: {names: tuple(_listed(f"methods.{method}: {names}", values)) for names, values in grid.items()}
            for method, grid in grids.items()
        }
        if "method" in recipe:
            raise PlanError("recipe: expected no method, those of a study are the tables [methods.NAME]")
        base, name = make_recipe(**recipe), content.pop("name", path.stem)
        plan = Plan(name, sources, methods, base, variants=variants, **content)
        for field in recipe:  # one that some method reads may stand there for it
            if not any(_is_read(plan, method, field) for method in plan.methods):
                plan.expect_read(next(iter(plan.methods)), [field])
        return plan
    except (PlanError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"{path}: {error}") from None


def _is_read(plan: Plan, method: str, field: str) -> bool:
    try:
        plan.expect_read(method, [field])
    except PlanError:
        return False
    return True


def _named(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Names that were not expected, each with the one that may have been meant."""
    return ", ".join(f"{name!r}{meant(name, [*known])}" for name in sorted(unknown))


def _listed(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise PlanError(f"expected a list for {name}, got {value!r}")
    return value


def _source(entry: Any) -> Source:
    """A data set of a plan: a name or path, or a table with the fields of Source."""
    if isinstance(entry, str):
        return Source(entry)
    fields = {f.name for f in dataclasses.fields(Source)}
    if not isinstance(entry, dict) or "name" not in entry or not entry.keys() <= fields:
        raise PlanError(
            f"data: expected names, or tables with name and some of {', '.join(sorted(fields))}, got {entry!r}"
        )
    return Source(**entry)
