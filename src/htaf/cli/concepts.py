"""`htaf concepts VERB` and `htaf explore`: what the bits of a run of `htaf train icbm` mean."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from htaf._ground.console import (
    Rows,
    UsageError,
    check_seed,
    print_json,
    progress,
    say,
    say_notes,
    say_unread,
    show,
    tell,
)
from htaf._ground.files import (
    LOCK,
    cache_folder,
    check_output,
    check_output_folder,
    check_place,
    hold,
    lock_beside,
    to_json,
    write_atomic,
)
from htaf.cli.flags import (
    NONE,
    CodesOf,
    Concepts,
    DataDir,
    Device,
    File,
    Folder,
    Json,
    MethodOfRun,
    Place,
    RunDir,
    needs_source,
    opened_run,
)
from htaf.concepts.codes import PartName
from htaf.concepts.explorer.shown import Shown
from htaf.data.notes import new_sentences

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes
    from htaf.concepts.llm import ServerClient
    from htaf.concepts.naming.files import NameEntry
    from htaf.concepts.naming.job import NamingJob
    from htaf.concepts.store import CodesFolder
    from htaf.data.attributes import Attributes
    from htaf.training.runs import Run

SCORES = "scores.json"
CodesDir = Annotated[
    Positional[Path], arg(help="Folder of codes, the bits of each image, as extract writes it.", metavar="CODES")
]
Out = Annotated[Path, arg(help="Folder: a new one, or that of a stopped command, to continue it.", metavar="DIR")]
ScoredPart = Annotated[PartName, arg(help="Which images are scored.")]


def image_run(run: Path, method: str | None = None) -> Run:
    """Return the run in a folder, if it was trained on images."""
    opened = opened_run(run, method)
    if not opened.takes_images:
        raise UsageError(f"expected a run of `htaf train icbm`, {opened.path} was trained on a table")
    return opened


def own_images(run: Run, data_dir: str | None, instead: str) -> Any:
    """Return the images that a run was trained on; where it does not say which, the error says what to do instead."""
    with needs_source(instead):
        return run.data(data_dir=data_dir)


def extract(
    run: RunDir,
    *,
    out: Out,
    data: Place = None,
    files: Annotated[tuple[str, ...], arg(metavar="FILE ...", help_behavior_hint=NONE)] = (),
    parts: Annotated[tuple[PartName, ...], arg(help_behavior_hint="(default: train validation test)")] = (),
    keep: Annotated[tuple[Literal["features", "backbone"], ...], arg(help_behavior_hint=NONE)] = (),
    part_images: Annotated[int | None, arg(metavar="N")] = None,
    engine: Literal["local", "ray"] = "local",
    batch: int = 250,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Write the bits of images, and both networks' predictions, to a folder. Of a plain network (relu) its features.

    Of --files those that cannot be read are left out; the exit code is then 3.

    Args:
        data: Other labelled images of the same classes; none: the run's own.
        files: Images that are no set: files, folders of them, Parquet files.
        parts: Parts of the run's own images; other: training images that its recipe left out.
        keep: features: beside the bits pre-activations, 4 bytes for each concept and image. backbone: no bits, but what
            the backbone gives.
        part_images: Images of a part, a multiple of 1,000; none: up to 10,000. A stopped command loses the part under
            way.
        engine: ray: on the nodes of the Ray cluster at RAY_ADDRESS, else on one of this machine alone.
        batch: Images at once.
    """
    if batch < 1:
        raise UsageError(f"--batch must be >= 1, got {batch}")
    if part_images is not None and part_images < 1:
        raise UsageError(f"--part-images must be >= 1, got {part_images}")
    if bool(data) + bool(files) + bool(parts) > 1:
        raise UsageError(
            "expected at most one of --data, --files and --parts, got more (--parts are of the run's own images)"
        )
    check_place(out / LOCK)
    from htaf.concepts import extract as room

    opened = image_run(run, method)
    images: Any = files
    if not files:
        images = own_images(opened, None, "give --data") if data is None else opened.other_data(data)
        say_notes(new_sentences(images.notes, opened.record["notes"]) if data is None else images.notes)
    with ExitStack() as stack:
        used, device = room.in_this_process, "auto"
        if engine == "ray":
            from htaf.concepts.ray_engine import connected

            used, device = stack.enter_context(connected(os.environ.get("RAY_ADDRESS") or None)), "cpu"
        found = room.extract(
            opened, images, out, keep=keep, parts=parts or None, part_images=part_images, engine=used, device=device,
            batch=batch, progress=True,
        )  # fmt: skip
    if files:
        say_notes(found.info["notes"])
    show_accuracies(found, out, json)
    left_out = found.info.get("unreadable", 0)
    say_unread(found.info.get("unreadable_files", []), len(found) + left_out, left_out)


