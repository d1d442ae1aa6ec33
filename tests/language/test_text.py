"""Documents and questions, read from files of others."""

from __future__ import annotations

import json

import pytest

from htaf.language import LanguageError
from htaf.language.text import by_parts, documents, questions, task_files


def written(file, lines):
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return file


def test_questions_of_the_known_sets(tmp_path):
    choices = [{"text": "b", "label": "A"}, {"text": "c", "label": "B"}]
    lines = [
        {"id": "1", "question": {"stem": "A", "choices": choices}, "answerKey": "B"},
        {"question": "A", "choices": choices, "answerKey": "B"},
        {"qID": "2", "sentence": "Ann saw Eve because _ looked.", "option1": "Ann", "option2": "Eve", "answer": "1"},
        {"context": "x", "choices": ["y", "z"], "answer": 1},
    ]
    found, bad = questions(written(tmp_path / "q.jsonl", lines))
    assert bad == []
    assert [(one.continuations, one.answer) for one in found[:2]] == [(("b", "c"), 1)] * 2
    assert found[2].contexts == ("Ann saw Eve because Ann", "Ann saw Eve because Eve")
    assert (found[2].continuations[0], found[2].answer) == ("looked.", 0)
    assert found[3].answer == 1


SENTENCE = {"sentence": "Ann saw Eve because _ looked.", "option1": "Ann", "option2": "Eve"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Expecting property name"),
        ([], "expected a JSON object, got list"),
        ({}, "no 'choices'"),
        ({"context": "x", "choices": "yes", "answer": 0}, "expected choices as a list, got str"),
        ({"question": "x", "choices": {"text": ["a", "b"]}, "answerKey": "A"}, "expected choices as a list, got dict"),
        ({"question": "x", "choices": [{"text": "a", "label": "A"}], "answerKey": "C"}, "an answerKey of A, got 'C'"),
        (SENTENCE | {"answer": "0"}, ""),
        (SENTENCE | {"answer": "3"}, ""),
        ({"context": "a", "choices": ["", "b"], "answer": 0}, ""),
        ({"context": "a", "choices": ["\ud800", "b"], "answer": 0}, ""),
    ],
)
def test_lines_that_are_left_out(line, said, tmp_path):
    good = {"context": "x", "choices": ["y", "z"], "answer": 0}
    found, (bad,) = questions(written(tmp_path / "q.jsonl", [good, line, good]))
    assert (len(found), bad.startswith("line 2: "), said in bad) == (2, True, True)
    with pytest.raises(LanguageError, match="one JSON object a line, got none; line 1"):
        questions(written(tmp_path / "q.jsonl", [line]))


def test_tasks_by_name(tmp_path, monkeypatch):
    monkeypatch.delenv("HTAF_DATA", raising=False)
    with pytest.raises(LanguageError, match=r"winogrande/train_s.jsonl and winogrande/dev.jsonl in the folder"):
        task_files("winogrande-s", tmp_path)
    folder = tmp_path / "text" / "winogrande"
    folder.mkdir(parents=True)
    for name in ("train_s", "dev"):
        (folder / f"{name}.jsonl").write_text("{}")
    assert task_files("winogrande-s", tmp_path)[1] == folder / "dev.jsonl"
    assert task_files(str(folder / "dev.jsonl")) == (folder / "dev.jsonl", None)
    with pytest.raises(LanguageError, match=r"got opnbookqa \(did you mean 'openbookqa'"):
        task_files("opnbookqa")


@pytest.mark.data
@pytest.mark.parametrize(("task", "learn", "score"), [("openbookqa", 4957, 500), ("winogrande-m", 2558, 1267)])
def test_the_known_tasks(task, learn, score, data_dir):
    assert [len(questions(file)[0]) for file in task_files(task, data_dir)] == [learn, score]


@pytest.mark.parametrize("mark", ["\n\n", "\n", "\r\n\r\n", " "])
def test_one_text_or_two_are_cut_into_documents(mark, tmp_path):
    words = [f"word {i} and more of it." for i in range(3000)]
    (tmp_path / "a.txt").write_bytes(mark.join(words).encode())
    found, notes = documents(tmp_path / "a.txt")
    assert notes == []
    assert 200 <= len(found) <= 400
    assert all(document.text.strip() for document in found)
    assert "".join(document.text for document in found) == mark.replace("\r", "").join(words)
    (tmp_path / "b.txt").write_text("short")
    assert len(documents(tmp_path)[0]) > 200


def test_parts_have_text_and_no_part_is_one_document(tmp_path):
    for number in range(30):
        (tmp_path / f"note{number}.txt").write_text(f"note {number}")
    (tmp_path / "book.txt").write_text(" ".join(f"word{i}" for i in range(30_000)))
    parts = by_parts(documents(tmp_path)[0])
    sizes = {part: sum(len(document.text) for document in found) for part, found in parts.items()}
    assert min(len(found) for found in parts.values()) >= 10
    assert all(0.05 <= sizes[part] / sum(sizes.values()) <= 0.06 for part in ("validation", "test"))


def test_files_that_are_left_out_are_told(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("some text " * 50)
        (tmp_path / f"old{number}.txt").write_bytes("später".encode("latin-1"))
    (tmp_path / "x.png").write_bytes(b"\x89")
    found, notes = documents(tmp_path)
    assert all(document.name.startswith(("0", "1", "2")) for document in found)
    assert "1 file left out (read are .txt" in notes[0]
    assert "3 of 6 files left out, not UTF-8 (old0.txt, old1.txt, old2.txt)" in notes[1]
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "a.txt").write_bytes(b"\xff")
    with pytest.raises(LanguageError, match="not UTF-8"):
        documents(bad)
    with pytest.raises(LanguageError, match="there is nothing at"):
        documents(tmp_path / "none")
