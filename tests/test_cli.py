"""The command as people type it: results, bad input as one clear line with its exit code, nothing lost."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rich.table
import torch

from htaf import cli
from htaf._ground import console as _console
from htaf._ground.errors import HtafError
from htaf._ground.files import SEAL
from htaf.cli import Verb, known
from htaf.training import runs
from quick import one_line

GROUPS, VERBS = known()
QUICK = ("--epochs", "2", "--hidden", "8", "--members", "1", "--thresholds", "0", "--baselines", "False")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 rows: two numbers, one category, a class and a number to predict."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": rng.normal(size=120), "b": rng.integers(0, 50, 120), "kind": rng.choice(list("xyz"), 120)}
    )
    frame["label"] = np.where(frame["a"] + 0.1 * rng.normal(size=120) > 0, "yes", "no")
    frame["value"] = 3 * frame["a"] + 10 + rng.normal(size=120)
    path = tmp_path_factory.mktemp("table") / "small.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished classification run."""
    out = tmp_path_factory.mktemp("runs") / "label"
    words = ("train", "tabular", "--data", table, "--target", "label", "--out", out, *QUICK)
    code = f"""
        import sys
        sys.path.append({str(Path(__file__).parent)!r})
        import sklearn, torch._dynamo  # PyTorch imports it at some time, and leaves a filter of warnings
        from global_state import changed, snapshot
        from htaf.cli import main
        before = snapshot()
        main()
        print("changed:", changed(before))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    out.with_name("state.txt").write_text(done.stdout)
    return out


def test_a_new_interpreter_is_as_it_was_after_a_training(run: Path) -> None:
    """Here lightning and others are imported for the first time; what they leave would be there before other tests."""
    assert run.with_name("state.txt").read_text().splitlines()[-1] == "changed: {}"


LAST = [*VERBS][-1].split()[0]
LAST_OF_CONCEPTS = [verb for verb in VERBS if verb.startswith("concepts ")][-1].split()[1]


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("evaluat runs/a", "got 'evaluat' (did you mean 'evaluate'?)"),
        ("Predict", "got 'Predict' (did you mean 'predict'?)"),
        ("score", "got 'score' (did you mean 'concepts score'?)"),
        ("concepts extrac", f"{LAST_OF_CONCEPTS}; got 'extrac' (did you mean 'extract'?)"),
        ("train tabluar --data digits", "llm; got 'tabluar' (did you mean 'tabular'?)"),
        ("frobnicate", f"{LAST}; got 'frobnicate'"),
        ("concepts", f"{LAST_OF_CONCEPTS}; got none"),
    ],
)
def test_a_mistyped_verb(htaf, words: str, end: str) -> None:
    code, out, err = htaf(*words.split())
    assert (code, out) == (2, "")
    assert one_line(err).startswith("htaf: error: expected a verb")
    assert one_line(err).endswith(end)


def test_a_verb_is_added_as_contributing_says(htaf, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file and one row: those that CONTRIBUTING.md shows."""
    page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    section = page[page.index("**Add a verb**") :]
    file, row = (textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2])
    (tmp_path / "counting.py").write_text(file)
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])  # as if it stood in src/htaf/cli
    ((key, added),) = eval(f"{{{row}}}", {"Verb": Verb}).items()
    monkeypatch.setitem(VERBS, key, added)
    assert f"{key} {added.help}" in " ".join(htaf("--help")[1].replace("│", " ").split())
    assert "usage: htaf count [-h] RUN [--method PACKAGE.MODULE:CLASS] [--json" in htaf("count", "--help")[1]
    code, out, err = htaf("count", run, "--json")
    assert code == 0, err
    weights = runs.open_run(run).model().parameters()
    assert json.loads(out) == {"parameters": sum(weight.numel() for weight in weights)}
    assert "did you mean 'count'?" in htaf("cuont")[2]


STARTS = """
import sys
from htaf import cli
for words in sys.stdin:
    sys.argv = ["htaf", *words.split()]
    try:
        cli.main()
    except SystemExit:
        pass
    slow = {"torch", "numpy", "pandas", "sklearn"} & sys.modules.keys()
    assert not slow, (words, slow)
"""


