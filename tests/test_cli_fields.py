"""`--set`, `--recipe FILE` and `--help-all` of `htaf train`: a few flags in the help, all fields to be set."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from htaf.cli.fields import expanded, of_flags
from htaf.training.families import FAMILIES

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
    flags = [
        "--patience",
        "3",
        "--refit",
        "False",
        "--hidden",
        "16",
        "8",
        "--weight-decay",
        "0.1",
        "--optimizer",
        "sgd",
    ]
    assert found == recipe_of(htaf, *flags)


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
