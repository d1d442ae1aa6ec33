"""The quick recipes on images: a small whitened network that two cores train on all of CIFAR-10 in minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from htaf.training.recipe import Activation, Hardening, ImageData, Network, Optimization, Recipe, expect

if TYPE_CHECKING:
    from torch import nn

    from htaf.training.problems import Problem

EXAMPLES = 5000  # images that the whitening is taken from


@dataclass(frozen=True)
class ImageNetwork(Network):
    """What the families on images share: beside the residual network of their paper they have a whitened one."""

    layout: Literal["residual", "whitened"] = "residual"
    widths: tuple[int, ...] = (64, 256, 256)

    def check(self) -> None:
        sizes = len(self.widths) > 0 and all(type(size) is int and 1 <= size < 2**20 for size in self.widths)
        expect(sizes, "widths must be integers in 1 to 1,048,575", self.widths)

    def unread(self, method: str) -> dict[str, str]:
        if self.layout == "residual":
            return dict.fromkeys(("widths",), "layout residual")
        return dict.fromkeys(self.residual_fields(), "layout whitened")

    def residual_fields(self) -> tuple[str, ...]:
        """The fields that only the residual network reads."""
        raise NotImplementedError

    def whitened_model(
        self, inputs: Mapping[str, Any], outputs: int, activation: Mapping[str, Any], **more: Any
    ) -> dict[str, Any]:
        """The whitened network as `models.build.build` takes it; more: "steps" and "neuron" of a spiking one.

        Raises:
            ValueError: images too small for as many blocks.
        """
        size, least = inputs.get("image_size", ()), 2 ** len(self.widths) + 1
        blocks = f"images of {least} pixels or more on a side for {len(self.widths)} blocks (widths)"
        expect(min(size, default=least) >= least, f"expected {blocks}", " x ".join(map(str, size)))
        return {
            "kind": "whitened",
            "in_channels": inputs["in_channels"],
            "out_features": outputs,
            "activation": activation,
            "widths": list(self.widths),
            "binary_weights": False,
            **more,
        }

    def initialise(self, net: nn.Module, posed: Problem) -> dict[str, Any]:
        from htaf.models.whitened import WhitenedConvNet

        if isinstance(net, WhitenedConvNet):
            net.whiten(posed.examples(EXAMPLES))
        return {}


def quick(network: Network, *, epochs: int, lr: float = 0.012) -> Recipe:
    """A training of a whitened network on all images of a set but 2,500: Muon at a high rate, alternating flips, few
    epochs, in bfloat16. Smooth for a third of the epochs, then exact with the gradient of the smooth steps."""
    training = Optimization(
        epochs=epochs, batch_size=500, lr=lr, weight_decay=0.5, optimizer="muon", momentum=0.8, label_smoothing=0.1,
        precision="bfloat16", patience=0,
    )  # fmt: skip
    activation = Activation(alpha0=0.4, alpha1=5.0, beta=2.0, slope="tanh", sharpen=False)
    exact = Hardening(exact_from=0.34, recalibrate=True, refit=True)
    return Recipe(network, ImageData("shift-flip", 0, 2500), activation, training, exact)
