"""`htaf concepts name --pictures`: nothing is sent unasked, and what is sent is answered, kept and continued."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch

from htaf.cli import concepts as naming
from htaf.concepts.codes import Codes
from htaf.concepts.store import open_codes, write_codes
from made_pictures import NAMES, VisionModel, pictured
from made_runs import digits, made_run
from scripted_server import Answer, ScriptedServer

MODEL = VisionModel()
CODES, PIXELS = pictured(2, 360, np.random.default_rng(0))


def written(codes: Codes, out: Path) -> Path:
    ids = [f"photo {i}.jpg" for i in range(len(codes))]
    none = np.zeros(len(codes), dtype=np.int32)
    named = replace(codes, ids=ids, classes=("cat", "dog"), smooth=none, exact=none, saturated=none)
    return write_codes(out, named, {"what": "made"}).path


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(CODES, tmp_path_factory.mktemp("codes") / "codes")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No model, server, key or cache of the machine's own; the drawn pictures for those of a run."""
    for name in ("OPENAI_MODEL", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(naming, "_pixels", lambda codes, run, data_dir: lambda rows: PIXELS[rows])


def served() -> ScriptedServer:
    return ScriptedServer(lambda body: Answer(text=MODEL.answer(body["messages"])))


def words(codes: Path, url: str, *more: Any) -> tuple[Any, ...]:
    few = ("--concept", 2, 5)
    return ("concepts", "name", codes, "--model", "m", "--pictures", "run", "--base-url", url, *few, *more)


def test_nothing_is_sent_unasked(htaf, codes: Path, tmp_path: Path) -> None:
    with served() as server:
        code, out, err = htaf(*words(codes, server.base_url, "--out", tmp_path / "n.json"))
        assert (code, out, server.requests) == (2, "", [])
        host = server.base_url.removeprefix("http://").removesuffix("/v1")
        assert "nothing was sent; to send these images, add --send-pictures" in err
        assert re.search(
            rf"2 names to find .*: 9 requests that show \d+ of your images to {host},", " ".join(err.split())
        )
        code, out, err = htaf(*words(codes, server.base_url, "--estimate", "--json"))
        assert (code, server.requests) == (0, [])
        needed = json.loads(out)
        assert (needed["names"], needed["requests"]) == (2, 9)
        assert 0 < needed["images"] <= 2 * 88
        assert not (tmp_path / "n.json").exists()


def test_names_are_found_checked_and_kept(htaf, codes: Path, tmp_path: Path) -> None:
    out = tmp_path / "n.json"
    with served() as server:
        code, printed, err = htaf(*words(codes, server.base_url, "--send-pictures", "--out", out))
        assert code == 0, err
        assert "2 of 2 names verified" in printed
        assert NAMES[2] in printed
        found = json.loads(out.read_text())
        assert [(e["name"], e["status"], e["source"]) for e in found] == [
            (NAMES[c], "verified", "pictures") for c in (2, 5)
        ]
        sent = json.dumps(server.requests)
        assert "photo" not in sent.replace("photos", "")
        assert not {"cat", "dog"} & set(sent.replace('"', " ").split())
        asked = len(server.requests)
        code, printed, err = htaf(*words(codes, server.base_url, "--send-pictures", "--out", out))
        assert (code, len(server.requests)) == (0, asked)
        code, printed, err = htaf(*words(codes, server.base_url, "--send-pictures", "--out", tmp_path / "again.json"))
        assert (code, len(server.requests)) == (0, asked)  # kept in the cache, without pictures
        assert not any("base64" in file.read_text() for file in (tmp_path / "xdg").rglob("*.json"))
        code, printed, err = htaf(*words(codes, server.base_url, "--send-pictures", "--check", out, "--json"))
        assert code == 0, err
        assert {e["checked_by"] for e in json.loads(printed)} == {"m"}


def test_the_images_are_those_of_the_run(htaf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    images = digits()
    made_run(tmp_path / "run", images)
    assert htaf("concepts", "extract", tmp_path / "run", "--out", tmp_path / "codes")[0] == 0
    opened = open_codes(tmp_path / "codes")
    found = naming._pixels(opened, tmp_path / "run", None)(np.array([0, len(opened) - 1]))
    for one, row in zip(found, (0, len(opened) - 1), strict=True):
        side, number = opened.ids[row].split("/")
        assert (one == getattr(images, side).batch(torch.tensor([int(number)]))[0].numpy()).all()
