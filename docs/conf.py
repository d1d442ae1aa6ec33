"""The site: `make docs` runs the examples, renders pages and API, and ends with an error at the first warning."""

from __future__ import annotations

import contextlib
import json
import logging
import pkgutil
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docutils import nodes

import htaf

sys.path.insert(0, str(Path(__file__).parent))  # for live.py
Path(__file__).with_name("live").mkdir(exist_ok=True)
logging.getLogger("htaf").setLevel(logging.WARNING)  # what examples convert is said in their own output
project, author, release = "htaf", "the authors of htaf", htaf.__version__
root_doc = "README"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**",
    "paper/*.md",
    "paper/results/*/report.md",
]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
MENU = {
    "Guides": ["own-model", "tables", "named-concepts", "logic", "networks"],
    "Examples": ["gallery/index"],
    "Better networks": ["training-exact", "hardening"],
    "Run it": ["packed", "sharing", "export", "integer", "serving", "scaling", "scaling-ray", "scaling-codes"],
    "Reference": ["command", "api", "concepts", "packed-format", "architecture", "/CONTRIBUTING", "/CHANGELOG"],
    "Figures": [
        "where-it-pays",
        "results",
        "kernels",
        "log",
        "/paper/README",
        "language",
        "/paper/theory",
        "/paper/concepts",
    ],
}
MENU = {caption: [page if page[0] == "/" else f"/docs/{page}" for page in pages] for caption, pages in MENU.items()}
suppress_warnings = [
    "toc.not_included",  # reports of results, which pages lead to
    "myst.xref_missing",  # files of the repository that are no pages; tests/test_documents.py checks that they exist
]
autodoc_inherit_docstrings = False
exclude_patterns = ["docs/README.md", ".venv", "build", "data", "results", "runs", "site", "src", "tests", "web"]
myst_heading_anchors = 4
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_ivar = True
autosummary_generate = ["docs/api.rst"]
# file systems that know no case would write one page over the other
_lower = [name.lower() for name in htaf.__all__]
autosummary_filename_map = {
    f"htaf.{name}": f"htaf.{name}-class"
    for name in htaf.__all__
    if name[0].isupper() and _lower.count(name.lower()) > 1
}
html_theme = "furo"
html_title, html_logo = f"htaf {release}", "logo.svg"
html_show_copyright = False
smartquotes = False
html_extra_path = ["live"]  # what live.py keeps
html_static_path, html_css_files = ["site.css"], ["site.css"]
html_theme_options = {"light_css_variables": {"code-font-size": "78%"}}  # dark takes what light has
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "docs/gallery",
    "filename_pattern": r"/\d\d_",  # serve.py is a server of its own
    "ignore_pattern": r"serve",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "write_computation_times": False,
    "capture_repr": (),
    "image_scrapers": ("matplotlib", "live.pages"),
    "doc_module": "htaf",  # a page of the API shows the examples that use its name
    "backreferences_dir": "docs/api",
    "reference_url": {"htaf": None},
}


SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Example)\b.*:")


def plain(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: backticks are code, *, | and a last _ are themselves, indented lines go on; what is
    indented behind an empty line is a formula or code."""
    made: list[str] = []
    in_section = own_block = literal = after_blank = False
    for line in lines:
        if line[:1].strip():
            in_section, own_block, literal = bool(SECTION.match(line)), line.startswith("- "), False
        elif line.strip() and after_blank and not in_section and not own_block and not literal:
            literal = True
            made += [] if any(line.endswith("::") for line in made[-2:]) else ["::", ""]
        after_blank = not line.strip()
        parts = re.split(r"(`+[^`]*`+)", line if in_section or own_block else line.lstrip())
        parts = [
            f"``{part.strip('`')}``" if part[:1] == "`" else re.sub(r"([*|]|_\b)", r"\\\1", part) for part in parts
        ]
        made.append(line if literal else "".join(parts))
    lines[:] = made


def with_contents(app: Any, page: str, text: list[str]) -> None:
    """README is the first page; the site's menu hangs on it."""
    if page == root_doc:
        for caption, pages in MENU.items():
            text[0] += "\n".join(("", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""))


PRINTED = re.compile(r"sphx-glr-script-out\n\n \.\. code-block:: none\n\n((?: {4}.*\n|\n)+)")
FIGURES = re.compile(r"^ {4}(?!.* {4})(\S.*(?:: |%).*)$", re.MULTILINE)  # no tables: a name with its figure, or a share
SECONDS = re.compile(r"running time of the script:\*\* \( *(\d+) minutes +(\d+)")


def used_names(page: str) -> list[str]:
    """Return the name of a page of the API, and, of a module, what examples use of it under any name."""
    kept = Path(__file__).with_name("api") / "backreferences_all.json"
    named = [name for name in json.loads(kept.read_text()) if name.startswith("htaf.")] if kept.exists() else []
    found = [page]
    for name in named:
        with contextlib.suppress(ImportError, AttributeError):
            if getattr(pkgutil.resolve_name(name), "__module__", "") == page:
                found.append(name)
    return found


def with_results(app: Any, page: str, text: list[str]) -> None:
    """An example begins with a card of the figures that it printed; a page of the API ends with its examples."""
    if page.startswith("docs/api/"):
        names = used_names(page.removeprefix("docs/api/").removesuffix("-class"))
        text[0] += f"\n\n.. minigallery:: {' '.join(names)}\n   :add-heading: Examples\n"
    if page.startswith("docs/gallery/") and (time := SECONDS.search(text[0])):
        printed = "\n".join(PRINTED.findall(text[0]))
        lines = [line for line in FIGURES.findall(printed) if re.search(r"\d", line)]
        seconds = 60 * int(time[1]) + int(time[2]) + 1
        title = f".. admonition:: What it prints, within {seconds} s\n   :class: results\n\n   .. code-block:: none\n\n"
        first = text[0].index(".. GENERATED FROM")
        text[0] = text[0][:first] + title + "".join(f"      {line}\n" for line in lines[:12]) + "\n" + text[0][first:]


NO_GUIDE = re.compile(r"CHANGELOG|CONTRIBUTING|docs/log|docs/architecture|docs/results|paper/.*")


def out_of_search(app: Any, doctree: Any) -> None:
    """Leave pages that are no guides out of the search, but for their titles."""
    if NO_GUIDE.fullmatch(app.env.docname):
        app.env.metadata[app.env.docname]["nosearch"] = "true"


def as_index(app: Any, error: Exception | None) -> None:
    """Copy the first page to the name that servers look for."""
    if error is None and app.builder.format == "html":
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def without_dead_links(app: Any, doctree: Any, page: str) -> None:
    """A link to a file of the repository that is no page stands there as its text."""
    for link in list(doctree.findall(nodes.reference)):
        uri = link.get("refuri", "")
        to = link.get("refid") or (uri[1:] if uri.startswith("#") else "")
        if to and unquote(to) not in doctree.ids:
            link.replace_self(link.children)


def setup(app: Any) -> None:
    app.connect("doctree-resolved", without_dead_links)
    app.connect("source-read", with_contents)
    app.connect("source-read", with_results)
    app.connect("doctree-read", out_of_search)
    app.connect("build-finished", as_index)
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon
