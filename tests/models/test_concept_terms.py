"""Terms of the loss of concepts: their rate, and that they agree among images that look alike."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import htaf
from htaf.models.concept_terms import group_directions, neighbour_term, rate_term, shared_rate
from htaf.training.families import ready_recipe
from htaf.training.families.icbm import ICBMNetwork


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), rate=st.floats(0.01, 0.99))
def test_the_rate_term_is_the_divergence_from_the_wanted_share(seed: int, rate: float) -> None:
    h = torch.rand(7, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    wanted = sum(rate * log(rate / share) + (1 - rate) * log((1 - rate) / (1 - share)) for share in h.mean(0).tolist())
    assert float(rate_term(h, rate)) == pytest.approx(wanted / 3, abs=1e-5)
    assert float(rate_term(torch.full((4, 2), rate), rate)) == pytest.approx(0, abs=1e-5)


def test_the_rate_term_is_finite_where_no_image_has_a_concept() -> None:
    h = torch.zeros(5, 2, requires_grad=True)
    rate_term(h + 0, 0.15).backward()
    assert h.grad is not None
    assert h.grad.isfinite().all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9), nearest=st.integers(1, 5))
def test_the_neighbour_term_is_the_mean_over_nearest_images(seed: int, n: int, nearest: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    h, features = torch.rand(n, 4, generator=generator), torch.randn(n, 6, generator=generator)
    total, count = 0.0, 0
    for i in range(n):
        cosines = [float(torch.cosine_similarity(features[i], features[j], dim=0)) for j in range(n)]
        for j in sorted((j for j in range(n) if j != i), key=lambda j: -cosines[j])[:nearest]:
            total, count = total + float((h[i] - h[j]).square().mean()), count + 1
    assert float(neighbour_term(h, features, nearest)) == pytest.approx(total / max(count, 1), abs=1e-6)


def test_the_loss_of_a_training_step_has_both_terms() -> None:
    torch.manual_seed(0)
    example = torch.randn(12, 1, 4, 4)
    net = htaf.ICBM(nn.Sequential(nn.Flatten(), nn.Linear(16, 8)), 3, example=example, concepts=5, norm=True).train()
    y = torch.arange(12) % 3
    loss = nn.functional.cross_entropy
    cases: list[tuple[float | Literal["auto"], float, float]] = [
        (0.2, 0.2, 0.0), (0.0, 0.0, 2.0), (0.2, 0.2, 2.0), ("auto", 0.5, 2.0)
    ]  # fmt: skip
    for asked, rate, neighbours in cases:
        network = ICBMNetwork("wide_resnet", concepts=5, concept_rate=asked, neighbours=neighbours)
        total = network.loss(net, example, y, loss, None)
        features, concepts, logits = net.taken_apart(example)
        wanted = loss(logits, y)
        share = rate or 0.5  # a rate that is given is taken as it is, for three classes too
        if rate:
            wanted = wanted + 10 * rate_term(concepts, share)
        if neighbours:
            wanted = wanted + neighbours / (share * (1 - share)) * neighbour_term(concepts, features)
        assert float(total) == pytest.approx(float(wanted), abs=1e-5)


def test_concepts_begin_at_their_rate() -> None:
    example = torch.randn(400, 1, 4, 4)
    net = htaf.ICBM(nn.Sequential(nn.Flatten(), nn.Linear(16, 8)), 50, example=example, concepts=5, norm=True).train()
    ICBMNetwork("wide_resnet", concepts=5, concept_rate=0.15).initialise(net, None)  # pyright: ignore[reportArgumentType]
    share = float((net.pre_activations(example) >= 0).float().mean())
    assert share == pytest.approx(0.15, abs=0.03)


@pytest.mark.parametrize(
    ("classes", "wanted", "given"), [(50, 0.15, 0.4), (20, 0.15, 0.15), (10, 0.3, 0.15), (4, 0.5, 0.2)]
)
def test_a_concept_is_wanted_in_three_classes_or_more_unless_a_rate_is_given(
    classes: int, wanted: float, given: float
) -> None:
    assert shared_rate(classes) == pytest.approx(wanted)
    network = ready_recipe("icbm", "frozen").network
    assert isinstance(network, ICBMNetwork)
    assert network.rate_for(classes) == pytest.approx(wanted)
    assert replace(network, concept_rate=given).rate_for(classes) == given


def clusters(images: int, of: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of images in clusters far apart, and the number of each one's cluster."""
    generator = torch.Generator().manual_seed(seed)
    own, centres = torch.arange(images) % of, torch.linalg.qr(torch.randn(12, 12, generator=generator)).Q
    return centres[own] * 12 + torch.randn(images, 12, generator=generator) * 0.3, own


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), of=st.integers(2, 5))
def test_each_cluster_of_features_has_a_direction_in_which_its_images_lie_farthest(seed: int, of: int) -> None:
    x, own = clusters(40, of, seed)
    scores = (x - x.mean(0)) @ group_directions(x, of).T
    best = {int(cluster): int(scores[own == cluster].mean(0).argmax()) for cluster in own.unique()}
    assert len(set(best.values())) == of
    for cluster, group in best.items():
        assert scores[own == cluster, group].min() > scores[own != cluster, group].max()


def test_groups_do_not_depend_on_the_scale_of_a_feature_and_have_four_images_each() -> None:
    x, _ = clusters(30, 3, 0)
    scaled = x * torch.linspace(0.1, 5, 12) + 3
    scores, others = ((some - some.mean(0)) @ group_directions(some, 3).T for some in (x, scaled))
    assert torch.allclose(scores, others, atol=1e-3)
    assert torch.equal(group_directions(x, 3), group_directions(x, 3))
    assert len(group_directions(torch.cat([x[:2]] * 8), 6)) == 2
    assert len(group_directions(x, 30)) == 7  # four images for each
    assert not len(group_directions(x[:3], 3))
    assert group_directions(torch.ones(4, 12), 3).tolist() == [[0.0] * 12]


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_no_class_draws_on_groups_and_a_step_of_training_leaves_them_as_they_are(share: float) -> None:
    x, _ = clusters(48, 4, 0)
    torch.manual_seed(0)
    net = htaf.ICBM(nn.Flatten(), 2, example=x[:2, :, None, None], concepts=8).train()
    net.begin_groups(x, share)
    first = net.size - net.grouped
    assert net.grouped == int(8 * share)
    assert isinstance(net.projection, nn.Linear)
    began = (net.pre_activations(x) >= 0).float().mean(0)[first:]
    assert ((began > 0.2) & (began < 0.6)).all()
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    network = ICBMNetwork("wide_resnet", concepts=8, concept_rate=0.3, neighbours=0.5)
    network.loss(net, x, torch.arange(48) % 2, nn.functional.cross_entropy, None).backward()
    torch.optim.SGD(net.parameters(), 0.1).step()
    changed = {name: (value != before[name]) for name, value in net.named_parameters()}
    assert changed["projection.weight"][:first].any(1).all()
    assert not changed["projection.weight"][first:].any()
    assert not changed["norm.bias"][first:].any()
    assert not net.head.weight[:, first:].any()
