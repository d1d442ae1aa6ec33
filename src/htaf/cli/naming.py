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

from htaf._console import Terminal, UsageError, check_seed, err, print_json, say, say_notes
from htaf._console import progress as progress_of
from htaf._files import check_output, hold, lock_beside, regular
from htaf.cli.concepts import CodesDir
from htaf.cli.flags import DataDir, Json

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes
    from htaf.concepts.naming import NameEntry, NamingJob, PictureJob
    from htaf.llm import BatchClient, Client, ServerClient


def _flag(text: str, metavar: str = "", default: str = "") -> Any:
    hint = f"(default: {default})" if default else None
    return arg(help=text, metavar=metavar or None, help_behavior_hint=hint)


@dataclass(frozen=True)
class AskingFlags:
    """Questions to a language model."""

    candidates: Annotated[
        str | None,
        _flag("Choose names from a list: cub, or a .txt, .json or .csv file.", "NAME_OR_FILE", "own words"),
    ] = None
    rounds: Annotated[int, _flag("How often each concept is named, each time with other classes held out.")] = 3
    most: Annotated[int, _flag("Most classes of a group in a prompt; of more, so many are drawn at random.")] = 100
    top: Annotated[int | None, _flag("Name only the N most important concepts.", "N", "all")] = None
    concept: Annotated[tuple[int, ...], _flag("Name only these concepts, by number.", "C ...", "all")] = ()
    check: Annotated[
        Path | None, _flag("Check the names of this file, such as your own, instead of finding names.", "FILE", "none")
    ] = None
    estimate: Annotated[bool, _flag("Only say how many requests and tokens it will take.")] = False
    prompts_only: Annotated[
        Path | None,
        _flag("Ask no server: write the prompts without a reply to this file (JSON lines).", "FILE", "none"),
    ] = None
    replies: Annotated[
        tuple[Path, ...], _flag("Ask no server: read replies from these files (JSON lines).", "FILE ...", "none")
    ] = ()


@dataclass(frozen=True)
class PictureFlags:
    """Names from pictures: the model sees images instead of the classes' names."""

    pictures: Annotated[
        Path | None,
        _flag("Show the model images with the concept and without, of this run; check names on others.", "RUN", "none"),
    ] = None
    send_pictures: Annotated[
        bool,
        _flag("Send images to the server. Without it the command says how many would go, and stops."),
    ] = False
    album: Annotated[
        Literal["sheets", "images"],
        _flag("sheets: up to 20 images on one numbered picture; images: each one by itself, which costs more."),
    ] = "sheets"
    shown: Annotated[int, _flag("Images with the concept, and as many without, to find a name.")] = 12
    held_out: Annotated[int, _flag("Others of each, to check it.")] = 20
    tile: Annotated[int, _flag("Longer side of each image, in pixels.")] = 160


@dataclass(frozen=True)
class ServerFlags:
    """The server of the language model."""

    base_url: Annotated[
        str | None, _flag("Address of an OpenAI-compatible server.", "URL", "OPENAI_BASE_URL, else OpenAI's")
    ] = None
    key_file: Annotated[
        Path | None,
        _flag("File with the key. The key is never printed or stored.", "FILE", "OPENAI_API_KEY, else none"),
    ] = None
    max_calls: Annotated[int | None, _flag("Most requests, retries included.", "N", "no limit")] = None
    max_tokens: Annotated[int | None, _flag("Send no more requests once so many tokens are used.", "N", "no limit")] = (
        None
    )
    parallel: Annotated[int, _flag("Requests at once.")] = 4
    timeout: Annotated[float, _flag("Seconds for one request.")] = 60.0
    cache: Annotated[
        Path | None,
        _flag("Folder where replies are kept, so that nothing is paid for twice.", "DIR", "~/.cache/htaf/replies"),
    ] = None
    refresh: Annotated[bool, _flag("Ask again, and pay again, for replies that are kept there.")] = False


