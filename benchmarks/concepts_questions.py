"""Questions whose answers are known: is it the background, is it the class, which labels are wrong?

    python benchmarks/concepts_questions.py WEIGHTS --ask background find doubtful

WEIGHTS: EfficientNet-Lite0, a file or an installed package. HTAF_DATA is the folder with cifar-100-python, and with
CUB_200_2011 for doubtful.

background: photographs of five CIFAR-100 classes are pasted on photographs of five kinds of scenes, about in the
middle, on a sixth to a third of 96 x 96 pixels. "tied" is the share of a class's photographs, in training and in those
that the question is put to, that lie on its own scene; the others lie on any, and so do all where tied is 0. "told":
draws that say yes, with masks and by the middle half. "truth": the same photographs pasted anew, on scenes of other
classes: how many are taken for the class of the scene, less those that were before; beside it what is said ("drawn").

find: 20 held-out photographs with a border and 20 without, or none with it, of the same classes on both sides or not.
Each photograph of one class had the border in training. "found": draws in which it is said to be seen; "class": draws
that say it cannot be told from the class. Classes of the photographs are known or not. "before": one stratum.

doubtful: 40 photographs each of some species of birds, of which 3% get another label; 10 copies with another label are
added, half of them equal, half scaled by 0.7 and saved again as JPEG of quality 70. Seven tenths are training images.
"wrong": how many of the 3% are listed, and how many of those that are listed as like another class have a wrong label;
"copies": the same of pairs. By features of the backbone, by pre-activations of 64 concepts and by their bits.
"""

from __future__ import annotations

import argparse
import io
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

import htaf
from htaf.concepts import background
from htaf.concepts.codes import codes_of
from htaf.concepts.doubtful import doubtful
from htaf.concepts.finding import find_concept
from htaf.models.backbone_weights import load_backbone
from htaf.models.icbm import timm_backbone

SIDE, CLASSES, TRAINED, ASKED = 96, 5, 40, 20  # pixels; photographs of a class
SCENES = ("cloud", "forest", "plain", "sea", "road", "mountain", "skyscraper", "castle", "bridge", "house")
BORDER = 3
TIED = (1.0, 0.8, 0.0)
SPECIES = (5, 10, 50)
TOLD = ("ask", "species", "by")
DRAWS = 20  # of tied 0, and of find; of the others half
Photos = torch.Tensor  # uint8 [n, 3, 32, 32]


class Network:
    """A frozen EfficientNet-Lite0 and a bottleneck on its features."""

    def __init__(self, weights: str) -> None:
        self.backbone = timm_backbone("tf_efficientnet_lite0", 3, None)
        load_backbone(self.backbone, weights)
        self.backbone.eval()
        self.bits: Any = None

    @torch.no_grad()
    def features(self, pixels: torch.Tensor) -> np.ndarray:
        some = (part.float() / 127.5 - 1 for part in pixels.split(50))
        return torch.cat([self.backbone(x) for x in some]).numpy()

    def fit(self, pixels: torch.Tensor, labels: np.ndarray, seed: int) -> None:
        self.bits = htaf.ConceptBottleneck(n_concepts=64, random_state=seed).fit(self.features(pixels), labels)

    def bits_of(self, pixels: torch.Tensor) -> np.ndarray:
        return self.bits.concepts(self.features(pixels)).astype(bool)


def photographs() -> tuple[dict[str, Photos], dict[str, Photos]]:
    """Photographs of CIFAR-100 by class: to train on, and others."""
    folder = Path(os.environ["HTAF_DATA"]) / "cifar-100-python"
    names = pickle.loads((folder / "meta").read_bytes())["fine_label_names"]
    sides = []
    for side in ("train", "test"):
        made = pickle.loads((folder / side).read_bytes(), encoding="latin1")
        pixels, labels = made["data"].reshape(-1, 3, 32, 32), np.array(made["fine_labels"])
        sides.append({name: torch.from_numpy(pixels[labels == k]) for k, name in enumerate(names)})
    return sides[0], sides[1]


def some(photos: Photos, count: int, random: np.random.Generator) -> Photos:
    return photos[torch.from_numpy(random.choice(len(photos), count, replace=False))]


def enlarged(photos: Photos, side: int = SIDE) -> torch.Tensor:
    found = F.interpolate(photos.float(), (side, side), mode="bicubic", align_corners=False)
    return found.round().clamp(0, 255).to(torch.uint8)


def scenes_for(labels: np.ndarray, tied: float, random: np.random.Generator) -> np.ndarray:
    """The number of the scene of each photograph."""
    free = random.random(len(labels)) >= tied
    return np.where(free, random.integers(0, CLASSES, len(labels)), labels)


