"""The report of a finished run of a table: its figures as JSON, and a page of one file."""

from typing import TYPE_CHECKING

from htaf._lazy import lazy

if TYPE_CHECKING:
    from htaf.report.baselines import Baseline, fit_baselines
    from htaf.report.writing import PAGE, VALUES, has_report, write_report

__all__ = ["PAGE", "VALUES", "Baseline", "fit_baselines", "has_report", "write_report"]

_ELSEWHERE = {
    "htaf.report.baselines": ("Baseline", "fit_baselines"),
    "htaf.report.writing": ("PAGE", "VALUES", "has_report", "write_report"),
}
__getattr__, __dir__ = lazy(__name__, {name: module for module, names in _ELSEWHERE.items() for name in names})
