"""Language models with 0/1 gates: the activation of their gated MLPs becomes the exact step.

record = fit("SmolLM2.gguf", Data(text="texts/"), Training(), "runs/smol", last_k=8)   # as `htaf train llm`
model, tokenizer = load("runs/smol")                                                    # a model of transformers

model = AutoModelForCausalLM.from_pretrained(...)          # any decoder of transformers with gated MLPs
calibrate(model, blocks, last_k=8)                         # thresholds, scales and `down` in closed form
"""

from typing import TYPE_CHECKING

from htaf._ground.compat import lazy

if TYPE_CHECKING:
    from htaf.language.calibration import CalibratedLayer, calibrate, fit_gate
    from htaf.language.files import load, save
    from htaf.language.gates import Gate, GatedMLP, gated_mlps, gates_of, open_gates, replace_gates
    from htaf.language.options import Data, LanguageError, Machine, Training
    from htaf.language.run import fit

__all__ = [
    "CalibratedLayer",
    "Data",
    "Gate",
    "GatedMLP",
    "LanguageError",
    "Machine",
    "Training",
    "calibrate",
    "fit",
    "fit_gate",
    "gated_mlps",
    "gates_of",
    "load",
    "open_gates",
    "replace_gates",
    "save",
]

_HOMES = {
    "calibration": ("CalibratedLayer", "calibrate", "fit_gate"),
    "files": ("load", "save"),
    "gates": ("Gate", "GatedMLP", "gated_mlps", "gates_of", "open_gates", "replace_gates"),
    "options": ("Data", "LanguageError", "Machine", "Training"),
    "run": ("fit",),
}
__getattr__, __dir__ = lazy(
    __name__, {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}
)
