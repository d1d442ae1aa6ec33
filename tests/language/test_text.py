"""Documents, read from files of others."""

from __future__ import annotations

import pytest

from htaf.language import LanguageError
from htaf.language.text import documents


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
