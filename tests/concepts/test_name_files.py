"""A file of names that grows: what a call continues, and what must not be lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_askers import Counted

from htaf.concepts import naming
from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.naming import (
    NamingSettings,
    by_model,
    check_names,
    check_only,
    name_by_model,
    naming_job,
    naming_plan,
    read_names,
    write_names,
)
from htaf.concepts.naming import files as name_files
from htaf.concepts.naming.files import kept_names
from htaf.concepts.naming.job import earlier_names
from htaf.data.attributes import Attributes
from htaf.llm import BudgetError
from htaf_paper.table_model import TableModel

VALUES = np.stack([np.arange(12) < 6, np.arange(12) % 2 == 0], axis=1)
TABLE = Attributes(("low", "even"), tuple(f"c{i}" for i in range(12)), VALUES.astype(np.float32))
SHARES = VALUES.T.astype(float)
QUICK = NamingSettings(permutations=99)
MODEL = TableModel(TABLE)


def plan(settings: NamingSettings = QUICK):
    return naming_plan(SHARES, TABLE.classes, (), settings)


def named() -> list[dict]:
    return name_by_model(SHARES, MODEL, classes=TABLE.classes, settings=QUICK)


def without_seal(names: list[dict]) -> list[dict]:
    return [{key: value for key, value in entry.items() if key not in ("seal", "checked_by")} for entry in names]


def test_names_of_the_same_settings_are_known(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    assert earlier_names(path, plan(), MODEL) == []
    write_names(named(), path)
    assert without_seal(earlier_names(path, plan(), MODEL)) == named()
    waiting = [named()[0] | {"name": None, "verified": False, "status": "waiting", "settings": None}, named()[1]]
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
        of = plan(NamingSettings(permutations=99, threshold=0.8))
    elif how == "model":
        model.model = "another"
    elif how == "server":
        monkeypatch.setattr(model, "base_url", "http://localhost:8000/v1", raising=False)
    elif how == "prompts":
        monkeypatch.setattr(by_model, "TEMPLATES", ("another",))
    elif how == "classes":
        of = naming_plan(SHARES, [f"k{i}" for i in range(12)], (), QUICK)
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


def codes() -> Codes:
    labels = np.repeat(np.arange(12), 2)
    parts = np.zeros(24, dtype=np.uint8)
    weight = np.random.default_rng(0).normal(size=(12, 2)) * [1, 9]
    return codes_of(VALUES[labels], labels, weight, np.zeros(12), classes=TABLE.classes, parts=parts)


def test_a_job_is_continued_and_names_anew_what_is_asked_for(tmp_path: Path) -> None:
    path, whole = tmp_path / "names.json", name_by_model(codes(), MODEL, settings=QUICK)
    failing = Counted(MODEL, lambda n, text: BudgetError("used up") if n > 6 else None)
    job = naming_job(codes(), failing, QUICK, out=path)
    assert job.estimate().calls == 12
    with pytest.raises(BudgetError):
        job.run(parallel=1)
    assert [entry["concept"] for entry in read_names(path)] == [1]  # the more important
    again = Counted(MODEL)
    job = naming_job(codes(), again, QUICK, out=path)
    assert job.estimate().calls == 6
    assert without_seal(job.run()) == whole
    assert without_seal(read_names(path, codes=job.codes)) == whole
    assert len(again.prompts) == 6
    anew = Counted(MODEL)
    names = naming_job(codes(), anew, QUICK, out=path, top=1, refresh=True).run()
    assert (without_seal(names), len(anew.prompts)) == (whole, 6)


def test_a_job_checks_the_names_of_a_file(tmp_path: Path) -> None:
    given = tmp_path / "mine.json"
    given.write_text(json.dumps([{"concept": 0, "name": "low"}, {"concept": 1, "name": "low"}]))
    job = naming_job(codes(), MODEL, QUICK, given=given, only=[1, 0])
    names = job.run()
    assert [(entry["name"], entry["verified"]) for entry in names] == [("low", True), ("low", False)]
    assert job.unused_replies(names) == []


def test_every_public_name_is_there() -> None:
    assert [name for name in naming.__all__ if not hasattr(naming, name)] == []
