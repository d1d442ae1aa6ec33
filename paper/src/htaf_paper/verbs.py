"""What `htaf paper` is to the command `htaf`: its group and its verbs."""

from __future__ import annotations

from htaf.cli import Verb

GROUPS = {"paper": "The tables and figures of the paper by one command, with a verdict on each claim."}

VERBS = {
    "paper list": Verb(
        "htaf_paper.command:list_items",
        "List the tables and figures of the paper, and our own studies, and at which scales each can be run.",
    ),
    "paper run": Verb(
        "htaf_paper.command:run",
        "Compute tables and figures of the paper; what is finished is never computed again.",
        keeps=True,
    ),
    "paper report": Verb(
        "htaf_paper.command:report",
        "Write report.html and report.md: ours beside the paper's, and a verdict on each claim.",
    ),
    "paper cost": Verb(
        "htaf_paper.command:cost", "Say how long items take on this machine, before anything is computed."
    ),
    "paper bench": Verb(
        "htaf_paper.concept_verbs:bench",
        "Compare codes with bits that anyone gets from the same features: are they concepts?",
    ),
    "paper binarise": Verb(
        "htaf_paper.concept_verbs:binarise",
        "Make codes of features by one threshold for each node, from the training images.",
    ),
    "paper labelfree": Verb(
        "htaf_paper.concept_verbs:labelfree",
        "Make codes whose concepts are texts, over the backbone of a run: a label-free concept bottleneck, by CLIP.",
    ),
    "paper leakage": Verb(
        "htaf_paper.concept_verbs:leakage",
        "State leakage: what soft values, and bits beyond their names, tell of the class.",
    ),
}
