"""Language models from names, folders and GGUF files; a converted one as a folder that htaf alone reads.

config.json               the kind of folder, the configuration of transformers, SHA-256 of the files and of itself
model.htaf.safetensors    merged weights
htaf_gates.safetensors    thresholds, scales and widths of the gates
and the tokenizer's files and generation_config.json, as transformers writes them.

Another reader would compute the original activation and say nothing. So the kind of model, its architecture and the
name of its weights are none that transformers, vLLM, llama.cpp's converter or MLX know.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from htaf._ground.errors import first_line
from htaf._ground.files import file_sha256, read_record, sealed, write_atomic
from htaf.core.activations import Heaviside
from htaf.language.gates import Gate, gated_mlps, gates_of
from htaf.language.options import LanguageError
from htaf.models.build import at_most
from htaf.models.hub import asking_hub
from htaf.training.runs import content_hash

CONFIG, GATES = "config.json", "htaf_gates.safetensors"
FORMAT = 2
MOST_LAYERS = 1 << 15
WEIGHTS = {".safetensors", ".bin", ".gguf"}
KIND = "htaf_gated: read by htaf.language.load"  # in the message of a reader that does not know it
_ARCHITECTURE, _VARIANT = "HtafGatedForCausalLM", "htaf"
_PARTS = ("threshold", "scale", "width")
# of a configuration of transformers: what would load code, or weights of another place, beside the model itself
_LOADING = (
    "auto_map", "attn_implementation", "experts_implementation", "quantization_config", "trust_remote_code",
    "transformers_weights", "fusion_config", "kernel_config", "distributed_config",
)  # fmt: skip


def load(model: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """Load a causal language model and its tokenizer.

    Of a configuration nothing is taken that would load code, kernels or other weights.

    Args:
        model: a folder of transformers, one that `save` wrote (its gates are put in), a .gguf file, or a name at the
            Hugging Face hub.
        dtype: of the weights.
        device: "cpu", "cuda", ...

    Returns:
        (model in eval mode, tokenizer).

    Raises:
        LanguageError: there is no such model, it cannot be read or reached, its files have changed since `save` wrote
            them, its configuration asks for a larger model than its weights are, weights are missing or not finite, or
            its gates are or do not fit.
    """
    from transformers import AutoModelForCausalLM

    place, options = _place(str(model))
    gated = _is_gated(Path(place))
    if gated:
        options |= {"variant": _VARIANT, "use_safetensors": True}
    known = {k: v for k, v in options.items() if k == "gguf_file"}
    try:
        with asking_hub(place), _bounded(place):
            given = known if known else {"config": _configuration(place)}
            tokenizer = _tokenizer(place, **given)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                place, dtype=dtype, trust_remote_code=False, output_loading_info=True, **(options | given)
            )
    except LanguageError:
        raise
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
    _expect_finite(made, str(model))
    if "gguf_file" in options:  # its weights are plain floats by now, which can be saved and trained
        made.hf_quantizer = None
        made.config.__dict__.pop("quantization_config", None)
        made.is_quantized = False
    try:
        made = made.to(device)
    except (RuntimeError, AssertionError) as error:
        raise LanguageError(f"device {device} cannot be used: {first_line(error)}") from None
    if gated:
        _put_gates(made, Path(place) / GATES)
    return made.eval(), tokenizer


def verify(folder: str | Path) -> None:
    """See that the files of a folder that `save` wrote are as it wrote them.

    Raises:
        LanguageError: one is missing or damaged, or it is another folder.
    """
    file = Path(folder) / CONFIG
    record = read_record(file, FORMAT, LanguageError)
    if record is None or record.get("model_type") != KIND or not isinstance(record.get("files"), dict):
        raise LanguageError(f"{file}: expected model_type {KIND!r} and files")
    for name, digest in record["files"].items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise LanguageError(f"{file}: expected files beside it, got {name!r:.80}")
        here = file.parent / name
        if not here.is_file():
            raise LanguageError(f"{here} is missing: put back a copy of it")
        if file_sha256(here) != digest:
            raise LanguageError(
                f"{here} is damaged: its SHA-256 differs from the one in {CONFIG}; put back a copy of it"
            )


def _is_gated(folder: Path) -> bool:
    """Return whether `save` wrote a folder; its files are then as they were written."""
    if not folder.is_dir():
        return False
    try:
        content = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):  # transformers says what is wrong
        content = None
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind == KIND or (isinstance(content, dict) and content.get("architectures") == [_ARCHITECTURE]):
        verify(folder)
        return True
    if (folder / GATES).exists():
        raise LanguageError(
            f"{folder} has gates, and its {CONFIG} is none of format {FORMAT}: give the command that made it again, "
            "into a new folder"
        )
    return False


def _configuration(place: str) -> Any:
    """Return the configuration object of a folder or a name at the hub, without what would load anything.

    Raises:
        LanguageError: it asks for quantised weights, or for an adapter.
    """
    from transformers import AutoConfig, PretrainedConfig

    if (Path(place) / "adapter_config.json").is_file():
        raise LanguageError(
            f"expected whole weights, {place} holds an adapter: merge it first (peft: merge_and_unload)"
        )
    content: dict[str, Any] = PretrainedConfig.get_config_dict(place)[0]
    content = content["model"] if content.get("model_type") == KIND else content
    if not isinstance(content.get("model_type"), str):  # transformers would look for one in the name of the folder
        raise LanguageError(f"{place}: expected {CONFIG} with a model_type, got {content.get('model_type')!r:.40}")
    quantised = content.get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise LanguageError(f"expected weights as floats, {place} has quantised ones ({method!r:.40})")
    content = _without_loading(content)
    _expect_layers(content, place)
    with tempfile.TemporaryDirectory() as folder:  # transformers' own reading of older configurations
        (Path(folder) / CONFIG).write_text(json.dumps(content))
        made = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    made._name_or_path = place
    return made


def _bounded(place: str) -> AbstractContextManager[None]:
    """While it is open, networks may be as large as the weights in a folder, of four bits or more each."""
    folder, most = Path(place), 1 << 44
    if folder.is_dir():
        most = 2 * sum(file.stat().st_size for file in folder.iterdir() if file.suffix in WEIGHTS)
    return at_most(most, MOST_LAYERS)


def _expect_layers(content: Any, place: str) -> None:
    """Raise LanguageError where a configuration counts more layers than any model has: lists are made of so many."""
    for name, value in content.items() if isinstance(content, dict) else ():
        _expect_layers(value, place)
        if isinstance(value, int | float) and value > MOST_LAYERS and name.endswith(("layers", "layer", "labels")):
            raise LanguageError(f"{place}: expected {name} of at most {MOST_LAYERS:,} in {CONFIG}, got {value:.20g}")


def _without_loading(value: Any) -> Any:
    """Return the values of a configuration of transformers without those that would load code, kernels or other
    weights."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in _LOADING and not k.startswith("_")}
        return {key: _without_loading(inner) for key, inner in kept.items()}
    return [_without_loading(inner) for inner in value] if isinstance(value, list) else value


