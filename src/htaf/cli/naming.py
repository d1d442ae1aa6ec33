"""`htaf concepts name`: names for concepts, each checked: from attributes of the classes, or from a model that reads
the classes' names or sees pictures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from tyro.conf import OmitArgPrefixes, arg

from htaf._ground.console import UsageError, check_seed, print_json, progress, say, say_notes, show, tell
from htaf._ground.files import cache_folder, check_output, hold, lock_beside
from htaf.cli.concepts import CodesDir, image_run, own_images
from htaf.cli.flags import Concepts, DataDir, File, Json

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes
    from htaf.concepts.llm import ServerClient
    from htaf.concepts.naming.files import NameEntry
    from htaf.concepts.naming.job import NamingJob
    from htaf.data.attributes import Attributes

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
