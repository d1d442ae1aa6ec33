"""`htaf explore`: the concepts of a run as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from htaf._console import UsageError, err, print_json, say, say_notes
from htaf._errors import HtafError
from htaf.cli.concepts import of_images, own_images
from htaf.cli.training import DataDir, Json
from htaf.concepts.codes import ConceptError, PartName

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes
    from htaf.explorer.sprites import Pixels
    from htaf.runs import Run


def explore(
    run: Annotated[
        Positional[Path | None],
        arg(
            help="Run folder.",
            metavar="RUN",
            help_behavior_hint="(leave it out, with --serve, to serve a finished page)",
        ),
    ] = None,
    *,
    out: Annotated[Path, arg(help="Folder of the page: a new one, or that of an earlier page.", metavar="DIR")],
    codes: Annotated[
        Path | None,
        arg(
            help="Codes of this run.",
            metavar="CODES",
            help_behavior_hint="(default: DIR-codes, made or finished where needed)",
        ),
    ] = None,
    names: Annotated[
        Path | None,
        arg(
            help="Names, .json or .csv: from htaf concepts name, exported by the page, or your own.",
            metavar="FILE",
            help_behavior_hint="(default: numbers alone)",
        ),
    ] = None,
    part: Annotated[PartName, arg(help="Which images are shown.")] = "test",
    images: Annotated[int, arg(help="Most images on the page: half at random, then misclassified ones.")] = 10_000,
    thumbnail: Annotated[int, arg(help="Longest side of a picture on the page, in pixels.")] = 96,
    serve: Annotated[bool, arg(help="Then serve the page to a browser on this machine, until Ctrl-C.")] = False,
    port: Annotated[int, arg(help="Port of --serve; if it is taken, the next free one.")] = 8000,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write a page to look at concepts, doubt and rename them, and flip bits. It opens from disk, with no server."""
    if not 0 <= port <= 65535:
        raise UsageError(f"--port must be in 0 to 65535, got {port}")
    if images < 1 or not 16 <= thumbnail <= 1024:
        raise UsageError(f"expected --images >= 1 and --thumbnail in 16 to 1024, got {images} and {thumbnail}")
    if run is None:
        if not serve or names is not None or codes is not None:
            raise UsageError(
                "expected RUN, the run folder; without it only a finished page can be served: --out DIR --serve"
            )
        serve_page(out, port)
        return
    from htaf.concepts.codes import codes_key
    from htaf.concepts.naming.names import read_names
    from htaf.explorer.build import build_page
    from htaf.explorer.contents import about_run
    from htaf.explorer.folder import check_folder
    from htaf.runs import open_run

    check_folder(out)  # before the work
    if names is not None:
        read_names(names)  # a file that is none is refused before the work
    opened = of_images(open_run(run))
    found, own = _codes(opened, out, codes, part, data_dir, progress=not json)
    notes: list[str] = []
    if names is not None:
        given = read_names(names, found.concepts, codes=codes_key(found))
    else:
        given = _supervised(opened, found, data_dir, notes)
    preprocessor: Any = opened.preprocessor()  # one of images, as the run is
    made = build_page(
        found,
        out,
        pixels=_pixels(opened, found, own),
        names=given,
        part=part,
        images=images,
        thumbnail=thumbnail,
        title=f"{opened.record['data']['name']}: concepts of {opened.path.resolve().name}",
        about=about_run(opened.record, opened.path.resolve().name, preprocessor.size),
        notes=notes,
        progress=not json,
    )
    if json:
        print_json(made)
    else:
        say_notes(made["notes"])
        size = f"{made['bytes'] / 1e6:.1f} MB"
        named = f"{made['concepts']} concepts ({made['named']} named, {made['verified']} of them verified)"
        say(f"{made['images']:,} {part} images, {named}, {made['classes']} classes, {size}")
        say(f"page: {made['page']} (open it in a browser)")
    if serve:
        serve_page(out, port)


