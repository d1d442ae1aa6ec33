"""How large an installation is: htaf with what it needs, beside htaf with all of its extras.

Counted are the files of the distributions of this environment that `pip install htaf` brings, and those that it brings
with the extras tables, images, language, export, scale and hub, by what each says that it requires. The library itself
is counted as its sources.

    python benchmarks/install_size.py [--json results/install_size.json]
"""

from __future__ import annotations

import argparse
import json
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "htaf"


def required(given: list[str]) -> set[str]:
    """The installed distributions that these requirements bring, by name."""
    found, left = set[str](), [Requirement(one) for one in given]
    while left:
        one = left.pop()
        if one.name in found:
            continue
        try:
            needs = metadata.distribution(one.name).requires or []
        except metadata.PackageNotFoundError:
            continue  # of another platform, or an extra that is not installed here
        found.add(one.name)
        extras = [*one.extras, ""]
        of = map(Requirement, needs)
        left += [r for r in of if r.marker is None or any(r.marker.evaluate({"extra": extra}) for extra in extras)]
    return found


def size(names: set[str]) -> int:
    """Bytes of the files of distributions."""
    files = (file for name in names for file in metadata.files(name) or ())
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for name, of in project["optional-dependencies"].items() if name != "peers" for one in of]
    own = sum(file.stat().st_size for file in SOURCE.rglob("*") if file.is_file() and file.suffix != ".pyc")
    rows = {}
    for what, given in (("bare", project["dependencies"]), ("all extras", project["dependencies"] + extras)):
        names = required([one for one in given if not one.startswith("htaf")])
        rows[what] = {"distributions": len(names), "bytes": size(names) + own}
        torch = size(required(["torch"])) if "torch" in names else 0
        rows[what]["without torch"] = rows[what]["bytes"] - torch
    for what, row in rows.items():
        mb, rest = row["bytes"] / 1e6, row["without torch"] / 1e6
        print(f"{what}: {row['distributions']} distributions, {mb:,.0f} MB, {rest:,.0f} MB without torch and its needs")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
