"""What all verbs share: `--json`, exit codes, `python -m htaf`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from htaf import __version__
from htaf._ground import console as _console
from htaf._ground.errors import HtafError
from htaf.cli import VERBS, known
from htaf.cli.training import expanded, of_flags
from htaf.training.families import FAMILIES

PAGE = Path(__file__).parents[1] / "docs" / "command.md"


@pytest.mark.parametrize("verb", known().verbs)
def test_every_verb_answers_json_in_one_shape(verb: str, htaf, flags_of: Callable[..., set[str]]) -> None:
    """The fixture looks at the shape of every answer in all tests; here each verb has one, of an error."""
    assert "--json" in flags_of(*verb.split())
    code, out, err = htaf(*verb.split(), "--json", "--no-such-flag")
    assert (code, out) == (2, "")
    assert f"htaf {verb} --help" in err


def test_the_answer_is_all_there_is_on_the_output(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with _console.running("doctor", keeps=False, json=True):
        _console.say_notes(["a note"])
        _console.print_json({"path": PAGE, "nan": float("nan"), "numpy": np.float32(0.5), "torch": torch.arange(2)})
    printed = capsys.readouterr()
    result = {"path": str(PAGE), "nan": None, "numpy": 0.5, "torch": [0, 1]}
    told = {"htaf": __version__, "verb": "doctor", "result": result, "notes": ["a note"], "error": None}
    assert json.loads(printed.out) == told
    assert printed.err == "note: a note\n"


@pytest.mark.parametrize("keeps", [False, True])
def test_a_stopped_verb_says_whether_it_goes_on(keeps: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), _console.plain_errors(), _console.running("train", keeps=keeps, json=False):
        stop()
    assert ("goes on from what is done" in capsys.readouterr().err) == keeps


def stop() -> None:
    raise KeyboardInterrupt


def fail(error: BaseException) -> None:
    raise error


WAYS: dict[int, Callable[[], None]] = {  # to end, each with its exit code
    0: lambda: None,
    1: lambda: fail(HtafError("it failed")),
    2: lambda: fail(_console.UsageError("used wrongly")),
    3: lambda: _console.say_unread(["one.png: no image"], 2),
    130: stop,
    143: lambda: fail(_console.Terminated()),
}


@pytest.mark.parametrize("code", _console.EXITS)
def test_every_exit_code(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    left = 0
    try:
        with _console.plain_errors(), _console.running("predict", keeps=False, json=True):
            _console.print_json([])
            WAYS[code]()
    except SystemExit as ended:
        left = ended.code
    assert left == code
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert (error or {"code": 0})["code"] == code
    assert not code or printed.err.endswith(f"htaf: error: {error['message']}\n")


def test_the_page_says_which_verbs_go_on() -> None:
    section = PAGE.read_text().partition("## Stop and go on\n")[2].partition("\n\n")[2].partition("\n## ")[0]
    first = re.findall(r"^\| ((?:`[a-z -]+`(?:, )?)+) \|", section, re.MULTILINE)
    named = {verb for cell in first for verb in re.findall("`(.*?)`", cell)}
    named |= {verb for verb in VERBS if verb.startswith("train ")}
    assert named - {"train", "paper run"} == {verb for verb, row in VERBS.items() if row.keeps}


def test_the_page_has_the_table_of_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert {int(code): text for code, text in rows} == _console.EXITS


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "htaf", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"htaf {__version__}\n"


# ---- `--set`, `--recipe FILE` and `--help-all` of `htaf train`: a few flags in the help, all fields to be set ----


TRAIN = ("train", "tabular", "--data", "digits")


def recipe_of(htaf: Any, *words: str) -> dict[str, Any]:
    code, out, err = htaf(*TRAIN, "--out", "none", "--print-recipe", "--json", *words)
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("verb", [family.verb for family in FAMILIES.values()])
def test_help_is_a_screen_and_help_all_has_every_field(htaf, verb: str) -> None:
    short, whole = (htaf("train", verb, flag)[1] for flag in ("--help", "--help-all"))
    assert len(short.splitlines()) < 80
    for flag in ("--epochs", "--data", "--out", "--recipe"):
        assert flag in short
    for flag in ("--patience", "--lr-end", "--devices", "--checkpoint-seconds"):
        assert flag in whole
        assert flag not in short


def test_set_is_a_field_of_any_kind(htaf) -> None:
    words = ("patience=3", "refit=false", "hidden=16,8", "weight-decay=0.1", "optimizer=sgd")
    found = recipe_of(htaf, "--set", *words)
    assert (found["patience"], found["refit"], found["hidden"], found["optimizer"]) == (3, False, [16, 8], "sgd")
    flags = "--patience 3 --refit False --hidden 16 8 --weight-decay 0.1 --optimizer sgd"
    assert found == recipe_of(htaf, *flags.split())


def test_a_recipe_that_was_printed_is_read(htaf, tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    code, out, _ = htaf(
        *TRAIN, "--out", "none", "--print-recipe", "--set", "patience=3", "hidden=16", "refit=false", "epochs=2"
    )
    assert code == 0
    file.write_text(out)
    assert tomllib.loads(out)["recipe"]["hidden"] == [16]
    assert recipe_of(htaf, "--recipe", str(file)) == recipe_of(
        htaf, "--set", "patience=3", "hidden=16", "refit=false", "epochs=2"
    )
    for text, said in (("x", "a TOML file"), ("[recipe]\nnone=1", "'none'"), ("[recipe]\nfamily='icbm'", "family mlp")):
        file.write_text(text)
        code, _, err = htaf(*TRAIN, "--out", "none", "--recipe", file)
        assert (code, said in err) == (2, True), err


def test_columns_keep_their_blanks() -> None:
    kinds = {"exclude": tuple[str, ...], "strict": bool, "hidden": tuple[int, ...] | None}
    words = ["--set", "exclude=first name,b", "strict=false", "hidden=8 4", "--json"]
    assert expanded(words, kinds, "mlp") == [
        "--exclude", "first name", "b", "--no-strict", "--hidden", "8", "4", "--json",
    ]  # fmt: skip
    assert of_flags(["--lr-end=1", "x", "--no-refit"]) >= {"lr_end", "refit"}


@pytest.mark.parametrize("word", ["nonsense=1", "patience", ""])
def test_what_cannot_be_set_is_refused(htaf, word: str) -> None:
    code, _, err = htaf(*TRAIN, "--out", "none", "--set", *([word] if word else []))
    assert code == 2
    assert "FIELD=VALUE" in err
