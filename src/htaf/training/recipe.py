"""A recipe says everything about a training but its data and seed. Variants by `dataclasses.replace`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from htaf.models.build import SLOPES, Method, SlopeName
from htaf.sharpening import Geometric, soft_start

# Which activation fields a method reads: the others do not belong to its identity.
ACTIVATION_FIELDS: dict[str, tuple[str, ...]] = {
    "htaf": ("alpha0", "alpha1", "sharpen", "start", "sharpen_fraction"),
    "ss": ("beta", "sharpen", "start", "sharpen_fraction"),
    "ste": ("slope",),
    "relu": (),
}


@dataclass(frozen=True)
class Recipe:
    """How to train an MLP on a table.

    method: htaf; ste (straight-through); ss (scaled sigmoid); relu (real-valued, no exact step).
    alpha0, alpha1: HTAF's pair at the end of training.
    beta: the scaled sigmoid's at the end of training.
    slope: the straight-through's.
    sharpen: move the pair or beta geometrically from a soft start to its final value (htaf and ss).
    start: where sharpening starts, a pair or one beta; None: half of alpha0 with alpha0 alpha1 = 2, or beta = 2.
    sharpen_fraction: share of the epochs over which it moves.
    hidden, batch_norm: the MLP.
    epochs, batch_size, lr, weight_decay: of AdamW (Adam when weight_decay is 0); lr is the highest of the schedule.
    schedule: one_cycle, cosine or constant.
    patience: stop after so many epochs without a lower validation loss of the exact network, counted from the end of
        sharpening; 0 never stops. The weights of the best epoch are kept in any case.
    """

    method: Method = "htaf"
    alpha0: float = 2.0
    alpha1: float = 11.0
    beta: float = 22.0
    slope: SlopeName = "sigmoid"
    sharpen: bool = True
    start: tuple[float, ...] | None = None
    sharpen_fraction: float = 0.7
    hidden: tuple[int, ...] = (256, 256, 128)
    batch_norm: bool = True
    epochs: int = 100
    batch_size: int = 128
    lr: float = 3e-3
    weight_decay: float = 0.0
    schedule: Literal["one_cycle", "cosine", "constant"] = "one_cycle"
    patience: int = 25

    def __post_init__(self) -> None:
        for name in ("alpha0", "alpha1", "beta", "sharpen_fraction", "lr", "weight_decay"):  # 2 and 2.0 are one recipe
            object.__setattr__(self, name, float(getattr(self, name)))
        for name in ("sharpen", "batch_norm"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if self.start is not None:
            object.__setattr__(self, "start", tuple(float(v) for v in self.start))

        def expect(ok: bool, what: str, got: object) -> None:
            if not ok:
                raise ValueError(f"{what}, got {got}")

        expect(self.method in get_args(Method), f"method must be one of {get_args(Method)}", repr(self.method))
        expect(self.slope in SLOPES, f"slope must be one of {tuple(SLOPES)}", repr(self.slope))
        schedules = ("one_cycle", "cosine", "constant")
        expect(self.schedule in schedules, f"schedule must be one of {schedules}", repr(self.schedule))
        for name in ("alpha0", "alpha1", "beta", "lr"):
            expect(0 < getattr(self, name) < math.inf, f"{name} must be > 0 and finite", getattr(self, name))
        expect(0 <= self.weight_decay < math.inf, "weight_decay must be >= 0 and finite", self.weight_decay)
        for name in ("epochs", "batch_size", "patience"):
            expect(isinstance(getattr(self, name), int), f"{name} must be an integer", getattr(self, name))
        for name in ("epochs", "batch_size"):
            expect(getattr(self, name) >= 1, f"{name} must be >= 1", getattr(self, name))
        expect(self.patience >= 0, "patience must be >= 0", self.patience)
        sizes = len(self.hidden) > 0 and all(isinstance(size, int) and size >= 1 for size in self.hidden)
        expect(sizes, "hidden sizes must be integers >= 1", self.hidden)
        expect(not self.batch_norm or self.batch_size >= 2, "batch_size must be >= 2 with batch_norm", self.batch_size)
        self.sharpening()  # raises for a bad start or fraction

    def sharpening(self) -> Geometric | None:
        """The schedule of the activation's parameters, None when they stay."""
        if self.method not in ("htaf", "ss") or not self.sharpen:
            return None
        end = (self.alpha0, self.alpha1) if self.method == "htaf" else (self.beta,)
        return Geometric(self.start or soft_start(*end), end, self.sharpen_fraction)

    def activation(self) -> dict[str, Any]:
        """The activation at the end of training, as `models.build.activation` takes it."""
        names = {"htaf": ("alpha0", "alpha1"), "ss": ("beta",), "ste": ("slope",), "relu": ()}[self.method]
        return {"method": self.method, **{name: getattr(self, name) for name in names}}

    def identity(self) -> dict[str, Any]:
        """The fields that bear on the result: two recipes with the same identity train the same network."""
        unused = {f for fields in ACTIVATION_FIELDS.values() for f in fields} - set(ACTIVATION_FIELDS[self.method])
        fields = {k: v for k, v in asdict(self).items() if k not in unused}
        if self.sharpening() is None:
            fields = {k: v for k, v in fields.items() if k not in ("start", "sharpen_fraction")}
        return fields


def tabular_mlp() -> Recipe:
    """The default for tables: (2, 11) from a soft start, batch norm, one cycle up to 3e-3, at most 100 epochs."""
    return Recipe()


def tabular_paper() -> Recipe:
    """As the paper words it: Adam 1e-3, constant, no sharpening and no batch norm, 1,000 epochs."""
    return Recipe(sharpen=False, batch_norm=False, epochs=1000, lr=1e-3, schedule="constant", patience=0)


def tabular_quick() -> Recipe:
    """The demo's: 30 epochs."""
    return Recipe(epochs=30, patience=0)


RecipeName = Literal["tabular-mlp", "tabular-paper", "tabular-quick"]
RECIPES: dict[RecipeName, Callable[[], Recipe]] = {
    "tabular-mlp": tabular_mlp,
    "tabular-paper": tabular_paper,
    "tabular-quick": tabular_quick,
}
