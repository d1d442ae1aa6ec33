"""`htaf concepts name`: names for concepts, each checked: from attributes of the classes, or from a model that reads
the classes' names or sees pictures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from tyro.conf import OmitArgPrefixes, arg

from htaf._console import UsageError, check_seed, print_json, say, say_notes, tell, terminal
from htaf._console import progress as progress_of
from htaf._files import check_output, hold, lock_beside, regular
from htaf.cli.concepts import CodesDir
from htaf.cli.flags import Concepts, DataDir, File, Json

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes
    from htaf.concepts.naming import Evidence, NameEntry, NamingJob
    from htaf.llm import ServerClient


@dataclass(frozen=True)
class AskingFlags:
    """Questions to a language model.

    Args:
        candidates: Choose names from a list: cub, or a .txt, .json or .csv file; none: own words.
        rounds: How often each concept is named, each time with other classes held out.
        most: Most classes of a group in a prompt; of more, so many are drawn at random.
        top: Name only the N most important concepts; none: all.
        concept: Name only these concepts, by number; none: all.
        check: Check the names of this file, such as your own, instead of finding names.
        estimate: Only say how many requests and tokens it will take.
    """

    candidates: Annotated[str | None, arg(metavar="NAME_OR_FILE")] = None
    rounds: int = 3
    most: int = 100
    top: Annotated[int | None, arg(metavar="N")] = None
    concept: Concepts = ()
    check: File = None
    estimate: bool = False


@dataclass(frozen=True)
class PictureFlags:
    """Names from pictures: the model sees images instead of the classes' names.

    Args:
        pictures: Show the model images with the concept and without, of this run; check names on others.
        send_pictures: Send images to the server. Without it the command says how many would go, and stops.
        album: sheets: up to 20 images on one numbered picture; images: each one by itself, which costs more.
        shown: Images with the concept, and as many without, to find a name.
        held_out: Others of each, to check it.
        tile: Longer side of each image, in pixels.
    """

    pictures: Annotated[Path | None, arg(metavar="RUN")] = None
    send_pictures: bool = False
    album: Literal["sheets", "images"] = "sheets"
    shown: int = 12
    held_out: int = 20
    tile: int = 160


@dataclass(frozen=True)
class ServerFlags:
    """The server of the language model.

    Args:
        base_url: Address of an OpenAI-compatible server; none: OPENAI_BASE_URL, else OpenAI's.
        key_file: File with the key, which is never printed or stored; none: OPENAI_API_KEY, else no key.
        max_calls: Most requests, retries included; none: no limit.
        max_tokens: Send no more requests once so many tokens are used; none: no limit.
        parallel: Requests at once.
        timeout: Seconds without a word from the server until a request has failed.
        cache: Folder where replies are kept, so that nothing is paid for twice; none: ~/.cache/htaf/replies.
        refresh: Ask again, and pay again, for replies that are kept there.
    """

    base_url: Annotated[str | None, arg(metavar="URL")] = None
    key_file: File = None
    max_calls: Annotated[int | None, arg(metavar="N")] = None
    max_tokens: Annotated[int | None, arg(metavar="N")] = None
    parallel: int = 4
    timeout: float = 60.0
    cache: Annotated[Path | None, arg(metavar="DIR")] = None
    refresh: bool = False


def name_command(
    codes: CodesDir,
    *,
    attributes: Annotated[str | None, arg(metavar="NAME_OR_FILE")] = None,
    model: Annotated[str | None, arg(metavar="NAME")] = None,
    out: File = None,
    threshold: float = 0.75,
    seed: int = 0,
    asking: OmitArgPrefixes[AskingFlags] = AskingFlags(),
    pictures: OmitArgPrefixes[PictureFlags] = PictureFlags(),
    server: OmitArgPrefixes[ServerFlags] = ServerFlags(),
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Name concepts by attributes of the classes or by a language model, each name checked on classes that did not
    choose it.

    With --pictures the model sees images instead of the classes' names, and each name is checked on other images.

    Args:
        attributes: Names from cub, digits, or a CSV or Parquet file with a row for each class.
        model: Names from this model, which reads the classes' names or sees --pictures; none: OPENAI_MODEL.
        out: Also write the names, to .json or .csv. A stopped command continues from .json.
        threshold: A name is verified from this held-out balanced accuracy on.
        seed: Seed of the splits of the classes.
    """
    check_seed(seed)
    if out is not None and out.suffix.lower() not in (".json", ".csv"):
        raise UsageError(f"--out must end in .json or .csv, got {out.name}")
    read = [codes, attributes, asking.candidates, server.key_file, pictures.pictures]
    if out is not None:  # which may be the file of --check: names that are checked may be written back
        check_output(out, [path for path in read if path is not None])
    if attributes is not None and model is not None:
        raise UsageError("expected one of --attributes and --model, got both")
    model = model or os.environ.get("OPENAI_MODEL", "")
    if attributes is None and not model:
        raise UsageError("expected --attributes NAME_OR_FILE, or --model NAME (or OPENAI_MODEL), got neither")
    with contextlib.nullcontext() if out is None else hold(lock_beside(out), f"another process writes {out}"):
        from htaf.concepts.store import open_codes

        if attributes is not None:
            _expect_unused("is for --model, not for --attributes", asking, pictures, server)
            return _by_attributes(open_codes(codes), attributes, out, threshold, seed, data_dir, json)
        _check_asking(asking, pictures, server)
        opened = open_codes(codes)
        settings: dict[str, Any] = {"threshold": threshold, "seed": seed}
        with _client(model, server) as client:
            evidence = _evidence(opened, asking, pictures, settings, data_dir)
            job = _job(evidence, client, asking, server, out, data_dir)
            if asking.estimate:
                return _estimate(job, json)
            names = _names(job, server.parallel, send=pictures.send_pictures)
        return _table(names, evidence.order, json)


