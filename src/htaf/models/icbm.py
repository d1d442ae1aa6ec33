"""Implicit concept bottleneck models: any image backbone, whose last features become bits."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf._compat import no_trace
from htaf._errors import first_line, suggestion
from htaf.activations import HTAF
from htaf.contract import expect_one_level
from htaf.models.backbone_weights import load_backbone
from htaf.models.final_activation import origin, without_final_activation
from htaf.models.hub import asking_hub

Pretrained = bool | str | Path

# the options of timm that a record or a caller may set: what they may hold can neither name a file nor code
_SHARES = ("drop_rate", "drop_path_rate", "attn_drop_rate", "proj_drop_rate", "pos_drop_rate", "patch_drop_rate")
_SIZES = ("img_size", "patch_size", "output_stride", "reg_tokens")
_FLAGS = ("class_token", "qkv_bias", "dynamic_img_size", "no_embed_class")
_POOLS = ("avg", "max", "avgmax", "catavgmax", "token", "map")
OPTIONS = (*_SHARES, *_SIZES, *_FLAGS, "global_pool")
# of a configuration of transformers: what would load code, or weights of another place, beside the model itself
_LOADING = (
    "auto_map", "attn_implementation", "experts_implementation", "quantization_config", "trust_remote_code",
    "transformers_weights", "fusion_config", "kernel_config", "distributed_config",
)  # fmt: skip


@final
class ICBM(nn.Module):
    """logits = head(act(norm(projection(backbone(x))))), a linear classifier on C concepts, each near 0 or 1.

    Where there is no projection, the activation that ends the backbone is taken away, since what stands before a step
    must be able to be negative. After `htaf.harden` the concepts are bits. With act = None it is the plain network that
    such a model is compared with: the backbone keeps its activation, and there is neither norm nor step.

    Args:
        backbone: images -> features [batch, F], without a classifier.
        classes: K, columns of the output.
        act: makes the activation module, such as `partial(HTAF, 2.0, 11.0)`; None for the plain network.
        example: a batch of images, to see what the backbone gives.
        concepts: C; None: F. Where they differ, a linear layer lies between features and concepts.
        norm: batch normalisation of the pre-activations; None: unless they are a layer norm's output, as in ViT.
        freeze: the backbone is not trained, and its batch norms keep their statistics.
        keep_norms: its batch norms keep their statistics while its weights are trained.
        enlarge: (height, width) to which images are brought (bilinear) before the backbone; None: as they come.
        dropout: of the features, in training.

    Shape: [batch, channels, height, width] -> [batch, classes]. Where features [batch, F] of the backbone are given
    instead of images, the backbone is left out.

    Raises:
        ValueError: sizes that are not positive, a backbone whose output is not [batch, F], or whose last activation
            cannot be taken away.

    Source: Park et al. 2026, section 3.3.
    """

    def __init__(
        self,
        backbone: nn.Module,
        classes: int,
        act: Callable[[], nn.Module] | None = HTAF,
        *,
        example: Tensor,
        concepts: int | None = None,
        norm: bool | None = None,
        freeze: bool = False,
        keep_norms: bool = False,
        enlarge: tuple[int, int] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(backbone, nn.Module):
            raise TypeError(f"expected a backbone that is a module, got {type(backbone).__name__}")
        if not isinstance(example, Tensor) or example.ndim != 4:
            shown = f"shape {tuple(example.shape)}" if isinstance(example, Tensor) else type(example).__name__
            raise ValueError(
                f"expected an example of images, a tensor [batch, channels, height, width], got {shown}; a backbone "
                "that takes something else needs a module around it that takes images"
            )
        channels, height, width = example.shape[1:]
        self.channels, self.image_size, self.enlarge = channels, (height, width), enlarge
        if enlarge is not None:
            example = example.new_zeros(len(example), channels, *enlarge)
        if classes < 1 or (concepts is not None and concepts < 1):
            raise ValueError(f"sizes must be positive, got {classes=}, {concepts=}")
        features = _features(backbone, example)
        size = concepts or features
        self.cut = act is not None and size == features  # whether the backbone's final activation is taken away
        if self.cut:
            backbone = without_final_activation(backbone, example)
        self.backbone = backbone
        if norm is None:
            norm = size != features or not origin(backbone, example).normalised
        norm = norm and act is not None
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.projection = nn.Linear(features, size, bias=not norm) if size != features else nn.Identity()
        self.norm = nn.BatchNorm1d(size) if norm else nn.Identity()
        self.act = act() if act is not None else nn.Identity()
        expect_one_level(self.act, "the concepts of an ICBM", "a concept is there or not, so give a step of one")
        self.head = nn.Linear(size, classes)
        self.frozen, self.keep_norms = freeze, keep_norms
        if freeze:
            self.backbone.requires_grad_(False)
        self.train()  # which lets the backbone, or its norms, be in eval mode

    @property
    def size(self) -> int:
        """C, the number of concepts."""
        return self.head.in_features

    @property
    def backbone_size(self) -> tuple[int, int]:
        """(height, width) of the images that the backbone takes."""
        return self.enlarge or self.image_size

    def train(self, mode: bool = True) -> ICBM:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        elif self.keep_norms:
            for module in self.backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):  # pyright: ignore[reportPrivateUsage]
                    module.eval()
        return self

    def features(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        """What the backbone gives of images."""
        if self.enlarge is not None:
            x = nn.functional.interpolate(x, self.enlarge, mode="bilinear", align_corners=False)
        return self.backbone(x)

    def pre_activations(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch concepts"]:
        """What the step is taken of: concept j is 1 where value j is >= 0."""
        return self.norm(self.projection(self.dropout(x if x.ndim == 2 else self.features(x))))

    def concepts(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch concepts"]:
        """The concepts: in (0, 1) while smooth, 0 or 1 once hardened, real in the plain network."""
        return self.act(self.pre_activations(x))

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch classes"]:
        return self.head(self.concepts(x))

    def taken_apart(
        self, x: Float[Tensor, "batch ..."]
    ) -> tuple[Float[Tensor, "batch features"], Float[Tensor, "batch concepts"], Float[Tensor, "batch classes"]]:
        """Features, concepts and logits of one pass, as the terms of a training loss read them."""
        features = x if x.ndim == 2 else self.features(x)
        concepts = self.concepts(features)
        return features, concepts, self.head(concepts)

    def edited(self, off: Sequence[tuple[int, int]]) -> ICBM:
        """A new network of the same concepts, of which some classes no longer draw on some: head weights of 0.

        Args:
            off: (class number, concept) pairs.

        Raises:
            ValueError: no such class or concept.
        """
        made, (classes, size) = copy.deepcopy(self), self.head.weight.shape
        for label, concept in off:
            if not (0 <= label < classes and 0 <= concept < size):
                raise ValueError(f"expected a class below {classes} and a concept below {size}, got {label}, {concept}")
            made.head.weight.data[label, concept] = 0
        return made

    @property
    def has_steps(self) -> bool:
        """Whether there are concepts: the plain network has none."""
        return not isinstance(self.act, nn.Identity)

    @classmethod
    def from_timm(
        cls,
        name: str,
        num_classes: int,
        concepts: int | None = None,
        pretrained: Pretrained = False,
        *,
        act: Callable[[], nn.Module] | None = HTAF,
        norm: bool | None = None,
        freeze: bool = False,
        in_channels: int = 3,
        image_size: int | tuple[int, int] = 224,
        options: Mapping[str, Any] | None = None,
    ) -> ICBM:
        """An ICBM over a timm model.

        Args:
            name: of the model, such as "resnet18", "vit_base_patch32_224" or "convnext_tiny".
            num_classes: K.
            concepts, act, norm, freeze: as `ICBM`.
            pretrained: True: timm's weights, downloaded; a path: a file of weights or a run folder of the same
                architecture, see `htaf.models.backbone_weights.load_backbone`.
            in_channels, image_size: of the images, (height, width) in pixels; a ViT is built for this size.
            options: further arguments of `timm.create_model`, of those in `htaf.models.icbm.OPTIONS`.

        Raises:
            ValueError: no such model, or weights of another architecture.

        Example:
            >>> ICBM.from_timm("resnet18", 50, concepts=128)(torch.zeros(2, 3, 64, 64)).shape
            torch.Size([2, 50])
        """
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        backbone = timm_backbone(name, in_channels, (height, width), options or {}, pretrained=pretrained is True)
        if not isinstance(pretrained, bool):
            load_backbone(backbone, pretrained)
        example = torch.zeros(2, in_channels, height, width)
        return cls(backbone, num_classes, act, example=example, concepts=concepts, norm=norm, freeze=freeze)

    @classmethod
    def from_transformers(
        cls,
        model: str | Path | Any,
        num_classes: int,
        concepts: int | None = None,
        pretrained: bool = True,
        *,
        act: Callable[[], nn.Module] | None = HTAF,
        norm: bool | None = None,
        freeze: bool = False,
        image_size: int | tuple[int, int] | None = None,
    ) -> ICBM:
        """An ICBM over an image model of Hugging Face transformers; of a ViT the final, normalised CLS token.

        Args:
            model: a name on the hub, a local folder, or a configuration object.
            num_classes: K.
            concepts, act, norm, freeze: as `ICBM`.
            pretrained: take the weights too; a configuration has none.
            image_size: of the images, (height, width) in pixels; None: the configuration's.

        Raises:
            ValueError: no such model, or a model that takes no images.
        """
        backbone = transformers_backbone(model, image_size, pretrained=pretrained)
        example = torch.zeros(2, backbone.channels, *backbone.size)
        return cls(backbone, num_classes, act, example=example, concepts=concepts, norm=norm, freeze=freeze)


def _features(backbone: nn.Module, example: Tensor) -> int:
    training = {module: module.training for module in backbone.modules()}
    try:
        with torch.no_grad():
            output = backbone.eval()(example)
    except Exception as error:  # too small for its strides, no multiple of its patches, ...
        raise ValueError(
            f"{type(backbone).__name__} cannot take images of {_shape(example)}: {first_line(error)}"
        ) from None
    finally:
        for module, mode in training.items():
            module.training = mode
    if not isinstance(output, Tensor) or output.ndim < 2:
        shown = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"expected a backbone with features [batch, features], got {shown} from {type(backbone).__name__}: put a "
            "module around it that returns the features alone"
        )
    return output.shape[1]


def _shape(example: Tensor) -> str:
    return f"[channels, height, width] {list(example.shape[1:])}"


def _import(name: str) -> Any:
    """A library that only some backbones need."""
    try:
        with no_trace():
            return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"this backbone needs {name}: pip install 'htaf[images]' ({error})") from None


def check_timm(name: str) -> Any:
    """timm, which has a model of this name; raises ValueError where it has none."""
    timm = _import("timm")
    if not timm.is_model(name):
        longer = ", ".join(timm.list_models(f"*{name}*")[:5])
        near = f"; with this in their names: {longer}" if longer else suggestion(name, timm.list_models(), most=3)
        raise ValueError(f"expected the name of a timm model, got {name!r:.80}{near}")
    return timm


def timm_configuration(name: str) -> dict[str, Any]:
    """What timm knows of a model's own weights: "mean", "std", "license", "hf_hub_id", "url"; without building it.

    Raises:
        ValueError: no such model.
    """
    found = check_timm(name).get_pretrained_cfg(name)
    return {} if found is None else dict(vars(found))


def timm_backbone(
    name: str, in_channels: int, size: tuple[int, int] | None, options: Mapping[str, Any], *, pretrained: bool = False
) -> nn.Module:
    """A timm model without its classifier, with fresh weights or timm's; size None: that of its own.

    Args:
        options: of `OPTIONS` alone: others of timm's arguments name files, some of which can run code.

    Raises:
        ValueError: no such model, or options that it does not take.
    """
    timm = check_timm(name)
    fixed = {"num_classes": 0, "in_chans": in_channels, "pretrained": pretrained, **_checked_options(name, options)}
    try:
        try:
            return timm.create_model(name, **fixed, **({} if size is None else {"img_size": size}))
        except TypeError as error:  # convolutional models take images of any size, and no such argument
            if "img_size" not in str(error):
                raise
        return timm.create_model(name, **fixed)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        shown = "" if size is None else f" for images of {size[0]} x {size[1]} pixels"
        raise ValueError(f"timm model {name}{shown}: {first_line(error)}") from None


def _checked_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, once each is known and holds a plain value of its kind."""
    for key, value in options.items():
        if key not in OPTIONS:
            raise ValueError(f"timm model {name} takes the options {', '.join(OPTIONS)} here, got {key!r:.80}")
        if key in _SHARES:
            fits, kind = type(value) in (int, float) and 0 <= value < 1, "a share in [0, 1)"
        elif key in _SIZES:
            sizes = value if isinstance(value, (list, tuple)) and len(value) == 2 else [value]
            fits, kind = all(type(size) is int and 0 <= size <= 1 << 16 for size in sizes), "a size or two"
        elif key in _FLAGS:
            fits, kind = isinstance(value, bool), "true or false"
        else:
            fits, kind = value in _POOLS, f"one of {', '.join(_POOLS)}"
        if not fits:
            raise ValueError(f"timm model {name}: expected {kind} for {key}, got {value!r:.80}")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def check_torchvision(name: str) -> Any:
    """torchvision's models, of which one has this name; raises ValueError where none has."""
    models = _import("torchvision.models")
    known = models.list_models(module=models)  # of classification alone
    if name not in known:
        raise ValueError(f"expected the name of a torchvision model, got {name!r:.80}{suggestion(name, known, most=3)}")
    return models


