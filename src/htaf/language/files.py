"""Language models from names, folders and GGUF files; a converted one as a folder of transformers with one more file.

The folder that `save` writes has merged weights, which transformers reads as they are, and `htaf_gates.safetensors`:
thresholds, scales and widths of the gates. Without that file transformers would compute the original activation.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from htaf._errors import first_line
from htaf._files import write_atomic
from htaf.activations import Heaviside
from htaf.language.errors import LanguageError
from htaf.language.gates import Gate, gated_mlps, gates_of
from htaf.models.build import at_most
from htaf.runs import content_hash

GATES = "htaf_gates.safetensors"
FORMAT = "1"
_PARTS = ("threshold", "scale", "width")
_MARK = "htaf_gates"  # in config.json


def load(model: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu", quantize: bool = False) -> Any:
    """A causal language model and its tokenizer.

    Args:
        model: a folder of transformers, one that `save` wrote (its gates are put in), a .gguf file, or a name at the
            Hugging Face hub.
        dtype: of the weights.
        device: "cpu", "cuda", ...
        quantize: hold the weights in 4 bits (bitsandbytes, on a GPU).

    Returns:
        (model in eval mode, tokenizer).

    Raises:
        LanguageError: there is no such model, it cannot be read or reached, weights are missing, or its gates are or
            do not fit.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, options = _place(str(model))
    if quantize:
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        )
    try:
        known = {k: v for k, v in options.items() if k == "gguf_file"}
        with _as_large_as_its_files(Path(place)):
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **known)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                place, dtype=dtype, trust_remote_code=False, output_loading_info=True, **options
            )
    except ImportError as error:
        raise LanguageError(
            f"{model}: {first_line(error)}; pip install 'htaf[language]' brings what is needed"
        ) from None
    except Exception as error:  # transformers raises nearly everything on files and names
        raise LanguageError(_why(str(model), error)) from None
    made, about = loaded
    if missing := sorted(about["missing_keys"]):
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise LanguageError(f"expected all weights of the model in {model}, {len(missing)} are missing: {some}")
    if quantize:
        _expect_blocks_of_64(made)
    if "gguf_file" in options:  # its weights are plain floats by now, which can be saved and trained
        made.hf_quantizer = None
        made.config.__dict__.pop("quantization_config", None)
        made.is_quantized = False
    try:
        made = made if quantize else made.to(device)
    except (RuntimeError, AssertionError) as error:
        raise LanguageError(f"device {device} cannot be used: {first_line(error)}") from None
    file = Path(place) / GATES
    if file.is_file():
        _put_gates(made, file)
    elif getattr(made.config, _MARK, None) is not None:
        raise LanguageError(f"{model} has gates, as its config.json says: expected a folder with {GATES} too")
    return made.eval(), tokenizer


@contextmanager
def _as_large_as_its_files(folder: Path) -> Iterator[None]:
    """Models that are made in the block have about as many layers and weights as files of their size can hold.

    Raises:
        ValueError: config.json asks for more, as by ten million layers, for which it needs a few bytes.
    """
    if not folder.is_dir():
        yield
        return
    size = sum(f.stat().st_size for f in folder.iterdir() if f.suffix in (".safetensors", ".bin", ".gguf"))
    tensors = size // 64  # the header of each takes more
    config = folder / "config.json"
    if config.is_file() and (most := max(_layers(json.loads(config.read_text())), default=0)) > tensors:
        raise ValueError(f"expected as many layers as its weights can have, config.json says {most:,}")
    with at_most(8 * size, tensors):  # of one bit each
        yield


def _layers(written: Any) -> Iterator[int]:
    """The numbers of layers in a configuration."""
    for key, value in written.items() if isinstance(written, dict) else ():
        if isinstance(value, dict):
            yield from _layers(value)
        elif "layer" in key and type(value) is int:
            yield value


def fingerprint(model: str | Path) -> str:
    """A hash of what a model is: of the files that are read of it; of a name at the hub, of the name.

    Raises:
        LanguageError: as `load`.
    """
    place, options = _place(str(model))
    if not Path(place).is_dir():
        return content_hash(["hub", place])
    names = {"config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", GATES}
    found = [Path(place) / options["gguf_file"]] if options else sorted(Path(place).iterdir())
    read = [file for file in found if options or file.name in names or file.suffix in (".safetensors", ".bin")]
    return content_hash([(file.name, file_hash(file)) for file in read])


