"""Do maps find what decides a bit? `htaf paper run where --scale full --out DIR`.

Spots are planted: an image of 24 x 24 pixels is smooth coloured noise, and each of four kinds of spots (6 x 6 pixels, a
texture each) is in it with probability 1/2, at a random place. Bit j of a small concept bottleneck is trained, with
HTAF, to be 1 where spot j is there. Then, for bits that are 1 and right, a map should lie on the spot. Per network and
seed:

- mass: the share of the map's positive values inside the spot;
- pointing: how often the highest value lies inside the spot (the pointing game, Zhang et al. 2016);
- IoU: overlap of the responsible region's box with the spot;
- covered: how often the bit turns to 0 when the box is covered by the mean colour, and when a box of the same size
  elsewhere is.

The exact map is compared with itself without the constant part, with gradient times input, with occlusion by windows of
two sizes, one of which is the spot's, and with the exact map of the untrained network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from htaf.concepts.regions import Box, Map, Regions, resized
from htaf.core.activations import HTAF
from htaf.models.build import backbone
from htaf.models.icbm import ICBM
from htaf.transform.convert import harden
from htaf_paper.computing import Place
from htaf_paper.experiments import Experiment
from htaf_paper.protocol import Drawing, Outcome, Panel, Scale, Series, Setting, Table
from htaf_paper.reports import spread

SIZE, SPOT, KINDS = 24, 6, 4
NETWORKS = {
    "WideResNet-10-1": {"kind": "wide_resnet", "depth": 10, "width": 1, "dropout": 0.0},
    "ResNet-18, width 8": {"kind": "resnet", "depth": 18, "width": 8, "stem": "cifar"},
}
SEEDS = (0, 1, 2)
TRAINING, EPOCHS, BATCH, RATE = 1200, 4, 40, 3e-3
SOFT, SHARP = (0.5, 2.0), (2.0, 8.0)  # alpha0 and alpha1 at the start and the end
IMAGES = 15  # whose maps are drawn


@dataclass(frozen=True, eq=False)
class Planted:
    """Images with spots.

    Attributes:
        images: float32 [n, 3, 24, 24], of mean about 0.
        bits: bool [n, 4], which kinds of spots are there.
        boxes: int64 [n, 4, 4], left, top, right and bottom of each spot, also of those that are not there.
    """

    images: Float32[Tensor, "n 3 h w"]
    bits: Bool[np.ndarray, "n kinds"]
    boxes: Int64[np.ndarray, "n kinds 4"]


def textures() -> Float32[np.ndarray, "kinds spot spot"]:
    """The four kinds: a chessboard, horizontal and vertical stripes, and a ring; of -1 and 1."""
    y, x = np.mgrid[:SPOT, :SPOT]
    ring = np.maximum(abs(2 * y - SPOT + 1), abs(2 * x - SPOT + 1)) // 2 % 2
    return np.stack([(x + y) % 2, y % 2, x % 2, ring]).astype(np.float32) * 2 - 1


def planted(count: int, rng: np.random.Generator) -> Planted:
    """Images whose spots lie in different fields of a 3 x 3 board, anywhere within their field."""
    coarse = torch.from_numpy(rng.normal(size=(count, 3, 5, 5)).astype(np.float32))
    smooth = F.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear", align_corners=True).numpy()
    images = (0.8 * smooth + 0.4 * rng.normal(size=smooth.shape)).astype(np.float32)
    bits = rng.random((count, KINDS)) < 0.5
    fields = rng.permuted(np.tile(np.arange(9), (count, 1)), axis=1)[:, :KINDS]
    wide = SIZE // 3
    left, top = (wide * part + rng.integers(0, wide - SPOT + 1, (count, KINDS)) for part in (fields % 3, fields // 3))
    for i, kind in zip(*np.nonzero(bits), strict=True):
        y, x = top[i, kind], left[i, kind]
        images[i, :, y : y + SPOT, x : x + SPOT] = textures()[kind] + 0.3 * rng.normal(size=(3, SPOT, SPOT))
    return Planted(torch.from_numpy(images), bits, np.stack([left, top, left + SPOT, top + SPOT], axis=2))


def network(name: str, seed: int) -> ICBM:
    """A bottleneck with a concept for each kind, untrained; its norms have statistics of nothing yet."""
    torch.manual_seed(seed)
    net = backbone(NETWORKS[name], 3, (SIZE, SIZE))
    return ICBM(net, 2, partial(HTAF, *SHARP), example=torch.zeros(2, 3, SIZE, SIZE), concepts=KINDS)


def train(model: ICBM, data: Planted, seed: int) -> None:
    """Cross-entropy between the bits and HTAF of the pre-activations, sharpened step by step; AdamW, one cycle."""
    draw = torch.Generator().manual_seed(seed)
    wanted = torch.from_numpy(data.bits.astype(np.float32))
    steps = EPOCHS * (len(wanted) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    order = torch.arange(len(wanted))
    model.train()
    for step in range(steps):
        place = step % (len(wanted) // BATCH)
        if not place:
            order = torch.randperm(len(wanted), generator=draw)
        rows = order[place * BATCH : (place + 1) * BATCH]
        alpha0, alpha1 = (a + (b - a) * step / steps for a, b in zip(SOFT, SHARP, strict=True))
        logits = alpha1 * torch.tanh(alpha0 * model.pre_activations(data.images[rows]))  # of HTAF, whose sigmoid it is
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits, wanted[rows]).backward()
        optimizer.step()
        schedule.step()
    model.eval()


def settle(model: ICBM, images: Tensor) -> None:
    """Statistics for the norms of an untrained network, which ends in eval mode."""
    model.train()
    with torch.no_grad():
        for batch in images[: 10 * BATCH].split(BATCH):
            model(batch)
    model.eval()


def without_constant(found: Map) -> Map:
    """An exact map without what comes from no place."""
    return replace(found, values=found.values - float(found.constant or 0.0) / found.values.size, constant=0.0)


def overlap(one: Box, two: Box) -> float:
    """Intersection over union of two boxes."""
    width, height = (min(one[i + 2], two[i + 2]) - max(one[i], two[i]) for i in (0, 1))
    inside = max(0, width) * max(0, height)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)]
    return inside / (sum(areas) - inside)


def peak(found: Map) -> tuple[int, int]:
    """(y, x) of the pixel in the middle of the highest value."""
    y, x = np.unravel_index(int(found.values.argmax()), found.values.shape)
    (h, w), (height, width) = found.values.shape, found.size
    return int((y + 0.5) * height / h), int((x + 0.5) * width / w)


def share(found: Map, box: Box) -> float:
    """The share of the positive values that lies inside a box, in [0, 1]; 0 where there are none."""
    positive = resized(found.values.clip(min=0), found.size)
    left, top, right, bottom = box
    return float(positive[top:bottom, left:right].sum() / positive.sum()) if positive.any() else 0.0


def scored(maps: Sequence[Map], spots: Sequence[Box]) -> dict[str, float]:
    """Means of mass, pointing and IoU of maps against the spots."""
    mass, hits, ious = [], [], []
    for found, spot in zip(maps, spots, strict=True):
        y, x = peak(found)
        mass.append(share(found, spot))
        hits.append(spot[0] <= x < spot[2] and spot[1] <= y < spot[3])
        box = found.box()
        ious.append(0.0 if box is None else overlap(box, spot))
    return {"mass": float(np.mean(mass)), "pointing": float(np.mean(hits)), "iou": float(np.mean(ious))}


def most_possible(grid: tuple[int, int], spots: Sequence[Box]) -> float:
    """The largest mass inside that a map of this grid can have, where its places are spread over their pixels."""
    found = []
    for spot in spots:
        values = np.zeros(grid)
        sides = [np.arange(n + 1) * SIZE / n for n in grid]
        inside = [
            np.clip(np.minimum(edge[1:], spot[i + 2]) - np.maximum(edge[:-1], spot[i]), 0, None)
            for edge, i in ((sides[0], 1), (sides[1], 0))
        ]
        values = np.outer(*inside) * values.size / SIZE**2
        found.append(float(values.max()))
    return float(np.mean(found))


@torch.no_grad()
def covered(
    model: Any, data: Planted, cases: Sequence[tuple[int, int]], maps: Sequence[Map], rng: np.random.Generator
) -> dict[str, float]:
    """How often a bit turns to 0: its box covered, or a box of that size that does not touch the spot."""
    off: dict[str, list[bool]] = {"box": [], "elsewhere": []}
    for (i, kind), found in zip(cases, maps, strict=True):
        box = found.box()
        assert box is not None
        width, height = box[2] - box[0], box[3] - box[1]
        places = [
            (x, y, x + width, y + height) for x in range(SIZE - width + 1) for y in range(SIZE - height + 1)
            if not overlap((x, y, x + width, y + height), tuple(data.boxes[i, kind].tolist()))
        ]  # fmt: skip
        chosen = {"box": [box], "elsewhere": [places[rng.integers(len(places))]] if places else []}
        for name, boxes in chosen.items():
            for left, top, right, bottom in boxes:
                image = data.images[i : i + 1].clone()
                image[..., top:bottom, left:right] = 0
                off[name].append(bool(model.pre_activations(image)[0, kind] < 0))
    return {name: float(np.mean(values)) if values else float("nan") for name, values in off.items()}


def cell(name: str, seed: int) -> dict[str, Any]:
    """One network, one seed: plain values."""
    rng = np.random.default_rng((seed, 7))
    data, test = planted(TRAINING, rng), planted(400, rng)
    model = network(name, seed)
    settle(model, data.images)
    untrained = Regions(model)
    fresh = maps_of(untrained, test, every_case(test))
    train(model, data, seed)
    exact: Any = harden(model)
    with torch.no_grad():
        bits = (exact.pre_activations(test.images) >= 0).numpy()
    cases = [case for case in every_case(test) if bits[case]]
    spots = [box_of(test, case) for case in cases]
    regions = Regions(exact)
    maps = maps_of(regions, test, cases)
    methods = {
        "exact": maps,
        "exact, without the constant": [without_constant(found) for found in maps],
        "gradient x input": estimated(exact, test, cases),
        "occlusion, 8 windows a side": estimated(exact, test, cases, SIZE // 8),
        "occlusion, windows as large as the spot": estimated(exact, test, cases, SPOT),
    }
    rows = {method: scored(found, spots) for method, found in methods.items()}
    return {
        "network": name, "seed": seed, "grid": list(regions.pooling.grid), "cases": len(cases),
        "accuracy": float((bits == test.bits).mean()),
        "methods": rows | {"exact, untrained network": scored(fresh, [box_of(test, c) for c in every_case(test)])},
        "most_possible": most_possible(regions.pooling.grid, spots), "area": SPOT**2 / SIZE**2,
        "largest_difference": max(abs(float(found.values.sum()) - found.pre_activation) for found in maps),
        "covered": covered(exact, test, cases, maps, rng),
    }  # fmt: skip


def every_case(data: Planted) -> list[tuple[int, int]]:
    """(image, kind) of the spots of the first images."""
    return [(int(i), int(kind)) for i, kind in zip(*np.nonzero(data.bits[:IMAGES]), strict=True)]


def box_of(data: Planted, case: tuple[int, int]) -> Box:
    """The spot of a case."""
    left, top, right, bottom = data.boxes[case].tolist()
    return left, top, right, bottom


def maps_of(regions: Regions, data: Planted, cases: Sequence[tuple[int, int]]) -> list[Map]:
    """A map for each case."""
    found = {}
    for i in dict.fromkeys(i for i, _ in cases):
        kinds = [kind for image, kind in cases if image == i]
        found |= {(i, made.concept): made for made in regions.of(data.images[i : i + 1], kinds)[0]}
    return [found[case] for case in cases]


def estimated(model: Any, data: Planted, cases: Sequence[tuple[int, int]], window: int = 0) -> list[Map]:
    """Captum's map for each case: occlusion by windows of so many pixels a side; 0: gradient times input."""
    from captum.attr import InputXGradient, Occlusion

    forward, step, found = model.pre_activations, -(-window // 2), []
    for i, kind in cases:
        image = data.images[i : i + 1]
        if window:
            covering: Any = {"sliding_window_shapes": (3, window, window), "strides": (3, step, step)}
            covering |= {"baselines": 0, "target": kind, "perturbations_per_eval": 16}
            with torch.no_grad():
                values = Occlusion(forward).attribute(image, **covering)[:, :1]
        else:
            values = InputXGradient(forward).attribute(image.clone().requires_grad_(), target=kind)
        pre_activation = float(forward(image)[0, kind])
        found.append(Map(kind, values.detach().double().sum(1)[0].numpy(), pre_activation, 0.0, (SIZE, SIZE)))
    return found


def compute(settings: dict[str, Any], place: Place) -> dict[str, Any]:
    return cell(settings["network"], settings["seed"])


SETTINGS = {
    "size": SIZE, "spot": SPOT, "training": TRAINING, "epochs": EPOCHS, "batch": BATCH, "rate": RATE, "images": IMAGES,
}  # fmt: skip
METHODS = (
    "exact",
    "exact, without the constant",
    "gradient x input",
    "occlusion, 8 windows a side",
    "occlusion, windows as large as the spot",
    "exact, untrained network",
)
ABOUT = (
    f"Images of {SIZE} x {SIZE} pixels; four kinds of spots of {SPOT} x {SPOT}, each in half of the images, at random "
    f"places. Bit j is 1 where spot j is there; {TRAINING:,} training images, {EPOCHS} epochs, exact step. Maps of "
    f"{IMAGES} test images a seed, of bits that are 1 and right. Mean ± standard deviation over the seeds, in %.",
    "Mass: share of the map's positive values inside the spot. Pointing: how often the highest value lies inside the "
    "spot. IoU: overlap of the responsible region's box with the spot.",
)


def outcome(records: Sequence[dict[str, Any]], _: Scale) -> Outcome:
    """A table and a panel of each network."""
    networks = dict.fromkeys(each["network"] for each in records)
    grouped = {name: [each for each in records if each["network"] == name] for name in networks}
    panels = tuple(
        Panel(
            name, "map", "map inside the spot, %",
            (
                Series(
                    "mass", tuple(map(float, range(len(METHODS)))),
                    tuple(100 * fmean(each["methods"][method]["mass"] for each in own) for method in METHODS), "bars",
                ),
            ),
            ticks=METHODS, hline=100 * own[0]["area"],
        )
        for name, own in grouped.items()
    )  # fmt: skip
    about = "Share of each map inside the spot; the line is that of the same value everywhere."
    drawing = Drawing("where", "Maps inside the spot", about, panels, columns=2)
    return Outcome(tuple(_table(*pair) for pair in grouped.items()), (drawing,) if panels else (), notes=ABOUT)


def _table(network: str, own: Sequence[dict[str, Any]]) -> Table:
    grid, area = " x ".join(map(str, own[0]["grid"])), f"{100 * own[0]['area']:.1f}"

    def percent(value: Callable[[dict[str, Any]], float]) -> str:
        return spread(map(value, own), times=100)

    rows = [
        (method, *(percent(lambda c, m=method, k=key: c["methods"][m][k]) for key in ("mass", "pointing", "iou")))
        for method in METHODS
    ]
    rows.append(("the same value everywhere", area, area, area))
    rows.append((f"the most that {grid} places allow", percent(lambda c: c["most_possible"]), "100", ""))
    note = (
        f"Bits right: {percent(lambda c: c['accuracy'])}%. Largest difference between an exact map's sum and its "
        f"pre-activation: {max(c['largest_difference'] for c in own):.0e}. The bit turns to 0 when the box of the "
        f"exact map is covered: {percent(lambda c: c['covered']['box'])}%; when a box of the same size beside the spot "
        f"is: {percent(lambda c: c['covered']['elsewhere'])}%."
    )
    return Table(f"{network}: maps of {grid} places", ("map", "mass", "pointing", "IoU"), tuple(rows), note)


def plan(scale: Scale) -> list[dict[str, Any]]:
    """A cell a network and seed."""
    networks, seeds = (list(NETWORKS)[:1], SEEDS[:1]) if scale == "smoke" else (list(NETWORKS), SEEDS)
    return [{"network": name, "seed": seed, **SETTINGS} for name in networks for seed in seeds]


STUDY = Experiment(
    "where",
    "Planted spots: do maps find what decides a bit?",
    {"smoke": Setting("one network, one seed", 12.0), "full": Setting("two networks, three seeds", 59.0)},
    plan,
    compute,
    outcome,
)
