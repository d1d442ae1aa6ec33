"""Where the weights of a backbone may come from: files, installed packages; by names or in their order."""

from __future__ import annotations

import hashlib
import io
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import constants
from torch import nn

import htaf.training.backbones as pretrained
from htaf.models import hub
from htaf.models.backbone_weights import find_weights, load_backbone, tensors_sha256
from htaf.models.icbm import ICBM

METADATA = "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.2\nLicense: MIT\n"


def small(out: int = 0) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.Flatten()]
    return nn.Sequential(*layers, *([nn.Linear(4, out)] if out else []))


def saved(state: dict[str, torch.Tensor]) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def renamed(net: nn.Module) -> dict[str, torch.Tensor]:
    """As another library may call its layers, a classifier at the end."""
    return {f"_{name.replace('.', '_layer.')}": value for name, value in net.state_dict().items()}


def test_another_naming_is_taken_in_order(tmp_path: Path) -> None:
    given, net = small(10), small()
    torch.save(renamed(given), tmp_path / "w.pth")
    assert load_backbone(net, tmp_path / "w.pth") == "by order"
    assert all(torch.equal(value, given.state_dict()[name]) for name, value in net.state_dict().items())


def test_another_order_of_kinds_is_refused(tmp_path: Path) -> None:
    state = renamed(small(10))
    names = list(state)
    names[1], names[2] = names[2], names[1]  # of a batch norm weight and bias, which have one shape
    torch.save({name: state[name] for name in names}, tmp_path / "w.pth")
    net = small()
    before = tensors_sha256(net)
    with pytest.raises(ValueError, match="another architecture"):
        load_backbone(net, tmp_path / "w.pth")
    assert tensors_sha256(net) == before


def test_counters_that_an_old_file_lacks_are_no_fault(tmp_path: Path) -> None:
    given, net = small(), small()
    torch.save({k: v for k, v in given.state_dict().items() if "num_batches" not in k}, tmp_path / "w.pth")
    assert load_backbone(net, tmp_path / "w.pth") == "by name"
    torch.save({k: v for k, v in renamed(given).items() if "num_batches" not in k}, tmp_path / "w.pth")
    assert load_backbone(net, tmp_path / "w.pth") == "by order"


def test_an_installed_package_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = saved(small().state_dict())
    about, own = tmp_path / "tiny_weights-1.2.dist-info", tmp_path / "tiny_weights"
    files = {own / "net.pth": content, about / "METADATA": METADATA.encode()}
    files |= {own / "__init__.py": b"raise RuntimeError('its code runs')"}
    files |= {about / "RECORD": "".join(f"{file.relative_to(tmp_path)},,\n" for file in files).encode()}
    for file, data in files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_weights("tiny_weights").described() == {
        "file": "net.pth",
        "sha256": hashlib.sha256(content).hexdigest(),
        "package": "tiny-weights 1.2",
        "licence": "MIT",
    }
    assert load_backbone(small(), "tiny-weights") == "by name"
    assert "tiny_weights" not in sys.modules
    (about / "RECORD").write_text("")
    with pytest.raises(ValueError, match="expected one file of weights"):
        find_weights("tiny_weights")


def test_a_file_of_weights_runs_no_code(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"weight": Bad()}, tmp_path / "x.pth")
    with pytest.raises(ValueError, match="cannot be read as weights"):
        load_backbone(small(), tmp_path / "x.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (saved({}), "got nothing: save one with"),
        (saved({"a": 3}), "got int: save one with"),  # pyright: ignore[reportArgumentType]
        (saved({"a": torch.ones(2)})[:100], "cut short, or holds more than tensors"),
        (b"", "cut short, or holds more than tensors"),
    ],
)
def test_what_is_no_file_of_weights(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(ValueError, match=said) as found:
        load_backbone(small(), tmp_path / "w.pth")
    assert "torch.save(model.state_dict(), FILE)" in str(found.value)
    assert "weights_only" not in str(found.value)  # torch advises to run the code of strangers


def test_a_hub_out_of_reach_says_how_to_supply_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **options: object) -> None:
        raise ConnectionError("no route to the hub")

    net = ICBM.from_timm("resnet10t", 3, image_size=32)
    monkeypatch.setattr(pretrained, "timm_backbone", refused)
    for there, said in ((True, "no route to the hub"), (False, "it is not in the cache, and .* is out of reach")):
        monkeypatch.setattr(hub, "_answers", lambda host, port, there=there: there)
        with pytest.raises(ValueError, match=rf"from its hub: {said}\. Supply them: pretrained with"):
            pretrained.start_from(net, "resnet10t", "hub")


def test_without_a_network_the_cache_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of the hub would try six times, with pauses."""
    monkeypatch.setattr(hub, "_answers", lambda host, port: False)
    net, began = ICBM.from_timm("resnet10t", 3, image_size=32), time.monotonic()
    before = constants.HF_HUB_OFFLINE
    with pytest.raises(ValueError, match=r"is out of reach\. Supply them"):
        pretrained.start_from(net, "resnet10t", "hub")
    assert time.monotonic() - began < 10
    assert constants.HF_HUB_OFFLINE is before


def test_position_embeddings_fit_another_size(tmp_path: Path) -> None:
    options: Any = {"num_classes": 0, "depth": 1, "embed_dim": 24, "num_heads": 2, "patch_size": 8}
    given: Any = timm.create_model("vit_tiny_patch16_224", img_size=64, **options)
    torch.save(given.state_dict(), tmp_path / "w.pth")
    net: Any = timm.create_model("vit_tiny_patch16_224", img_size=32, **options)
    assert load_backbone(net, tmp_path / "w.pth") == "by name"
    assert net.pos_embed.shape[1] == 1 + 4 * 4
    assert torch.equal(net.pos_embed[:, 0], given.pos_embed[:, 0])


@pytest.mark.parametrize(
    ("name", "mean"),
    [("tf_efficientnet_lite0", 0.5), ("resnet18", 0.485), ("wide_resnet", None)],
)
def test_normalisation_is_that_of_the_weights(name: str, mean: float | None) -> None:
    found = pretrained.normalisation(name, "some/file.pth", 3)
    assert (None if found is None else found[0][0]) == mean
    assert pretrained.normalisation(name, "", 3) is None
    if found is not None:
        grey = pretrained.normalisation(name, "some/file.pth", 1)
        assert grey is not None
        assert grey[0] == pytest.approx([sum(found[0]) / 3])
