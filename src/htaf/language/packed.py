"""Packed language models: a folder from which text is decoded without transformers' layers.

A closed gate costs neither its row of `up` nor its row of `down`. Decoders of the Llama family: grouped attention with
rotary positions, RMS norms in front of attention and MLP, gated MLPs; some with biases or norms of queries and keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from htaf._errors import first_line
from htaf._files import parse_json, read_seal, sealed_tensors, write_atomic
from htaf.kernels import native
from htaf.kernels.decoder import ACTIVATIONS, Activation, Decoder, Layer, Reading, Whole
from htaf.kernels.gated_mlp.reference import Weights, rounded
from htaf.language.errors import LanguageError, expect_scores
from htaf.language.files import expect_files, tokenizer_files
from htaf.language.gates import Gate, GatedMLP, decoder_of, gated_mlps, gates_of
from htaf.language.generating import ends_of, following

FILE, FORMAT, VERSION = "htaf_packed.safetensors", "htaf-packed-language", "2"
CHECKED = 48  # tokens on which a packed model is compared with its original
NEAR = 1e-4  # relative root mean square of the logits' difference in float32, at most


@dataclass(frozen=True)
class About:
    """Numbers of a packed model: see `htaf.kernels.decoder.Whole` and `Layer`.

    heads, key_value_heads, head_dim: of attention. epsilon: of the norms. scale: of queries times keys.
    rotary_scale: of the cosines and sines of rotary positions.
    context: positions that the model was made for.
    activations, windows: of each layer. ends: tokens that end a text.

    Raises:
        ValueError: a number that no model has.
    """

    heads: int
    key_value_heads: int
    head_dim: int
    epsilon: float
    scale: float
    rotary_scale: float
    context: int
    activations: tuple[Activation, ...]
    windows: tuple[int, ...]
    ends: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("heads", "key_value_heads", "head_dim", "context"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 1 << 24:
                raise ValueError(f"{name} must be a whole number in 1 to 2^24, got {value!r}")
        for name in ("epsilon", "scale", "rotary_scale"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a number > 0, got {value!r}")
        if not self.activations or set(self.activations) - set(ACTIVATIONS):
            raise ValueError(f"activations must be of {', '.join(ACTIVATIONS)}, got {self.activations}")
        for name, count in (("windows", len(self.activations)), ("ends", len(self.ends))):
            values = getattr(self, name)
            if len(values) != count or any(type(v) is not int or not 0 <= v < 1 << 40 for v in values):
                raise ValueError(f"{name} must be {count} whole numbers >= 0, got {values}")


class PackedLanguageModel:
    """A language model with 0/1 gates, ready to decode on the CPU. It can be pickled, and several threads may use it.

    Args:
        tensors: as in the file; they are copied. about: its numbers.
        context: positions at most; memory for their keys and values is taken as they come. None: all it was made for.
        eight: keep gates in 8 bits too, and read their rows only where 8 bits cannot decide; the bits are the same.

    Raises:
        LanguageError: the compiled kernels are missing, the context is too long, or the tensors do not fit each other.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], about: About, *, context: int | None = None, eight: bool = True
    ) -> None:
        if not native.available():
            raise LanguageError(f"packed language models need the compiled kernels ({native.load()[1]})")
        if context is not None and not 1 <= context <= about.context:
            raise LanguageError(f"context must be in 1 to {about.context}, as the model was made for, got {context}")
        # the decoder keeps addresses of these: nothing outside, nor a pickling, may reach their memory
        self._tensors = tensors = {name: x.detach().clone().contiguous() for name, x in tensors.items()}
        self.about, self._options = about, (context, eight)
        try:
            positions = torch.arange(context or about.context).float()
            angles = positions[:, None] * tensors["frequencies"].view(1, -1)
            whole = Whole(
                tensors["embedding"], tensors.get("head", tensors["embedding"]), tensors["norm"],
                (angles.cos() * about.rotary_scale).contiguous(), (angles.sin() * about.rotary_scale).contiguous(),
                about.heads, about.key_value_heads, about.head_dim, about.epsilon, about.scale,
            )  # fmt: skip
            layers = [self._layer(number, eight) for number in range(len(about.activations))]
            self.decoder = Decoder(whole, layers)
        except (KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
            raise LanguageError(f"a packed language model whose parts do not fit: {first_line(error)}") from None

    def _layer(self, number: int, eight: bool) -> Layer:
        found = {name.partition(".")[2]: x for name, x in self._tensors.items() if name.startswith(f"{number}.")}
        mlp = Weights(*(found.pop(name) for name in ("gate", "up", "down", "threshold")))
        activation = self.about.activations[number]
        if eight and activation == "step":
            mlp = rounded(mlp)
        optional: dict[str, Any] = {name: found.pop(name, None) for name in ("inputs_bias", "query_norm", "key_norm")}
        return Layer(**found, **optional, mlp=mlp, activation=activation, window=self.about.windows[number])

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.tensors(), self.about, *self._options)

    def tensors(self) -> dict[str, Tensor]:
        """Copies of the tensors, as in the file."""
        return {name: x.clone() for name, x in self._tensors.items()}

    @property
    def context(self) -> int:
        """How many tokens it reads and writes at most."""
        return self.decoder.context

    def logits(self, tokens: Int[Tensor, " count"], *, dense: bool = False) -> Float[Tensor, "count vocabulary"]:
        """Logits of the next token behind each token of a text.

        Raises:
            LanguageError: unknown tokens, or too many.
        """
        return self._read(tokens, self.decoder.restart(), every=True, dense=dense)

    def generate(
        self, tokens: Int[Tensor, " count"], *, most: int = 200, temperature: float = 0.0, seed: int = 0
    ) -> Iterator[int]:
        """The tokens that follow. Arguments and errors: as `htaf.language.generating.following`; LanguageError for
        unknown tokens too."""
        read = partial(self._read, reading=self.decoder.restart())
        options = {"most": most, "temperature": temperature, "seed": seed}
        return following(read, tokens, self.context, self.about.ends, **options)

    def open_shares(self) -> dict[int, float]:
        """Share of open gates in each layer that has bits, over what was read of the text that was begun last."""
        reading = self.decoder.reading
        read = max(reading.position, 1)
        return {
            number: reading.opened[number].item() / read / len(self._tensors[f"{number}.threshold"])
            for number, kind in enumerate(self.about.activations)
            if kind == "step"
        }

    def save(self, folder: str | Path, tokenizer: Any = None) -> None:
        """Write htaf_packed.safetensors into a folder, with the SHA-256 of itself and of the tokenizer's files.

        Args:
            folder: new, or one that is written over.
            tokenizer: of transformers, to write beside it.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = {} if tokenizer is None else tokenizer_files(tokenizer, folder)
        about = {"about": json.dumps(asdict(self.about)), "files": json.dumps(files)}
        write_atomic(folder / FILE, sealed_tensors(self._tensors, {"format": FORMAT, "version": VERSION, **about}))

    def _read(self, tokens: Tensor, reading: Reading, *, every: bool = False, dense: bool = False) -> Tensor:
        if not isinstance(tokens, Tensor):
            raise LanguageError(f"expected tokens as a tensor [count], got {type(tokens).__name__}")
        try:
            logits = self.decoder.read(tokens, reading, every=every, dense=dense)
        except ValueError as error:
            raise LanguageError(str(error)) from None
        expect_scores(logits)
        return logits


def _again(tensors: dict[str, Tensor], about: About, context: int | None, eight: bool) -> PackedLanguageModel:
    return PackedLanguageModel(tensors, about, context=context, eight=eight)


@torch.no_grad()
def pack(model: Any, dtype: torch.dtype = torch.bfloat16) -> PackedLanguageModel:
    """A language model of transformers, with exact gates or without, as a packed one.

    Args:
        model: on the CPU or elsewhere; it is not changed.
        dtype: of the matrices, float32 or bfloat16.

    Raises:
        LanguageError: a gate is smooth, a part is of a kind that a packed model does not have, or the packed model
            computes other logits than the original on random tokens.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise LanguageError(f"dtype must be float32 or bfloat16, got {dtype}")
    if smooth := [number for number, gate in gates_of(model).items() if not gate.exact]:
        raise LanguageError(f"expected exact gates, got smooth ones in layers {', '.join(map(str, smooth))}")
    decoder, config, mlps = decoder_of(model), model.config.get_text_config(), gated_mlps(model)
    kept = [(parameter, parameter.data) for parameter in model.parameters()]
    try:
        for parameter, values in kept:  # compared in float32, where nothing but rounding may differ
            parameter.data = values.float()
        tensors, about = _taken(model, decoder, config, mlps)
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(len(tensors["embedding"]), (min(CHECKED, about.context),), generator=generator)
        wanted = _with_open_gates(model, tokens)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LanguageError(
            f"{type(model).__name__} is not of the Llama family that can be packed ({first_line(error)}): "
            "htaf generate decodes it unpacked"
        ) from None
    finally:
        for parameter, values in kept:
            parameter.data = values
    opened = {k: torch.full_like(v, -torch.inf) if k.endswith(".threshold") else v for k, v in tensors.items()}
    off = PackedLanguageModel(opened, about, eight=False).logits(tokens) - wanted
    off = (off.square().mean() / wanted.square().mean().clamp_min(1e-30)).sqrt().item()  # relative root mean square
    if not off <= NEAR:
        raise LanguageError(
            f"{type(model).__name__} computes something else than the Llama family that can be packed: logits differ "
            f"by {off:.1%}; htaf generate decodes it unpacked"
        )
    matrices = {name: x.to(dtype) if x.ndim == 2 else x for name, x in tensors.items()}
    return PackedLanguageModel(matrices, about)


