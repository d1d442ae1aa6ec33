"""`htaf demo`: run `htaf.discover` on handwritten digits, or on your own images, and show what came out."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, arg

from htaf._ground.console import UsageError, check_seed, print_json, say, show, tell
from htaf._ground.files import LOCK, check_output_folder, hold, to_json, write_atomic
from htaf.cli.concepts import ServerUrl, model_names, show_heads
from htaf.cli.flags import DataDir, Folder, Json, Place


@dataclasses.dataclass(frozen=True)
class FolderFlags:
    """With --data.

    Args:
        pretrained: Weights of the backbone: hub, a file, the name of an installed package with one, or a run folder.
        backbone: A timm model's name; none: tf_efficientnet_lite0.
        concepts: How many bits; none: 208.
        epochs: Of the head, on the features; none: 60.
        size: Height and width in pixels to which images are scaled; none: by the images, from 32 to 224.
        concepts_per_class: Most concepts that a class draws on, as of htaf train icbm; none: auto.
        enlarge: Pixels to which small images are enlarged before the backbone; 0: as they are.
        model: A language model that names the concepts; it sees the classes' names; none: OPENAI_MODEL, else no names.
    """

    pretrained: Annotated[str, arg(metavar="PLACE")] = "hub"
    backbone: Annotated[str | None, arg(metavar="NAME")] = None
    concepts: int | None = None
    concepts_per_class: Annotated[int | Literal["auto"] | None, arg(metavar="auto|INT")] = None
    epochs: int | None = None
    size: int | None = None
    enlarge: int = 0
    model: Annotated[str | None, arg(metavar="NAME")] = None


CONCEPTS, EPOCHS = 32, 15  # of the digits


def _digits(out: Path, seed: int) -> dict[str, Any]:
    """Train an implicit concept bottleneck model, name its concepts from a table of strokes, and return the summary."""
    from htaf.concepts.codes import Codes, codes_key
    from htaf.concepts.discovery import discover
    from htaf.concepts.explorer.shown import Shown
    from htaf.concepts.naming.by_attributes import name_by_attributes
    from htaf.concepts.naming.files import write_names
    from htaf.data.attributes import load
    from htaf.training.families import ready_recipe

    def name(codes: Codes, file: Path) -> None:
        write_names(name_by_attributes(codes, load("digits")), file, codes=codes_key(codes))

    recipe = ready_recipe("icbm", "small").replace(depth=10, concepts=CONCEPTS, epochs=EPOCHS)
    return discover("digits", out, recipe, seed=seed, name=name, shown=Shown(detailed=0), progress=True).summary


def _own(
    out: Path, data: str, seed: int, flags: FolderFlags, base_url: str | None, data_dir: str | None
) -> Callable[[], dict[str, Any]]:
    """Check the flags of the user's images; gives what runs every step on them."""
    from htaf.concepts.discovery import discover, recipe_of
    from htaf.data.image_sets import expect_outside

    for name, value, least in (
        ("concepts", flags.concepts, 1),
        ("epochs", flags.epochs, 1),
        ("enlarge", flags.enlarge, 0),
        ("concepts-per-class", flags.concepts_per_class, 0),
    ):
        if isinstance(value, int) and value < least:
            raise UsageError(f"--{name} must be >= {least}, got {value}")
    if not flags.pretrained:
        raise UsageError("--pretrained: expected hub, a file, a package or a run folder, got nothing")
    expect_outside(out, data)
    own = ("pretrained", "backbone", "concepts", "epochs", "enlarge")
    fields = {name: value for name in own if (value := getattr(flags, name)) is not None}
    recipe_of("frozen", fields)  # fails before anything is written
    model = flags.model or os.environ.get("OPENAI_MODEL", "")
    named = (lambda codes, file: model_names(codes, model, base_url, file)) if model else None
    return lambda: discover(
        data, out, seed=seed, size=flags.size, data_dir=data_dir, name=named,
        per_class=flags.concepts_per_class, progress=True, **fields,
    ).summary  # fmt: skip


def _shown(out: Path, work: Callable[[], dict[str, Any]], json: bool) -> None:
    """Do the work in a folder of its own, and show what came out."""
    begun = time.monotonic()
    check_output_folder(out, own="demonstration")
    with hold(out / LOCK, f"another process writes {out}"):
        found = work()
        write_atomic(out / "demo.json", to_json(found))
    if json:
        return print_json(found)
    return _show_concepts(out, found, time.monotonic() - begun)


def _show_concepts(out: Path, found: dict[str, Any], total: float) -> None:
    """Show what was trained, how often it is right, where its page is, and the next commands."""
    rows: list[tuple[object, ...]] = [
        ("right, with smooth activations", f"{found['smooth']:.1%}"),
        ("right, with exact 0/1 activations", f"{found['exact']:.1%}"),
    ]
    if found["dead"]:
        rows.append(("bits that never change (dead)", found["dead"]))
    if (names := found["names"])["found"]:
        rows.append(("names that passed their check", f"{names['verified']} of {names['found']}"))
    title = f"{found['data']}: a network whose {found['concepts']} features are bits, {found['classes']} classes"
    show(title, (f"{found['test_images']:,} test images", "value"), rows)
    if found["heads"] is not None:
        show_heads(found["heads"])
    steps = found["steps"]
    took = ", ".join(f"{name} {seconds:.0f}" for name, seconds in steps.items())
    say(f"seconds: {took}, start and other {max(0.0, total - sum(steps.values())):.0f}; {total:.0f} in all")
    say(f"page: open {found['page']} in a browser: which bits decide each image, and what each bit sees")
    return _next(out, found)


def _next(out: Path, found: dict[str, Any]) -> None:
    """Show what to do with the run, as lines for a shell."""
    run, file = shlex.quote(found["run"]), found["example"]["file"]
    names = f" --names {shlex.quote(str(out / 'names.json'))}" if (out / "names.json").is_file() else ""
    say("next:")
    if file is None:
        say("  htaf demo --data PHOTOS --pretrained hub --out runs/photos  # the same for yours: PHOTOS/CLASS/*.jpg")
    else:
        say(f"  htaf predict {run} {shlex.quote(file)} --explain{names}  # or other photos, or a folder: the reasons")
    say(f"  htaf evaluate {run}  # which classes are taken for which")


def demo(
    *,
    out: Folder = Path("runs/demo"),
    seed: int = 0,
    data: Place = None,
    folder: OmitArgPrefixes[FolderFlags] = FolderFlags(),
    base_url: ServerUrl = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Train a network whose features are bits on handwritten digits, and write a page that shows what they mean.

    No download, half a minute on a free core. With --data the same for your own images: a head of bits on a frozen
    pretrained backbone, its codes, scores, names where a language model is given, and the page.

    Args:
        out: Folder for the run and the page.
        seed: Seed of the split, the weights and the order of the batches.
        data: Your own images instead: a folder of class folders, or the name of a set; none: the digits.
        base_url: Address of the language model's server, whose key is in OPENAI_API_KEY; none: OPENAI_BASE_URL, else
            OpenAI's.
    """
    check_seed(seed)
    if data is not None:
        return _shown(out, _own(out, data, seed, folder, base_url, data_dir), json)
    if folder != FolderFlags() or base_url is not None or data_dir is not None:
        raise UsageError(
            "--backbone and all flags other than --out, --seed and --json are for your own images: give --data too"
        )
    if (out / "demo.json").exists():
        tell(f"already done: {out} holds this demonstration. Delete it to make it again")
    return _shown(out, partial(_digits, out, seed), json)