def show_accuracies(found: CodesFolder, out: Path, json: bool) -> None:
    """Show accuracy of each part of codes or features."""
    rows = accuracies_of(found)
    result = {"out": str(out), "images": len(found), "concepts": found.concepts, "parts": rows}
    if json:
        return print_json(result | {"notes": found.info.get("notes", [])})
    of = "concepts" if "bits" in found.columns else "features"
    title = f"{result['images']:,} images, {result['concepts']} {of}: accuracy"
    show(title, ("part", "images", "smooth", "exact"), [tuple(row.values()) for row in rows])
    return say(f"folder: {out}")


def accuracies_of(found: CodesFolder) -> list[dict[str, Any]]:
    """Return accuracies of each part that has images, of both networks; features have no exact one."""
    from htaf.concepts.codes import PARTS
    from htaf.concepts.scores import accuracy_of

    read = found.read("part", "label", "smooth", *[name for name in found.columns if name == "exact"])
    rows = []
    for number, part in enumerate(PARTS):
        here = {name: values[read["part"] == number] for name, values in read.items()}
        if len(here["label"]):
            of = accuracy_of(here["label"], here["smooth"], here.get("exact"))
            rows.append({"part": part, "images": len(here["label"]), "smooth": of["smooth"], "exact": of["exact"]})
    return rows


def score(
    codes: CodesDir,
    *,
    part: ScoredPart = "test",
    out: Annotated[Path | None, arg(metavar="DIR")] = None,
    json: Json = False,
) -> None:
    """Score concepts: accuracy, dead concepts, concept accuracy, class specificity, redundancy, sparsity.

    Args:
        out: Also write scores.json to this folder.
    """
    from htaf.concepts.scores import score as scores_of
    from htaf.concepts.scores import shown, summary
    from htaf.concepts.store import open_folder

    if out is not None:
        check_output_folder(out, [codes], own="folder of scores")
    scores = scores_of(open_folder(codes), scored=part)
    if out is not None:
        write_atomic(out / SCORES, to_json(scores))
    if json:
        return print_json(scores)
    rows = [(row["label"], shown(row)) for row in summary(scores)]
    show(f"{scores['concepts']} concepts, part {part}", ("score", "value"), rows)
    if out is not None:
        say(out / SCORES)
    return None