def test_the_command_starts_without_torch() -> None:
    """Help, and errors of the command line: what takes seconds to import is imported when a verb needs it."""
    lines = ["--version", "--help", "", "help", "evaluat", "concepts --help", "concepts scor"]
    lines += ["evaluate --part tst", "train", "train tabular --help", "train icbm --help", "train bnn --epochs many"]
    done = subprocess.run([sys.executable, "-c", STARTS], input="\n".join(lines), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("expected a verb") == 3


def test_threads_of_a_table(htaf, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("train", "tabular", "--data", table, "--target", "label", *QUICK)
    seen: list[int] = []

    def fit(*_: object, **__: object) -> None:
        seen.append(torch.get_num_threads())
        raise HtafError("begun")

    monkeypatch.setattr("htaf.training.fit.fit", fit)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        htaf(*words, "--out", tmp_path / "one")
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        htaf(*words, "--out", tmp_path / "two")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


REFUSED = [  # flags of a training; the exit code, and what is said
    ("--alpha0 -1", 2, "alpha0 must be > 0"),
    ("--lr 0", 2, "lr must be > 0 and finite, got 0.0"),
    ("--start 1 -2", 2, "got"),
    ("--seed -1", 2, "--seed must be >= 0 and below 2**63, got -1"),
    ("--seed 99999999999999999999", 2, "--seed must be >= 0 and below 2**63, got 99999999999999999999"),
    ("--hidden 10000000 10000000", 1, "training this network needs"),
    ("--hidden 99999999999999999999", 2, "hidden sizes must be integers in 1 to 2,147,483,647"),
    ("--epochs 99999999999999999999", 2, "epochs must be below 2,147,483,648"),
    ("--devices 99999999999999999999", 1, "at most 65,536 processes"),
    ("--method ste --alpha0 3", 2, "method ste does not read --alpha0"),
    ("--group kind --split stratified", 2, "a group keeps rows together and does not go with split stratified"),
    ("--target lable", 1, "did you mean 'label'?"),
    ("--target a --exclude b kind label value", 1, "usable column"),
    ("--data no-such.csv", 1, "no-such.csv"),
]


@pytest.mark.parametrize(("flags", "code", "said"), REFUSED)
def test_trainings_that_are_refused(htaf, table: Path, tmp_path: Path, flags: str, code: int, said: str) -> None:
    words = {"--data": table, "--target": "label"}
    given = [word for name, value in words.items() if name not in flags.split() for word in (name, value)]
    got, _, err = htaf("train", "tabular", *given, "--out", tmp_path / "r", *flags.split())
    assert (got, said in one_line(err)) == (code, True), err
    assert not (tmp_path / "r").exists(), "nothing is written before the flags are checked"


def test_train_json_is_the_record(htaf, table: Path, tmp_path: Path) -> None:
    words = ("train", "tabular", "--data", table, "--target", "label", "--out", tmp_path / "r", *QUICK[:-2], "--json")
    code, out, _ = htaf(*words)
    assert code == 0
    told = json.loads(out)
    assert {baseline["name"] for baseline in told.pop("baselines")}
    assert told.pop("verdict")["metric"] == "auroc"
    written = json.loads((tmp_path / "r" / "record.json").read_text())
    assert told == {name: value for name, value in written.items() if name != SEAL}
    assert json.loads(htaf(*words)[1]) == json.loads(out), "a second call reads the finished run"


def test_evaluate_equals_the_record(htaf, run: Path) -> None:
    code, out, _ = htaf("evaluate", run, "--json")
    record = json.loads((run / "record.json").read_text())
    result = json.loads(out)
    assert code == 0
    assert result["exact"] == record["metrics"]["exact"]["test"]
    assert result["smooth"] == record["metrics"]["smooth"]["test"]
    assert result["gap"] == result["exact"]["auroc"] - result["smooth"]["auroc"]
    assert "auroc" in htaf("evaluate", run)[1]


def test_predict_raw_rows(htaf, run: Path, table: Path, tmp_path: Path) -> None:
    raw = pd.read_csv(table).drop(columns=["label"])[["kind", "value", "b", "a"]]
    raw.to_csv(tmp_path / "new.csv", index=False)
    code, out, err = htaf("predict", run, tmp_path / "new.csv")
    assert code == 0, err
    assert out.splitlines()[0] == "prediction,probability_no,probability_yes"
    assert len(out.splitlines()) == 121
    for name in ("p.csv", "p.parquet"):
        assert htaf("predict", run, tmp_path / "new.csv", "--out", tmp_path / name)[0] == 0
    written = pd.read_parquet(tmp_path / "p.parquet")
    assert written["prediction"].tolist() == pd.read_csv(tmp_path / "p.csv")["prediction"].tolist()
    rows = json.loads(htaf("predict", run, tmp_path / "new.csv", "--json")[1])
    assert [r["prediction"] for r in rows] == written["prediction"].tolist()
    raw.replace({"kind": {"x": "never seen"}}).to_csv(tmp_path / "new.csv", index=False)
    code, out, err = htaf("predict", run, tmp_path / "new.csv")
    assert (code, "never seen" in err, "never seen" in out) == (0, True, False)
    raw.drop(columns="b").to_csv(tmp_path / "new.csv", index=False)
    code, _, err = htaf("predict", run, tmp_path / "new.csv")
    assert (code, "'b'" in one_line(err)) == (1, True)


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_demo(htaf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    if not full:
        monkeypatch.setattr("htaf.cli.demo.EPOCHS", 1)
    least = 0.9 if full else 0.3
    code, out, err = htaf("demo", "--out", tmp_path / "demo", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["exact"] > least
    page = tmp_path / "demo" / "explorer"
    assert found["page"] == str(page / "index.html")
    assert (page / "index.html").is_file()
    assert (page / "data" / "sprite-0001.webp").is_file()
    names = tmp_path / "demo" / "names.json"
    words = ("--codes", tmp_path / "demo" / "codes", "--names", names, "--out", page, "--json")
    code, out, err = htaf("explore", tmp_path / "demo" / "icbm", *words)
    assert code == 0, err
    again = json.loads(out)
    assert again["images"] == found["test_images"]
    assert {"found": again["named"], "verified": again["verified"]} == found["names"]
    assert found["names"]["found"] > found["names"]["verified"]


def test_several_seeds_of_one_recipe(htaf, table: Path, tmp_path: Path) -> None:
    """Each in a folder of its own, where the same command goes on."""
    words = ("train", "tabular", "--data", table, "--target", "label", "--out", tmp_path / "r", *QUICK)
    assert htaf(*words, "--seeds", "0")[0] == 2
    assert htaf(*words, "--print-recipe", "--seeds", "2")[1].count("[recipe]") == 1
    code, out, err = htaf(*words, "--seed", "3", "--seeds", "2", "--json")
    assert code == 0, err
    records = [json.loads((tmp_path / "r" / f"seed-{seed}" / "record.json").read_text()) for seed in (3, 4)]
    assert [record["seed"] for record in records] == [3, 4]
    found = json.loads(out)
    assert (found["seeds"], found["headline"]) == ([3, 4], "auroc")
    for network in ("smooth", "exact"):
        values = [record["metrics"][network]["test"]["loss"] for record in records]
        of = found["test"][network]["loss"]
        assert of["values"] == values
        assert (of["mean"], of["deviation"]) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    code, out, err = htaf(*words, "--seed", "3", "--seeds", "3")
    assert (code, err.count("already done")) == (0, 2)
    assert "over 3 seeds" in out
    assert re.search(r"loss .* 0\.\d{4} ± 0\.\d{4} .* 0\.\d{4} ± 0\.\d{4}", out)


def test_predict_does_not_overwrite_what_it_reads(htaf, run: Path, table: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_bytes(table.read_bytes())
    (tmp_path / "link.csv").symlink_to(own)
    metrics = (run / "metrics.csv").read_bytes()
    for out, said in ((own, "same file"), (tmp_path / "link.csv", "same file"), (run / "metrics.csv", "of the run in")):
        code, _, err = htaf("predict", run, own, "--out", out)
        assert code == 2
        assert said in one_line(err)
    assert own.read_bytes() == table.read_bytes()
    assert (run / "metrics.csv").read_bytes() == metrics
    code, _, err = htaf("predict", run)
    assert code == 2
    assert "expected INPUT" in one_line(err)


def test_progress_without_a_terminal_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with _console.progress("epochs [b]", 4, done=1, every=0) as advance:
        advance(1, "accuracy [0.9]")
        advance(2)
    one, last = capsys.readouterr().err.splitlines()
    assert one.startswith("epochs [b]: 2 of 4 in 0.0 s, ")
    assert one.endswith("; accuracy [0.9]")
    assert last == "epochs [b]: 4 of 4 in 0.0 s"
    with _console.progress("soon done", 2) as advance:  # a line every ten seconds
        advance(2)
    with _console.progress("exporting", None) as advance:
        advance()
    with _console.progress("not a word", 2, shown=False, every=0) as advance:
        advance(2, "done")
    assert capsys.readouterr().err == "exporting\n"


COMMANDS = [(), *((group,) for group in GROUPS), *(tuple(verb.split()) for verb in VERBS)]


@pytest.mark.parametrize("words", ["doctor", "doctor --json", "doctor --help", "--version"])
@pytest.mark.parametrize("unread", ["at once", "after a while"])
def test_a_reader_that_has_gone(words: str, unread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`htaf doctor | head -1` ends quietly, whether the text is written at once or by the last flush."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = io.TextIOWrapper(os.fdopen(writer, "wb"), line_buffering=unread == "at once")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["htaf", *words.split()])
    try:
        cli.main()
        code = 0
    except SystemExit as left:
        code = left.code or 0
    assert code == 0
    stream.close()


HIDDEN = "gnp.\u202eexe\x1b[2J\x9b1m\r"


def test_nothing_is_hidden_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = rich.table.Table(title=f"[red]{HIDDEN}")
    table.add_column(HIDDEN)
    table.add_row(f"[b]:cat: {HIDDEN}")
    _console.terminal(width=200).print(table)
    _console.say(HIDDEN, end="")
    _console.say_notes([HIDDEN])
    with pytest.raises(SystemExit), _console.plain_errors():
        _console.fail(HIDDEN, 1)
    with _console.running("doctor", keeps=False, json=True):
        _console.print_json({"name": HIDDEN})
    captured = capsys.readouterr()
    assert not set(captured.out + captured.err) & {"\u202e", "\x1b", "\x9b", "\r"}
    assert captured.out.count(r"gnp.\u202eexe\u001b[2J\u009b1m\r") == 5
    assert "[b]:cat: gnp" in captured.out
    assert json.loads(captured.out[captured.out.index("{") :])["result"] == {"name": HIDDEN}


@pytest.mark.parametrize("path", sorted(Path(cli.__file__).parent.glob("*.py")))
def test_commands_speak_through_the_console(path: Path) -> None:
    """`say`, `Terminal`, `print_csv`: print() and rich's own console show control characters of names as they are."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    assert not {node.func.id for node in calls if isinstance(node.func, ast.Name)} & {"print", "Console"}


def test_flags_in_messages_exist(flags_of) -> None:
    """Each flag that a text of the library names is one of some verb; `htaf` in conftest checks those of one."""
    known = set().union(*(flags_of(*verbs) for verbs in COMMANDS)) | {"--version", "--porcelain", "--tyro-"}
    known |= {"--address", "--head", "--num-gpus", "--port", "--skip-version-check"}  # of ray's own command
    named: dict[str, str] = {}
    of_compilers = {"execute.py"}
    for path in Path(runs.__file__).parents[1].rglob("*.py"):
        if path.name in of_compilers:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named |= dict.fromkeys(re.findall(r"(?<![\w(-])--[a-z][a-z0-9-]+(?![\w:-])", node.value), path.name)
    assert {flag: where for flag, where in named.items() if flag not in known} == {}


STOPPED = """
    import os, signal, sys, threading, time
    from htaf import cli

    def work() -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), getattr(signal, sys.argv[2]))).start()
        time.sleep(60)

    cli._run = lambda verb, words: work()
    cli.main()
"""


@pytest.mark.parametrize(("sent", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_one_signal_ends_the_command(sent: str, code: int) -> None:
    words = [sys.executable, "-c", textwrap.dedent(STOPPED), "htaf", sent]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == code
    assert one_line(done.stderr).startswith("htaf: error: stopped; the same command")


def test_a_flag_that_takes_one_value_is_given_once(run: Path, table: Path, htaf) -> None:
    for words in (("--data", table, "--json", "--data", table), (f"--data={table}", "--no-json", "--json")):
        code, _, err = htaf("evaluate", run, *words)
        assert code == 2
        assert re.search(r"expected --(data|json) once, got it 2 times", one_line(err))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_only_files_are_read(run: Path, tmp_path: Path, htaf) -> None:
    """A pipe would be waited for for ever."""
    pipe, record = tmp_path / "pipe.csv", tmp_path / "run" / "record.json"
    shutil.copytree(run, record.parent)
    record.unlink()
    for path in (pipe, record):
        os.mkfifo(path)
    for words in (
        ("predict", run, pipe), ("train", "tabular", "--data", pipe, "--target", "y", "--out", tmp_path / "new"),
        ("evaluate", record.parent),
    ):  # fmt: skip
        os.path.lexists(pipe) or os.mkfifo(pipe)
        code, _, err = htaf(*words)
        assert code, words
        assert "expected a file, got a named pipe" in one_line(err)


def test_evaluate_finds_changed_data(htaf, table: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.csv"
    moved.write_text(table.read_text())
    assert htaf("train", "tabular", "--data", moved, "--target", "label", "--out", tmp_path / "r", *QUICK)[0] == 0
    pd.read_csv(moved).head(100).to_csv(moved, index=False)
    code, _, err = htaf("evaluate", tmp_path / "r")
    assert code == 1
    assert "other data" in one_line(err)
    moved.unlink()
    code, _, err = htaf("evaluate", tmp_path / "r")
    assert code == 1
    assert "moved.csv" in one_line(err)


def test_out_of_memory_is_one_line(htaf, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from htaf.training import fit

    def stop(*args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr(fit, "_train", stop)
    code, _, err = htaf("train", "tabular", "--data", table, "--target", "label", "--out", tmp_path / "r", *QUICK)
    assert code == 1
    assert "out of memory" in one_line(err)