def torchvision_weights(name: str) -> Any:
    """The weights that torchvision takes for the best of a model: they have `url` and `transforms()`."""
    return check_torchvision(name).get_model_weights(name).DEFAULT


def torchvision_backbone(name: str, size: tuple[int, int] | None, *, pretrained: bool = False) -> nn.Module:
    """A model of torchvision for RGB images without its last linear layer, with fresh weights or torchvision's.

    Args:
        size: of the images; None: that of its own.

    Raises:
        ValueError: no such model, or one that does not end in a linear layer.
    """
    models = check_torchvision(name)
    weights = torchvision_weights(name) if pretrained else None
    square = size is not None and size[0] == size[1]
    sized = {"image_size": size[0]} if size is not None and square and name.startswith("vit_") else {}
    try:
        net: nn.Module = models.get_model(name, weights=weights, **sized)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"torchvision model {name} for images of {size} pixels: {first_line(error)}") from None
    linear = [path for path, module in net.named_modules() if isinstance(module, nn.Linear)]
    last = [path for path in linear if path.split(".")[0] in ("fc", "classifier", "head", "heads")]
    if not last:
        raise ValueError(f"torchvision model {name} does not end in a linear layer: choose another backbone")
    parent, _, own = last[-1].rpartition(".")
    setattr(net.get_submodule(parent), own, nn.Identity())
    return net