def _expect_unused(why: str, *given: Any, but: Sequence[str] = (), only: Sequence[str] = ()) -> None:
    """See that flags have their defaults, all but some, or only some."""
    for flags in given:
        for field in fields(flags):
            meant = field.name in only if only else field.name not in but
            if meant and getattr(flags, field.name) != field.default:
                raise UsageError(f"--{field.name.replace('_', '-')} {why}")


def _evidence(
    codes: Codes, asking: AskingFlags, pictures: PictureFlags, settings: dict[str, Any], data_dir: str | None
) -> Evidence:
    """What names are found from: the classes, or images of a run."""
    from htaf.concepts.naming import NamingSettings, PictureSettings, class_evidence, picture_evidence

    if pictures.pictures is None:
        return class_evidence(codes, NamingSettings(rounds=asking.rounds, most=asking.most, **settings))
    look = PictureSettings(
        album=pictures.album, shown=pictures.shown, held_out=pictures.held_out, tile=pictures.tile, **settings
    )
    return picture_evidence(codes, _pixels(codes, pictures.pictures, data_dir), look)


def _job(
    evidence: Evidence,
    client: ServerClient,
    asking: AskingFlags,
    server: ServerFlags,
    out: Path | None,
    data_dir: str | None,
) -> NamingJob:
    from htaf.concepts.naming import naming_job, read_candidates

    candidates: tuple[str, ...] = ()
    if asking.candidates is not None:
        listed = read_candidates(asking.candidates, data_dir=data_dir)
        say_notes(listed.notes)
        candidates = listed.names
    return naming_job(
        evidence, client, candidates=candidates, given=asking.check, only=asking.concept, top=asking.top, out=out,
        refresh=server.refresh,
    )  # fmt: skip


def _pixels(codes: Codes, run: Path, data_dir: str | None) -> Any:
    """What gives the images of rows of codes: those of a run's own data, or the files that they were made of."""
    from htaf.cli.concepts import of_images, own_images
    from htaf.concepts.pixels import Pictures
    from htaf.runs import open_run

    opened = of_images(open_run(run))
    if codes.info.get("settings", {}).get("data") == "files":
        images: Any = opened.preprocessor()
    else:
        images = own_images(opened, data_dir, "use htaf.concepts.naming.picture_evidence, in Python")
    pictures = Pictures(images)
    return lambda rows: pictures.pixels([codes.ids[int(row)] for row in rows]).numpy()


def _check_asking(asking: AskingFlags, pictures: PictureFlags, server: ServerFlags) -> None:
    if asking.top is not None and (asking.top < 1 or asking.concept):
        raise UsageError(f"expected --top >= 1, without --concept, got {asking.top}")
    if asking.check is not None:
        _expect_unused("is for new names, not for --check", asking, only=("candidates", "top"))
    if pictures.pictures is None:
        _expect_unused("is for --pictures RUN", pictures)
    else:
        _expect_unused("is not for --pictures RUN", asking, only=("rounds", "most"))
    if server.parallel < 1:
        raise UsageError(f"--parallel must be >= 1, got {server.parallel}")


def _by_attributes(
    codes: Codes, attributes: str, out: Path | None, threshold: float, seed: int, data_dir: str | None, json: bool
) -> None:
    from htaf.concepts.codes import codes_key
    from htaf.concepts.completeness import most_important
    from htaf.concepts.naming import check_only, name_by_attributes, write_names
    from htaf.data.attributes import load

    if out is not None:
        check_only(out, "attributes", codes.concepts, codes_key(codes))
    names = name_by_attributes(codes, load(attributes, data_dir=data_dir), threshold=threshold, seed=seed)
    if out is not None:
        write_names(names, out, codes=codes_key(codes))
    return _table(names, most_important(codes).tolist(), json)


