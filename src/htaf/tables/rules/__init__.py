"""What a 0/1 network says about a table: rules of its bits, reasons of a row, importance of columns, what-if."""

from typing import TYPE_CHECKING

from htaf._ground.compat import lazy

if TYPE_CHECKING:
    from htaf.tables.rules.bits import RulesError, TableBits
    from htaf.tables.rules.conditions import Condition, Rule
    from htaf.tables.rules.explanation import BitRule, Explanation, RowReasons, WhatIf, explain, what_if
    from htaf.tables.rules.inspection import Effect, Importance, effects, importance
    from htaf.tables.rules.trees import Fidelity, Surrogate, surrogate

_HOMES = {
    "htaf.tables.rules.bits": ("RulesError", "TableBits"),
    "htaf.tables.rules.conditions": ("Condition", "Rule"),
    "htaf.tables.rules.explanation": ("BitRule", "Explanation", "RowReasons", "WhatIf", "explain", "what_if"),
    "htaf.tables.rules.trees": ("Fidelity", "Surrogate", "surrogate"),
    "htaf.tables.rules.inspection": ("Effect", "Importance", "effects", "importance"),
}
__all__ = [
    "BitRule",
    "Condition",
    "Effect",
    "Explanation",
    "Fidelity",
    "Importance",
    "RowReasons",
    "Rule",
    "RulesError",
    "Surrogate",
    "TableBits",
    "WhatIf",
    "effects",
    "explain",
    "importance",
    "surrogate",
    "what_if",
]
__getattr__, __dir__ = lazy(__name__, {name: module for module, names in _HOMES.items() for name in names})
