"""Scores as files: JSON, short tables in Markdown, histograms and curves, and grids of images."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from matplotlib.figure import Figure

from htaf._console import markdown_text
from htaf.concepts.codes import Codes, ConceptError, PartName
from htaf.concepts.counts import labelled, labelled_rows, part_proportions, proportions
from htaf.concepts.groups import HIGH, IN_A, IN_B, LOW, MIXED, groups
from htaf.concepts.scores import BINS
from htaf.runs import to_json, write_atomic

SCORES, TABLES, HISTOGRAMS, COMPLETENESS = "scores.json", "scores.md", "histograms.png", "completeness.png"
MOST_CLASSES = 20  # with a histogram of their own
COLOURS = ("#08519c", "#fdae6b", "#74c476", "#9e9ac8")


def write_report(scores: Mapping[str, Any], out: str | Path, *, title: str = "Concepts") -> list[Path]:
    """Write scores.json, scores.md, histograms.png and completeness.png.

    Args:
        scores: what `htaf.concepts.scores.score` returns.
        out: a folder, made when it does not exist; files of these names are replaced.
        title: of the page.

    Returns:
        the files.

    Raises:
        OSError: the folder cannot be written.
    """
    out = Path(out)
    files: dict[str, bytes | str] = {
        SCORES: to_json(scores),
        TABLES: tables(scores, title=title),
        HISTOGRAMS: histograms(scores),
        COMPLETENESS: curves(scores),
    }
    for name, content in files.items():
        write_atomic(out / name, content)
    return [out / name for name in files]


def tables(scores: Mapping[str, Any], *, title: str = "Concepts") -> str:
    """The scores as Markdown."""
    accuracy, concept = scores["accuracy"], scores["concept_accuracy"]
    specific, same, complete = scores["class_specificity"], scores["redundancy"], scores["completeness"]
    fitted, scored = scores["fitted"], scores["scored"]
    lines = [
        f"# {markdown_text(title)}",
        "",
        f"{scores['concepts']} concepts, {len(scores['classes'])} classes; fitted on the part {fitted!r}, scored on "
        f"{scored!r}. All scores: {SCORES}.",
        "",
        "| Part | images | smooth | exact | change by the cut to bits, points (below 0: worse) | "
        "predictions that differ |",
        "|---|---|---|---|---|---|",
        *(
            f"| {part} | {row['images']:,} | {_percent(row['smooth'])} | {_percent(row['exact'])} | "
            f"{'-' if row['gap'] is None else format(100 * row['gap'], '+.2f')} | {_percent(row['flips'], 2)} |"
            for part, row in accuracy.items()
        ),
        "",
        "| Concepts | |",
        "|---|---|",
        f"| outputs almost 0 or 1 before the cut to bits (> 0.99 or < 0.01) | {_percent(scores['binarity'])} |",
        f"| dead (the same in every image of {fitted!r}) | {scores['dead']['count']} "
        f"({_percent(scores['dead']['share'])}) |",
        f"| whether an image has a concept, told from its class alone: balanced | {_percent(concept['balanced'])} |",
        f"| concept accuracy: all; live | {_percent(concept['mean'])}; {_percent(concept['live'])} |",
        f"| the same, always the more frequent value | {_percent(concept['trivial'])} |",
        f"| duplicate, complementary pairs | {same['duplicates']['count']}, {same['complementary']['count']} |",
        f"| distinct; effective number | {same['distinct']}; {same['effective']:.1f} |",
        f"| of a class, NEC (weights other than 0) | {scores['sparsity']['nec']:.1f} |",
        f"| of a decision, NCC (95% of a logit): all classes; the predicted one | {scores['sparsity']['ncc']:.1f}; "
        f"{scores['sparsity']['ncc_predicted']:.1f} |",
        f"| enough of this head, not refitted, within {complete['within']} points, by spread; by weight | "
        f"{complete['spread']['enough']}; {complete['weight']['enough']} |",
        "",
        "| Class specificity | clear (concept, class) pairs: proportion <= 0.1 or >= 0.9 | live concepts alone | "
        "variance between classes | the same, rare to frequent |",
        "|---|---|---|---|---|",
        *(
            f"| {markdown_text(name)} | {_percent(row['extreme'])} | {_percent(row['extreme_live'])} | "
            f"{_percent(row['explained'])} | {', '.join(_percent(group['extreme']) for group in row['by_rate'])} |"
            for name, row in {"these concepts": specific, **specific["baselines"]}.items()
        ),
    ]
    if "sample" in scores:
        sample = scores["sample"]
        drawn = f"{sample['images']:,} of {sample['of']:,} images, drawn by a hash of their row numbers"
        lines += ["", f"NCC and how many are enough: {drawn}."]
    title = f"number (weight, contribution in its {scored} images / {fitted} images)"
    lines += ["", f"| Class | {scored} images | concepts of largest weight: {title} |", "|---|---|---|"]
    dead = {*scores["dead"]["always_0"], *scores["dead"]["always_1"]}
    for entry in scores["importance"]:
        found = ", ".join(
            f"{t['concept']} ({t['weight']:+.2f}, {_added(t['contribution'])} / {_added(t['fitted_contribution'])}"
            f"{', reversed' if t['reversed'] else ''})"
            for t in [t for t in entry["top"] if t["concept"] not in dead][:5]
        )
        lines.append(f"| {markdown_text(entry['class'])} | {entry['images']:,} | {found} |")
    lines += ["", *READING]
    return "\n".join(lines) + "\n"


READING = (
    "How to read it. *Gap* and *predictions that differ*: what the step costs. *Balanced concept accuracy*: 50% where "
    "the class says nothing of a bit, 100% where all images of a class agree; the plain one is high for rare bits "
    "too. *Proportion*: the share of a class's images that have a concept. *Variance between classes*: 100% where the "
    "class decides every bit. *The same, rare to frequent*: the first column for four groups of concepts, the rarest "
    "first. *By spread*: concepts in the order of how far they move the logits between classes; *by weight*: of max "
    "|w|. *Contribution*: weight times how much more often the class's images have the concept than all images; with "
    "its sign it says whether the concept speaks for the class. Beside it that of the images which the weights were "
    "fitted to; *reversed*: the two have other signs, and their shares differ by more than chance explains (twice the "
    "standard error of the difference).",
)


def histograms(scores: Mapping[str, Any]) -> bytes:
    """PNG: for each class (the first 20), how many concepts have which proportion of its images; baselines beside."""
    specific = scores["class_specificity"]
    sets = {"these concepts": specific, **specific["baselines"]}
    names = [name for name, row in zip(scores["classes"], specific["per_class"], strict=True) if row is not None]
    rows = [i for i, row in enumerate(specific["per_class"]) if row is not None][:MOST_CLASSES]
    panels = [("all classes", None), *zip(names[:MOST_CLASSES], rows, strict=True)]
    columns = min(4, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(2.9 * columns + 0.4, 1.9 * lines + 0.6), layout="constrained")
    grid: Any = figure.subplots(lines, columns, squeeze=False)
    left, width = np.arange(BINS) / BINS, 1 / BINS / len(sets)
    for axes, (name, number) in zip(grid.flat, panels, strict=False):
        for place, (label, row) in enumerate(sets.items()):
            counts = row["histogram"] if number is None else row["per_class"][number]
            total = sum(counts) if counts else 0
            if counts and total:
                share = np.array(counts) / total
                axes.bar(
                    left + place * width,
                    share,
                    width,
                    align="edge",
                    label=label.replace("$", r"\$"),
                    color=COLOURS[place % 4],
                )
        axes.set_title(name, fontsize=8, parse_math=False)  # a $ would begin a formula
        axes.tick_params(labelsize=7)
        axes.set_xlim(0, 1)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("share of the class's images that have the concept", fontsize=8)
    figure.supylabel("share of concepts", fontsize=8)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(sets), fontsize=8)
    return png(figure)


def curves(scores: Mapping[str, Any]) -> bytes:
    """PNG: accuracy from the k most important concepts."""
    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes: Any = figure.subplots()
    complete = scores["completeness"]
    for name, label, colour in (("spread", "by spread", COLOURS[0]), ("weight", "by largest weight", COLOURS[1])):
        values = 100 * np.array(complete[name]["accuracy"])
        axes.plot(complete["k"], values, label=f"{label}, same head ({scores['scored']})", color=colour)
    axes.set_xscale("symlog", linthresh=4, base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set(xlabel="concepts, others replaced by their mean", ylabel="accuracy, %", xlim=(0, max(complete["k"]) or 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return png(figure)


def examples(
    codes: Codes, concept: int, *, part: PartName = "test", count: int = 8, seed: int = 0
) -> tuple[Int64[np.ndarray, " on"], Int64[np.ndarray, " off"]]:
    """Rows of labelled images of a part that have a concept, and that lack it: drawn at random, never picked.

    Returns:
        at most `count` row numbers of `codes` each, ascending; a function of seed and concept.

    Raises:
        ConceptError: no such concept, or count < 1.
    """
    if count < 1:
        raise ConceptError(f"expected count >= 1, got {count}")
    rows = labelled_rows(codes, part)
    on = codes.has(concept, rows)
    random = np.random.default_rng([seed, concept])
    of_on, of_off = (np.sort(random.permutation(side)[:count]) for side in (rows[on], rows[~on]))
    return of_on, of_off


def pictures(
    codes: Codes,
    images: Callable[[list[int]], Any],
    concept: int,
    *,
    part: PartName = "test",
    count: int = 8,
    seed: int = 0,
    name: str = "",
) -> bytes:
    """PNG: images that have a concept above images that lack it, as `examples` draws them.

    Args:
        codes: of the images.
        images: gives uint8 [n, 3 or 1, height, width], as `Part.batch` does, for n row numbers of `codes`.
        concept: its number.
        part: of which labelled images are drawn, and the groups A and B of classes are taken.
        count: images in a row, fewer where there are not so many.
        seed: of the draw.
        name: of the concept, for the title.

    Returns:
        the picture. Its title names the classes of groups A and B (`htaf.concepts.groups`), each with the share of its
        training images that have the concept where that is in another group.

    Raises:
        ConceptError: no such concept, count < 1, no such images, or images of another shape.
    """
    sides = examples(codes, concept, part=part, count=count, seed=seed)
    rate = labelled(codes, part).has(concept).mean()
    shares = proportions(labelled(codes, part))[concept]
    member = groups(shares[None], classes=codes.classes).member[0]
    trained = part_proportions(codes, "train")[concept]
    before = np.select([trained >= HIGH, trained <= LOW], [IN_A, IN_B], MIXED)
    other = ~np.isnan(trained) & (before != member)
    told = [f"{k} (training {trained[i]:.0%})" if other[i] else k for i, k in enumerate(codes.classes)]
    members = [np.flatnonzero(member == group) for group in (IN_A, IN_B)]

    figure = Figure(figsize=(1.25 * count + 0.3, 4.3), layout="constrained")
    grid: Any = figure.subplots(2, count, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for line, (side, which) in enumerate(zip(sides, ("activated", "unactivated"), strict=True)):
        for axes, row, image in zip(grid[line], side.tolist(), _checked(images, side), strict=False):
            axes.imshow(image, cmap="gray", vmin=0, vmax=255)  # the map is for one channel alone
            axes.set_title(short(codes.classes[int(codes.labels[row])], 18), fontsize=6, parse_math=False)
        if not len(side):
            grid[line, 0].text(0, 0.5, f"no {which} image", fontsize=8)
    title = f"concept {concept}{': ' + name if name else ''}, {rate:.0%} of {part} images have it"
    a, b = (short(", ".join(told[k] for k in group) or "none", 20 * count) for group in members)
    figure.suptitle(f"{title}\nabove: activated (A: {a})\nbelow: unactivated (B: {b})", fontsize=8, parse_math=False)
    return png(figure)


def _checked(images: Callable[[list[int]], Any], rows: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n h w c"]:
    """Channels last."""
    if not len(rows):
        return np.zeros((0, 1, 1, 3), dtype=np.uint8)
    found = np.asarray(images(rows.tolist()))
    if found.dtype != np.uint8 or found.ndim != 4 or found.shape[0] != len(rows) or found.shape[1] not in (1, 3):
        raise ConceptError(
            f"expected images uint8 [{len(rows)}, 3 or 1, height, width], got {found.dtype} {list(found.shape)}"
        )
    return found.transpose(0, 2, 3, 1)


def png(figure: Figure) -> bytes:
    """A picture file of a figure."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    return data.getvalue()


def _added(value: float | None) -> str:
    return "-" if value is None else f"{value:+z.2f}"


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}%"


def short(text: str, most: int) -> str:
    """The text, of more characters the first ones."""
    return text if len(text) <= most else text[: most - 1] + "…"
