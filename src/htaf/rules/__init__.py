"""What a 0/1 network says about a table: rules of its bits, reasons of a row, importance of columns, what-if."""

from typing import TYPE_CHECKING

from htaf._lazy import lazy

if TYPE_CHECKING:
    from htaf.rules.bits import RulesError, TableBits
    from htaf.rules.conditions import Condition, Rule
    from htaf.rules.explanation import BitRule, Explanation, RowReasons, WhatIf, explain, what_if
    from htaf.rules.inspection import Effect, Importance, effects, importance
    from htaf.rules.trees import Fidelity, Surrogate, surrogate

_HOMES = {
    "htaf.rules.bits": ("RulesError", "TableBits"),
    "htaf.rules.conditions": ("Condition", "Rule"),
    "htaf.rules.explanation": ("BitRule", "Explanation", "RowReasons", "WhatIf", "explain", "what_if"),
    "htaf.rules.trees": ("Fidelity", "Surrogate", "surrogate"),
    "htaf.rules.inspection": ("Effect", "Importance", "effects", "importance"),
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
