"""What GitHub reads: workflows that pin their actions, may do little and call what is there; forms; the citation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import htaf

ROOT = Path(__file__).parents[1]
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
