"""What `htaf paper` is to the command `htaf`: its group and its verbs."""

from __future__ import annotations

from htaf.cli.verbs import Verb

GROUPS = {"paper": "The tables and figures of the paper by one command, with a verdict on each claim."}

VERBS = {
    "paper list": Verb(
        "htaf_paper.command:list_items",
        "List the tables and figures of the paper, and at which scales each can be run.",
    ),
    "paper run": Verb(
        "htaf_paper.command:run",
        "Compute tables and figures of the paper; what is finished is never computed again.",
    ),
    "paper report": Verb(
        "htaf_paper.command:report",
        "Write report.html and report.md: ours beside the paper's, and a verdict on each claim.",
    ),
    "paper cost": Verb(
        "htaf_paper.command:cost", "Say how long items take on this machine, before anything is computed."
    ),
}
