"""The items of the paper, in its order, and our own studies: id -> where its `Study` is. None is imported here."""

from __future__ import annotations

import re
from importlib import import_module

from htaf._ground.errors import suggestion
from htaf_paper.protocol import PaperError, Study

ITEMS = {
    "activation": "htaf_paper.activation:ACTIVATION",
    "bounds": "htaf_paper.activation:BOUNDS",
    "datasets": "htaf_paper.datasets:STUDY",
    "images-snn": "htaf_paper.images:SNN",
    "images-bnn": "htaf_paper.images:BNN",
    "images-dhn": "htaf_paper.images:DHN",
    "ann-to-snn": "htaf_paper.ann_to_snn:STUDY",
    "icbm-accuracy": "htaf_paper.icbm_items:ACCURACY_ITEM",
    "class-specificity": "htaf_paper.icbm_figures:CLASS_SPECIFICITY",
    "cub-concepts": "htaf_paper.icbm_figures:CUB_CONCEPTS",
    "vanishing": "htaf_paper.vanishing:STUDY",
    "pairs": "htaf_paper.pairs:STUDY",
    "tabular": "htaf_paper.tabular:STUDY",
    "language": "htaf_paper.language:STUDY",
    "theory": "htaf_paper.theory:STUDY",
    "icbm-methods": "htaf_paper.icbm_items:METHODS_ITEM",
    "binarisation": "htaf_paper.icbm_items:BINARISATION",
    "feature-histograms": "htaf_paper.icbm_figures:FEATURE_HISTOGRAMS",
    "cbm": "htaf_paper.icbm_items:CBM",
}


# with a report of their own
EXPERIMENTS = {
    "where": "htaf_paper.where:STUDY",
    "planted": "htaf_paper.planted:STUDY",
    "named": "htaf_paper.named:STUDY",
    "pictured": "htaf_paper.pictured:STUDY",
    "pretrained": "htaf_paper.pretrained:STUDY",
    "tables": "htaf_paper.many_tables:STUDY",
}


def item(name: str) -> Study:
    """Raises PaperError for a name that is no item."""
    known = ITEMS | EXPERIMENTS
    if name not in known:
        raise PaperError(
            f"expected an item of the paper ({', '.join(ITEMS)}), a study of ours ({', '.join(EXPERIMENTS)}) or all, "
            f"got {name!r}{suggestion(name, [*known])}"
        )
    module, _, attribute = known[name].partition(":")
    return getattr(import_module(module), attribute)


def _at(place: str) -> list[str]:
    """The items of a table or figure of the paper, as "Table 7" or "figure 3"."""
    found = re.fullmatch(r"(table|figure) (\d+)", place.lower())
    if found is None:
        return []
    where = re.compile(rf"\b{found[1]}s? (\d+ and )?{found[2]}\b")
    return [name for name in ITEMS if where.search(item(name).paper.lower())]


def items(names: tuple[str, ...]) -> list[Study]:
    """Those of the names, each once, in the paper's order, then our own; `all` means every one of the paper, "table 7"
    those of its table."""
    wanted = set(ITEMS) if "all" in names else set()
    for name in names:
        wanted |= set() if name == "all" else {*(_at(name) or [item(name).id])}
    return [item(name) for name in (*ITEMS, *EXPERIMENTS) if name in wanted]
