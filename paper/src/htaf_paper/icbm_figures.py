"""Figures on implicit concept bottleneck models: class specificity, outputs of the feature extractor, and what the
concepts of one class of CUB are."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from htaf._ground.files import write_atomic
from htaf.concepts.naming.files import VERIFIED
from htaf.concepts.naming.job import sheet_of, tile_of
from htaf.concepts.scores import BINS
from htaf.data.images import Images
from htaf.data.reading import DataError
from htaf.training.recipe import Source
from htaf_paper import icbm
from htaf_paper.icbm_items import GPU, SEEDS_ALONE, SMOKE
from htaf_paper.icbm_networks import (
    HERE,
    NAMES,
    REDUCED,
    SEARCHED,
    TRAINED_AGAIN,
    Gather,
    Item,
    label_of,
    of_scores,
    paired,
)
from htaf_paper.icbm_scores import BESIDE, NEAR
from htaf_paper.outcomes import picture_file
from htaf_paper.plans import Plan, Trained
from htaf_paper.protocol import (
    Claim,
    Drawing,
    Figure,
    MissingError,
    Outcome,
    Panel,
    Place,
    Scale,
    Series,
    Setting,
    Table,
    command_of,
)
from htaf_paper.trainings import data_of, name_of
from htaf_paper.verdicts import better, true

FIRST = 0  # the seed that figures show
BESIDE_NAMES = {"by-number": "plain, paired by number", "by-rate": "plain, paired by firing rate"}


def figure_pair(scale: Scale) -> icbm.Pair:
    """The data set and backbone of figures: WideResNet on CIFAR-10, as in the paper."""
    return ("digits" if scale == "smoke" else "cifar10", "wide_resnet")


# ---- class specificity ----


class ClassSpecificity(Item):
    """Histograms of the share of a class's images that have a concept."""

    id = "class-specificity"
    title = "Class specificity of implicit concepts"
    paper = "Figures 4 and 11, section 4.2.2"

    settings: ClassVar = {
        "smoke": Setting(SMOKE, 3.5),
        "reduced": Setting(f"{REDUCED}; {SEARCHED}", 7800.0, data=("CIFAR-10", "CUB"), shared=("icbm", 7800.0)),
        "full": Setting(GPU, 4.0e5, gpu=True, data=("CIFAR-10",)),
    }

    def outcome(self, scale: Scale, gathered: tuple[Any, Mapping[str, Any]], gather: Gather) -> Outcome:
        histograms, scores = gathered
        lines, claims = [], []
        for label, records in scores.items():
            own = of_scores(records, "specificity", "extreme")
            explained = of_scores(records, "specificity", "explained")
            others = {name: of_scores(records, "specificity", name, "extreme") for name in BESIDE}
            spread = {name: of_scores(records, "specificity", name, "explained") for name in BESIDE}
            lines.append(
                (
                    label,
                    *(Figure.of(_percent(values)) for values in (own, *others.values(), explained, *spread.values())),
                )
            )
            claims += [
                better(
                    f"{label}: more proportions are extreme with HTAF than with the plain network cut to the same "
                    f"firing rates ({BESIDE_NAMES[name].removeprefix('plain, ')})",
                    "section 4.2.2", paired(own, other), scale, what="share of extreme proportions, HTAF less plain,",
                    unit=" points",
                )
                for name, other in others.items()
            ]  # fmt: skip
        columns = ("HTAF, extreme", *(f"{BESIDE_NAMES[name]}, extreme" for name in BESIDE))
        columns += ("HTAF, between classes", *(f"{BESIDE_NAMES[name]}, between classes" for name in BESIDE))
        table = Table(
            "Class specificity on test images, %", ("network and data", *columns), tuple(lines),
            "Extreme: share of (concept, class) pairs in which at most 10% or at least 90% of the class's images have "
            "the concept. Between classes: the part of a bit's variance that lies between classes, mean over concepts; "
            "it does not grow by bits being rare.",
        )  # fmt: skip
        drawings = () if histograms is None else _histograms(histograms)
        deviations = {
            "smoke": (SMOKE,), "reduced": (REDUCED, SEARCHED, TRAINED_AGAIN), "cpu": (), "full": ()
        }[scale]  # fmt: skip
        return Outcome(
            (table,), drawings, tuple(claims), deviations=deviations, missing=tuple(gather.absent),
            notes=(
                SEEDS_ALONE, f"The histograms are of seed {FIRST}; the table is of all seeds.",
                "The paper pairs each node of the plain network with a concept; which one it does not say. Both are "
                "without an order, so they are paired by number, and by how often they fire.",
            ),
        )  # fmt: skip

    def gathered(
        self, scale: Scale, gather: Gather
    ) -> tuple[dict[str, Any] | None, dict[str, dict[int, dict[str, Any]]]]:
        """The histograms of the first seed, and label -> seed -> scores."""

        def one(pair: icbm.Pair, plans: Sequence[Plan]) -> tuple[Any, dict[int, dict[str, Any]]]:
            made, label = gather.trained(plans[0]), name_of(plans[0].sources[0])
            shown = _kept_pair(gather, made, label) if pair == figure_pair(scale) else None
            return shown, gather.all_scores(made, label, "htaf")

        found = gather.each(icbm.all_methods(scale), one)
        histograms = found.get(figure_pair(scale), (None, {}))[0]
        return histograms, {label_of(pair): scores for pair, (_, scores) in found.items()}