def _with_open_gates(model: Any, tokens: Tensor) -> Tensor:
    """Logits while all gates are open: a bit that rounding turns would hide whether the rest is right."""
    kept = {gate: gate.threshold.clone() for gate in gates_of(model).values()}
    try:
        for gate in kept:
            gate.threshold.fill_(-torch.inf)
        return model(input_ids=tokens[None].to(model.device), use_cache=False).logits[0].float().cpu()
    finally:
        for gate, threshold in kept.items():
            gate.threshold.copy_(threshold)


def _taken(model: Any, decoder: Any, config: Any, mlps: list[GatedMLP]) -> tuple[dict[str, Tensor], About]:
    """The tensors and numbers of a model, all in float32."""

    def plain(x: Tensor) -> Tensor:
        return x.detach().to("cpu", torch.float32).clone().contiguous()

    rotary, first = decoder.rotary_emb, decoder.layers[0].self_attn
    if (kind := getattr(rotary, "rope_type", "default")) in ("dynamic", "longrope"):
        raise ValueError(f"rotary positions of the kind {kind}, which depend on the length of the text")
    head = model.get_output_embeddings().weight
    tensors = {
        "embedding": plain(decoder.embed_tokens.weight),
        "norm": plain(decoder.norm.weight),
        "frequencies": plain(rotary.inv_freq),
    }
    if head.data_ptr() != decoder.embed_tokens.weight.data_ptr():
        tensors["head"] = plain(head)
    activations, windows = list[Activation](), list[int]()
    for mlp in mlps:
        layer = decoder.layers[mlp.layer]
        attention, name = layer.self_attn, f"{mlp.layer}."
        tensors[name + "before_attention"] = plain(layer.input_layernorm.weight)
        tensors[name + "before_mlp"] = plain(layer.post_attention_layernorm.weight)
        fused = getattr(attention, "qkv_proj", None)
        parts = [attention.q_proj, attention.k_proj, attention.v_proj] if fused is None else [fused]
        tensors[name + "inputs"] = plain(torch.cat([part.weight for part in parts]))
        if parts[0].bias is not None:
            tensors[name + "inputs_bias"] = plain(torch.cat([part.bias for part in parts]))
        tensors[name + "output"] = plain(attention.o_proj.weight)
        if attention.o_proj.bias is not None:
            raise ValueError("a bias behind the attention")
        for own, norm in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
            if (found := getattr(attention, norm, None)) is not None:
                tensors[name + own] = plain(found.weight)
        activations.append(_put_mlp(tensors, name, mlp, plain))
        windows.append(_window(config, mlp.layer))
    about = About(
        first.config.num_attention_heads, first.config.num_key_value_heads, first.head_dim,
        float(config.rms_norm_eps), float(first.scaling), float(rotary.attention_scaling),
        int(config.max_position_embeddings), tuple(activations), tuple(windows),
        ends_of(model),
    )  # fmt: skip
    return tensors, about