def name_command(
    codes: CodesDir,
    *,
    attributes: Annotated[
        str | None,
        _flag("Names from cub, digits, or a CSV or Parquet file with a row for each class.", "NAME_OR_FILE", "none"),
    ] = None,
    model: Annotated[
        str | None,
        _flag("Names from this model, which reads the classes' names or sees --pictures.", "NAME", "OPENAI_MODEL"),
    ] = None,
    out: Annotated[
        Path | None,
        _flag("Also write the names, to .json or .csv. A stopped command continues from .json.", "FILE", "none"),
    ] = None,
    threshold: Annotated[float, _flag("A name is verified from this held-out balanced accuracy on.")] = 0.75,
    seed: Annotated[int, _flag("Seed of the splits of the classes.")] = 0,
    asking: OmitArgPrefixes[AskingFlags] = AskingFlags(),
    pictures: OmitArgPrefixes[PictureFlags] = PictureFlags(),
    server: OmitArgPrefixes[ServerFlags] = ServerFlags(),
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Name concepts by attributes of the classes or by a language model, each name checked on classes that did not
    choose it.

    With --pictures the model sees images instead of the classes' names, and each name is checked on other images."""
    check_seed(seed)
    if out is not None and out.suffix.lower() not in (".json", ".csv"):
        raise UsageError(f"--out must end in .json or .csv, got {out.name}")
    read = [codes, attributes, asking.candidates, *asking.replies, server.key_file, pictures.pictures]
    if out is not None:  # which may be the file of --check: names that are checked may be written back
        check_output(out, _given(*read, asking.prompts_only))
    if asking.prompts_only is not None:
        check_output(asking.prompts_only, _given(*read, asking.check), flag="--prompts-only")
    if attributes is not None and model is not None:
        raise UsageError("expected one of --attributes and --model, got both")
    if attributes is not None:
        for given in (asking, pictures, server):
            for field in fields(given):
                if getattr(given, field.name) != field.default:
                    raise UsageError(f"--{field.name.replace('_', '-')} is for --model, not for --attributes")
    model = model or os.environ.get("OPENAI_MODEL", "")
    if attributes is None and not model:
        for flag, given in (("prompts-only", asking.prompts_only), ("replies", asking.replies)):
            if given:
                raise UsageError(f"--{flag} needs --model NAME too: the name that the prompts carry")
        raise UsageError("expected --attributes NAME_OR_FILE, or --model NAME (or OPENAI_MODEL), got neither")
    if attributes is None:
        _check_asking(asking, pictures, server)
    with contextlib.nullcontext() if out is None else hold(lock_beside(out), f"another process writes {out}"):
        if attributes is not None:
            return _by_attributes(codes, attributes, out, threshold, seed, data_dir, json)
        try:
            from htaf.concepts.naming import NamingSettings, PictureSettings, naming_job, picture_job
        except ModuleNotFoundError as error:
            raise UsageError(f"--model needs {error.name}: pip install 'htaf[llm]'") from None
        from htaf.concepts.store import open_codes

        opened, candidates = open_codes(codes), _candidates(asking, data_dir)
        options: dict[str, Any] = {"candidates": candidates, "given": asking.check, "only": asking.concept}
        options |= {"top": asking.top, "out": out, "refresh": server.refresh}
        with _client(model, asking, server) as client:
            if pictures.pictures is None:
                settings = NamingSettings(rounds=asking.rounds, threshold=threshold, most=asking.most, seed=seed)
                job = naming_job(opened, client, settings, **options)
            else:
                look = PictureSettings(album=pictures.album, shown=pictures.shown, held_out=pictures.held_out,
                                       tile=pictures.tile, threshold=threshold, seed=seed)  # fmt: skip
                job = picture_job(opened, _pixels(opened, pictures.pictures, data_dir), client, look, **options)
            if asking.estimate:
                return _estimate(job, json)
            names = _names(job, asking, server.parallel, json, send=pictures.send_pictures)
        return _table(names, job.plan.order, json)


def _given(*paths: str | Path | None) -> list[str | Path]:
    return [path for path in paths if path is not None]


def _pixels(codes: Codes, run: Path, data_dir: str | None) -> Any:
    """What gives the images of rows of codes: those of a run's own data, or the files that they were made of."""
    from htaf.cli.concepts import of_images, own_images
    from htaf.concepts.pixels import pixels_of, pixels_of_files
    from htaf.runs import open_run

    opened = of_images(open_run(run))
    if codes.info.get("settings", {}).get("data") == "files":
        known: Any = opened.preprocessor()  # of images

        def of(ids: list[str]) -> Any:
            return pixels_of_files(ids, known.size, known.channels)
    else:
        images = own_images(opened, data_dir, "use htaf.concepts.naming.picture_job, in Python")

        def of(ids: list[str]) -> Any:
            return pixels_of(images, ids)

    return lambda rows: of([codes.ids[int(row)] for row in rows]).numpy()


def _check_asking(asking: AskingFlags, pictures: PictureFlags, server: ServerFlags) -> None:
    if asking.top is not None and (asking.top < 1 or asking.concept):
        raise UsageError(f"expected --top >= 1, without --concept, got {asking.top}")
    for flag, given in (("candidates", asking.candidates), ("top", asking.top)):
        if asking.check is not None and given is not None:
            raise UsageError(f"--{flag} is for new names, not for --check")
    if asking.estimate and asking.prompts_only is not None:
        raise UsageError("expected one of --estimate, which writes nothing, and --prompts-only, got both")
    for given, other, where in ((pictures, pictures.pictures is None, "for"), (asking, pictures.pictures, "not for")):
        own = ("rounds", "most") if given is asking else [field.name for field in fields(given)]
        for field in fields(given):
            if other and field.name in own and getattr(given, field.name) != field.default:
                raise UsageError(f"--{field.name.replace('_', '-')} is {where} --pictures RUN")
    if server.parallel < 1:
        raise UsageError(f"--parallel must be >= 1, got {server.parallel}")


def _by_attributes(
    codes: Path, attributes: str, out: Path | None, threshold: float, seed: int, data_dir: str | None, json: bool
) -> None:
    from htaf.concepts.codes import codes_key
    from htaf.concepts.completeness import most_important
    from htaf.concepts.naming import check_only, name_by_attributes, write_names
    from htaf.concepts.store import open_codes
    from htaf.data.attributes import load

    opened = open_codes(codes)
    if out is not None:
        check_only(out, "attributes", opened.concepts, codes_key(opened))
    names = name_by_attributes(opened, load(attributes, data_dir=data_dir), threshold=threshold, seed=seed)
    if out is not None:
        write_names(names, out, codes=codes_key(opened))
    return _table(names, most_important(opened).tolist(), json)


def model_names(
    codes: Codes, model: str, asking: AskingFlags, server: ServerFlags, out: Path, *, quiet: bool = False
) -> list[NameEntry]:
    """Names for concepts from a language model, with the usual settings, written to a file as they are finished.

    Args:
        codes: to be named. model: its name. out: ending in .json; names that it holds are kept.
        quiet: without progress.

    Raises:
        UsageError: the library for servers is not installed. HtafError: the server cannot be had.
    """
    try:
        from htaf.concepts.naming import NamingSettings, naming_job
    except ModuleNotFoundError as error:
        raise UsageError(f"--model needs {error.name}: pip install 'htaf[llm]'") from None
    settings = NamingSettings(rounds=asking.rounds, most=asking.most)
    with _client(model, asking, server) as client:
        return _names(naming_job(codes, client, settings, out=out), asking, server.parallel, quiet, send=False)


def _candidates(asking: AskingFlags, data_dir: str | None) -> tuple[str, ...]:
    """What names are chosen from; empty for the model's own words."""
    if asking.candidates is None:
        return ()
    from htaf.concepts.naming import read_candidates

    listed = read_candidates(asking.candidates, data_dir=data_dir)
    say_notes(listed.notes)
    return listed.names


def _needed(job: NamingJob | PictureJob) -> tuple[dict[str, Any], str, list[str]]:
    """What a job will need: as plain values, in a line, and what that warns of."""
    from htaf.concepts.naming import PictureEstimate, estimate_line, estimate_notes, sending_line

    needed = job.estimate()
    if isinstance(needed, PictureEstimate):
        place = _place(job.client)
        return asdict(needed) | {"to": place}, sending_line(needed, place), []
    return asdict(needed), estimate_line(needed), estimate_notes(needed)


def _place(client: Client) -> str:
    """Where requests go: a host, or a file."""
    from htaf.llm import BatchClient

    return "no server" if isinstance(client, BatchClient) else urlsplit(getattr(client, "base_url", "")).netloc


def _estimate(job: NamingJob | PictureJob, json: bool) -> None:
    """What the job will need, on the output."""
    values, line, notes = _needed(job)
    say_notes(notes)
    return print_json(values) if json else say(line)


def _names(
    job: NamingJob | PictureJob, asking: AskingFlags, parallel: int, json: bool, *, send: bool
) -> list[NameEntry]:
    """Do the job, and say before what it needs and after what it used; send: whether images may go to a server."""
    from htaf.llm import BatchClient

    values, line, notes = _needed(job)
    err.print(line)
    say_notes(notes)
    if values.get("pictures") and not send and not isinstance(job.client, BatchClient):
        raise UsageError(f"nothing was sent; to send these images to {values['to']}, add --send-pictures")
    read = getattr(getattr(job.client, "usage", None), "cached", 0)
    done = [0, 0]
    try:
        with _bar(done, not json) as progress:
            names = job.run(parallel=parallel, progress=progress)
    except BaseException:  # Ctrl-C too
        where = f" and written to {job.out}" if job.out is not None and done[0] else ""
        again = ", with another --out" if where and job.out is not None and job.out.suffix.lower() == ".csv" else ""
        say_notes(
            [f"{done[0]} of {done[1]} names are finished{where}; to continue, give the same command again{again}"]
        )
        raise
    finally:
        say_notes(_closing(job.client, asking, read))
    say_notes(job.unused_replies(names))
    return names


@contextlib.contextmanager
def _client(model: str, asking: AskingFlags, server: ServerFlags) -> Iterator[BatchClient | ServerClient]:
    """Who answers: a server, or files."""
    from htaf.llm import BatchClient, ServerClient, default_cache

    if asking.prompts_only is not None or asking.replies:
        for field in fields(server):
            if field.name != "parallel" and getattr(server, field.name) != field.default:
                flag = field.name.replace("_", "-")
                raise UsageError(f"--{flag} is for a server, which --prompts-only and --replies do not ask")
        yield BatchClient(model, asking.replies)
        return
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
def _bar(done: list[int], shown: bool) -> Iterator[Callable[[int, int], None]]:
    """What tells how many names are finished, and keeps the two numbers in `done`."""
    with contextlib.ExitStack() as stack:
        more: list[Callable[..., None]] = []

        def advance(finished: int, total: int) -> None:
            if not more:  # the first call says how many there are, and how many were finished before
                more.append(stack.enter_context(progress_of("names", total, shown=shown, done=finished)))
            else:
                more[0](finished - done[0])
            done[:] = finished, total

        yield advance


def _closing(client: Client, asking: AskingFlags, read: int) -> list[str]:
    """What was used, or what still waits; so many replies were read for the estimate alone."""
    from htaf.llm import BatchClient, ServerClient

    if isinstance(client, BatchClient):
        waiting, notes = client.waiting, list(client.problems)
        if asking.prompts_only is not None:
            client.write(asking.prompts_only)
            notes.append(f"{waiting:,} prompts wait, written to {asking.prompts_only}" + (
                ": give the replies, and all earlier ones, with --replies" if waiting else ""))  # fmt: skip
        elif waiting:
            notes.append(f"{waiting:,} prompts have no reply: --prompts-only FILE writes them")
        return notes
    if not isinstance(client, ServerClient):
        return []
    used = client.usage
    about = "about " if used.estimated else ""
    text = f"{used.calls:,} requests sent, {about}{used.tokens:,} tokens; {used.cached - read:,} kept from before"
    more = [f"{count:,} {what}" for count, what in ((used.retried, "retried"), (used.malformed, "unusable")) if count]
    return [*client.notes, "; ".join([text, *more])]


def _table(names: Sequence[NameEntry], order: Sequence[int], json: bool) -> None:
    """The names and their checks on the output."""
    from htaf.concepts.naming import check_notes, name_lines

    say_notes(check_notes(names))
    if json:
        return print_json(names)
    if any(entry.get("checked_by") and not entry.get("pictures") for entry in names):
        say_notes(["names that were given (--check) were sorted on all classes, none held out"])
    say(f"{sum(entry['verified'] for entry in names)} of {len(names)} names verified")
    for line in name_lines(names, order, Terminal().width):
        say(line)
    return None