def pasted(
    photos: Photos, of: Sequence[Photos], scenes: np.ndarray, random: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Photographs on scenes of these numbers, and where they lie."""
    behind = torch.cat([some(of[scene], 1, random) for scene in scenes])
    pixels, objects = enlarged(behind), torch.zeros(len(photos), SIDE, SIDE, dtype=torch.bool)
    for row, photo in enumerate(photos):
        side = int(random.integers(40, 57))
        top, left = (SIDE - side) // 2 + random.integers(-8, 9, 2)
        pixels[row, :, top : top + side, left : left + side] = enlarged(photo[None], side)[0]
        objects[row, top : top + side, left : left + side] = True
    return pixels, objects


def ask_background(network: Network, train: dict[str, Photos], test: dict[str, Photos], tied: float, draw: int) -> Any:
    random = np.random.default_rng([draw, int(100 * tied)])
    things = random.choice([name for name in train if name not in SCENES], CLASSES, replace=False)
    places = random.choice(SCENES, CLASSES, replace=False)
    labels, asked = (np.repeat(np.arange(CLASSES), count) for count in (TRAINED, ASKED))
    photos = torch.cat([some(train[name], TRAINED, random) for name in things])
    held = torch.cat([some(test[name], ASKED, random) for name in things])
    behind, others = ([of[name] for name in places] for of in (train, test))
    network.fit(pasted(photos, behind, scenes_for(labels, tied, random), random)[0], labels, draw)
    before = scenes_for(asked, tied, random)
    pixels, objects = pasted(held, others, before, random)
    head = network.bits.head_
    middle = background.middle(len(pixels), (SIDE, SIDE))
    found = [background.background(pixels, where, network.bits_of, head, seed=draw) for where in (objects, middle)]
    predicted = found[0].classes["as it is"]
    moved = (predicted + random.integers(1, CLASSES, len(predicted))) % CLASSES
    again = network.bits.predict(network.features(pasted(held, others, moved, random)[0]))
    own = network.bits.predict(network.features(pasted(held, others, before, random)[0]))
    return {
        "accuracy": float((predicted == asked).mean()),
        "truth": float((again == moved).mean() - (own == moved).mean()),
        **{
            f"{key}, {name}": value
            for name, one in zip(("masks", "middle"), found, strict=True)
            for key, value in {
                "told": one.is_followed,
                "drawn": one.drawn[0],
                "low": one.drawn[1],
                **{kind: float((one.classes[kind] != predicted).mean()) for kind in ("no surroundings", "no object")},
            }.items()
        },
    }


def bordered(pixels: torch.Tensor, which: np.ndarray) -> torch.Tensor:
    inside = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    inside[BORDER:-BORDER, BORDER:-BORDER] = True
    return torch.where(torch.from_numpy(which)[:, None, None, None] & ~inside, 200, pixels)


# classes of the photographs with it and without: numbers of photographs of each of five classes, the first has it in
# training
SIDES = {
    "the same classes": ((0, 5, 5, 5, 5), (0, 5, 5, 5, 5)),
    "two of three of other classes": ((0, 14, 2, 2, 2), (0, 2, 6, 6, 6)),
    "other classes": ((0, 20, 0, 0, 0), (0, 0, 7, 7, 6)),
}


def ask_find(network: Network, train: dict[str, Photos], test: dict[str, Photos], draw: int) -> list[dict[str, Any]]:
    random = np.random.default_rng([draw, 1000])
    things = random.choice(list(train), CLASSES, replace=False)
    labels = np.repeat(np.arange(CLASSES), TRAINED)
    pixels = enlarged(torch.cat([some(train[name], TRAINED, random) for name in things]))
    network.fit(bordered(pixels, labels == 0), labels, draw)
    rows = []
    for name, (own, others) in SIDES.items():
        photos = [some(test[thing], one + other, random) for thing, one, other in zip(things, own, others, strict=True)]
        parts = [of[:one] for of, one in zip(photos, own, strict=True)]
        parts += [of[one:] for of, one in zip(photos, own, strict=True)]
        of = np.repeat(np.tile(np.arange(CLASSES), 2), [*own, *others])
        plain, is_with = enlarged(torch.cat(parts)), np.arange(sum(own) + sum(others)) < sum(own)
        for mark in (True, False):
            x = network.features(bordered(plain, is_with) if mark else plain)
            for known, classes in (("before", np.zeros_like(of)), ("known", of), ("not known", None)):
                found = find_concept(
                    x[is_with], x[~is_with], network.bits.bits_.pre_activations, network.bits.head_, classes=classes
                )
                seen = min(found.bit.p, found.direction.p) <= 0.025 if known == "before" else bool(found.follows)
                rows.append({"sides": name, "border": mark, "classes": known, "found": seen, "class": found.of_classes})
    return rows


def birds(files: Sequence[Path], *, saved_again: bool = False) -> torch.Tensor:
    """Photographs of 160 x 160 pixels."""
    found = []
    for file in files:
        picture = Image.open(file).convert("RGB")
        if saved_again:
            data = io.BytesIO()
            picture.resize((int(0.7 * picture.width), int(0.7 * picture.height))).save(data, "JPEG", quality=70)
            picture = Image.open(data)
        found.append(np.asarray(picture.resize((160, 160), Image.Resampling.BILINEAR)))
    return torch.from_numpy(np.stack(found)).movedim(3, 1)


def ask_doubtful(network: Network, species: int, draw: int) -> list[dict[str, Any]]:
    random = np.random.default_rng([draw, species])
    folder = Path(os.environ["HTAF_DATA"]) / "CUB_200_2011" / "images"
    every = sorted(folder.iterdir())
    chosen = [every[number] for number in random.choice(len(every), species, replace=False)]
    files = [file for one in chosen for file in sorted(one.glob("*.jpg"))[:40]]
    true = np.array([k for k, one in enumerate(chosen) for _ in sorted(one.glob("*.jpg"))[:40]])
    wrong, copied = np.split(random.permutation(len(files))[: round(0.03 * len(files)) + 10], [-10])
    x = network.features(
        torch.cat([birds(files), birds([files[k] for k in copied[:5]]),
                   birds([files[k] for k in copied[5:]], saved_again=True)])
    )  # fmt: skip
    truth, labels = np.concatenate([true, true[copied]]), np.concatenate([true, true[copied]])
    changed = np.concatenate([wrong, len(files) + np.arange(10)])
    labels[changed] = (labels[changed] + random.integers(1, species, len(changed))) % species
    parts = random.choice([0, 1, 2], len(x), p=[0.7, 0.1, 0.2]).astype(np.uint8)
    taught = parts == 0
    bits = htaf.ConceptBottleneck(n_concepts=64, random_state=draw).fit(x[taught], labels[taught])
    codes = codes_of(bits.concepts(x), labels, bits.head_.weight, bits.head_.bias, parts=parts)
    pairs = {(int(one), len(files) + n) for n, one in enumerate(copied)}
    by = {"backbone": x, "pre-activations": bits.pre_activations(x), "bits": None}
    rows = []
    for name, features in by.items():
        found, compared = doubtful(codes, features)
        like = [one.row for one in found if one.kind == "class"]
        copies = [(min(one.row, one.like), max(one.row, one.like)) for one in found if one.kind == "copy"]
        rows.append(
            {
                "ask": "doubtful", "species": species, "by": name, "compared": compared,
                "accuracy": float((codes.exact == truth)[~taught].mean()), "listed": len(like),
                "wrong, recall": float(np.isin(wrong, like).mean()),
                "wrong, precision": float((labels != truth)[like].mean()) if like else None,
                "copies listed": len(copies), "copies, recall": len(pairs & set(copies)) / len(pairs),
                "copies, precision": len(pairs & set(copies)) / len(copies) if copies else None,
            }
        )  # fmt: skip
    return rows


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    network, (train, test) = Network(args.weights), photographs()
    rows: list[dict[str, Any]] = []
    for species in SPECIES if "doubtful" in args.ask else ():
        draws = [ask_doubtful(network, species, args.first + draw) for draw in range(min(5, args.draws))]
        for same in zip(*draws, strict=True):
            means = {key: [one[key] for one in same if one[key] is not None] for key in same[0] if key not in TOLD}
            mean = {key: round(float(np.mean(of)), 3) if of else None for key, of in means.items()}
            rows.append({key: same[0][key] for key in TOLD} | {"draws": len(same), **mean, "each": list(same)})
            print({key: value for key, value in rows[-1].items() if key != "each"}, flush=True)
    for tied in TIED if "background" in args.ask else ():
        each = [
            ask_background(network, train, test, tied, args.first + draw)
            for draw in range(args.draws if tied == 0 else max(1, args.draws // 2))
        ]
        mean = {key: round(float(np.mean([one[key] for one in each])), 3) for key in each[0]}
        rows.append({"ask": "background", "tied": tied, "draws": len(each), **mean, "each": each})
        print({key: value for key, value in rows[-1].items() if key != "each"}, flush=True)
    asked = [
        ask_find(network, train, test, args.first + draw) for draw in range(args.draws if "find" in args.ask else 0)
    ]
    for same in zip(*asked, strict=True):
        mean = {key: float(np.mean([one[key] for one in same])) for key in ("found", "class")}
        rows.append({"ask": "find", "draws": len(same), **same[0], **mean})
        print(rows[-1], flush=True)
    both = [one for row in rows if row["ask"] == "background" for one in row["each"]]
    for name in ("masks", "middle") if len(both) > 2 else ():
        pairs = np.array([[one["truth"], one[f"drawn, {name}"]] for one in both])
        print(f"correlation of drawn, {name}, with truth: {np.corrcoef(pairs.T)[0, 1]:.3f}")
    return rows


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("weights", help="of EfficientNet-Lite0: a file, or an installed package")
    parser.add_argument("--ask", choices=("background", "find", "doubtful"), nargs="+", default=["background", "find"])
    parser.add_argument("--draws", type=measuring.at_least_one, default=DRAWS, help=f"default: {DRAWS}")
    parser.add_argument("--first", type=int, default=0, help="number of the first draw; default: 0")
    args = parser.parse_args()
    torch.set_num_threads(1)
    measuring.end(args, run(args))


if __name__ == "__main__":
    main()
