"""Implicit concept bottleneck models: any image backbone, whose last features become bits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf._ground.compat import no_trace
from htaf._ground.errors import first_line, suggestion
from htaf.core.activations import HTAF
from htaf.core.contract import expect_one_level
from htaf.models.backbone_weights import load_backbone
from htaf.models.concept_terms import GROUP_RATE, GROUPED, group_directions
from htaf.models.final_activation import origin, without_final_activation
from htaf.transform.convert.modes import evaluating

Pretrained = bool | str | Path


@final
class ICBM(nn.Module):
    """logits = head(act(norm(projection(backbone(x))))), a linear classifier on C concepts, each near 0 or 1.

    If there is no projection, the last activation of the backbone is removed, because a pre-activation must be able to
    be negative. After `htaf.harden` the concepts are bits. With act = None it is the plain network to compare with: the
    backbone keeps its activation, and there is neither norm nor step.

    Args:
        backbone: images -> features [batch, F], without a classifier.
        classes: K, columns of the output.
        act: makes the activation module, such as `partial(HTAF, 2.0, 11.0)`; None for the plain network.
        example: a batch of images, to see what the backbone gives.
        concepts: C; None: F. Where they differ, a linear layer lies between features and concepts.
        norm: batch normalisation of the pre-activations; None: yes, unless a layer norm computes them, as in ViT.
        freeze: the backbone is not trained, and its batch norms keep their statistics.
        keep_norms: its batch norms keep their statistics while its weights are trained.
        enlarge: (height, width) to which images are resized (bilinear) before the backbone; None: no resizing.
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
        self.grouped = 0  # how many concepts, the last ones, `begin_groups` has made
        if freeze:
            self.backbone.requires_grad_(False)
        self.train()  # which lets the backbone, or its norms, be in eval mode

    @torch.no_grad()
    def begin_groups(self, features: Float[Tensor, "images features"], share: float) -> None:
        """Let the last share of the concepts be groups of images that look alike, whatever their class.

        Their directions are those of `htaf.models.concept_terms.group_directions`, each on for two fifths of the
        images. No class draws on them, so a training on classes leaves them as they are, and they cost no accuracy. A
        model without a projection and a norm stays as it is.

        Args:
            features: of training images, of which 10,000 are taken. share: of the concepts, in [0, 1].
        """
        if not (share and isinstance(self.projection, nn.Linear) and isinstance(self.norm, nn.BatchNorm1d)):
            return
        rows = torch.linspace(0, len(features) - 1, min(len(features), GROUPED), dtype=torch.float64).long()
        weight, features = self.projection.weight, features[rows].to(self.head.weight)
        found = group_directions(features.cpu(), int(share * self.size)).to(weight)
        first = self.size - len(found)
        found *= (features @ weight.T).std() / (features @ found.T).std(0).clamp(min=1e-12)[:, None]
        weight[first:], scores, dropped = found, features @ found.T, getattr(self.dropout, "p", 0.0)
        # the norm keeps the deviations of training, to which dropout adds
        noise = dropped / (1 - dropped) * (features.square().mean(0) @ found.square().T)
        least = scores.quantile(1 - GROUP_RATE, dim=0) - scores.mean(0)
        self.norm.bias[first:] = -least / (scores.var(0) + noise).clamp(min=1e-12).sqrt()
        self.head.weight[:, first:] = 0
        drawn_on = (torch.arange(self.size, device=weight.device) < first).to(weight)
        self.head.weight.register_hook(lambda gradient: gradient * drawn_on.to(gradient))
        self.grouped = len(found)

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
    ) -> ICBM:
        """An ICBM over a timm model.

        Args:
            name: of the model, such as "resnet18", "vit_base_patch32_224" or "convnext_tiny".
            num_classes: K.
            concepts, act, norm, freeze: as `ICBM`.
            pretrained: True: timm's weights, downloaded; a path: a file of weights or a run folder of the same
                architecture, see `htaf.models.backbone_weights.load_backbone`.
            in_channels, image_size: of the images, (height, width) in pixels; a ViT is built for this size.

        Raises:
            ValueError: no such model, or weights of another architecture.

        Example:
            >>> ICBM.from_timm("resnet18", 50, concepts=128)(torch.zeros(2, 3, 64, 64)).shape
            torch.Size([2, 50])
        """
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        backbone = timm_backbone(name, in_channels, (height, width), pretrained=pretrained is True)
        if not isinstance(pretrained, bool):
            load_backbone(backbone, pretrained)
        example = torch.zeros(2, in_channels, height, width)
        return cls(backbone, num_classes, act, example=example, concepts=concepts, norm=norm, freeze=freeze)


def _features(backbone: nn.Module, example: Tensor) -> int:
    try:
        with evaluating(backbone):
            output = backbone(example)
    except Exception as error:  # too small for its strides, no multiple of its patches, ...
        raise ValueError(
            f"{type(backbone).__name__} cannot take images of {_shape(example)}: {first_line(error)}"
        ) from None
    if not isinstance(output, Tensor) or output.ndim < 2:
        shown = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"expected a backbone with features [batch, features], got {shown} from {type(backbone).__name__}: put a "
            "module around it that returns the features alone"
        )
    return output.shape[1]


def _shape(example: Tensor) -> str:
    return f"[channels, height, width] {list(example.shape[1:])}"


def check_timm(name: str) -> Any:
    """timm, which has a model of this name; raises ValueError where it has none."""
    try:
        with no_trace():
            import timm
    except ImportError as error:
        raise ValueError(f"this backbone needs timm: pip install 'htaf[images]' ({error})") from None
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


def timm_backbone(name: str, in_channels: int, size: tuple[int, int] | None, *, pretrained: bool = False) -> nn.Module:
    """A timm model without its classifier, with fresh weights or timm's; size None: that of its own.

    Raises:
        ValueError: no such model, or not for images of this size.
    """
    timm = check_timm(name)
    fixed: dict[str, Any] = {"num_classes": 0, "in_chans": in_channels, "pretrained": pretrained}
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
