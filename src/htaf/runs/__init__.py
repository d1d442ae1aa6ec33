"""A run folder: its record, weights and preprocessing; written whole, read back; never imports lightning."""

from typing import TYPE_CHECKING

from htaf._lazy import lazy

if TYPE_CHECKING:
    from htaf._files import LOCK, write_atomic
    from htaf.runs.folder import (
        CHECKPOINTS,
        HASHED,
        METRICS,
        MODEL,
        PLOT,
        PREPROCESSING,
        RECORD,
        Run,
        RunError,
        are_metrics,
        check_folder,
        claim,
        content_hash,
        environment,
        finish_run,
        finished_run,
        locked,
        open_run,
        read_record,
        short_commit,
        shown,
        start_run,
        to_json,
    )
    from htaf.runs.predictions import forward

__all__ = [
    "CHECKPOINTS",
    "HASHED",
    "LOCK",
    "METRICS",
    "MODEL",
    "PLOT",
    "PREPROCESSING",
    "RECORD",
    "Run",
    "RunError",
    "are_metrics",
    "check_folder",
    "claim",
    "content_hash",
    "environment",
    "finish_run",
    "finished_run",
    "forward",
    "locked",
    "open_run",
    "read_record",
    "short_commit",
    "shown",
    "start_run",
    "to_json",
    "write_atomic",
]

_FOLDER = dict.fromkeys(__all__, "htaf.runs.folder")
__getattr__, __dir__ = lazy(
    __name__,
    _FOLDER | {"LOCK": "htaf._files", "write_atomic": "htaf._files", "forward": "htaf.runs.predictions"},
)
