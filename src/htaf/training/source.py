"""Where the data of a training come from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from htaf.training.recipe import RecipePart, expect

if TYPE_CHECKING:
    from htaf.data.tabular import Table


@dataclass(frozen=True)
class Source(RecipePart):
    """Where data come from: the arguments of `htaf.data.tabular.load` and how rows are split, or those of
    `htaf.data.image_sets.load` for a family that takes images."""

    name: str
    target: str | None = None
    task: Literal["regression", "classification"] | None = None
    text_as_missing: bool = False
    split: Literal["random", "grouped", "stratified"] = "random"
    size: int | None = None
    exclude: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    group: str | None = None
    time: str | None = None
    weight: str | None = None

    def check(self) -> None:
        if self.group is not None and self.split == "stratified":
            raise ValueError("a group keeps rows together and does not go with split stratified")
        if self.time is not None and (self.split != "random" or self.group is not None):
            raise ValueError("time divides by time and goes with no other split and no group")
        expect(self.size is None or self.size >= 1, "size must be >= 1", self.size)

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
        from htaf.data import tabular as named
        from htaf.data.image_sets import is_named
        from htaf.data.tabular import located

        if images:
            known, place = {"size": self.size}, None if is_named(self.name) else self.name
        else:
            kept = ("shares", "group", "time", "weight")  # by the record, as part of what the data are
            known = {name: value for name, value in self.arguments().items() if name not in kept}
            place = None if named.is_named(self.name) else located(self.name, data_dir)
        name = self.name if place is None else os.path.realpath(place)
        return {"name": name, "data_dir": data_dir and os.path.realpath(data_dir), **known}


_OF_TABLES = (  # arguments of `htaf.data.tabular.load`
    "target",
    "task",
    "text_as_missing",
    "exclude",
    "ids",
    "shares",
    "group",
    "time",
    "weight",
)