def _kept_pair(gather: Gather, made: Trained, label: str) -> dict[str, Any] | None:
    own, plain = (made.tasks.get((label, row), {}).get(FIRST) for row in ("htaf", "relu"))
    if own is None or plain is None:
        return None
    return gather.measured("icbm-classes", {"run": own, "plain": plain}, f"classes, {label}")


def _percent(values: Mapping[int, float | None]) -> list[float]:
    return [100 * value for value in values.values() if value is not None]


def _histograms(found: Mapping[str, Any]) -> tuple[Drawing, ...]:
    """Of the class deer, or the first, and of all classes."""
    classes, concepts = found["classes"], found["concepts"]
    edges = tuple(round(i / BINS, 4) for i in range(BINS + 1))

    def panel(number: int) -> Panel | None:
        if found["icbm"]["per_class"][number] is None:
            return None
        series = tuple(
            Series(label, edges, tuple(count / concepts for count in found[name]["per_class"][number]), "steps")
            for name, label in (("icbm", "HTAF"), *BESIDE_NAMES.items())
        )
        return Panel(classes[number], "share of the class's images", "share of concepts", series)

    chosen = classes.index("deer") if "deer" in classes else 0
    panels = [one for one in map(panel, range(len(classes))) if one is not None]
    extreme = ", ".join(
        f"{label} {100 * found[name]['extreme']:.0f}%" for name, label in (("icbm", "HTAF"), *BESIDE_NAMES.items())
    )
    one = panel(chosen)
    alternative = f"Histograms over concepts of the share of a class's images that have them. Extreme pairs: {extreme}."
    drawings = [
        Drawing("class-specificity-all", "Proportions for all classes", alternative, tuple(panels[:20]), columns=5)
    ]
    if one is not None:
        title = f"Proportions for the class {classes[chosen]}"
        drawings.insert(0, Drawing("class-specificity", title, alternative, (one,), columns=1))
    return tuple(drawings)


# ---- outputs of the feature extractor ----