def _put_mlp(tensors: dict[str, Tensor], name: str, mlp: GatedMLP, plain: Any) -> Activation:
    module, activation = mlp.module, mlp.activation
    layers = [module.gate_up_proj] if mlp.fused else [module.gate_proj, module.up_proj]
    if any(layer.bias is not None for layer in (*layers, module.down_proj)):
        raise ValueError("biases in its MLPs")
    gate, up = layers[0].weight.chunk(2) if mlp.fused else (layers[0].weight, layers[1].weight)
    bits = isinstance(activation, Gate)
    tensors[name + "gate"] = plain(gate)
    tensors[name + "up"] = plain(up.float() * activation.scale[:, None] if bits else up)  # pyright: ignore
    tensors[name + "down"] = plain(module.down_proj.weight.T)
    tensors[name + "threshold"] = (
        activation.threshold.detach().float().cpu().clone() if bits else torch.zeros(len(gate), dtype=torch.float32)
    )  # pyright: ignore
    if bits:
        return "step"
    return _smooth(activation)


def _smooth(activation: nn.Module) -> Activation:
    """Which of the activations of the kernels a module is."""
    x = torch.linspace(-4, 4, 65)
    ours = {"silu": nn.functional.silu(x), "gelu_tanh": nn.functional.gelu(x, approximate="tanh")}
    for name in ACTIVATIONS[1:]:
        if torch.allclose(activation(x), ours[name], atol=1e-5):
            return name
    raise ValueError(f"an MLP with the activation {type(activation).__name__}")


