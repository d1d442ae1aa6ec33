from __future__ import annotations

import json
from pathlib import Path

import pytest

from htaf_paper.records import RecordsError, read_records, write_records

A, B = {"seed": 0, "metrics": {"exact": 0.5}}, {"seed": 1, "title": "é\u2028"}


def test_the_same_bytes_for_the_same_records(tmp_path: Path) -> None:
    write_records(tmp_path / "cells.jsonl", [B, A])
    written = (tmp_path / "cells.jsonl").read_bytes()
    assert written == '{"metrics":{"exact":0.5},"seed":0}\n{"seed":1,"title":"é\u2028"}\n'.encode()
    write_records(tmp_path / "cells.jsonl", [A, B, A])
    assert (tmp_path / "cells.jsonl").read_bytes() == written
    assert read_records(tmp_path) == [A, B]


def test_what_runs_is_read_too(tmp_path: Path) -> None:
    assert read_records(tmp_path) == []
    write_records(tmp_path / "cells.jsonl", [B])
    for key in ("b", "a", "unfinished"):
        (tmp_path / "cells" / key).mkdir(parents=True)
    for key in ("b", "a"):
        (tmp_path / "cells" / key / "record.json").write_text(json.dumps({"key": key}))
    assert read_records(tmp_path) == [B, {"key": "a"}, {"key": "b"}]


@pytest.mark.parametrize("damage", ["", "[1]", '{"a": NaN}', '{"a": 1'])
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    (tmp_path / "cells.jsonl").write_text(f'{{"a": 1}}\n{damage}\n{{"b": 1}}\n')
    with pytest.raises(RecordsError, match=r"cells\.jsonl, line 2 is damaged"):
        read_records(tmp_path)


def test_nothing_else_can_be_written(tmp_path: Path) -> None:
    write_records(tmp_path / "cells.jsonl", [A])
    with pytest.raises(ValueError, match="JSON compliant"):
        write_records(tmp_path / "cells.jsonl", [{"loss": float("nan")}])
    assert [file.name for file in tmp_path.iterdir()] == ["cells.jsonl"]
    assert read_records(tmp_path) == [A]