def serve_page(folder: Path, port: int) -> None:
    """Serve a page until Ctrl-C, which is how it ends."""
    from htaf.explorer.serve import PageServer

    with PageServer(folder, port) as server:
        if port not in (0, server.server_port):
            err.print(f"note: port {port} is taken")
        err.print(f"serving {server.url} on this machine alone; Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            err.print("stopped")


def _codes(
    run: Run, out: Path, given: Path | None, part: PartName, data_dir: str | None, *, progress: bool
) -> tuple[Codes, Any]:
    """The codes; and the run's images, or the error where they cannot be had."""
    from htaf.concepts.extract import extract
    from htaf.concepts.store import open_codes, read_record

    named = out if out.name not in ("", "..") else out.resolve()
    folder = named.with_name(f"{named.name}-codes") if given is None else given
    if given is None and not run.has_step:
        raise UsageError(
            f"{run.path} is a plain network (method relu), which has no bits: make them with htaf concepts extract and "
            "htaf concepts binarise, then give that folder with --codes"
        )
    there = read_record(folder)
    whole = given is not None or (there is not None and there["status"] == "finished")
    codes = open_codes(folder) if whole else None
    if codes is not None:
        _check_run(run, codes, folder)
    images: Any
    try:
        images = own_images(run, data_dir, "give --codes")
    except (HtafError, UsageError) as error:
        if codes is None:
            raise
        where = f"{run.path} does not say where its images came from"
        images = ConceptError(where if isinstance(error, UsageError) else str(error))
    if codes is None:
        if images.fingerprint != run.record["data"]["fingerprint"]:
            raise UsageError(
                f"{images.name} has changed since {run.path} was trained on it: give codes made before, with --codes"
            )
        if progress:
            err.print(f"codes: {folder}")
        parts: Sequence[PartName] = ("train", "validation", "test", *(("other",) if part == "other" else ()))
        codes = extract(run, images, folder, parts=parts, progress=progress)
    return codes, images


def _check_run(run: Run, codes: Codes, folder: Path) -> None:
    """Raises ConceptError for codes of another run."""
    import numpy as np

    settings = codes.info["settings"]
    if settings.get("what") == "extraction":
        if settings.get("run") != run.record["key"]:
            raise ConceptError(f"expected codes of {run.path}, {folder} holds those of {codes.info.get('run')}")
        if settings.get("model_sha256") != run.record["model_sha256"]:
            raise ConceptError(
                f"expected codes of {run.path}, {folder} holds codes of other weights of it: extract them again, into "
                "another folder"
            )
        return
    head: Any = getattr(run.model(exact=False), "head", None)  # binarised features say nothing of their run but this
    weight = None if head is None else head.weight.detach().float().cpu().numpy()
    if weight is None or not np.array_equal(weight, codes.weight):
        raise ConceptError(f"expected codes of {run.path}, {folder} holds those of a network with another head")


def _pixels(run: Run, codes: Codes, images: Any) -> Pixels:
    """What gives the images of ids; raises ConceptError where they cannot be had, or are others than the codes'."""
    from htaf.concepts.pixels import pixels_of

    settings = codes.info["settings"]
    if settings.get("data") == "files":
        preprocessor: Any = run.preprocessor()
        return lambda ids: preprocessor.read(ids).numpy()
    if not isinstance(images, ConceptError) and images.fingerprint != settings.get(
        "fingerprint", run.record["data"]["fingerprint"]
    ):
        images = ConceptError(f"the images at hand, {images.name}, are not those of the codes")

    def pixels(ids: Sequence[str]) -> Any:
        if isinstance(images, ConceptError):
            raise images
        return pixels_of(images, ids).numpy()

    return pixels


def _supervised(run: Run, codes: Codes, data_dir: str | None, notes: list[str]) -> list[dict[str, Any]] | None:
    """The attributes that the concepts of a supervised bottleneck were trained to be; None for an implicit one."""
    recipe = run.record["recipe"]
    if recipe.get("bottleneck", "implicit") == "implicit":
        return None
    from htaf.runs import content_hash
    from htaf.training.families import make_recipe
    from htaf.training.problems import supervision

    chosen = {name: recipe[name] for name in ("bottleneck", "attributes")}
    try:
        table = supervision(make_recipe("icbm", **chosen), data_dir)
        if table is None:
            return None
        table = table.of(codes.classes)
    except HtafError as error:
        notes.append(f"no names: the attributes that the concepts were trained on cannot be read: {error}")
        return None
    if content_hash([table.names, table.values.tolist()]) != run.record.get("attributes"):
        notes.append(f"no names: {recipe['attributes']} is not the table of attributes that the concepts learned")
        return None
    reason = "trained to be this attribute; how well it learned is not checked"
    same = {"verified": False, "reason": reason, "source": "supervised"}
    return [{"concept": number, "name": name, **same} for number, name in enumerate(table.names)]