class FeatureHistograms(Item):
    """What the feature extractor gives, HTAF against ReLU."""

    id = "feature-histograms"
    title = "Outputs of the feature extractor, HTAF and ReLU"
    paper = "Figure 12, appendix on representations"

    settings: ClassVar = {
        "smoke": Setting(SMOKE, 3.0),
        "reduced": Setting(f"WRN-16-1 on 5,000 images of CIFAR-100 and CIFAR-10; {REDUCED}", 2450.0,
                           data=("CIFAR-10", "CIFAR-100"), shared=("icbm", 2390.0)),
        "full": Setting(GPU, 4.0e5, gpu=True, data=("CIFAR-100",)),
    }  # fmt: skip

    def outcome(self, scale: Scale, gathered: Mapping[str, tuple[Any, Any]], gather: Gather) -> Outcome:
        panels, lines, claims = [], [], []
        for label, (own, plain) in gathered.items():
            for name, record in (("HTAF", own), ("ReLU", plain)):
                if record is None:
                    lines.append((label, name, Figure(note="not run"), Figure(note="not run")))
                    continue
                panels.append(
                    Panel(
                        f"{label}, {name}", "output", "share of outputs",
                        (Series(name, tuple(record["edges"]), tuple(record["shares"]), "steps"),),
                    )
                )  # fmt: skip
                lines.append(
                    (label, name, Figure(100 * record["near"], count=1), Figure(100 * record["zero"], count=1))
                )
            claims.append(_near(label, own, plain, scale))
        table = Table(
            "Outputs of all features on all test images, %",
            ("network and data", "activation", "near an end", "exactly 0"), tuple(lines),
            f"Near an end: HTAF within {NEAR:g} of 0 or 1; ReLU within {NEAR:g} of the range from 0 to the 99.9% "
            "quantile.",
        )  # fmt: skip
        said = "; ".join(f"{row}, {name}: {near.text()}% near an end" for row, name, near, _ in lines if near.count)
        drawing = Drawing("feature-histograms", "Outputs of the feature extractor", said, tuple(panels), columns=2)
        notes = ("One network each, seed 0; the smooth network's outputs, before the exact step.",)
        deviations = {"smoke": (SMOKE,), "reduced": (REDUCED, TRAINED_AGAIN), "cpu": (), "full": ()}[scale]
        return Outcome(
            (table,), (drawing,) if panels else (), tuple(claims), deviations=deviations, missing=tuple(gather.absent),
            notes=notes,
        )  # fmt: skip

    def gathered(self, scale: Scale, gather: Gather) -> dict[str, tuple[Any, Any]]:
        """Label -> the histograms of HTAF and of the plain network."""
        wanted = ("digits",) if scale == "smoke" else ("cifar100",) if scale == "full" else ("cifar100", "cifar10")
        plans = icbm.with_and_without(scale)

        def one(pair: icbm.Pair, plan: Plan) -> tuple[Any, Any]:
            made = gather.trained(plan)
            return self._one(gather, made, pair[0], "htaf"), self._one(gather, made, pair[0], "relu")

        pairs = [(data, "wide_resnet") for data in wanted]
        return {label_of(pair): both for pair, both in gather.each({p: plans[p] for p in pairs}, one).items()}

    @staticmethod
    def _one(gather: Gather, made: Trained, label: str, row: str) -> Any:
        own = made.tasks.get((label, row), {}).get(FIRST)
        if own is None:
            return None
        return gather.measured("icbm-outputs", {"run": own}, f"outputs, {label}, {row}")


NEARNESS = (
    f"holds if more than half of the outputs with HTAF lie within {NEAR:g} of 0 or 1, and at most half of ReLU's "
    "lie near the ends of their range; else it does not hold"
)


def _near(label: str, own: Any, plain: Any, scale: Scale) -> Claim:
    text = f"{label}: most outputs of HTAF are near 0 or 1, those of ReLU are not"
    if own is None or plain is None:
        return Claim(text, "appendix on representations", NEARNESS, "not run", "a network is not there")
    return true(
        text, "appendix on representations", own["near"] > 0.5 >= plain["near"],
        f"near an end: HTAF {100 * own['near']:.1f}%, ReLU {100 * plain['near']:.1f}% (exactly 0: "
        f"{100 * plain['zero']:.1f}%)",
        rule=NEARNESS, scale=scale,
    )  # fmt: skip


# ---- concepts of CUB ----

CLASS = "Bewick_Wren"  # the paper's; it is not among CUB's first 50
# node, estimated concept, label, importance: the paper's table for Bewick's Wren
ESTIMATED = (
    (135, "Ecomorphological Niche", "0: Aquatic / 1: Terrestrial", 0.1069),
    (186, "Bill Morphology", "0: Stout or Conical / 1: Hooked or Spear-like", 0.0941),
    (690, "Habitats", "0: Dense Shrubland / 1: Open grassland", 0.0922),
    (153, "Foraging mechanics", "0: Extraction / 1: Snatching", 0.0879),
    (217, "Visual Plumage Pigmentation", "0: Yellow & Carotenoid / 1: Otherwise", 0.0840),
)
SIDE = 112  # pixels of a photograph in a figure
NAMED = (
    "Names come from attributes of the classes (312 of CUB; strokes of the digits), not from a language model that "
    "reads two lists of classes: the attribute, or its negation, that tells the classes with the bit from those "
    "without. Each is checked on classes that did not choose it"
)


