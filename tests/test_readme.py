"""The README and the pages of docs/: their Python runs, their commands, flags, targets and links exist."""

from __future__ import annotations

import contextlib
import re
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from made_hub import serving
from made_language import TEXT, write_model
from made_runs import digits, made_run

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
# the log tells of commands as they were
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted(set((ROOT / "docs").glob("*.md")) - {ROOT / "docs" / "log.md"}),
    *sorted((ROOT / "paper").glob("*.md")),
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).with_suffix("").as_posix())


def blocks_of(page: Path, *languages: str) -> list[str]:
    """The fenced blocks in one of the languages."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [content for language, content in fenced if language in languages]


def commands_of(page: Path) -> list[list[str]]:
    """The words of every htaf command in a fenced block, without comments; continued lines are one."""
    text = "\n".join(blocks_of(page, "", "bash")).replace("\\\n", " ")
    lines = re.findall(r"(?:^|\s)(?:\.venv/bin/htaf|htaf|-m htaf) (.*)", text)
    return [shlex.split(line, comments=True) for line in lines]


QUICK = (README, *(ROOT / "docs" / f"{name}.md" for name in ("own-model", "networks", "kernels", "sharing")))
EXAMPLES = [
    pytest.param(page, number, id=f"{page.stem}-{number}", marks=[] if page in QUICK else [pytest.mark.slow])
    for page in PAGES
    for number in range(len(blocks_of(page, "python")))
]


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
def test_the_python_of_the_pages_runs(
    page: Path,
    number: int,
    htaf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    code = blocks_of(page, "python")[number]
    monkeypatch.chdir(tmp_path)
    for peer in re.findall(r"^from (spikingjelly|torch_concepts)\b", code, re.MULTILINE):
        pytest.importorskip(peer)
    if "runs/icbm" in code:
        made_run(tmp_path / "runs" / "icbm", digits())
        assert htaf("concepts", "extract", "runs/icbm", "--out", "runs/codes")[0] == 0
    elif "runs/codes" in code:
        made_run(tmp_path / "run", digits())
        assert htaf("concepts", "extract", "run", "--out", "runs/codes")[0] == 0
    if "runs/dhn" in code:
        made_run(tmp_path / "runs" / "dhn", digits(), kind="wide_resnet")
    if "table.onnx" in code:
        words = ("--data", "digits", "--epochs", "1", "--hidden", "8", "--out", "runs/table")
        assert htaf("train", "tabular", *words)[0] == 0
        assert htaf("export", "runs/table", "--to", "onnx", "--out", "table.onnx")[0] == 0
    if "htaf.language" in code:
        from htaf.language import Data, Training, fit

        (tmp_path / "texts").mkdir()
        for file in ("texts/text.txt", "notes.txt"):
            (tmp_path / file).write_text(TEXT)
        write_model(tmp_path / "SmolLM2-135M-Instruct", max_position_embeddings=512)
        if "fit(" not in code:
            fit("SmolLM2-135M-Instruct", Data(text="texts"), Training(steps=0), "runs/smol", last_k=2)
        code = code.replace("steps=400", "steps=4")  # minutes
    if "torch.compile(" in code:  # Dynamo cannot trace through the checks
        request.getfixturevalue("unchecked")
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        if "push_to_hub(" in code:
            stack.enter_context(serving(tmp_path / "cache"))
        if page == README:
            warnings.simplefilter("error", UserWarning)
        exec(compile(code, page.name, "exec", dont_inherit=True), {"__name__": "__main__"})
    if "htaf.conversion(" in code:
        assert "relu" in capsys.readouterr().out.lower(), "the conversion says what it replaced"


@each_page
def test_commands_and_their_flags_exist(
    page: Path, help_of: Callable[..., str], flags_of: Callable[..., set[str]]
) -> None:
    for words in commands_of(page):
        bare = words[: next((place for place, word in enumerate(words) if word.startswith("-")), len(words))]
        verbs = bare[: 2 if bare[0] in ("train", "concepts", "paper") else 1]
        named = {word.split("=")[0] for word in words if re.match(r"--[a-z]", word)}
        assert re.match(rf"usage: htaf {' '.join(verbs)}\s", help_of(*verbs)), f"no verb {' '.join(verbs)}"
        assert named <= flags_of(*verbs), f"htaf {' '.join(words)}"


def test_files_and_names_that_contributing_says_are_there() -> None:
    """A step names its file, and what is changed in it: `NAME`, in `file`, or `file`: a row of `NAME`."""
    prose = re.sub(r"```.*?```", "", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    said = dict.fromkeys(re.findall(r"`([^`\s<>]+)`", prose))
    endings = [f"{room}/**/*.{kind}" for room in ("src", "tests", "paper", "csrc") for kind in ("py", "hpp", "cpp")]
    code = "\n".join(path.read_text() for ending in ["Makefile", *endings] for path in ROOT.glob(ending))
    rooms = [ROOT, *(ROOT / "src" / "htaf" / room for room in ("", "core", "program"))]
    paths = [word for word in said if re.match(r"(src|tests|csrc|paper|packed|kernels|models|concepts)/", word)]
    assert [word for word in paths if not any((room / word).exists() for room in rooms)] == []
    names = [word for word in said if re.fullmatch(r"_?[A-Z][A-Z_]+|[a-z]+_[a-z_]+|_[a-z]+", word)]
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []
    assert len(paths) > 20
    assert len(names) > 20


@each_page
def test_make_knows_the_targets_that_documents_name(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@each_page
def test_links_point_at_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s:]+)\)", page.read_text()):
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, target