@final
class TransformersFeatures(nn.Module):
    """Features of an image model of transformers: its pooled output where it has one, else the CLS token."""

    def __init__(self, model: nn.Module, size: tuple[int, int], channels: int) -> None:
        super().__init__()
        self.model, self.size, self.channels = model, size, channels

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        output = self.model(pixel_values=x)
        pooled = getattr(output, "pooler_output", None)
        return output.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)


def transformers_config(name: str) -> dict[str, Any]:
    """The configuration of a model of transformers as plain JSON values, by its name on the hub or its folder.

    Raises:
        ValueError: no such model.
    """
    try:
        library = _import("transformers")
        with asking_hub(name):
            content = library.PretrainedConfig.get_config_dict(name)[0]
        config = safe_config(library, content)
    except (OSError, ValueError) as error:
        raise ValueError(f"expected an image model of transformers, got {name!r:.80}: {error}") from None
    return json.loads(config.to_json_string(use_diff=False))


def transformers_normalisation(name: str) -> tuple[Any, Any]:
    """Mean and deviation from the preprocessing that lies beside a model of transformers; (None, None): none does."""
    library = _import("transformers")
    try:
        with asking_hub(name):
            content = library.ImageProcessingMixin.get_image_processor_dict(name)[0]
    except (OSError, ValueError):
        return None, None
    return content.get("image_mean"), content.get("image_std")