def file_hash(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def tokenizer_of(folder: str | Path) -> Any:
    """The tokenizer of a folder.

    Raises:
        LanguageError: it has none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:
        raise LanguageError(f"expected the files of a tokenizer in {folder}: {first_line(error)}") from None


def save(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Write a converted model as a folder that transformers and `load` read.

    Args:
        model: with gates, all exact; LoRA adapters merged.
        tokenizer: its tokenizer.
        folder: new, or one that is written over.

    Raises:
        LanguageError: a gate is smooth, or there are none. OSError: the disk is full.
    """
    folder, gates = Path(folder), gates_of(model)
    if not gates:
        raise LanguageError("expected a model with gates, got one without")
    if smooth := [number for number, gate in gates.items() if not gate.exact]:
        raise LanguageError(f"expected exact gates, got smooth ones in layers {', '.join(map(str, smooth))}")
    folder.mkdir(parents=True, exist_ok=True)
    own = {f"{path}.{name}" for path, module in model.named_modules() if isinstance(module, Gate) for name in _PARTS}
    weights = {name: value for name, value in model.state_dict().items() if name not in own}
    setattr(model.config, _MARK, GATES)  # a reader of config.json sees that the activation is another
    model.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)
    tensors = {
        f"{number}.{name}": getattr(gate, name).detach().float().cpu().contiguous()
        for number, gate in gates.items()
        for name in _PARTS
    }
    write_atomic(folder / GATES, safetensors.torch.save(tensors, {"format": FORMAT}))


def _put_gates(model: nn.Module, file: Path) -> None:
    """Gates from a file into a model as transformers has loaded it."""
    try:
        with safetensors.safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except Exception as error:
        raise LanguageError(f"{file} is damaged: {first_line(error)}") from None
    if about.get("format") != FORMAT:
        raise LanguageError(f"{file}: expected format {FORMAT}, got {about.get('format')}")
    mlps = {str(mlp.layer): mlp for mlp in gated_mlps(model)}
    for number in sorted({name.partition(".")[0] for name in tensors}):
        parts = {name: tensors.get(f"{number}.{name}") for name in _PARTS}
        if number not in mlps or any(v is None or v.shape != (mlps[number].neurons,) for v in parts.values()):
            raise LanguageError(f"{file}: layer {number} does not fit this model of {len(mlps)} layers")
        gate = Gate(mlps[number].neurons, Heaviside())
        with torch.no_grad():
            for name, value in parts.items():
                getattr(gate, name).copy_(value)
        mlps[number].put(gate.eval())


def _place(model: str) -> tuple[str, dict[str, Any]]:
    """Where transformers is to look, and with which options."""
    path = Path(model)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise LanguageError(f"expected a GGUF file, there is none at {model}")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        files = sorted(file.name for file in path.glob("*.gguf"))
        if files and not (path / "config.json").is_file():
            raise LanguageError(f"{model} holds GGUF files: give one of them, such as {path / files[0]}")
        if not (path / "config.json").is_file():
            raise LanguageError(f"expected a folder with config.json and weights, {model} has no config.json")
        return str(path), {}
    if path.exists() or model.startswith((".", os.sep)) or model.count("/") > 1:
        raise LanguageError(f"expected a folder of transformers, a .gguf file or a name at the hub, got {model}")
    return model, {}


def _expect_blocks_of_64(model: nn.Module) -> None:
    """4 bits are held in blocks of 64 numbers."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and hasattr(module.weight, "quant_state") and module.in_features % 64:
            raise LanguageError(f"4 bits need widths that are multiples of 64, {path} has {module.in_features}")


def _why(model: str, error: Exception) -> str:
    """What went wrong when a model was loaded, and what to do."""
    said = " ".join(str(error).split())[:300] or type(error).__name__
    if not Path(model).exists():
        return (
            f"{model} is not in the cache of the Hugging Face hub and cannot be loaded from there ({said}): give a "
            "folder with config.json and weights, or a .gguf file"
        )
    path = Path(model)
    if path.is_dir() and not any(path.glob("tokenizer*")):
        return f"{model}: expected a tokenizer (tokenizer.json) beside the weights, there is none"
    return f"{model} cannot be read as a causal language model: {said}"
