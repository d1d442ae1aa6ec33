"""The sizes in which networks on images are trained: at full scale, and on two cores."""

from __future__ import annotations

from dataclasses import replace

from htaf.training.recipe import ImageData, Network, Recipe

HELP = (
    "cifar10, cifar100: the published code's, for a GPU; reduced: a small network and "
    "5,000 images, for two cores; small: the same network on all images, 20 epochs."
)

QUICK = f"{HELP[:-1]}; quick: a whitened network on all images, which two cores train in less than an hour."


def reduced(recipe: Recipe, network: Network, *, epochs: int, batch_size: int) -> Recipe:
    """The same training of a smaller network for two cores: 5,000 + 1,000 images, one cycle."""
    training = replace(
        recipe.optimization, schedule="one_cycle", lr_end=0.0, precision="bfloat16", epochs=epochs,
        batch_size=batch_size,
    )  # fmt: skip
    return replace(recipe, network=network, data=ImageData("auto", 5000, 1000), optimization=training)


def small(recipe: Recipe) -> Recipe:
    """A reduced training on all images of a set, 10% of them for validation; 20 epochs."""
    training = replace(recipe.optimization, epochs=20, batch_size=64)
    return replace(recipe, data=ImageData(), optimization=training)