def _window(config: Any, layer: int) -> int:
    """How many positions a layer sees; 0: all."""
    window = getattr(config, "sliding_window", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return 0
    kinds = getattr(config, "layer_types", None)
    return int(window) if kinds is None or kinds[layer] == "sliding_attention" else 0


def load_packed(folder: str | Path, *, context: int | None = None, eight: bool = True) -> PackedLanguageModel:
    """Read a packed language model. Arguments: as `PackedLanguageModel`.

    Raises:
        LanguageError: no such file, of another format, or it or a file of the tokenizer has changed since then.
    """
    folder = Path(folder)
    file = folder / FILE
    if not file.is_file():
        raise LanguageError(f"expected a folder that `htaf pack` wrote of a language model, {folder} has no {FILE}")
    try:
        with safetensors.safe_open(file, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        with file.open("rb") as opened:
            said, whole = read_seal(opened)
        numbers, files = (parse_json(said.get(name, "null")) for name in ("about", "files"))
    except Exception as error:
        raise LanguageError(f"{file} is damaged: {first_line(error)}") from None
    if (said.get("format"), said.get("version")) != (FORMAT, VERSION):
        raise LanguageError(f"{file}: expected {FORMAT} {VERSION}, got {said.get('format')} {said.get('version')}")
    if not whole or not isinstance(files, dict):
        raise LanguageError(
            f"{file} is damaged: its SHA-256 differs from the one in its metadata; put back a copy of it"
        )
    expect_files(file, files)
    try:
        read: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in numbers.items()}
        about = About(**read)
    except (TypeError, ValueError, AttributeError) as error:
        raise LanguageError(f"{file} is damaged: {first_line(error)}") from None
    return PackedLanguageModel(tensors, about, context=context, eight=eight)
