"""`htaf demo`: what `htaf.cli.demonstration` trains and finds, as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.table import Table as TextTable
from tyro.conf import arg

from htaf._console import Terminal, check_seed, direction, err, print_json, say
from htaf._files import LOCK, check_output_folder, hold
from htaf.cli.flags import Json


def demo(
    *,
    out: Annotated[Path, arg(help="Folder for the runs, the table and the picture.", metavar="DIR")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, arg(help="Seed of the split, the weights and the order of the batches.")] = 0,
    json: Json = False,
) -> None:
    """Train three methods on handwritten digits, harden them, compare; then read the bits of a concept bottleneck, and
    write the page of its concepts.

    No download, under two minutes.
    """
    from htaf.cli.demonstration import run_concepts, run_demo

    check_seed(seed)
    if (out / "demo.json").exists():
        err.print(f"already done: {out} holds this demonstration. Delete it to make it again")
    check_output_folder(out, own="demonstration")
    with hold(out / LOCK, f"another process writes {out}"):
        rows = run_demo(out, seed=seed)
        found = run_concepts(out, seed=seed)
    if json:
        return print_json({"methods": rows, "concepts": found})
    text = TextTable(
        title="Handwritten digits, test accuracy in %: equal budgets, same weights smooth and exact",
        title_justify="left",
    )
    for column in ("method", "smooth", "exact 0/1", "exact - smooth", "epochs", "seconds"):
        text.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        values = (f"{100 * row[k]:.2f}" for k in ("smooth", "exact"))
        gap = f"{100 * row['gap']:+.2f} {direction(row['gap'])}".strip()
        text.add_row(row["method"], *values, gap, str(row["epochs"]), f"{row['seconds']:.1f}")
    console = Terminal(highlight=False)
    console.print(text)
    say(f"picture: {out / 'demo.png'}\n")
    text = TextTable(title=f"An image model whose last {found['concepts']} features are bits", title_justify="left")
    text.add_column("score, test images")
    text.add_column("value", justify="right")
    for name, field in (
        ("accuracy, smooth", "smooth"),
        ("accuracy, exact bits", "exact"),
        ("outputs within 0.01 of 0 or 1 before the step", "binarity"),
        ("a bit told from the class alone", "concept_accuracy"),
        ("the same, balanced over bits 1 and 0", "balanced"),
        ("the same, always the more frequent value", "trivial"),
    ):
        text.add_row(name, f"{100 * found[field]:.1f}%")
    size = found["bytes"]
    text.add_row("bytes of all images' concepts, packed", f"{size['packed']:,} of {size['float32']:,} in float32")
    console.print(text)
    for one in found["strongest"]:
        shown = f"most of {', '.join(one['most']) or 'none'} have it, few of {', '.join(one['few']) or 'none'}"
        console.print(f"concept {one['concept']}: {shown}; {one['picture']}", soft_wrap=True)
    say(f"scores: {out / 'concepts' / 'scores.md'}; next: htaf concepts --help, with the codes in {found['codes']}")
    names = found["names"]
    say(f"names: {names['found']} by strokes, {names['verified']} hold on digits that did not choose them")
    say(f"page: open {found['page']} in a browser, or serve it:")
    words = f"--codes {found['codes']} --names {out / 'names.json'} --out {out / 'explorer'}"
    return say(f"  htaf explore {found['run']} {words} --serve")
