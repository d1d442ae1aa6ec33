"""The report of a finished run of a table: its figures as JSON, and a page of one file."""

from typing import TYPE_CHECKING

from htaf._ground.compat import lazy

if TYPE_CHECKING:
    from htaf.tables.report.baselines import Baseline, fit_baselines
    from htaf.tables.report.writing import PAGE, VALUES, has_report, write_report

__all__ = ["PAGE", "VALUES", "Baseline", "fit_baselines", "has_report", "write_report"]

_ELSEWHERE = {
    "htaf.tables.report.baselines": ("Baseline", "fit_baselines"),
    "htaf.tables.report.writing": ("PAGE", "VALUES", "has_report", "write_report"),
}
__getattr__, __dir__ = lazy(__name__, {name: module for module, names in _ELSEWHERE.items() for name in names})
