"""The items of the paper, in its order: id -> where its `Study` is. Importing this file imports none of them."""

from __future__ import annotations

from importlib import import_module

from htaf._errors import suggestion
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


def item(name: str) -> Study:
    """Raises PaperError for a name that is no item."""
    if name not in ITEMS:
        raise PaperError(
            f"expected an item of the paper ({', '.join(ITEMS)}) or all, got {name!r}{suggestion(name, [*ITEMS])}"
        )
    module, _, attribute = ITEMS[name].partition(":")
    return getattr(import_module(module), attribute)


def items(names: tuple[str, ...]) -> list[Study]:
    """Those of the names, each once, in the paper's order; `all` means every one."""
    wanted = [*ITEMS] if "all" in names else [item(name).id for name in names]
    return [item(name) for name in ITEMS if name in wanted]
