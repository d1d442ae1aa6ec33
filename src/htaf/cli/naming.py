"""`htaf concepts name`: names for concepts, from attributes of the classes or from a language model, each checked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, arg

from htaf._console import Terminal, UsageError, check_seed, err, print_json, say, say_notes
from htaf._console import progress as progress_of
from htaf._files import check_output, hold, lock_beside
from htaf.cli.concepts import CodesDir
from htaf.cli.flags import DataDir, Json

Entry = dict[str, Any]


def _flag(text: str, metavar: str = "", default: str = "") -> Any:
    hint = f"(default: {default})" if default else None
    return arg(help=text, metavar=metavar or None, help_behavior_hint=hint)


@dataclass(frozen=True)
class Asking:
    """What is asked of a language model."""

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
        Path | None, _flag("Ask no server: write the prompts that wait to this file (JSON lines).", "FILE", "none")
    ] = None
    replies: Annotated[
        tuple[Path, ...], _flag("Ask no server: read replies from these files (JSON lines).", "FILE ...", "none")
    ] = ()


@dataclass(frozen=True)
class Server:
    """Who is asked."""

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
    asking: OmitArgPrefixes[Asking] = Asking(),
    server: OmitArgPrefixes[Server] = Server(),
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
    with contextlib.nullcontext() if out is None else hold(lock_beside(out), f"another process writes {out}"):
        if attributes is not None:
            return _by_attributes(codes, attributes, out, threshold, seed, data_dir, json)
        return _by_model(codes, model, out, threshold, seed, asking, server, data_dir, json)


def _given(*paths: str | Path | None) -> list[str | Path]:
    return [path for path in paths if path is not None]


def _by_attributes(
    codes: Path, attributes: str, out: Path | None, threshold: float, seed: int, data_dir: str | None, json: bool
) -> None:
    from htaf.concepts.codes import codes_key
    from htaf.concepts.completeness import most_important
    from htaf.concepts.naming.files import check_only
    from htaf.concepts.naming.names import write_names
    from htaf.concepts.naming.offline import name_concepts
    from htaf.concepts.store import open_codes
    from htaf.data.attributes import load

    opened = open_codes(codes)
    if out is not None:
        check_only(out, "attributes", opened.concepts, codes_key(opened))
    names = name_concepts(opened, load(attributes, data_dir=data_dir), threshold=threshold, seed=seed)
    if out is not None:
        write_names(names, out, codes=codes_key(opened))
    return _table(names, most_important(opened).tolist(), json)


def _by_model(
    codes: Path,
    model: str,
    out: Path | None,
    threshold: float,
    seed: int,
    asking: Asking,
    server: Server,
    data_dir: str | None,
    json: bool,
) -> None:
    if asking.top is not None and (asking.top < 1 or asking.concept):
        raise UsageError(f"expected --top >= 1, without --concept, got {asking.top}")
    for flag, given in (("candidates", asking.candidates), ("top", asking.top)):
        if asking.check is not None and given is not None:
            raise UsageError(f"--{flag} is for new names, not for --check")
    if asking.estimate and asking.prompts_only is not None:
        raise UsageError("expected one of --estimate, which writes nothing, and --prompts-only, got both")
    if server.parallel < 1:
        raise UsageError(f"--parallel must be >= 1, got {server.parallel}")
    try:
        from htaf.concepts.naming.by_model import check_names, name_by_model
        from htaf.concepts.naming.checks import Settings
        from htaf.concepts.naming.files import earlier_names, kept_names
        from htaf.concepts.naming.plan import estimate, plan_of
    except ModuleNotFoundError as error:
        raise UsageError(f"--model needs {error.name}: pip install 'htaf[names]'") from None
    from htaf.concepts.codes import codes_key
    from htaf.concepts.naming.candidates import read_candidates
    from htaf.concepts.naming.names import read_names
    from htaf.concepts.naming.words import needed_notes, needed_words, seen_replies
    from htaf.concepts.store import open_codes

    opened = open_codes(codes)
    key = codes_key(opened)
    settings = Settings(rounds=asking.rounds, threshold=threshold, most=asking.most, seed=seed)
    options: dict[str, Any] = {}
    candidates: tuple[str, ...] = ()
    if asking.check is not None:
        options["names"] = read_names(asking.check, opened.concepts, codes=key)
    elif asking.candidates is not None:
        listed = read_candidates(asking.candidates, data_dir=data_dir)
        say_notes(listed.notes)
        candidates = listed.names
    plan = plan_of(opened, candidates=candidates, settings=settings)
    if asking.concept or asking.top is not None:
        options["only"] = asking.concept or plan.order[: asking.top]
    with _asker(model, asking, server) as asker:
        options["known"] = known = (
            [] if out is None else earlier_names(out, plan, asker, checked=asking.check, codes=key)
        )
        if server.refresh:  # they stay in the file until they are named anew
            anew = set(plan.chosen(options.get("only")))
            options["known"] = [e | {"settings": None} if e["concept"] in anew else e for e in known]
        needed = estimate(plan, asker, **options)
        if asking.estimate:
            say_notes(needed_notes(needed))
            return print_json(asdict(needed)) if json else say(needed_words(needed))
        err.print(needed_words(needed))
        say_notes(needed_notes(needed))
        read = asker.usage.cached if hasattr(asker, "usage") else 0
        work = name_by_model if asking.check is None else check_names
        done = [0, 0]
        try:
            with kept_names(out, key) as save, _bar(done, not json) as progress:
                names = work(plan, asker, parallel=server.parallel, save=save, progress=progress, **options)
                save(names)
        except BaseException:  # Ctrl-C too
            where = f" and written to {out}" if out is not None and done[0] else ""
            again = " with another --out" if where and out is not None and out.suffix.lower() == ".csv" else ""
            say_notes([f"{done[0]} of {done[1]} names are finished{where}; the same command{again} goes on from there"])
            raise
        finally:
            say_notes(_closing(asker, asking, read))

        def looked() -> None:
            for only in (None, options.get("only")):
                estimate(plan, asker, names=options.get("names"), only=only)

        say_notes(seen_replies(asker, names, looked))
    return _table(names, plan.order, json)


@contextlib.contextmanager
def _asker(model: str, asking: Asking, server: Server) -> Iterator[Any]:
    """Who answers: a server, or files."""
    from htaf.llm.client import LanguageModel, Replies, default_cache

    if asking.prompts_only is not None or asking.replies:
        for field in fields(server):
            if field.name != "parallel" and getattr(server, field.name) != field.default:
                flag = field.name.replace("_", "-")
                raise UsageError(f"--{flag} is for a server, which --prompts-only and --replies do not ask")
        yield Replies(model, asking.replies)
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
    with LanguageModel(
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


def _closing(asker: Any, asking: Asking, read: int) -> list[str]:
    """What was used, or what still waits; so many replies were read for the estimate alone."""
    if not hasattr(asker, "usage"):  # files of replies
        waiting, notes = asker.waiting, list(asker.problems)
        if asking.prompts_only is not None:
            asker.write(asking.prompts_only)
            notes.append(f"{waiting:,} prompts wait, written to {asking.prompts_only}" + (
                ": give the replies, and all earlier ones, with --replies" if waiting else ""))  # fmt: skip
        elif waiting:
            notes.append(f"{waiting:,} prompts have no reply: --prompts-only FILE writes them")
        return notes
    used = asker.usage
    about = "about " if used.estimated else ""
    text = f"{used.calls:,} requests sent, {about}{used.tokens:,} tokens; {used.cached - read:,} kept from before"
    more = [f"{count:,} {what}" for count, what in ((used.retried, "retried"), (used.malformed, "unusable")) if count]
    return [*asker.notes, "; ".join([text, *more])]


def _table(names: Sequence[Entry], order: Sequence[int], json: bool) -> None:
    """The names and their checks on the output."""
    from htaf.concepts.naming.words import check_notes, name_lines

    say_notes(check_notes(names))
    if json:
        return print_json(names)
    if any(entry.get("checked_by") for entry in names):
        say_notes(["names that were given (--check) were sorted on all classes, none held out"])
    say(f"{sum(entry['verified'] for entry in names)} of {len(names)} names verified")
    for line in name_lines(names, order, Terminal().width):
        say(line)
    return None
