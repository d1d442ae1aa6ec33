"""Language models with 0/1 gates: the activation of their gated MLPs becomes the exact step.

model = AutoModelForCausalLM.from_pretrained(...)          # any decoder of transformers with gated MLPs
calibrate(model, blocks, last_k=8)                         # thresholds, scales and `down` in closed form
"""

from htaf.language.calibration import CalibratedLayer, calibrate, fit_gate
from htaf.language.errors import LanguageError
from htaf.language.gates import Gate, GatedMLP, fold_scales, gated_mlps, gates_of, harden_gates, replace_gates

__all__ = [
    "CalibratedLayer",
    "Gate",
    "GatedMLP",
    "LanguageError",
    "calibrate",
    "fit_gate",
    "fold_scales",
    "gated_mlps",
    "gates_of",
    "harden_gates",
    "replace_gates",
]
