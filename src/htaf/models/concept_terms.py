"""What makes bits like attributes: terms of a training loss, and groups of images that look alike."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

RATE = 0.15  # share of the images for which a concept is on, unless another is asked for
RATE_WEIGHT = 10.0  # of the term that holds concepts at their rate: the shares end within a few percent of it
LEAST = 1e-4  # share of a batch, so that its logarithm is finite
NEAREST = 5  # images that each image is compared with
GROUP_RATE = 0.4  # share of the images in a group: at 30% one group of ten says little inside 50 classes
GROUPED = 10_000  # images that groups are made of: more change them little
LEAST_OF_GROUP = 4  # images for each group
SHARED = (
    3  # classes that a concept is wanted in, on average: on for fewer images than a class has, it would be that class
)


def shared_rate(classes: int) -> float:
    """The share of images for which a concept is wanted on: 15%, but three classes at least, and half at most.

    With ten classes and 15%, seven bits of ten were detectors of one class; with 30%, none in fifty.

    Args:
        classes: K, taken as equally large.
    """
    return min(0.5, max(RATE, SHARED / classes))


def rate_term(h: Float[Tensor, "batch concepts"], rate: float) -> Float[Tensor, ""]:
    """sum_j KL(rate || r_j) / C, where r_j is the share of the batch that has concept j.

    Args:
        h: concepts in [0, 1]. rate: in (0, 1), the wanted share.

    Source: the sparsity penalty of autoencoders (Ng 2011, CS294A lecture notes).
    """
    share = h.float().mean(0).clamp(LEAST, 1 - LEAST)
    wanted = torch.full_like(share, rate)
    return (wanted * (wanted / share).log() + (1 - wanted) * ((1 - wanted) / (1 - share)).log()).mean()


def neighbour_term(
    h: Float[Tensor, "batch concepts"], features: Float[Tensor, "batch features"], nearest: int = NEAREST
) -> Float[Tensor, ""]:
    """Mean of (h_ij - h_nj)^2 over images i, their nearest images n of the batch and concepts j.

    An image's nearest are those whose features have the largest cosine with its own. Where bits agree among images that
    look alike, they agree within a class, and are shared by classes that look alike.

    Args:
        h: concepts in [0, 1]. features: what the backbone gives of the same images; they get no gradient.
        nearest: how many; of a smaller batch all others.

    Returns:
        0 for a batch of one image.

    Source: the smoothness term of spectral hashing (Weiss et al. 2008), within a batch.
    """
    count = min(nearest, len(h) - 1)
    if count < 1:
        return h.sum() * 0
    unit = torch.nn.functional.normalize(features.detach().float(), dim=1)
    alike = unit @ unit.T
    alike.fill_diagonal_(-2)  # below every cosine: none is its own neighbour
    others = alike.topk(count, 1).indices
    return (h.float()[:, None] - h.float()[others]).square().mean()


def concept_terms(
    h: Float[Tensor, "batch concepts"], features: Float[Tensor, "batch features"], *, rate: float, neighbours: float
) -> Float[Tensor, ""]:
    """Both terms: 10 `rate_term` + neighbours / (rate (1 - rate)) `neighbour_term`.

    Args:
        h, features: as of the terms.
        rate: 0: no such term, and 1/2 in the other. neighbours: weight; 0: none.
    """
    share = rate or 0.5
    total = RATE_WEIGHT * rate_term(h, rate) if rate else h.new_zeros(())
    return total + neighbours / (share * (1 - share)) * neighbour_term(h, features) if neighbours else total


def group_directions(features: Float[Tensor, "images features"], most: int) -> Float[Tensor, "groups features"]:
    """Find the directions of groups of images that look alike, whatever their class: w_g = (m_g - mean(u)) / s.

    s are the deviations of the features. u are the features, standardised and brought to length 1, and m_g the
    centroids of their k-means, which begins at the same random state in every call: equal features have equal groups.

    Args:
        features: of training images.
        most: groups; there are no more than a quarter of the images, nor than there are different images.

    Returns:
        float32, one row for each group; x . w_g is the larger, the more an image is like the group's.

    Source: Coates and Ng 2012, "Learning feature representations with k-means".
    """
    from sklearn.cluster import KMeans

    x = features.detach().float()
    mean, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where(scale > LEAST * mean.abs(), scale, torch.inf)  # a constant feature, but for rounding
    unit = torch.nn.functional.normalize((x - mean) / scale, dim=1)
    count = min(most, len(unit) // LEAST_OF_GROUP, len(unit.unique(dim=0)))
    if not count:
        return x.new_zeros(0, x.shape[1])
    found = KMeans(count, n_init=1, random_state=0).fit(unit.numpy())
    return (torch.from_numpy(found.cluster_centers_).to(unit) - unit.mean(0)) / scale
