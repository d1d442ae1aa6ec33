"""Architectures as their libraries ship them, untrained and small: every activation found, replaced and hardened."""

import importlib
from collections import Counter
from pathlib import Path

import pytest
import torch

from htaf.core.activations import HTAF
from htaf.transform.convert import conversion, harden, replace, sites
from quick import slow_but

timm = pytest.importorskip("timm")

# name, options, image size, sites, of which functional, of which stay by default
TIMM = [
    ("resnet10t", {}, 32, 11, 0, {}),
    ("vit_tiny_patch16_224", {"img_size": 32, "depth": 2}, 32, 2, 0, {}),
    ("convnext_atto", {}, 32, 12, 0, {}),
    ("efficientnet_b0", {}, 32, 65, 0, {"gate": 16}),
    ("mobilenetv3_small_050", {}, 32, 42, 0, {"gate": 9}),
    ("mixer_s32_224", {"img_size": 64}, 64, 16, 0, {}),
    ("swin_tiny_patch4_window7_224", {"img_size": 64, "window_size": 2}, 64, 12, 0, {}),
    ("levit_128s", {}, 224, 25, 0, {}),
    ("ghostnet_050", {}, 32, 49, 0, {"gate": 7}),
]
TORCHVISION = [
    ("googlenet", {"init_weights": False, "aux_logits": False}, 32, 57, 57, {}),
    ("densenet121", {}, 32, 121, 1, {}),
    ("resnet18", {}, 32, 9, 0, {}),  # one ReLU runs twice in every block
    ("squeezenet1_1", {}, 32, 26, 0, {"output": 1}),
]


def check(model, example, n_sites, n_functional, **stays):
    """What has to hold for every architecture."""
    model.eval()
    call = (lambda m: m(**example)) if isinstance(example, dict) else (lambda m: m(example))
    first = (lambda y: y) if isinstance(example, torch.Tensor) else (lambda y: y.logits)
    with torch.no_grad():
        before = first(call(model))
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    found = sites(model, example)
    assert (len(found), sum(site.functional for site in found)) == (n_sites, n_functional)
    assert all(site.calls for site in found)

    stay = [site for site in found if site.stays is not None]
    assert Counter(site.stays for site in stay) == stays
    default = conversion(replace(model, HTAF, example=example))
    assert (default.left, default.replaced) == (tuple(stay), tuple(site for site in found if site.stays is None))
    smooth = replace(model, HTAF, where="*", example=example)
    account = conversion(smooth)
    assert account.replaced == tuple(found)
    assert not account.left
    again = sites(smooth, example)
    assert {site.kind for site in again} == {"htaf"}
    assert [(s.name, s.calls) for s in again] == [(s.name, s.calls) for s in found]

    exact = harden(smooth)
    assert {site.kind for site in sites(exact, example)} == {"heaviside"}
    assert [s.calls for s in sites(exact, example)] == [s.calls for s in found]
    assert list(exact.state_dict()) == list(smooth.state_dict())
    outputs = []
    for module in exact.modules():
        if type(module).__name__ == "Heaviside":
            module.register_forward_hook(lambda m, args, y: outputs.append(bool(((y == 0) | (y == 1)).all())))
    with torch.no_grad():
        assert first(call(smooth)).shape == before.shape
        call(exact)
        assert torch.equal(first(call(model)), before)
    assert all(outputs)
    assert len(outputs) == sum(site.calls for site in found)
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())


QUICK = [row for row in TIMM if row[0] in ("vit_tiny_patch16_224", "mobilenetv3_small_050")]


@pytest.mark.parametrize(
    ("name", "options", "size", "n_sites", "n_functional", "stays"),
    slow_but(TIMM, *QUICK, rows=True),
    ids=[row[0] for row in TIMM],
)
def test_timm(name, options, size, n_sites, n_functional, stays):
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **options)
    check(model, torch.randn(1, 3, size, size), n_sites, n_functional, **stays)


@pytest.mark.parametrize(
    ("name", "options", "size", "n_sites", "n_functional", "stays"),
    slow_but(TORCHVISION, TORCHVISION[2], rows=True),
    ids=[row[0] for row in TORCHVISION],
)
def test_torchvision(name, options, size, n_sites, n_functional, stays):
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    model = getattr(models, name)(weights=None, **options)
    check(model, torch.randn(1, 3, size, size), n_sites, n_functional, **stays)


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def test_transformers_vit():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL, image_size=16, patch_size=8))
    check(model, {"pixel_values": torch.randn(2, 3, 16, 16)}, 2, 0)


def test_transformers_llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, vocab_size=50))
    check(model, transformers.BatchEncoding({"input_ids": torch.randint(0, 50, (2, 5))}).data, 2, 0)
    assert sites(model, transformers.BatchEncoding({"input_ids": torch.zeros(1, 3, dtype=torch.long)}))[0].calls == 1


ZOO = {
    "Gemma2": {"tanh: scores": 2, "tanh: output": 1},
    "Mamba": {"softplus: scale": 2},
    "ghostnetv2_100": None,
    "lraspp_mobilenet_v3_large": {"hardsigmoid: gate": 8, "sigmoid: gate": 1},
    "fasterrcnn_mobilenet_v3_large_320_fpn": {"hardsigmoid: gate": 8, "sigmoid: choice": 1},
}


@pytest.fixture
def zoo(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    pytest.importorskip("transformers")
    return importlib.import_module("zoo")


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_what_stays_in_a_model_of_the_benchmark(zoo, name):
    row = zoo.row_of(name)
    assert row["wrong"] == []
    assert ZOO[name] in (None, row["stay"])


@pytest.mark.slow
def test_a_detector_with_all_its_sites_takes_any_number_of_images(zoo):
    torch.manual_seed(0)
    model, example, run = zoo.of_torchvision("fasterrcnn_mobilenet_v3_large_320_fpn")
    new = replace(model, HTAF, where="*", example=example)
    assert "rpn.sigmoid_0" in [site.name for site in conversion(new).replaced]
    assert set(run(new.train())) == set(run(model.train()))
    for count in (1, 3):
        assert len(new.eval()([torch.rand(3, 64, 64)] * count)) == count
