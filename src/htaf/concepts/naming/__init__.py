"""Names for concepts, each checked on classes or images that did not choose it.

`name_by_attributes` chooses names from a table of attributes of the classes. `naming_job` asks a model (`htaf.llm`): of
`class_evidence` one that reads names of classes, of `picture_evidence` one that sees images with a bit and without it;
it keeps the names in a file, so that an interrupted job can be continued, and checks names that somebody gave.
`read_names` and `write_names` are for files of names. What asks a model needs pydantic: pip install 'htaf[images]'.
"""

from typing import TYPE_CHECKING

from htaf._lazy import lazy

if TYPE_CHECKING:
    from htaf.concepts.naming.by_attributes import AttributeCandidates, attribute_candidates, name_by_attributes
    from htaf.concepts.naming.candidates import CandidateList, read_candidates
    from htaf.concepts.naming.classes import ClassEvidence, NamingSettings, class_evidence
    from htaf.concepts.naming.files import NameEntry, check_only, read_names, seal_of, status_of, write_names
    from htaf.concepts.naming.job import Estimate, Evidence, NamingJob, naming_job
    from htaf.concepts.naming.pictures import PictureEvidence, PictureSettings, picture_evidence
    from htaf.concepts.naming.prompts import ConceptName
    from htaf.concepts.naming.report import check_notes, estimate_line, estimate_notes, name_table

_HOMES = {
    "by_attributes": ("AttributeCandidates", "attribute_candidates", "name_by_attributes"),
    "candidates": ("CandidateList", "read_candidates"),
    "classes": ("ClassEvidence", "NamingSettings", "class_evidence"),
    "files": ("NameEntry", "check_only", "read_names", "seal_of", "status_of", "write_names"),
    "job": ("Estimate", "Evidence", "NamingJob", "naming_job"),
    "pictures": ("PictureEvidence", "PictureSettings", "picture_evidence"),
    "prompts": ("ConceptName",),
    "report": ("check_notes", "estimate_line", "estimate_notes", "name_table"),
}

__all__ = [
    "AttributeCandidates",
    "CandidateList",
    "ClassEvidence",
    "ConceptName",
    "Estimate",
    "Evidence",
    "NameEntry",
    "NamingJob",
    "NamingSettings",
    "PictureEvidence",
    "PictureSettings",
    "attribute_candidates",
    "check_notes",
    "check_only",
    "class_evidence",
    "estimate_line",
    "estimate_notes",
    "name_by_attributes",
    "name_table",
    "naming_job",
    "picture_evidence",
    "read_candidates",
    "read_names",
    "seal_of",
    "status_of",
    "write_names",
]

__getattr__, __dir__ = lazy(__name__, {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names})
