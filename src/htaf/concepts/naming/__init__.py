"""Names for concepts, each checked on classes or images that did not choose it: from attributes of the classes, from a
model that reads the classes' names, or from one that sees pictures.

`name_by_attributes` needs a table of attributes alone; `name_by_model` and `check_names` ask a client of a language
model (`htaf.llm`). `naming_job` does the same and keeps the names in a file, so that an interrupted job can be
continued. `picture_job` shows a model images with a bit and without it, and checks the name on other images.
`read_names` and `write_names` are for files of names. What asks a model needs pydantic: pip install 'htaf[llm]'.
"""

from typing import TYPE_CHECKING

from htaf._lazy import lazy

if TYPE_CHECKING:
    from htaf.concepts.naming.by_attributes import (
        AttributeCandidates,
        attribute_candidates,
        name_by_attributes,
    )
    from htaf.concepts.naming.by_model import (
        ConceptName,
        Estimate,
        NamingPlan,
        check_names,
        estimate,
        name_by_model,
        naming_plan,
    )
    from htaf.concepts.naming.by_pictures import PictureEstimate, PictureJob, PicturePlan, picture_job
    from htaf.concepts.naming.candidates import CandidateList, read_candidates
    from htaf.concepts.naming.checks import NamingSettings
    from htaf.concepts.naming.files import NameEntry, check_only, read_names, seal_of, status_of, write_names
    from htaf.concepts.naming.job import NamingJob, naming_job
    from htaf.concepts.naming.picture_choice import PictureSettings
    from htaf.concepts.naming.report import check_notes, estimate_line, estimate_notes, name_lines, sending_line

_HOMES = {
    "by_attributes": ("AttributeCandidates", "attribute_candidates", "name_by_attributes"),
    "by_model": (
        "ConceptName", "Estimate", "NamingPlan", "check_names", "estimate", "name_by_model", "naming_plan",
    ),
    "by_pictures": ("PictureEstimate", "PictureJob", "PicturePlan", "picture_job"),
    "candidates": ("CandidateList", "read_candidates"),
    "checks": ("NamingSettings",),
    "files": ("NameEntry", "check_only", "read_names", "seal_of", "status_of", "write_names"),
    "job": ("NamingJob", "naming_job"),
    "picture_choice": ("PictureSettings",),
    "report": ("check_notes", "estimate_line", "estimate_notes", "name_lines", "sending_line"),
}  # fmt: skip

__all__ = [
    "AttributeCandidates",
    "CandidateList",
    "ConceptName",
    "Estimate",
    "NameEntry",
    "NamingJob",
    "NamingPlan",
    "NamingSettings",
    "PictureEstimate",
    "PictureJob",
    "PicturePlan",
    "PictureSettings",
    "attribute_candidates",
    "check_names",
    "check_notes",
    "check_only",
    "estimate",
    "estimate_line",
    "estimate_notes",
    "name_by_attributes",
    "name_by_model",
    "name_lines",
    "naming_job",
    "naming_plan",
    "picture_job",
    "read_candidates",
    "read_names",
    "seal_of",
    "sending_line",
    "status_of",
    "write_names",
]

__getattr__, __dir__ = lazy(__name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names})