def _expect_finite(model: nn.Module, name: str) -> None:
    """Raise LanguageError where a weight is NaN or infinite."""
    for path, weight in model.named_parameters():
        if weight.is_floating_point() and weight.device.type != "meta" and not torch.isfinite(weight).all():
            raise LanguageError(f"expected finite weights in {name}, {path} holds NaN or infinity")


def fingerprint(model: str | Path) -> str:
    """Hash a model: the files that are read; for a name at the hub, the name.

    Raises:
        LanguageError: as `load`.
    """
    place, options = _place(str(model))
    if not Path(place).is_dir():
        return content_hash(["hub", place])
    names = {"config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", GATES}
    found = [Path(place) / options["gguf_file"]] if options else sorted(Path(place).iterdir())
    read = [file for file in found if options or file.name in names or file.suffix in (".safetensors", ".bin")]
    return content_hash([(file.name, file_sha256(file)) for file in read])


def _tokenizer(place: str, **given: Any) -> Any:
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **given)
    made("a")  # values of wrong types in its files show when it is used
    return made


def save(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Write a converted model as a folder that `load` reads, and other readers refuse.

    Args:
        model: with gates, all exact; LoRA adapters merged.
        tokenizer: its tokenizer.
        folder: new, or one that is written over.

    Raises:
        LanguageError: a gate is smooth, there are none, or a weight is not finite. OSError: the disk is full.
    """
    folder, gates = Path(folder), gates_of(model)
    if not gates:
        raise LanguageError("expected a model with gates, got one without")
    if smooth := [number for number, gate in gates.items() if not gate.exact]:
        raise LanguageError(f"expected exact gates, got smooth ones in layers {', '.join(map(str, smooth))}")
    _expect_finite(model, type(model).__name__)
    folder.mkdir(parents=True, exist_ok=True)
    own = {f"{path}.{name}" for path, module in model.named_modules() if isinstance(module, Gate) for name in _PARTS}
    weights = {name: value for name, value in model.state_dict().items() if name not in own}
    (folder / CONFIG).unlink(missing_ok=True)  # what is half written is no model
    model.save_pretrained(folder, state_dict=weights, variant=_VARIANT)
    tensors = {
        f"{number}.{name}": getattr(gate, name).detach().float().cpu().contiguous()
        for number, gate in gates.items()
        for name in _PARTS
    }
    write_atomic(folder / GATES, safetensors.torch.save(tensors, {"format": str(FORMAT)}))
    written = {Path(file) for file in tokenizer.save_pretrained(folder)}
    written |= {folder / GATES, folder / "generation_config.json", *folder.glob(f"model*.{_VARIANT}*")}
    record = {
        "model_type": KIND, "architectures": [_ARCHITECTURE], "format": FORMAT,
        "model": json.loads((folder / CONFIG).read_text()),
        "files": {str(file.relative_to(folder)): file_sha256(file) for file in sorted(written) if file.is_file()},
    }  # fmt: skip
    write_atomic(folder / CONFIG, sealed(record))


def _put_gates(model: nn.Module, file: Path) -> None:
    """Gates from a file into a model as transformers has loaded it."""
    try:
        with safetensors.safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except Exception as error:
        raise LanguageError(f"{file} is damaged: {first_line(error)}") from None
    if about.get("format") != str(FORMAT):
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
    """Return where transformers is to look, and with which options."""
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


def _why(model: str, error: Exception) -> str:
    """Say what went wrong when a model was loaded, and what to do."""
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
