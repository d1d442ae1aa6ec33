"""Extraction: the bits are the hardened network's, on the parts of the training, whatever interrupts it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from htaf import convert, runs
from htaf.activations import HTAF
from htaf.concepts import extract as module
from htaf.concepts.codes import ConceptError
from htaf.concepts.edit_head import write_edited
from htaf.concepts.extract import extract, extract_features, extract_files, open_codes, open_features
from htaf.concepts.passes import as_margins
from htaf.concepts.store import open_margins
from htaf.data.image_parts import FilePart, MemoryPart, as_images
from htaf.data.images import Images
from htaf.data.parts import image_rows
from htaf.data.reading import DataError
from made_runs import PLAIN, digits, made_run

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def images() -> Images:
    return digits()


@pytest.fixture(scope="module")
def run(images: Images, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return made_run(tmp_path_factory.mktemp("runs") / "run", images)


def content(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir()}


def inputs(run: runs.Run, pixels: Tensor) -> Tensor:
    preprocessor: Any = run.preprocessor()
    return preprocessor.normalise(pixels)


@torch.no_grad()
def test_bits_and_predictions_are_those_of_both_networks(run: runs.Run, images: Images, tmp_path: Path) -> None:
    codes = extract(run, images, tmp_path / "a", features=True, batch=100)
    rows = image_rows(images, 700, 200)
    pixels = torch.cat([images.train.batch(rows.train), images.train.batch(rows.validation), images.test.pixels])  # pyright: ignore
    x = inputs(run, pixels)
    smooth: Any = run.model(exact=False)
    exact: Any = run.model()
    np.testing.assert_array_equal(codes.unpack(), exact.concepts(x).numpy())
    np.testing.assert_array_equal(codes.exact, exact(x).argmax(1).numpy())
    np.testing.assert_array_equal(codes.smooth, smooth(x).argmax(1).numpy())
    outputs = smooth.concepts(x).double()
    np.testing.assert_array_equal(codes.saturated, ((outputs > 0.99) | (outputs < 0.01)).sum(1).numpy())
    np.testing.assert_allclose(open_features(tmp_path / "a").values, smooth.pre_activations(x).numpy(), atol=1e-5)
    np.testing.assert_allclose(codes.logits(), exact(x).numpy(), atol=1e-5)
    margins = open_margins(tmp_path / "a")
    assert margins is not None
    assert margins.dtype == np.float16
    np.testing.assert_array_equal(margins >= 0, codes.unpack())
    np.testing.assert_allclose(margins, smooth.pre_activations(x).numpy(), rtol=1e-3, atol=1e-5)
    labels = torch.cat([images.train.labels[rows.train], images.train.labels[rows.validation], images.test.labels])
    np.testing.assert_array_equal(codes.labels, labels.numpy())
    np.testing.assert_array_equal(codes.parts, np.repeat([0, 1, 2], [700, 200, len(images.test)]))
    assert codes.ids[0] == f"train/{rows.train[0]}"
    assert codes.ids[-1] == f"test/{len(images.test) - 1}"
    assert 0.2 < codes.unpack().mean() < 0.8
    assert (codes.info["method"], codes.info["run"]) == ("htaf", str(run.path))


def test_margins_keep_the_side_of_the_step() -> None:
    values = np.array([[0.0, -0.0, -1e-12, 1e-12, -3e5, 3e5, 1.5]], np.float32)
    margins = as_margins(values)
    np.testing.assert_array_equal(margins >= 0, values >= 0)
    assert np.isfinite(margins).all()
    assert margins[0, -1] == 1.5


def test_margins_are_kept_where_they_are_small_or_asked_for(
    run: runs.Run, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract(run, images, tmp_path / "older", parts=["test"], margins=False)
    assert "margins" not in open_codes(tmp_path / "older").info["settings"], "the key of folders without margins"
    extract(run, images, tmp_path / "older", parts=["test"])  # only opened, not refused
    assert open_margins(tmp_path / "older") is None
    with pytest.raises(ConceptError, match="margins: "):
        extract(run, images, tmp_path / "older", parts=["test"], margins=True)
    monkeypatch.setattr(module, "MARGINS", 2 * 359 * 21)
    extract(run, images, tmp_path / "small", parts=["test"])
    assert open_margins(tmp_path / "small") is not None
    monkeypatch.setattr(module, "MARGINS", 2 * 359 * 21 - 1)
    extract(run, images, tmp_path / "large", parts=["test"])
    assert open_margins(tmp_path / "large") is None
    extract(run, images, tmp_path / "small", parts=["test"])
    extract(run, images, tmp_path / "asked", parts=["test"], margins=True)
    found = np.load(tmp_path / "asked" / "margins.npy")
    np.testing.assert_array_equal(found, open_margins(tmp_path / "small"))
    (tmp_path / "asked" / "margins.npy").write_bytes(b"")
    with pytest.raises(ConceptError, match=r"margins\.npy is damaged"):
        open_margins(tmp_path / "asked")


def test_parts_by_name_and_what_the_recipe_left_out(run: runs.Run, images: Images, tmp_path: Path) -> None:
    whole = extract(run, images, tmp_path / "a", parts=("other", "test", "train", "validation"))
    assert [int((whole.parts == i).sum()) for i in range(4)] == [700, 200, 359, len(images.train) - 900]
    assert len(set(whole.ids)) == len(whole) == len(images.train) + len(images.test)
    other = extract(run, images, tmp_path / "b", parts=["other"])
    np.testing.assert_array_equal(other.bits, whole.part("other").bits)
    assert list(other.ids) == whole.part("other").ids
    with pytest.raises(ConceptError, match="expected images of the parts , got none"):
        extract(run, images, tmp_path / "c", parts=[])
    assert not (tmp_path / "c").exists()


def test_images_of_another_set_are_all_other(run: runs.Run, images: Images, tmp_path: Path) -> None:
    rows = torch.arange(50)
    few = MemoryPart(images.train.batch(rows), images.train.labels[rows])
    foreign = as_images("mine", images.classes, few, few, [])
    codes = extract(run, foreign, tmp_path / "a")
    assert codes.parts.tolist() == [3] * 100
    np.testing.assert_array_equal(codes.bits[:50], codes.bits[50:])
    with pytest.raises(ConceptError, match="trained on other images than mine: they are all of the part 'other'"):
        extract(run, foreign, tmp_path / "b", parts=["test"])
    with pytest.raises(DataError, match="expected the 10 classes of the run, got \\['x'\\]"):
        extract(run, as_images("mine", (*images.classes[:9], "x"), few, few, []), tmp_path / "b")
    large = MemoryPart(torch.zeros(2, 1, 9, 8, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(DataError, match=r"\(1, 8, 8\), got \(1, 9, 8\)"):
        extract(run, as_images("mine", images.classes, few, large, []), tmp_path / "b")


def test_images_in_files_are_read_by_batches_and_named(run: runs.Run, images: Images, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    names = tuple(f"{i}.png" for i in range(30))
    for i, name in enumerate(names):
        Image.fromarray(images.train.batch(torch.tensor([i]))[0, 0].numpy()).save(tmp_path / "files" / name)
    part = FilePart(tmp_path / "files", names, images.train.labels[:30], (8, 8), 1)
    held = MemoryPart(images.train.batch(torch.arange(30)), images.train.labels[:30])
    in_files = extract(run, as_images("mine", images.classes, part, part, []), tmp_path / "a", batch=7)
    in_memory = extract(run, as_images("mine", images.classes, held, held, []), tmp_path / "b", batch=7)
    both = extract(run, as_images("mine", images.classes, part, held, []), tmp_path / "c", batch=7)
    np.testing.assert_array_equal(in_files.bits, in_memory.bits)
    np.testing.assert_array_equal(both.bits, in_memory.bits)
    assert list(in_files.ids) == [*names, *names]
    assert list(in_memory.ids[:2]) == ["train/0", "train/1"]
    kept = part.in_memory()
    assert list(extract(run, as_images("mine", images.classes, kept, kept, []), tmp_path / "d").ids) == [*names, *names]


@torch.no_grad()
def test_straight_through_is_saturated_everywhere(images: Images, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", images, {"method": "ste", "slope": "tanh"}, concepts=16)
    codes = extract(run, images, tmp_path / "a", parts=["test"])
    np.testing.assert_array_equal(codes.smooth, codes.exact)
    assert codes.saturated.tolist() == [16] * len(codes)


class Steps(nn.Module):
    """A backbone with a step of its own, so that hardening changes what the bits are made of."""

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), HTAF(0.5, 3.0), nn.Linear(12, 9))
        nn.init.constant_(self.backbone[3].bias, bias)  # pyright: ignore
        self.act, self.head = HTAF(2.0, 11.0), nn.Linear(9, 10)

    def pre_activations(self, x: Tensor) -> Tensor:
        return self.backbone(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.pre_activations(x)))


class Own(runs.Run):
    """A run whose network is made by a function."""

    def model(self, *, exact: bool = True) -> nn.Module:
        torch.manual_seed(0)
        net: Any = self.record["make"]()
        return (convert.harden(net) if exact else net).eval()


def own(run: runs.Run, make: Any) -> Own:
    return Own(run.path, {**run.record, "make": make, "model": {**run.record["model"], "kind": "own"}})


@torch.no_grad()
def test_steps_in_the_backbone_are_hardened_too(run: runs.Run, images: Images, tmp_path: Path) -> None:
    other = own(run, Steps)
    codes = extract(other, images, tmp_path / "a", parts=["test"], features=True)
    x = inputs(run, images.test.pixels)  # pyright: ignore
    smooth: Any = other.model(exact=False)
    exact: Any = other.model()
    np.testing.assert_array_equal(codes.unpack(), exact.pre_activations(x) >= 0)
    assert (codes.unpack() != (smooth.pre_activations(x) >= 0).numpy()).any()
    np.testing.assert_array_equal(codes.exact, exact(x).argmax(1))
    np.testing.assert_array_equal(codes.smooth, smooth(x).argmax(1))
    np.testing.assert_array_equal(open_features(tmp_path / "a").values >= 0, codes.unpack())


@torch.no_grad()
def test_an_exact_network_with_weights_of_its_own(run: runs.Run, images: Images, tmp_path: Path) -> None:
    smooth: Any = run.model(exact=False)
    changed: Any = run.model(exact=False)
    changed.norm.bias.add_(0.3)
    changed.head.weight.mul_(-1.0)
    path = tmp_path / "run"
    record = runs.start_run(path, {k: run.record[k] for k in ("recipe", "seed", "data")} | {"again": True})
    record |= {k: v for k, v in run.record.items() if k not in record and k not in runs.HASHED.values()}
    other = runs.finish_run(path, record, changed, run.preprocessor(), smooth=smooth)
    codes = extract(other, images, tmp_path / "a", parts=["test"])
    x = inputs(run, images.test.pixels)  # pyright: ignore
    np.testing.assert_array_equal(codes.unpack(), changed.pre_activations(x) >= 0)
    np.testing.assert_array_equal(codes.exact, other.model()(x).argmax(1))
    np.testing.assert_array_equal(codes.smooth, smooth(x).argmax(1))
    np.testing.assert_allclose(codes.logits(), other.model()(x).numpy(), atol=1e-5)
    edited: Any = write_edited(other, tmp_path / "edited", [(3, 5)], other.record["metrics"])
    for exact, network in ((True, changed), (False, smooth)):
        weight = edited.model(exact=exact).head.weight
        assert weight[3, 5] == 0
        network.head.weight[3, 5] = 0
        assert torch.equal(weight, network.head.weight)


def test_nan_names_the_image(run: runs.Run, images: Images, tmp_path: Path) -> None:
    with pytest.raises(ConceptError, match="got NaN for the image test/0"):
        extract(own(run, partial(Steps, float("nan"))), images, tmp_path / "a", parts=["test"])


def test_a_run_without_concepts_is_refused(images: Images, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", images, kind="wide_resnet")
    with pytest.raises(ConceptError, match="`htaf train icbm` makes it, got one of family dhn"):
        extract(run, images, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@torch.no_grad()
def test_a_plain_network_gives_features_only(run: runs.Run, images: Images, tmp_path: Path) -> None:
    plain = made_run(tmp_path / "run", images, PLAIN)
    with pytest.raises(ConceptError, match="no bits: extract its features, then make bits of them"):
        extract(plain, images, tmp_path / "a", features=True)
    features = extract_features(plain, images, tmp_path / "a", parts=["test"])
    net: Any = plain.model(exact=False)
    x = inputs(plain, images.test.pixels)  # pyright: ignore
    np.testing.assert_allclose(features.values, net.pre_activations(x), atol=1e-5)
    np.testing.assert_array_equal(features.smooth, net(x).argmax(1))
    assert not (tmp_path / "a" / "codes.npy").exists()
    with pytest.raises(ConceptError, match="htaf concepts binarise"):
        open_codes(tmp_path / "a")
    with pytest.raises(ConceptError, match="expected a plain network"):
        extract_features(run, images, tmp_path / "b")


def test_other_settings_are_refused_and_other_batches_are_not(run: runs.Run, images: Images, tmp_path: Path) -> None:
    codes = extract(run, images, tmp_path / "a", parts=["test"])
    again = extract(run, images, tmp_path / "a", parts=["test"], batch=9, workers=3, device="cpu")
    np.testing.assert_array_equal(codes.bits, again.bits)
    with pytest.raises(ConceptError, match="features: False there, True here"):
        extract(run, images, tmp_path / "a", parts=["test"], features=True)
    with pytest.raises(ConceptError, match=r"parts: \['test'\] there"):
        extract(run, images, tmp_path / "a")
    with pytest.raises(ConceptError, match="model_sha256"):
        extract(made_run(tmp_path / "run", images, seed=1), images, tmp_path / "a", parts=["test"])
    for wrong in ({"batch": 0}, {"workers": 0}):
        with pytest.raises(ConceptError, match="batch must be >= 1 and workers in 1 to 1024"):
            extract(run, images, tmp_path / "b", **wrong)
    if not torch.cuda.is_available():
        with pytest.raises(ConceptError, match=r"expected a device of this machine \(.*cpu\), got cuda"):
            extract(run, images, tmp_path / "b", device="cuda")


@pytest.fixture
def smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from htaf.concepts import store, writing

    for place in (store, writing, module):
        monkeypatch.setattr(place, "CHUNK", 64)


@pytest.mark.usefixtures("smaller_chunks")
def test_ctrl_c_leaves_what_is_done(
    run: runs.Run, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract(run, images, tmp_path / "whole", features=True)
    seen: list[int] = []

    def counted(*args: Any, **options: Any) -> Any:
        for chunk, arrays in in_order(*args, **options):
            if len(seen) == 5:
                seen.append(-1)
                raise KeyboardInterrupt
            seen.append(chunk)
            yield chunk, arrays

    in_order = module.in_order
    monkeypatch.setattr(module, "in_order", counted)
    with pytest.raises(KeyboardInterrupt):
        extract(run, images, tmp_path / "a", features=True)
    extract(run, images, tmp_path / "a", features=True, progress=True)
    assert seen == [0, 1, 2, 3, 4, -1, *range(5, 20)]
    assert content(tmp_path / "a") == content(tmp_path / "whole")


SCRIPT = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from htaf.concepts import extract, store, writing
from htaf.runs import open_run
from made_runs import digits
for place in (extract, store, writing):
    place.CHUNK = 64
write, when = writing.write_rows, int(sys.argv[4])
def wrapped(*args):
    global when
    write(*args)
    when -= 1
    if when == 0:
        os.kill(os.getpid(), signal.SIGKILL)
writing.write_rows = wrapped
if __name__ == "__main__":
    extract.extract(open_run(sys.argv[2]), digits(), sys.argv[3], features=True)
"""


