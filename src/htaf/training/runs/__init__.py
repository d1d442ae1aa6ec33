"""A run folder: its record, weights and preprocessing; written whole, read back; never imports lightning."""

from typing import TYPE_CHECKING

from htaf._ground.compat import lazy

if TYPE_CHECKING:
    from htaf._ground.files import LOCK, write_atomic
    from htaf.training.runs.folder import (
        HASHED,
        METRICS,
        MODEL,
        PREPROCESSING,
        RECORD,
        SMOOTH,
        RunError,
        are_metrics,
        content_hash,
        environment,
        locked,
        read_record,
        short_commit,
        shown,
        start_run,
        to_json,
    )
    from htaf.training.runs.packed import PackedRun, open_packed
    from htaf.training.runs.packing import CheckError, export_run, pack_run
    from htaf.training.runs.predictions import forward
    from htaf.training.runs.run import Run, RunPart, UnknownSourceError, finish_run, open_run

__all__ = [
    "HASHED",
    "LOCK",
    "METRICS",
    "MODEL",
    "PREPROCESSING",
    "RECORD",
    "SMOOTH",
    "CheckError",
    "PackedRun",
    "Run",
    "RunError",
    "RunPart",
    "UnknownSourceError",
    "are_metrics",
    "content_hash",
    "environment",
    "export_run",
    "finish_run",
    "forward",
    "locked",
    "open_packed",
    "open_run",
    "pack_run",
    "read_record",
    "short_commit",
    "shown",
    "start_run",
    "to_json",
    "write_atomic",
]

_ELSEWHERE = {
    "htaf._ground.files": ("LOCK", "write_atomic"),
    "htaf.training.runs.packed": ("PackedRun", "open_packed"),
    "htaf.training.runs.packing": ("CheckError", "export_run", "pack_run"),
    "htaf.training.runs.predictions": ("forward",),
    "htaf.training.runs.run": ("Run", "RunPart", "UnknownSourceError", "finish_run", "open_run"),
}
__getattr__, __dir__ = lazy(
    __name__,
    dict.fromkeys(__all__, "htaf.training.runs.folder")
    | {name: module for module, names in _ELSEWHERE.items() for name in names},
)
