"""Language models with 0/1 gates: the activation of their gated MLPs becomes the exact step.

record = fit("SmolLM2.gguf", Data(text="texts/"), Training(), "runs/smol", last_k=8)   # as `htaf train llm`
model, tokenizer = load("runs/smol")                                                    # a model of transformers

model = AutoModelForCausalLM.from_pretrained(...)          # any decoder of transformers with gated MLPs
calibrate(model, blocks, last_k=8)                         # thresholds, scales and `down` in closed form
"""

from htaf.language.calibration import CalibratedLayer, calibrate, fit_gate
from htaf.language.errors import LanguageError
from htaf.language.files import load, save
from htaf.language.gates import Gate, GatedMLP, fold_scales, gated_mlps, gates_of, harden_gates, replace_gates
from htaf.language.lora import Training
from htaf.language.packed import PackedLanguageModel, pack
from htaf.language.packed import load as load_packed
from htaf.language.run import Data, evaluate, fit

__all__ = [
    "CalibratedLayer",
    "Data",
    "Gate",
    "GatedMLP",
    "LanguageError",
    "PackedLanguageModel",
    "Training",
    "calibrate",
    "evaluate",
    "fit",
    "fit_gate",
    "fold_scales",
    "gated_mlps",
    "gates_of",
    "harden_gates",
    "load",
    "load_packed",
    "pack",
    "replace_gates",
    "save",
]