class CubConcepts(Item):
    """The most important concepts of a class: names, images, and a misclassified image."""

    id = "cub-concepts"
    title = "Estimated concepts of CUB"
    paper = "Table 3, Figures 5 and 10, section 4.2.3"

    settings: ClassVar = {
        "smoke": Setting(f"{SMOKE}; names by strokes", 3.0),
        "reduced": Setting(
            f"ResNet-18 of width 16 on CUB's first 50 classes; {SEARCHED}",
            2550.0,
            data=("CUB",),
            shared=("icbm", 2540.0),
        ),
        "full": Setting(f"{GPU}: ViT-B/32", 3.0e5, gpu=True, data=("CUB", "weights of a hub")),
    }

    def outcome(self, scale: Scale, gathered: dict[str, Any] | None, gather: Gather) -> Outcome:
        record, place = gathered, gather.place
        if record is None:
            raise MissingError("time", f"{command_of(self.id, scale)}: the network or what is read of it is missing")
        drawings, missing = _pictures(record, scale, place)
        wrong = record["wrong"]
        deviations = (
            NAMED,
            {"smoke": SMOKE, "reduced": REDUCED, "cpu": "", "full": "Weights of ViT-B/32: timm's augreg_in21k"}[scale],
            f"The class is {record['class']}"
            + ("" if CLASS in record["class"] else ": the most right test images of all classes with a wrong one")
            + ("; the paper's, Bewick's Wren, is not among CUB's first 50" if scale == "reduced" else ""),
        )  # fmt: skip
        missing += (
            ("names by a language model", "not run: data",
             "htaf concepts name CODES --model ADDRESS, with a server of a language model; docs/named-concepts.md"),
        )  # fmt: skip
        return Outcome(
            (_concept_table(record), *(() if wrong is None else (_wrong_table(record, wrong),)), _paper_table()),
            drawings, tuple(_concept_claims(record, scale)), deviations=deviations, missing=missing,
            errata=(
                'Node 217 is named for the absence of yellow plumage, and then explained by "neither '
                "has_primary_color::black nor has_wing_color::orange\", attributes that are nowhere else in the text.",
                "Four of the five bits of the misclassified image differ from the class's; the text explains three and "
                "leaves out node 153.",
            ),
            notes=(
                "Importance is |w| of the head, as in the paper. It does not know how often a bit fires.",
                "One network, seed 0.",
            ),
        )  # fmt: skip

    def gathered(self, scale: Scale, gather: Gather) -> dict[str, Any] | None:
        data, backbone = {"smoke": ("digits", "wide_resnet"), "full": ("cub", "vit")}.get(scale, ("cub", "resnet"))
        made = gather.trained(icbm.with_and_without(scale)[data, backbone])
        own = made.tasks.get((data, "htaf"), {}).get(FIRST)
        if own is None:
            return None
        smoke = scale == "smoke"
        of: dict[str, str] = {"attributes": icbm.STROKES if smoke else "cub", "class": "" if smoke else CLASS}
        return gather.measured("icbm-concepts", {"run": own}, f"concepts, {data}", **of)


def _named(concept: Mapping[str, Any]) -> str:
    return concept["name"] or f"no name: {concept['reason']}"


def _concept_table(record: Mapping[str, Any]) -> Table:
    lines = []
    for one in record["concepts"]:
        held = "-" if one["held_out"] is None else f"{one['held_out']:.2f}"
        checked = "yes" if one["status"] == VERIFIED else f"no: {one['reason']}" if one["reason"] else "no"
        share = Figure() if one["share"] is None else Figure(100 * one["share"], count=1, digits=0)
        lines.append(
            (str(one["concept"]), _named(one), held, checked, Figure(one["importance"], count=1, digits=4), share)
        )
    return Table(
        f"Most important concepts of {record['class']}",
        ("node", "estimated concept (bit 1)", "balanced accuracy, held-out classes", "verified", "importance |w|",
         "right images that have it, %"),
        tuple(lines),
    )  # fmt: skip