@pytest.mark.usefixtures("smaller_chunks")
@pytest.mark.slow
def test_killed_and_resumed(run: runs.Run, images: Images, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    def again(when: int) -> int:
        words = [sys.executable, tmp_path / "script.py", TESTS, run.path, tmp_path / "a", when]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run([str(word) for word in words], env=environment, check=False).returncode

    assert again(27) == -signal.SIGKILL
    done = np.load(tmp_path / "a" / "done.npy")
    assert 0 < done.sum() < len(done)
    extract(run, images, tmp_path / "a", features=True)
    extract(run, images, tmp_path / "whole", features=True)
    assert content(tmp_path / "a") == content(tmp_path / "whole")


@pytest.mark.usefixtures("smaller_chunks")
def test_two_workers_give_the_bytes_of_one(run: runs.Run, images: Images, tmp_path: Path) -> None:
    extract(run, images, tmp_path / "one", features=True, batch=60)
    extract(run, images, tmp_path / "two", features=True, batch=60, workers=2)
    assert content(tmp_path / "two") == content(tmp_path / "one")


def ending() -> nn.Module:
    """Ends a worker process."""
    if torch.multiprocessing.current_process().name != "MainProcess":
        os.kill(os.getpid(), signal.SIGKILL)
    return Steps()


@pytest.mark.slow
@pytest.mark.usefixtures("smaller_chunks")
@pytest.mark.parametrize(
    ("make", "message"), [(ending, "a worker process ended"), (partial(Steps, float("nan")), "NaN")]
)
def test_a_worker_that_ends_or_fails_is_an_error(
    run: runs.Run, images: Images, tmp_path: Path, make: Any, message: str
) -> None:
    with pytest.raises(ConceptError, match=message):
        extract(own(run, make), images, tmp_path / "a", workers=2)
    with pytest.raises(ConceptError, match="not finished"):
        open_codes(tmp_path / "a")


@pytest.fixture
def mixed(tmp_path: Path) -> list[Path]:
    """Files of every kind; the last three cannot be read."""
    folder, rng = tmp_path / "mixed", np.random.default_rng(0)
    folder.mkdir()
    pixels = rng.integers(0, 256, (20, 16, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.save(folder / "rgb.png")
    image.convert("CMYK").save(folder / "cmyk.jpg")
    image.convert("L").save(folder / "grey.png")
    frames = [Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)) for _ in range(3)]
    frames[0].save(folder / "animated.gif", save_all=True, append_images=frames[1:])
    Image.fromarray(rng.integers(0, 65536, (9, 9), dtype=np.uint16)).save(folder / "deep.png")
    stream = io.BytesIO()
    image.resize((200, 200)).save(stream, "JPEG")
    (folder / "truncated.jpg").write_bytes(stream.getvalue()[: len(stream.getvalue()) // 2])
    (folder / "empty.png").touch()
    (folder / "text.png").write_text("no image")
    names = ("rgb.png", "cmyk.jpg", "grey.png", "animated.gif", "deep.png", "truncated.jpg", "empty.png", "text.png")
    return [folder / name for name in names]


def test_files_of_every_kind(run: runs.Run, mixed: list[Path], tmp_path: Path) -> None:
    codes = extract_files(run, mixed, tmp_path / "a", batch=2)
    assert list(codes.ids) == [str(path) for path in mixed[:5]]
    assert set(codes.labels) == {-1}
    assert set(codes.parts) == {3}
    assert codes.info["unreadable"] == 3
    assert codes.info["notes"] == ["3 of 8 files cannot be read and are left out"]
    assert [line.split(" (")[0] for line in codes.info["unreadable_files"]] == [str(path) for path in mixed[5:]]
    expected = run.predict_images(mixed[:5])["prediction"]
    assert [codes.classes[i] for i in codes.exact] == list(expected)
    again = extract_files(run, mixed, tmp_path / "a")
    np.testing.assert_array_equal(again.bits, codes.bits)


def test_only_unreadable_files_or_none(run: runs.Run, mixed: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected image files, got .*truncated\.jpg"):
        extract_files(run, mixed[5:], tmp_path / "a")
    with pytest.raises(DataError, match="got none"):
        extract_files(run, [], tmp_path / "a")
    with pytest.raises(DataError, match=r"absent\.png \(No such file"):
        extract_files(run, [tmp_path / "absent.png"], tmp_path / "a")


def test_a_file_that_changed_is_another_extraction(run: runs.Run, mixed: list[Path], tmp_path: Path) -> None:
    extract_files(run, mixed[:2], tmp_path / "a")
    mixed[0].write_bytes(mixed[2].read_bytes())
    with pytest.raises(ConceptError, match="fingerprint"):
        extract_files(run, mixed[:2], tmp_path / "a")


def test_the_record_is_strict_json_with_the_environment(run: runs.Run, images: Images, tmp_path: Path) -> None:
    extract(run, images, tmp_path / "a", parts=["test"])
    record = json.loads((tmp_path / "a" / "concepts.json").read_text())
    assert record["settings"]["run"] == run.record["key"]
    assert record["settings"]["model_sha256"] == run.record["model_sha256"]
    assert record["settings"]["fingerprint"] == images.fingerprint
    assert {"versions", "commit", "platform", "threads"} <= record.keys()


@torch.no_grad()
def test_features_of_the_backbone(run: runs.Run, images: Images, tmp_path: Path) -> None:
    found = extract_features(run, images, tmp_path / "a", parts=["test"], layer="backbone", batch=100)
    smooth: Any = run.model(exact=False)
    x = inputs(run, images.test.batch(torch.arange(len(images.test))))
    features = smooth.backbone(x)
    assert found.values.shape == features.shape == (len(images.test), smooth.projection.in_features)
    np.testing.assert_allclose(found.values, features.numpy(), atol=1e-5)
    np.testing.assert_array_equal(found.smooth, smooth(x).argmax(1).numpy())
    assert not found.weight.any()
    assert found.info["settings"]["layer"] == "backbone"
    codes = extract(run, images, tmp_path / "b", parts=["test"])
    np.testing.assert_array_equal(codes.labels, found.labels)
    assert list(codes.ids) == list(found.ids)
    with pytest.raises(ConceptError, match="expected a plain network"):
        extract_features(run, images, tmp_path / "c")
