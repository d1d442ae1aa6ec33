"""A model of images and texts in one space, such as CLIP or SigLIP, as transformers keeps it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float32
from torch import Tensor, nn
from torch.nn import functional as F

from htaf._ground.compat import no_trace
from htaf._ground.errors import first_line
from htaf._ground.files import file_sha256
from htaf.models.backbone_weights import tensors_sha256
from htaf.models.hub import asking_hub

SUFFIXES = (".safetensors", ".bin")
TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model")
_LEAST = 1e-12  # of a vector's length


@final
class ImageText(nn.Module):
    """Images and texts as vectors of length 1; the dot product of two is their cosine similarity.

    Attributes:
        backbone: the model of transformers, in float32.
        size: (height, width) of the images that it sees. length: most tokens of a text.
        described: where the weights come from, as a record holds it.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        size: tuple[int, int],
        length: int,
        mean: Sequence[float],
        std: Sequence[float],
        described: dict[str, Any],
    ) -> None:
        super().__init__()
        self.backbone, self.tokenizer, self.size, self.length = model, tokenizer, size, length
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        self.described = described

    @torch.no_grad()
    def features(self, x: Float32[Tensor, "b c h w"]) -> Float32[Tensor, "b d"]:
        """Vectors of images.

        They are enlarged or reduced (bicubic) until the shorter side fits, cropped at the centre and normalised as the
        weights have it. Grey ones count as three equal channels.

        Args:
            x: float32 [b, 1 or 3, h, w] in [0, 1].
        """
        x = x.expand(-1, 3, -1, -1)
        height, width = self.size
        scale = max(height / x.shape[2], width / x.shape[3])
        wanted = (max(height, round(x.shape[2] * scale)), max(width, round(x.shape[3] * scale)))
        if wanted != tuple(x.shape[2:]):
            x = F.interpolate(x, wanted, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
        top, left = (wanted[0] - height) // 2, (wanted[1] - width) // 2
        x = x[:, :, top : top + height, left : left + width]
        mean, std = (x.new_tensor(part).view(1, 3, 1, 1) for part in (self.mean, self.std))
        model: Any = self.backbone
        return _unit(model.get_image_features(pixel_values=(x - mean) / std))

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Float32[Tensor, "texts d"]:
        """Vectors of texts; what is longer than `length` tokens is cut."""
        model: Any = self.backbone
        known = str(model.config.model_type)
        padding = "max_length" if known.startswith("siglip") else True  # it was trained on texts of one length
        options = {"padding": padding, "truncation": True, "max_length": self.length, "return_tensors": "pt"}
        tokens = self.tokenizer(list(texts), **options)
        device = next(self.backbone.parameters()).device
        given = {name: tokens[name].to(device) for name in ("input_ids", "attention_mask") if name in tokens}
        return _unit(model.get_text_features(**given)).cpu()

    def too_long(self, texts: Sequence[str]) -> list[int]:
        """Places of the texts with more tokens than the model takes."""
        counts = [len(ids) for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]]
        return [place for place, count in enumerate(counts) if count > self.length]


def _unit(output: Any) -> Tensor:
    vectors: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    vectors = vectors.float()
    return vectors / vectors.norm(dim=1, keepdim=True).clamp_min(_LEAST)


@no_trace()  # transformers imports others as a model needs them
def load_image_text(place: str | Path) -> ImageText:
    """A model of images and texts of transformers, in eval mode: CLIP, SigLIP and their kin.

    No code of the folder is run: the configuration must be of a model that transformers itself has, and of .bin files
    the tensors alone are read.

    Args:
        place: a folder in transformers' format (config.json, weights, tokenizer, preprocessor_config.json), read
            without a network; or a name on the hub.

    Raises:
        ValueError: no such folder or name, or a model of another kind, without its weights, tokenizer or preprocessing.
    """
    name, folder = str(place), Path(place)
    try:
        local, there = folder.is_dir(), folder.exists()
    except OSError:  # a name that no file can have
        local = there = False
    wrong = f"expected CLIP or SigLIP in the format of transformers, a folder or a name on the hub, got {name!r:.200}"
    if local and not (folder / "config.json").is_file():
        raise ValueError(f"{wrong}: the folder lacks config.json")
    if there and not local:
        raise ValueError(f"{wrong}: a file")
    try:
        library: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise ValueError(
            f"a model of images and texts needs transformers: pip install 'htaf[images]' ({error})"
        ) from None
    options = {"local_files_only": local, "trust_remote_code": False}
    try:
        with asking_hub(name):
            config = library.AutoConfig.from_pretrained(name, **options)
        if not (hasattr(config, "text_config") and hasattr(config, "vision_config")):
            raise ValueError(f"a {config.model_type}, which does not take both images and texts")
        with asking_hub(name):
            model, found = library.AutoModel.from_pretrained(name, config=config, output_loading_info=True, **options)
    except Exception as error:  # readers raise nearly everything on damaged files
        raise ValueError(f"{wrong}: {first_line(error)}") from None
    if not (hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
        raise ValueError(f"{wrong}: a {config.model_type}, which has no vectors of images and of texts")
    if local and not any((folder / file).is_file() for file in TOKENIZERS):  # transformers would make an empty one
        raise ValueError(f"{wrong}: the folder lacks a tokenizer ({', '.join(TOKENIZERS)})")
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"{wrong}: its weights lack {len(missing)} tensors, such as {missing[0]}")
    try:
        with asking_hub(name):
            tokenizer = library.AutoTokenizer.from_pretrained(name, **options)
    except Exception as error:
        raise ValueError(f"{wrong}: its tokenizer cannot be read: {first_line(error)}") from None
    try:
        with asking_hub(name):
            content = library.ImageProcessingMixin.get_image_processor_dict(name)[0]
    except (OSError, ValueError):
        content = {}
    mean, std = content.get("image_mean") or (), content.get("image_std") or ()
    if not all(isinstance(part, list | tuple) and len(part) == 3 for part in (mean, std)):
        raise ValueError(
            f"{wrong}: preprocessor_config.json with image_mean and image_std of three channels is missing"
        )
    side, length = config.vision_config.image_size, int(config.text_config.max_position_embeddings)
    size = (int(side), int(side)) if isinstance(side, int) else (int(side[0]), int(side[1]))
    model = model.float().eval().requires_grad_(False)
    described = {"model": folder.resolve().name if local else name, "kind": config.model_type, "image_size": list(size)}
    described |= _files(folder) if local else {"from": "hub"}
    described["tensors_sha256"] = tensors_sha256(model)
    return ImageText(model, tokenizer, size, length, mean, std, described)


def _files(folder: Path) -> dict[str, Any]:
    """Weights of a folder with their SHA-256, and the licence that its model card states."""
    weights = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    found: dict[str, Any] = {"files": {file.name: file_sha256(file) for file in weights}}
    return found | ({"licence": licence} if (licence := _licence(folder / "README.md")) else {})


def _licence(card: Path) -> str:
    """The licence in the head of a model card, "" where there is none."""
    try:
        lines = card.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    if not lines or lines[0].strip() != "---":
        return ""
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, _, value = line.partition(":")
        if key == "license":
            return value.strip()[:200]
    return ""
