"""The site: `make docs` runs the examples, renders pages and API, and ends with an error at the first warning."""

from __future__ import annotations

import htaf

project, author, release = "htaf", "the authors of htaf", htaf.__version__
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**", "paper/**.md"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
myst_heading_anchors = 4
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_ivar = True
autosummary_generate = ["docs/api.rst"]
html_theme = "furo"
html_title = "htaf"
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "docs/gallery",
    "filename_pattern": r"/\d\d_",  # serve.py is a server of its own
    "ignore_pattern": r"serve",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "write_computation_times": False,
}
