"""`htaf concepts name`: names for concepts, from attributes of the classes or from a language model, each checked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes, arg

from htaf._console import Terminal, UsageError, check_seed, err, print_json, say, say_notes
from htaf._console import progress as progress_of
from htaf._files import check_output, hold, lock_beside
from htaf.cli.concepts import CodesDir
from htaf.cli.flags import DataDir, Json

if TYPE_CHECKING:
    from htaf.concepts.codes import Codes
    from htaf.concepts.naming import NameEntry, NamingJob
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
        str | None, _flag("Names from this language model, which sees the classes' names.", "NAME", "OPENAI_MODEL")
    ] = None,
    out: Annotated[
        Path | None,
        _flag("Also write the names, to .json or .csv. A stopped command continues from .json.", "FILE", "none"),
    ] = None,
    threshold: Annotated[float, _flag("A name is verified from this held-out balanced accuracy on.")] = 0.75,
    seed: Annotated[int, _flag("Seed of the splits of the classes.")] = 0,
    asking: OmitArgPrefixes[AskingFlags] = AskingFlags(),
    server: OmitArgPrefixes[ServerFlags] = ServerFlags(),
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Name concepts by attributes of the classes or by a language model, each name checked on classes that did not
    choose it."""
    check_seed(seed)
    if out is not None and out.suffix.lower() not in (".json", ".csv"):
        raise UsageError(f"--out must end in .json or .csv, got {out.name}")
    read = [codes, attributes, asking.candidates, *asking.replies, server.key_file]
    if out is not None:  # which may be the file of --check: names that are checked may be written back
        check_output(out, _given(*read, asking.prompts_only))
    if asking.prompts_only is not None:
        check_output(asking.prompts_only, _given(*read, asking.check), flag="--prompts-only")
    if attributes is not None and model is not None:
        raise UsageError("expected one of --attributes and --model, got both")
    if attributes is not None:
        for given in (asking, server):
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
        _check_asking(asking, server)
    with contextlib.nullcontext() if out is None else hold(lock_beside(out), f"another process writes {out}"):
        if attributes is not None:
            return _by_attributes(codes, attributes, out, threshold, seed, data_dir, json)
        try:
            from htaf.concepts.naming import NamingSettings, naming_job
        except ModuleNotFoundError as error:
            raise UsageError(f"--model needs {error.name}: pip install 'htaf[llm]'") from None
        from htaf.concepts.store import open_codes

        opened, candidates = open_codes(codes), _candidates(asking, data_dir)
        settings = NamingSettings(rounds=asking.rounds, threshold=threshold, most=asking.most, seed=seed)
        with _client(model, asking, server) as client:
            job = naming_job(
                opened, client, settings, candidates=candidates, given=asking.check, only=asking.concept,
                top=asking.top, out=out, refresh=server.refresh,
            )  # fmt: skip
            if asking.estimate:
                return _estimate(job, json)
            names = _names(job, asking, server.parallel, json)
        return _table(names, job.plan.order, json)


def _given(*paths: str | Path | None) -> list[str | Path]:
    return [path for path in paths if path is not None]


def _check_asking(asking: AskingFlags, server: ServerFlags) -> None:
    if asking.top is not None and (asking.top < 1 or asking.concept):
        raise UsageError(f"expected --top >= 1, without --concept, got {asking.top}")
    for flag, given in (("candidates", asking.candidates), ("top", asking.top)):
        if asking.check is not None and given is not None:
            raise UsageError(f"--{flag} is for new names, not for --check")
    if asking.estimate and asking.prompts_only is not None:
        raise UsageError("expected one of --estimate, which writes nothing, and --prompts-only, got both")
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
        return _names(naming_job(codes, client, settings, out=out), asking, server.parallel, quiet)


def _candidates(asking: AskingFlags, data_dir: str | None) -> tuple[str, ...]:
    """What names are chosen from; empty for the model's own words."""
    if asking.candidates is None:
        return ()
    from htaf.concepts.naming import read_candidates

    listed = read_candidates(asking.candidates, data_dir=data_dir)
    say_notes(listed.notes)
    return listed.names


def _estimate(job: NamingJob, json: bool) -> None:
    """What the job will need, on the output."""
    from htaf.concepts.naming import estimate_line, estimate_notes

    needed = job.estimate()
    say_notes(estimate_notes(needed))
    return print_json(asdict(needed)) if json else say(estimate_line(needed))


def _names(job: NamingJob, asking: AskingFlags, parallel: int, json: bool) -> list[NameEntry]:
    """Do the job, and say before what it needs and after what it used."""
    from htaf.concepts.naming import estimate_line, estimate_notes

    needed = job.estimate()
    err.print(estimate_line(needed))
    say_notes(estimate_notes(needed))
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
            key = server.key_file.read_text(encoding="utf-8").strip()
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
    if any(entry.get("checked_by") for entry in names):
        say_notes(["names that were given (--check) were sorted on all classes, none held out"])
    say(f"{sum(entry['verified'] for entry in names)} of {len(names)} names verified")
    for line in name_lines(names, order, Terminal().width):
        say(line)
    return None