def find(
    run: RunDir,
    *,
    with_: Annotated[tuple[Path, ...], arg(name="with", metavar="INPUT ...", help_behavior_hint=NONE)] = (),
    without: Annotated[tuple[Path, ...], arg(metavar="INPUT ...", help_behavior_hint=NONE)] = (),
    background: Annotated[str | None, arg(metavar="MASKS")] = None,
    out: Annotated[Path | None, arg(metavar="DIR")] = None,
    device: Device = "auto",
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Find a concept of your own: the bit or the direction that follows it, by chance or not, and whether it is used.

    Or ask whether the decisions follow the background of the run's own test images.

    Args:
        with_: Images with the concept: files or folders, 20 or so. The same names on both sides make pairs.
        without: Images without it.
        background: Instead: is it the background? A folder of masks, white where the object is, under the names of the
            test images; middle: the middle half of each image is its object.
        out: Also write found.json.
        device: Where the network runs.
    """
    if background is not None:
        if with_ or without:
            raise UsageError("--background takes the run's own test images: leave --with and --without out")
        if out is not None:
            check_output_folder(out, [run, Path(background)], own="found concept")
        return _find_background(image_run(run, method), background, out, device, json)
    for flag, given in (("--with", with_), ("--without", without)):
        if not given:
            raise UsageError(f"expected image files or folders for {flag}, got none")
    if out is not None:
        from htaf.data.image_sets import expect_outside

        check_output_folder(out, [run, *with_, *without], own="found concept")
        for flag, given in (("--with", with_), ("--without", without)):
            for place in given:
                expect_outside(out, str(place.absolute()), flag)  # a folder may have the name of a set
    from htaf.concepts.finding import find_in_run, read_sides

    opened = image_run(run, method)
    sides = read_sides(opened, with_, without)
    say_notes(sides.notes)
    result = find_in_run(opened, sides, out, device=device)
    _show_found(result, out, json)
    return say_unread(sides.unread, len(sides.names) + len(sides.unread))


def _find_background(run: Run, masks: str, out: Path | None, device: Device, json: bool) -> None:
    from htaf.concepts.background import background_of_run

    images = own_images(run, None, "--background is of its own test images")
    _show_found(background_of_run(run, images, masks, out, device=device), out, json)


def _show_found(result: Mapping[str, Any], out: Path | None, json: bool) -> None:
    from htaf.concepts.finding import RECORD

    say_notes(result["notes"])
    if json:
        return print_json(result)
    for name, line in result["answers"].items():
        say(f"{name}: {line}")
    return None if out is None else say(f"result: {out / RECORD}")


def edit(
    run: RunDir,
    *,
    off: Annotated[
        UseAppendAction[tuple[tuple[str, ...], ...]], arg(metavar="CLASS:CONCEPT ...", help_behavior_hint="(required)")
    ],
    out: Folder,
    with_: Annotated[tuple[Path, ...], arg(name="with", metavar="INPUT ...", help_behavior_hint=NONE)] = (),
    without: Annotated[tuple[Path, ...], arg(metavar="INPUT ...", help_behavior_hint=NONE)] = (),
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Write a new run whose head has some weights at 0, measured again on validation and test images.

    Args:
        off: Weight of a class, by name or number, and a concept, to be 0. May be given again. A class that begins with
            -: --off=-NAME:CONCEPT.
        out: New run folder.
        with_: Images with a concept of your own, as of find, to see whether the edit removes it: what it does in both
            runs.
        without: Images without it.
    """
    edits: list[tuple[int | str, int]] = []
    for text in itertools.chain(*off):
        label, colon, concept = text.rpartition(":")
        if not colon or not label or not concept.isdecimal():
            raise UsageError(f"--off: expected CLASS:CONCEPT with the concept's number, such as 3:17, got {text!r}")
        edits.append((label, int(concept)))
    if not edits:
        raise UsageError("--off: expected at least one CLASS:CONCEPT, got none")
    from htaf.concepts.finding import find_in_run, read_sides
    from htaf.concepts.run_heads import edit_run

    opened = opened_run(run, method)
    sides = None
    if bool(with_) != bool(without):
        raise UsageError("expected both of --with and --without, or neither")
    if with_:
        sides = read_sides(image_run(run, method), with_, without)
        say_notes(sides.notes)
    with needs_source("edit it in Python, with htaf.concepts.run_heads.edit_run"):
        made = edit_run(opened, out, edits, data_dir=data_dir)
    found = [] if sides is None else [find_in_run(one, sides) for one in (opened, made)]
    if json:
        return print_json(made.record | ({"found": found} if found else {}))
    primary, before, metrics = made.record["headline"], opened.record["metrics"], made.record["metrics"]
    kind = "exact" if opened.has_step else "smooth"
    rows = [(part, before[kind][part][primary], metrics[kind][part][primary]) for part in ("validation", "test")]
    show(f"{primary} ({kind}), {len(edits)} weights set to 0", ("part", "before", "after"), rows)
    if found:
        known: Any = made.preprocessor()
        _show_removed(found, {known.classes[label] for label, _ in made.record["edited"]["off"]})
    say_notes(made.record["notes"][-1:])
    return say(f"run folder: {out}")


def _show_removed(found: Sequence[Mapping[str, Any]], edited: Container[str]) -> None:
    """Show what the images with a concept have otherwise than those without, before an edit and after it."""
    sides = [one["pairs"] or one["direction"] for one in found]
    gains = [{row["class"]: f"{row['gain']:+.2f}" for row in side["classes"]} for side in sides]
    rows: Rows = [("predictions changed", *(f"{side['changed']:.0%}" for side in sides))]
    rows += [(f"score of {name}", *(gain[name] for gain in gains)) for name in gains[0] if name in edited]
    what = f"{found[0]['with']:,} pairs" if found[0]["paired"] else "moved along its direction"
    show(f"What your concept does ({what})", ("", "before", "after"), rows)


def explore(
    run: RunDir,
    *,
    codes: CodesOf,
    out: Folder,
    names: File = None,
    shown: OmitArgPrefixes[Shown] = Shown(),  # noqa: B008
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Write a page to look at concepts, check and rename them, and flip bits. It opens from disk, with no server.

    Args:
        out: Folder of the page: a new one, or that of an earlier page.
        codes: Codes of this run, from extract.
        names: Names, .json: from htaf concepts name, exported by the page, or your own; none: numbers alone.
    """
    if shown.images < 1 or shown.detailed < 0:
        raise UsageError(f"expected --images >= 1 and --detailed >= 0, got {shown.images} and {shown.detailed}")
    from htaf.concepts.explorer.run_page import build_run_page

    opened = image_run(run, method)
    made = build_run_page(opened, codes, out, names=names, shown=shown, data_dir=data_dir, progress=True)
    say_notes(new_sentences(made["notes"], opened.record["notes"]))
    print_json(made)
    if not json:
        size = f"{made['bytes'] / 1e6:.1f} MB"
        named = f"{made['concepts']} concepts ({made['named']} named, {made['verified']} of them verified)"
        say(f"{made['images']:,} {made['part']} images, {named}, {made['classes']} classes, {size}")
        say(f"page: {made['page']} (open it in a browser)")


def show_heads(heads: Mapping[str, Any]) -> None:
    """Show the heads that were tried for a run, and which one it has: what `htaf.concepts.run_heads` records."""
    from htaf.concepts.run_heads import about_heads

    rows: Rows = [
        (
            row["kind"],
            row["target"] or "all",
            row["validation"],
            row["test"],
            f"{row['nec']:.1f}",
            "kept" if row["kept"] else "",
        )
        for row in heads["rows"]
    ]
    columns = ("head", "at most, a class", "validation", "test", "concepts a class", "")
    show("How many concepts a class draws on, and the accuracy with exact bits", columns, rows)
    say(about_heads(heads))


ServerUrl = Annotated[str | None, arg(metavar="URL")]
COLUMNS = ("concept", "verified", "held out", "p", "A", "B", "name (why not)")


@dataclass(frozen=True)
class AskingFlags:
    """Questions to a language model.

    Args:
        pictures: Show the model images with the concept and without, of this run, instead of the classes' names.
        send_pictures: Send images to the server. Without it the command says how many would go, and stops.
        top: Name only the N most important concepts; none: all.
        concept: Name only these concepts, by number; none: all.
        check: Check the names of this file, such as your own, instead of finding names.
        estimate: Only say how many requests it will take.
    """

    pictures: Annotated[Path | None, arg(metavar="RUN")] = None
    send_pictures: bool = False
    top: Annotated[int | None, arg(metavar="N")] = None
    concept: Concepts = ()
    check: File = None
    estimate: bool = False


def name_command(
    codes: CodesDir,
    *,
    attributes: Annotated[str | None, arg(metavar="NAME_OR_FILE")] = None,
    model: Annotated[str | None, arg(metavar="NAME")] = None,
    out: File = None,
    threshold: float = 0.75,
    seed: int = 0,
    asking: OmitArgPrefixes[AskingFlags] = AskingFlags(),
    base_url: ServerUrl = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Name concepts by attributes of the classes or by a language model, each name checked on classes that did not
    choose it.

    With --pictures the model sees images instead of the classes' names, and each name is checked on other images.

    Args:
        attributes: Names from cub, digits, or a CSV or Parquet file with a row for each class.
        model: Names from this model, which reads the classes' names or sees --pictures; none: OPENAI_MODEL.
        out: Also write the names, to .json.
        threshold: Held-out balanced accuracy that a verified name must reach.
        seed: Seed of the choice of what is held out.
        base_url: Address of an OpenAI-compatible server, whose key is in OPENAI_API_KEY; most local servers need none.
            none: OPENAI_BASE_URL, else OpenAI's.
    """
    check_seed(seed)
    if out is not None and out.suffix.lower() != ".json":
        raise UsageError(f"--out must end in .json, got {out.name}")
    if out is not None:  # which may be the file of --check: names that are checked may be written back
        read = [codes, attributes, asking.pictures]
        check_output(out, [path for path in read if path is not None])
    flags = {"model": model} | vars(asking) | {"base_url": base_url}
    unused = [name for name, value in flags.items() if value not in (None, False, ())]
    if attributes is not None and unused:
        raise UsageError(f"expected --attributes, or --model and its flags, got both: --{unused[0].replace('_', '-')}")
    if asking.send_pictures and asking.pictures is None:
        raise UsageError("expected --send-pictures with --pictures RUN, got it alone")
    model = model or os.environ.get("OPENAI_MODEL", "")
    if attributes is None and not model:
        raise UsageError("expected --attributes NAME_OR_FILE, or --model NAME (or OPENAI_MODEL), got neither")
    if asking.top is not None and (asking.top < 1 or asking.concept or asking.check):
        raise UsageError(f"expected --top >= 1, without --concept and --check, got {asking.top}")
    with contextlib.nullcontext() if out is None else hold(lock_beside(out), f"another process writes {out}"):
        from htaf.concepts.naming.job import class_evidence, naming_job, picture_evidence
        from htaf.concepts.store import open_codes
        from htaf.data.attributes import load

        opened = open_codes(codes)
        if attributes is not None:
            names = _by_attributes(opened, load(attributes, data_dir=data_dir), out, threshold, seed)
            return _show(names, class_evidence(opened).order, json)

        with _client(model, base_url) as client:
            if asking.pictures is None:
                evidence = class_evidence(opened, seed=seed)
            else:
                evidence = picture_evidence(opened, _pixels(opened, asking.pictures, data_dir), seed=seed)
            only = asking.concept if asking.top is None else evidence.order[: asking.top]
            job = naming_job(evidence, client, threshold=threshold, given=asking.check, only=only, out=out)
            if asking.estimate:
                return print_json(job.estimate()) if json else say(_estimate(job))
            return _show(_run(job, client, send=asking.send_pictures), evidence.order, json)


def _by_attributes(codes: Codes, known: Attributes, out: Path | None, threshold: float, seed: int) -> list[NameEntry]:
    from htaf.concepts.codes import codes_key
    from htaf.concepts.naming.by_attributes import name_by_attributes
    from htaf.concepts.naming.files import earlier_names, write_names

    if out is not None:
        earlier_names(out, "attributes", codes.concepts, codes_key(codes))
    names = name_by_attributes(codes, known, threshold=threshold, seed=seed)
    if out is not None:
        write_names(names, out, codes=codes_key(codes))
    return names


def model_names(codes: Codes, model: str, base_url: str | None, out: Path) -> list[NameEntry]:
    """Name concepts by a language model that reads the classes' names, and write the names to a file."""
    from htaf.concepts.naming.job import class_evidence, naming_job

    with _client(model, base_url) as client:
        return _run(naming_job(class_evidence(codes), client, out=out), client)


def _pixels(codes: Codes, run: Path, data_dir: str | None) -> Callable[[Any], Any]:
    """Return what gives the images of rows of codes: those of a run's own data, or the files that they were made of."""
    from htaf.concepts.where import Pictures

    opened = image_run(run)
    if codes.info.get("settings", {}).get("data") == "files":
        images: Any = opened.preprocessor()
    else:
        images = own_images(opened, data_dir, "use htaf.concepts.naming.job.picture_evidence, in Python")
    pictures = Pictures(images)
    return lambda rows: pictures.pixels([codes.ids[int(row)] for row in rows]).numpy()


def _estimate(job: NamingJob) -> str:
    """Return what the job needs, in one line."""
    needed, host = job.estimate(), urlsplit(getattr(job.client, "base_url", "")).netloc
    shown = f" that show {needed['images']:,} of your images" if needed["images"] else ""
    idle = f"{needed['names']:,} names to find or check, {needed['idle']:,} of them with nothing to ask"
    return f"{idle}: {needed['requests']:,} requests{shown} to {host}, but for replies that are kept"


def _run(job: NamingJob, client: ServerClient, *, send: bool = False) -> list[NameEntry]:
    """Do the job, and say before what it needs and after what it used; send: whether images may go to a server."""
    tell(_estimate(job))
    if job.evidence.things == "pictures" and not send:
        raise UsageError("nothing was sent; to send these images, add --send-pictures")
    try:
        with progress("names", len(job.concepts)) as advance:
            return job.run(progress=advance)
    except BaseException:  # Ctrl-C too
        say_notes(["what the model said is kept; to continue, give the same command again"])
        raise
    finally:
        used = client.usage
        sent = f"{used['calls']:,} requests sent, {used['tokens']:,} tokens; {used['cached']:,} kept from before"
        say_notes([f"{sent}; {used['malformed']:,} unusable" if used["malformed"] else sent])


@contextlib.contextmanager
def _client(model: str, base_url: str | None) -> Iterator[ServerClient]:
    """Who answers."""
    from htaf.concepts.llm import ServerClient

    with ServerClient(model, base_url=base_url, cache=cache_folder() / "replies") as asked:
        if asked.unencrypted:
            say_notes([f"the key goes unencrypted to {asked.unencrypted}"])
        yield asked


def _show(names: Sequence[NameEntry], order: Sequence[int], json: bool) -> None:
    """Print the names and their checks: the verified first, then the most important."""
    from htaf.concepts.counts import LEVEL
    from htaf.concepts.naming.files import FEW_CLASSES

    checked = sum(entry.get("p_value") is not None for entry in names)
    if checked > 1:
        by_chance = f"chance alone may pass about {round(LEVEL * checked, 1):g} of them"
        say_notes([f"{checked:,} names were checked, each at p <= {LEVEL}: {by_chance}"])
    if few := sum(entry["status"] == FEW_CLASSES for entry in names):
        say_notes([f"{few:,} of {len(names):,} have too few classes: htaf concepts name --pictures checks on images"])
    if json:
        return print_json(names)
    rank = {concept: place for place, concept in enumerate(order)}
    rows = []
    for entry in sorted(names, key=lambda e: (not e["verified"], rank[e["concept"]])):
        reason = "of its class alone" if entry["verified"] and entry.get("only_class") else entry["reason"]
        name = " ".join(filter(None, (entry["name"], f"({reason})" if reason else ""))) or "-"
        told = entry["concept"], "yes" if entry["verified"] else "no", entry["held_out"], entry["p_value"]
        rows.append((*told, entry.get("group_a"), entry.get("group_b"), name))
    title = f"{sum(entry['verified'] for entry in names)} of {len(names)} names verified"
    return show(title, COLUMNS, rows, left=COLUMNS[-1:])
