"""What readers see: the pages and their examples run, name what is there, and link to it; what GitHub reads too."""

from __future__ import annotations

import contextlib
import importlib
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import matplotlib
import pytest
import torch
import yaml
from bs4 import BeautifulSoup

import htaf
from htaf.concepts.discovery import Discovery
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
BLOCKS = [
    pytest.param(page, number, id=f"{page.stem}-{number}", marks=[] if page in QUICK else [pytest.mark.slow])
    for page in PAGES
    for number in range(len(blocks_of(page, "python")))
]


@pytest.mark.parametrize(("page", "number"), BLOCKS)
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
    torch.manual_seed(0)  # whatever ran before
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


# ---- the examples of the site run without a warning, print and draw, and write into temporary folders alone ----


EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9][0-9]_*.py"))
QUICK_EXAMPLES = ("06", "09", "11")


def names(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.name[:2] in QUICK_EXAMPLES else pytest.mark.slow, id=path.stem)
        for path in EXAMPLES
    ],
)
def test_an_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib.use("agg")
    from matplotlib import pyplot

    here, aside, beside = tmp_path / "here", tmp_path / "aside", sorted(path.parent.iterdir())
    for folder in (here, aside):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(aside))
    pyplot.close("all")
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("error", UserWarning)
            runpy.run_path(str(path), run_name="__main__")
        drawn = [pyplot.figure(number).axes for number in pyplot.get_fignums()]
    finally:
        pyplot.close("all")
    printed = capsys.readouterr()
    assert printed.out.strip()
    assert not printed.err, "nothing is written to the error stream: no bars"
    assert all(drawn), "a figure without axes"
    assert list(here.iterdir()) == []
    assert sorted(path.parent.iterdir()) == beside


# ---- the site of `make docs` ----


@pytest.mark.slow
def test_the_site_is_built_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    words = ["-q", "-W", "--keep-going", "-D", "plot_gallery=0", "-d", str(tmp_path / "kept"), "-c", "docs", "."]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pages = {
        page: BeautifulSoup(page.read_text(), "html.parser") for page in sorted((tmp_path / "site").rglob("*.html"))
    }
    anchors = {page: {tag["id"] for tag in soup.find_all(id=True)} for page, soup in pages.items()}
    dead = []
    for page, soup in pages.items():
        for tag in soup.find_all(href=True) + soup.find_all(src=True):
            link, anchor = urldefrag(str(tag.get("href") or tag.get("src")))
            if "://" in link or link.startswith(("mailto:", "data:")):
                continue
            to = (page.parent / unquote(link.partition("?")[0])).resolve() if link else page
            if not to.exists() or (anchor and to in anchors and unquote(anchor) not in anchors[to]):
                dead.append(f"{page.relative_to(tmp_path)}: {link}#{anchor}")
    assert not dead, dead
    assert len(pages) > 100
    shown = {page.name for page in pages}
    assert {"README.html", "htaf.replace.html", "01_own_model.html"} <= shown


def test_a_page_that_an_example_writes_is_on_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    live = importlib.import_module("live")
    monkeypatch.setattr(live, "PLACE", tmp_path / "live")
    (tmp_path / "explorer").mkdir()
    (tmp_path / "explorer" / "index.html").write_text("the page")
    none: Any = None
    found = Discovery(run=none, codes=none, page=tmp_path / "explorer" / "index.html", summary={})
    shared = {"example_globals": {"x": 1, "found": found}, "src_file": "examples/03_concepts.py"}
    assert live.pages(("code", "print(found.run)", 1), shared, {}) == ""
    assert '"../../03_concepts/index.html"' in live.pages(("code", "print(found.page)", 1), shared, {})
    assert (tmp_path / "live/03_concepts/index.html").read_text() == "the page"


# ---- what GitHub reads ----


GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def jobs_of(path: Path) -> dict[str, dict[str, Any]]:
    return yaml.safe_load(path.read_text())["jobs"]


def lines_of(path: Path) -> list[str]:
    """Everything that the workflow runs in a shell."""
    steps = [step for job in jobs_of(path).values() for step in job["steps"]]
    return "\n".join(step.get("run", "") for step in steps).replace("\\\n", " ").splitlines()


@each_workflow
def test_actions_are_pinned_by_hash_and_say_their_version(path: Path) -> None:
    used = re.findall(r"uses: *(.*)", path.read_text())
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


@each_workflow
def test_jobs_have_only_the_permissions_that_they_name_and_end(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {}
    for name, job in jobs_of(path).items():
        assert job["timeout-minutes"] <= 240, name
        more = {what for what, level in job["permissions"].items() if (what, level) != ("contents", "read")}
        assert more <= {"publish": {"id-token"}, "deploy": {"pages", "id-token"}}.get(name, set()), name


@each_workflow
def test_targets_and_files_that_it_calls_are_there(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in lines_of(path):
        for target in re.findall(r"^make ([\w-]+)", line):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), line
        for file in re.findall(r"(?:tests|benchmarks)/[\w/]+\.py", line):
            assert (ROOT / file).is_file(), line


def test_wheels_are_tested_before_they_are_published() -> None:
    jobs = jobs_of(GITHUB / "workflows" / "wheels.yml")
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    settings = PROJECT["tool"]["cibuildwheel"]
    (file,) = re.findall(r"\{project\}/(\S+)", settings["test-command"])
    assert (ROOT / file).is_file()
    first = PROJECT["project"]["requires-python"].removeprefix(">=3.")
    assert settings["build"][:2] == [f"cp3{first}-*", f"{PROJECT['tool']['scikit-build']['wheel']['py-api']}-*"]


def test_the_citation_is_of_this_version() -> None:
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = PROJECT["project"]
    assert said["version"] == project["version"] == htaf.__version__
    assert said["license"] == project["license"]
    assert said["keywords"] == project["keywords"]
    assert said["title"] == f"htaf: {project['description'][0].lower()}{project['description'][1:]}"