def safe_config(library: Any, content: Mapping[str, Any]) -> Any:
    """The configuration object of plain values, without anything that would load code, or another library's model.

    Raises:
        ValueError: no such kind of model, or one that is built around a model of timm or of the hub.
    """
    content = dict(without_loading(content))
    kind = content.pop("model_type", None)
    if not isinstance(kind, str):
        raise ValueError(f"its configuration lacks model_type, got {kind!r:.80}")
    if kind.startswith("timm"):
        raise ValueError("expected a model of transformers, got one of timm: give its name without transformers:")
    known = library.AutoConfig.for_model(kind).to_dict()
    config = library.AutoConfig.for_model(kind, **{name: content[name] for name in content if name in known})
    if getattr(config, "backbone_config", None) is not None or getattr(config, "backbone", None) is not None:
        raise ValueError(f"expected an image model of its own, got {kind}, which loads another one as its backbone")
    return config


def without_loading(value: Any) -> Any:
    """The values of a configuration of transformers without those that would load code, kernels or other weights."""
    if isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if isinstance(k, str) and k not in _LOADING and not k.startswith("_")}
        return {key: without_loading(inner) for key, inner in kept.items()}
    return [without_loading(inner) for inner in value] if isinstance(value, list) else value


def transformers_backbone(
    model: str | Path | Any, size: int | tuple[int, int] | None, *, pretrained: bool
) -> TransformersFeatures:
    """An image model of transformers as a backbone.

    Args:
        model: a name on the hub, a local folder, a configuration object, or its content as a dict.
        size: of the images; None: the configuration's. Other sizes than a pretrained ViT's are an error.
        pretrained: take the weights, from the hub or the folder.
    """
    library = _import("transformers")
    given = isinstance(model, (Mapping, library.PretrainedConfig))
    try:
        if isinstance(model, library.PretrainedConfig):
            config: Any = model
        else:  # a file's content: of a record, a folder or the hub
            content = model if isinstance(model, Mapping) else library.PretrainedConfig.get_config_dict(str(model))[0]
            config = safe_config(library, content)
        stored = getattr(config, "image_size", None) or 224
        own = (stored, stored) if isinstance(stored, int) else (int(stored[0]), int(stored[1]))
        wanted = own if size is None else (size, size) if isinstance(size, int) else (size[0], size[1])
        if wanted != own and hasattr(config, "image_size"):
            if pretrained and not given:
                shown = f"{own[0]} x {own[1]} pixels, got {wanted[0]} x {wanted[1]}"
                raise ValueError(f"its weights are for images of {shown}: enlarge (--enlarge) brings images to a size")
            config.image_size = wanted if wanted[0] != wanted[1] else wanted[0]
        if pretrained and not given:  # of .bin files the tensors alone: transformers reads them with weights_only
            network: Any = library.AutoModel.from_pretrained(str(model), config=config, trust_remote_code=False)
        else:
            network = library.AutoModel.from_config(config, trust_remote_code=False)
    except pickle.UnpicklingError:
        raise ValueError(
            f"expected tensors alone in the weights of {model!r:.80}, got a pickle of other objects"
        ) from None
    except Exception as error:  # its classes raise nearly everything on a configuration that makes no sense
        raise ValueError(f"expected an image model of transformers, got {model!r:.80}: {first_line(error)}") from None
    if isinstance(getattr(getattr(network, "pooler", None), "dense", None), nn.Linear):
        network.pooler = None  # a ViT's: a layer for the CLS token that nothing here reads
    return TransformersFeatures(network.float(), wanted, getattr(config, "num_channels", 3))