def _wrong_table(record: Mapping[str, Any], wrong: Mapping[str, Any]) -> Table:
    lines = [
        (str(one["concept"]), _named(one), str(usual), str(bit), "" if usual == bit else "differs")
        for one, usual, bit in zip(record["concepts"], wrong["usual"], wrong["bits"], strict=True)
    ]
    reasons = ", ".join(
        f"node {one['concept']} is {'on' if one['bit'] else 'off'} ({one['worth']:+.2f})" for one in wrong["reasons"]
    )
    return Table(
        f"A test image of {record['class']} that is read as {wrong['predicted']}",
        ("node", "estimated concept", "most right images", "this image", ""), tuple(lines),
        f"Test image {wrong['image']}. What speaks most for {wrong['predicted']} against the next class: {reasons}.",
    )  # fmt: skip


def _paper_table() -> Table:
    return Table(
        "The paper's table: Bewick's Wren, ViT, named by GPT-5",
        ("node", "estimated concept", "label", "importance"),
        tuple((str(node), name, label, f"{value:.4f}") for node, name, label, value in ESTIMATED),
    )


def _concept_claims(record: Mapping[str, Any], scale: Scale) -> list[Claim]:
    place = "section 4.2.3"
    verified = sum(one["verified"] for one in record["concepts"])
    count = len(record["concepts"])
    claims = [
        true(
            "The most important concepts can be named", place, 2 * verified > count,
            f"{verified} of {count} names hold on classes that did not choose them",
            rule="holds if more than half of the names are verified on held-out classes", scale=scale,
        )
    ]  # fmt: skip
    text = "A misclassified image has other values of the important concepts than the right images of its class"
    rule = "holds if more of the important bits differ, on average, in misclassified images than in right ones"
    wrong, right, shown = record["wrong"], record["images"]["right"], record["images"]["test"]
    if wrong is None:
        return [*claims, Claim(text, place, rule, "not run", "no image of the class is misclassified")]
    return [
        *claims,
        true(
            text, place, wrong["differ_wrong"] > wrong["differ_right"],
            f"of {count} important bits {wrong['differ_wrong']:.2f} differ from the usual ones in the mean of "
            f"{shown - right} misclassified images of {record['class']}, {wrong['differ_right']:.2f} in that of {right}"
            f" right ones; {wrong['differ']} in the one shown", rule=rule, scale=scale,
        ),
    ]  # fmt: skip


def _pictures(
    record: Mapping[str, Any], scale: Scale, place: Place
) -> tuple[tuple[Drawing, ...], tuple[tuple[str, str, str], ...]]:
    """Sheets of images, written into the folder of results; where the images are not here, rows that say so."""
    source = record["data"]
    try:
        images = data_of(Source(source["name"], size=source.get("size")), False, place.data_dir)
    except DataError as error:
        return (), (("images with a bit and without it", "not run: data", str(error)),)
    assert isinstance(images, Images)
    first, wrong = record["concepts"][0], record["wrong"]
    rows = [("on", first["on"]), ("off", first["off"])] + ([] if wrong is None else [("wrong", [wrong["image"]])])
    name = HERE.get(source["name"], NAMES.get(source["name"], source["name"]))
    said = {
        "on": f"Test images of {name} in which node {first['concept']} is 1, surest first, one of a class",
        "off": f"Test images of {name} in which node {first['concept']} is 0, surest first, one of a class",
        "wrong": "" if wrong is None else f"A test image of {record['class']} that is read as {wrong['predicted']}",
    }
    drawings = []
    for what, numbers in rows:
        if not numbers:
            continue
        pixels = images.test.batch(torch.tensor(numbers)).numpy()
        drawn = f"cub-concepts-{what}"
        sheet = _png(sheet_of([tile_of(one, SIDE) for one in pixels], SIDE))
        write_atomic(picture_file(place.out, scale, f"{drawn}.png"), sheet)
        drawings.append(Drawing(drawn, said[what], f"{said[what]}.", picture=f"{drawn}.png"))
    return tuple(drawings), ()


def _png(pixels: UInt8[np.ndarray, "height width 3"]) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, format="PNG", optimize=True)
    return data.getvalue()


CLASS_SPECIFICITY, FEATURE_HISTOGRAMS, CUB_CONCEPTS = ClassSpecificity(), FeatureHistograms(), CubConcepts()