def model_names(codes: Codes, model: str, server: ServerFlags, out: Path) -> list[NameEntry]:
    """Names for concepts from a language model, with the usual settings, written to a file as they are finished.

    Args:
        codes: to be named. model: its name. out: ending in .json; names that it holds are kept.

    Raises:
        HtafError: the server cannot be had.
    """
    with _client(model, server) as client:
        evidence = _evidence(codes, AskingFlags(), PictureFlags(), {}, None)
        return _names(_job(evidence, client, AskingFlags(), server, out, None), server.parallel, send=False)


def _estimate(job: NamingJob, json: bool) -> None:
    """What the job will need, on the output."""
    from htaf.concepts.naming import estimate_line, estimate_notes

    needed, place = job.estimate(), _place(job)
    say_notes(estimate_notes(needed))
    return print_json(asdict(needed) | {"to": place}) if json else say(estimate_line(needed, place))


def _place(job: NamingJob) -> str:
    """The host that requests go to."""
    return urlsplit(getattr(job.client, "base_url", "")).netloc


def _names(job: NamingJob, parallel: int, *, send: bool) -> list[NameEntry]:
    """Do the job, and say before what it needs and after what it used; send: whether images may go to a server."""
    from htaf.concepts.naming import estimate_line, estimate_notes
    from htaf.concepts.naming.files import NO_ANSWER
    from htaf.llm import ModelError, ServerClient

    needed, place = job.estimate(), _place(job)
    tell(estimate_line(needed, place))
    say_notes(estimate_notes(needed))
    if needed.pictures and not send:
        raise UsageError(f"nothing was sent; to send these images to {place}, add --send-pictures")
    client = job.client
    assert isinstance(client, ServerClient)
    read = client.usage.cached  # for the estimate alone
    done = [0, 0]
    try:
        with _bar(done) as progress:
            names = job.run(parallel=parallel, progress=progress)
    except BaseException:  # Ctrl-C too
        where = f" and written to {job.out}" if job.out is not None and done[0] else ""
        again = ", with another --out" if where and job.out is not None and job.out.suffix.lower() == ".csv" else ""
        say_notes(
            [f"{done[0]} of {done[1]} names are finished{where}; to continue, give the same command again{again}"]
        )
        raise
    finally:
        used = client.usage
        text = f"{used.calls:,} requests sent, {used.tokens:,} tokens; {used.cached - read:,} kept from before"
        say_notes([*client.notes, f"{text}; {used.malformed:,} unusable" if used.malformed else text])
    if used.malformed and not any(entry["held_out"] is not None for entry in names):
        why = next((entry["reason"] for entry in names if entry["status"] == NO_ANSWER), "no name came")
        raise ModelError(f"{client.model}: this model does not answer in the form that is asked for ({why})")
    return names


@contextlib.contextmanager
def _client(model: str, server: ServerFlags) -> Iterator[ServerClient]:
    """Who answers."""
    from htaf.llm import ServerClient, default_cache

    key = None
    if server.key_file is not None:
        try:
            key = regular(server.key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            what = error.strerror if isinstance(error, OSError) else "something else"  # never what stands in it
            raise UsageError(f"--key-file {server.key_file}: expected a text file with the key, got: {what}") from None
        if not key:
            raise UsageError(f"--key-file {server.key_file}: expected the key, got an empty file")
    with ServerClient(
        model, base_url=server.base_url, api_key=key, cache=server.cache or default_cache(), calls=server.max_calls,
        tokens=server.max_tokens, timeout=server.timeout, refresh=server.refresh,
    ) as asked:  # fmt: skip
        if asked.unencrypted:
            say_notes([f"the key goes unencrypted to {asked.unencrypted}"])
        yield asked


@contextlib.contextmanager
def _bar(done: list[int]) -> Iterator[Callable[[int, int], None]]:
    """What tells how many names are finished, and keeps the two numbers in `done`."""
    with contextlib.ExitStack() as stack:
        more: list[Callable[..., None]] = []

        def advance(finished: int, total: int) -> None:
            if not more:  # the first call says how many there are, and how many were finished before
                more.append(stack.enter_context(progress_of("names", total, done=finished)))
            else:
                more[0](finished - done[0])
            done[:] = finished, total

        yield advance


def _table(names: Sequence[NameEntry], order: Sequence[int], json: bool) -> None:
    """The names and their checks on the output."""
    from htaf.concepts.naming import check_notes, name_table

    say_notes(check_notes(names))
    if json:
        return print_json(names)
    if any(entry.get("checked_by") and not entry.get("pictures") for entry in names):
        say_notes(["names that were given (--check) were sorted on all classes, none held out"])
    say(f"{sum(entry['verified'] for entry in names)} of {len(names)} names verified")
    terminal(highlight=False).print(name_table(names, order))
    return None
