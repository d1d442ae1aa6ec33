"""A file of names that grows: what a call goes on from, and what must not be lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from htaf.concepts.codes import ConceptError
from htaf.concepts.naming import files as name_files
from htaf.concepts.naming import plan as name_plan
from htaf.concepts.naming.by_model import check_names, name_by_model
from htaf.concepts.naming.checks import Settings
from htaf.concepts.naming.files import check_only, earlier_names, kept_names
from htaf.concepts.naming.names import read_names, write_names
from htaf.concepts.naming.plan import plan_of
from htaf.data.attributes import Attributes
from htaf_paper.table_model import TableModel

VALUES = np.stack([np.arange(12) < 6, np.arange(12) % 2 == 0], axis=1)
TABLE = Attributes(("low", "even"), tuple(f"c{i}" for i in range(12)), VALUES.astype(np.float32))
SHARES = VALUES.T.astype(float)
QUICK = Settings(permutations=99)
MODEL = TableModel(TABLE)


def plan(settings: Settings = QUICK):
    return plan_of(SHARES, TABLE.classes, (), settings)


def named() -> list[dict]:
    return name_by_model(SHARES, MODEL, classes=TABLE.classes, settings=QUICK)


def without_seal(names: list[dict]) -> list[dict]:
    return [{key: value for key, value in entry.items() if key not in ("seal", "checked_by")} for entry in names]


def test_names_of_the_same_settings_are_known(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    assert earlier_names(path, plan(), MODEL) == []
    write_names(named(), path)
    assert without_seal(earlier_names(path, plan(), MODEL)) == named()
    waiting = [named()[0] | {"name": None, "verified": False, "settings": None}, named()[1]]
    write_names(waiting, path)
    assert without_seal(earlier_names(path, plan(), MODEL)) == waiting


def test_names_of_other_codes_are_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    with kept_names(path, "aaaaaaaaaaaa") as keep:
        keep(named()[:1])
        keep(named())  # at the end, after the first writing
    assert [entry["codes"] for entry in json.loads(path.read_text())] == ["aaaaaaaaaaaa"] * 2
    assert without_seal(earlier_names(path, plan(), MODEL, codes="aaaaaaaaaaaa")) == named()
    for read in (
        lambda: earlier_names(path, plan(), MODEL, codes="bbbbbbbbbbbb"),
        lambda: check_only(path, "model", 99, "bbbbbbbbbbbb"),
    ):
        with pytest.raises(ConceptError, match=r"those of another network \(aaaaaaaaaaaa\)"):
            read()


@pytest.mark.parametrize(
    "how", ["settings", "model", "server", "prompts", "hand", "attributes", "checked", "edited", "classes"]
)
def test_other_names_are_not_lost(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model, of = tmp_path / "names.json", TableModel(TABLE), plan()
    entries = named()
    if how == "settings":
        of = plan(Settings(permutations=99, threshold=0.8))
    elif how == "model":
        model.model = "another"
    elif how == "server":
        monkeypatch.setattr(model, "base_url", "http://localhost:8000/v1", raising=False)
    elif how == "prompts":
        monkeypatch.setattr(name_plan, "TEMPLATES", ("another",))
    elif how == "classes":
        of = plan_of(SHARES, [f"k{i}" for i in range(12)], (), QUICK)
    elif how == "checked":
        entries = check_names(SHARES, MODEL, entries, classes=TABLE.classes, settings=QUICK, only=[0])
    elif how != "edited":
        entries[1] |= {"source": how}
    write_names(entries, path)
    if how == "edited":
        path.write_text(path.read_text().replace('"name": "even"', '"name": "odd"'))
    with pytest.raises(ConceptError, match=r"names.json: expected a new file or names of the same settings"):
        earlier_names(path, of, model)


def test_a_table_says_not_what_it_rests_on(tmp_path: Path) -> None:
    path = tmp_path / "names.csv"
    assert earlier_names(path, plan(), MODEL) == []
    for checked in (None, path):
        for write in (lambda: write_names(named(), path), lambda: path.write_text("concept,name\n0,mine\n")):
            write()
            with pytest.raises(ConceptError, match="got one that exists"):
                earlier_names(path, plan(), MODEL, checked=checked)


def test_names_of_one_source_alone_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    check_only(path, "attributes", 2)
    ours = [entry | {"source": "attributes"} for entry in named()]
    write_names(ours, path)
    check_only(path, "attributes", 2)
    for other in (named(), [ours[0], ours[1] | {"checked_by": "m"}], [{"concept": 0, "name": "mine"}]):
        write_names(other, path)
        with pytest.raises(ConceptError, match=r"expected a new file or names of attributes.*which would be lost"):
            check_only(path, "attributes", 2)
    path.write_text("{}")
    with pytest.raises(ConceptError, match="expected a list"):
        check_only(path, "attributes", 2)


def test_checked_names(tmp_path: Path) -> None:
    path, own = tmp_path / "checked.json", tmp_path / "own.csv"
    own.write_text("concept,name\n0,low\n1,even\n")
    checked = check_names(SHARES, MODEL, read_names(own), classes=TABLE.classes, settings=QUICK)
    write_names(checked[:1], path)
    assert without_seal(earlier_names(path, plan(), MODEL, checked=own)) == without_seal(checked[:1])
    write_names(named(), path)
    with pytest.raises(ConceptError, match="expected a new file or one of checked names"):
        earlier_names(path, plan(), MODEL, checked=own)
    assert earlier_names(path, plan(), MODEL, checked=path) == []  # its own names, to be checked


def test_names_are_written_now_and_then_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, now = tmp_path / "names.json", [100.0]
    monkeypatch.setattr(name_files.time, "monotonic", lambda: now[0])

    def numbers() -> list[int]:
        return [entry["concept"] for entry in json.loads(path.read_text())]

    def entries(count: int) -> list[dict]:
        return [{"concept": i, "name": None} for i in range(count)]

    with pytest.raises(KeyboardInterrupt), kept_names(path) as keep:  # noqa: PT012
        keep(entries(1))
        assert numbers() == [0]
        now[0] += 0.5
        keep(entries(2))
        assert numbers() == [0]
        now[0] += 0.6
        keep(entries(3))
        assert numbers() == [0, 1, 2]
        keep(entries(4))
        raise KeyboardInterrupt
    assert numbers() == [0, 1, 2, 3]
    with kept_names(tmp_path / "none.json"):
        pass
    assert not (tmp_path / "none.json").exists()
    with kept_names(None) as keep:
        keep(entries(1))
