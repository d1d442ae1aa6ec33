"""Pages of concepts that an example writes are on the site, to click through."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from htaf.concepts.discovery import Discovery

PLACE = Path(__file__).parent / "live"  # the site takes what is in it as it is
FRAME = """
.. raw:: html

    <iframe src="../../{name}/index.html" title="The page of this example" class="live" loading="lazy"></iframe>
    <p><a href="../../{name}/index.html">The page alone</a></p>
"""


def pages(block: Any, shared: dict[str, Any], settings: dict[str, Any]) -> str:
    """A scraper of sphinx-gallery: the page of `htaf.discover`, under the lines that name it."""
    found = [value for value in shared["example_globals"].values() if isinstance(value, Discovery)]
    if not found or ".page" not in block[1]:
        return ""
    name = Path(shared["src_file"]).stem
    shutil.copytree(found[0].page.parent, PLACE / name, dirs_exist_ok=True)
    return FRAME.format(name=name)
