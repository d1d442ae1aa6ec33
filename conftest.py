"""Shapes are checked by beartype under `make test-all` only; real data comes from HTAF_DATA."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the tests' networks are too small for more

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

gc.disable()  # until all is imported and collected: see pytest_collection_finish

if os.environ.get("HTAF_CHECK_SHAPES") == "1":  # by `make test-all`: on every call it takes a third of a test's time
    # an int is good where a float is asked for, as type checkers hold it (PEP 484)
    install_import_hook("htaf", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job, whose children could not be stopped
    signal.signal(signal.SIGINT, signal.default_int_handler)

# of `make test`, `make test-all` and `make stress`, unless a test says how many; no deadlines, as cores are shared
for name, examples in (("quick", 50), ("many", 100), ("stress", 5000)):
    settings.register_profile(name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quick")

pytest_plugins = ["visits"]  # one browser for all rooms: a second one cannot start beside it

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}


@pytest.fixture(scope="session", autouse=True)
def own_features(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A place for the features of frozen backbones that is not the user's."""
    from htaf.training.runs import features

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setattr(features, "cache_folder", lambda: folder)
        yield folder


@pytest.fixture(scope="session", autouse=True)
def kept_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs that nobody trained are made once, not once a worker and a test: see made_runs."""
    import made_runs

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kept-runs"
    folder.mkdir(exist_ok=True)
    made_runs.KEPT[:] = [folder]
    yield
    made_runs.KEPT.clear()


@pytest.fixture
def data_dir() -> Path:
    """The folder of the real data sets."""
    folder = os.environ.get("HTAF_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.fail("HTAF_DATA must name the folder of the real data sets")
    return Path(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `data` are skipped with a reason when HTAF_DATA is unset, but not in CI, where they must run."""
    folder = os.environ.get("HTAF_DATA")
    if folder and Path(folder).is_dir():
        return
    for item in items:
        if item.get_closest_marker("data"):
            if IN_CI:
                item.add_marker(pytest.mark.usefixtures("missing_data_fails"))
            else:
                item.add_marker(pytest.mark.skip(reason="HTAF_DATA must name the folder of the real data sets"))


def pytest_collection_finish() -> None:
    """What is loaded by now stays: no garbage collection looks through it again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        # to take all down would take seconds, and nanobind would tell what is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    else:
        gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A worker a core, where memory holds them: each takes about 1.5 GiB."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)


@pytest.fixture
def missing_data_fails() -> None:
    pytest.fail("HTAF_DATA must name the folder of the real data sets in CI")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the checks of shapes, as users have it."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def htaf(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Call the command in this process: (exit code, output, error output); of --json the output is its result."""
    from htaf import cli
    from htaf.cli import known

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["htaf", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as exit:
            code = int(exit.code or 0)
        captured = capsys.readouterr()
        told = captured.err if "--json" in words else captured.out + captured.err
        assert not re.search(r"\b[0-9a-f]{40,}\b", told), f"a hash in full: {told}"
        assert not re.search(r"(expected|got):? (expected|got) ", told), f"words twice: {told}"
        lines = [line for line in captured.err.splitlines() if line.startswith(("htaf: error:", "note:"))]
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", OTHER_VERB.sub("", "\n".join(lines))))
        if named:
            every = {word for verb in known().verbs for word in verb.split()}
            verbs = (word for word in map(str, words[:2]) if word in every)
            assert named <= _flags_of(*verbs), f"flags of another verb: {lines}"
        out = _result(captured.out, words, code) if "--json" in words else captured.out
        return code, out, captured.err

    return call


def _result(printed: str, words: tuple[object, ...], code: int) -> str:
    """The result as JSON, "" where there is none, of the one object of --json: the same for all verbs."""
    told = json.loads(printed)
    assert list(told) == ["htaf", "verb", "result", "notes", "error"]
    assert told["verb"] is None or told["verb"].split() == list(words[: len(told["verb"].split())])
    assert (told["error"]["code"] if told["error"] else 0) == code
    return "" if told["result"] is None else json.dumps(told["result"])


OTHER_VERB = re.compile(
    r"htaf [a-z]+( [a-z]+)?( --[a-z-]+)+"
)  # a whole command, such as htaf concepts extract --features


@functools.cache
def _flags_of(*verbs: str) -> set[str]:
    """The flags of a verb, by its help."""
    return {"--set", "--help-all", *re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", _help_of(*verbs))}


@functools.cache
def _help_of(*verbs: str) -> str:
    """What `htaf VERB --help` prints, in lines as wide as they want to be."""
    from htaf import cli

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        whole = "--help-all" if verbs[:1] == ("train",) and verbs[1:] not in ((), ("llm",)) else "--help"
        patch.setattr(sys, "argv", ["htaf", *verbs, whole])
        patch.setenv("COLUMNS", "250")
        with contextlib.suppress(SystemExit):
            cli.main()
    return printed.getvalue()


@pytest.fixture(scope="session")
def help_of() -> Callable[..., str]:
    return _help_of


@pytest.fixture(scope="session")
def flags_of() -> Callable[..., set[str]]:
    return _flags_of
