"""Extraction: the bits are the hardened network's, on the parts of the training, whatever interrupts it."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from htaf.concepts import extract as module
from htaf.concepts import store
from htaf.concepts.codes import ConceptError
from htaf.concepts.extract import Block, Job, Outcome, as_margins, extract, in_this_process
from htaf.concepts.run_heads import edited_run
from htaf.concepts.store import CodesFolder, open_codes, open_folder
from htaf.core.activations import HTAF
from htaf.data.images import Images, MemoryPart, as_images, split
from htaf.data.reading import DataError
from htaf.training import runs
from htaf.transform import convert
from made_runs import PLAIN, digits, made_run


@pytest.fixture(scope="module")
def images() -> Images:
    return digits()


@pytest.fixture(scope="module")
def run(images: Images, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return made_run(tmp_path_factory.mktemp("runs") / "run", images)


def content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def columns(folder: CodesFolder) -> dict[str, np.ndarray]:
    codes = folder.codes()
    names = ("bits", "labels", "parts", "smooth", "exact", "saturated")
    return {name: getattr(codes, name) for name in names} | {"ids": np.array(list(codes.ids))}


def equal(one: CodesFolder, other: CodesFolder, *less: str) -> None:
    found = columns(other)
    for name, values in columns(one).items():
        if name not in less:
            np.testing.assert_array_equal(found[name], values, name)


def inputs(run: runs.Run, pixels: Tensor) -> Tensor:
    preprocessor: Any = run.preprocessor()
    return preprocessor.normalise(pixels)


@torch.no_grad()
def test_bits_and_predictions_are_those_of_both_networks(run: runs.Run, images: Images, tmp_path: Path) -> None:
    folder = extract(run, images, tmp_path / "a", keep=["features"], batch=100)
    codes = folder.codes()
    rows = split(images, train=700, validation=200)
    pixels = torch.cat([images.train.batch(rows.train), images.train.batch(rows.validation), images.test.pixels])  # pyright: ignore
    x = inputs(run, pixels)
    smooth: Any = run.model(exact=False)
    exact: Any = run.model()
    np.testing.assert_array_equal(codes.unpack(), exact.concepts(x).numpy())
    np.testing.assert_array_equal(codes.exact, exact(x).argmax(1).numpy())
    np.testing.assert_array_equal(codes.smooth, smooth(x).argmax(1).numpy())
    outputs = smooth.concepts(x).double()
    np.testing.assert_array_equal(codes.saturated, ((outputs > 0.99) | (outputs < 0.01)).sum(1).numpy())
    np.testing.assert_allclose(folder.features().values, smooth.pre_activations(x).numpy(), atol=1e-5)
    np.testing.assert_allclose(codes.logits(), exact(x).numpy(), atol=1e-5)
    margins = folder.margins()
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


def test_margins_are_kept_where_they_are_small(
    run: runs.Run, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MARGINS", 2 * 359 * 21)
    small = extract(run, images, tmp_path / "small", parts=["test"]).margins()
    assert small is not None
    monkeypatch.setattr(module, "MARGINS", 2 * 359 * 21 - 1)
    assert extract(run, images, tmp_path / "large", parts=["test"]).margins() is None
    extract(run, images, tmp_path / "small", parts=["test"])  # only opened, not refused
    asked = extract(run, images, tmp_path / "asked", parts=["test"], keep=["features"]).margins()
    np.testing.assert_allclose(asked, small, rtol=1e-3, atol=1e-6)  # pyright: ignore[reportArgumentType]
    for keep, said in ((["backbone", "features"], "alone"), (["x"], "got 'x'")):
        with pytest.raises(ConceptError, match=said):
            extract(run, images, tmp_path / "b", keep=keep)  # pyright: ignore[reportArgumentType]


def test_parts_by_name_and_what_the_recipe_left_out(run: runs.Run, images: Images, tmp_path: Path) -> None:
    whole = extract(run, images, tmp_path / "a", parts=("other", "test", "train", "validation")).codes()
    assert [int((whole.parts == i).sum()) for i in range(4)] == [700, 200, 359, len(images.train) - 900]
    assert len(set(whole.ids)) == len(whole) == len(images.train) + len(images.test)
    other = extract(run, images, tmp_path / "b", parts=["other"]).codes()
    np.testing.assert_array_equal(other.bits, whole.part("other").bits)
    assert list(other.ids) == whole.part("other").ids
    with pytest.raises(ConceptError, match="expected images of the parts , got none"):
        extract(run, images, tmp_path / "c", parts=[])
    assert not (tmp_path / "c").exists()


def test_images_of_another_set_are_all_other(run: runs.Run, images: Images, tmp_path: Path) -> None:
    rows = torch.arange(50)
    few = MemoryPart(images.train.batch(rows), images.train.labels[rows])
    foreign = as_images("mine", images.classes, few, few, [])
    codes = extract(run, foreign, tmp_path / "a").codes()
    assert codes.parts.tolist() == [3] * 100
    np.testing.assert_array_equal(codes.bits[:50], codes.bits[50:])
    with pytest.raises(ConceptError, match="trained on other images than mine: they are all of the part 'other'"):
        extract(run, foreign, tmp_path / "b", parts=["test"])
    with pytest.raises(DataError, match="expected the 10 classes of the run, got \\['x'\\]"):
        extract(run, as_images("mine", (*images.classes[:9], "x"), few, few, []), tmp_path / "b")
    large = MemoryPart(torch.zeros(2, 1, 9, 8, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(DataError, match=r"\(1, 8, 8\), got \(1, 9, 8\)"):
        extract(run, as_images("mine", images.classes, few, large, []), tmp_path / "b")


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
    folder = extract(other, images, tmp_path / "a", parts=["test"], keep=["features"])
    codes = folder.codes()
    x = inputs(run, images.test.pixels)  # pyright: ignore
    smooth: Any = other.model(exact=False)
    exact: Any = other.model()
    np.testing.assert_array_equal(codes.unpack(), exact.pre_activations(x) >= 0)
    assert (codes.unpack() != (smooth.pre_activations(x) >= 0).numpy()).any()
    np.testing.assert_array_equal(codes.exact, exact(x).argmax(1))
    np.testing.assert_array_equal(codes.smooth, smooth(x).argmax(1))
    np.testing.assert_array_equal(folder.features().values >= 0, codes.unpack())


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
    codes = extract(other, images, tmp_path / "a", parts=["test"]).codes()
    x = inputs(run, images.test.pixels)  # pyright: ignore
    np.testing.assert_array_equal(codes.unpack(), changed.pre_activations(x) >= 0)
    np.testing.assert_array_equal(codes.exact, other.model()(x).argmax(1))
    np.testing.assert_array_equal(codes.smooth, smooth(x).argmax(1))
    np.testing.assert_allclose(codes.logits(), other.model()(x).numpy(), atol=1e-5)
    edited: Any = edited_run(other, [(3, 5)]).save(tmp_path / "edited")
    for exact, network in ((True, changed), (False, smooth)):
        weight = edited.model(exact=exact).head.weight
        assert weight[3, 5] == 0
        network.head.weight[3, 5] = 0
        assert torch.equal(weight, network.head.weight)


def test_nan_names_the_image(run: runs.Run, images: Images, tmp_path: Path) -> None:
    with pytest.raises(ConceptError, match="got NaN for the image test/0"):
        extract(own(run, partial(Steps, float("nan"))), images, tmp_path / "a", parts=["test"])


@torch.no_grad()
def test_a_plain_network_gives_features_only(run: runs.Run, images: Images, tmp_path: Path) -> None:
    plain = made_run(tmp_path / "run", images, PLAIN)
    folder = extract(plain, images, tmp_path / "a", parts=["test"])
    features = folder.features()
    net: Any = plain.model(exact=False)
    x = inputs(plain, images.test.pixels)  # pyright: ignore
    np.testing.assert_allclose(features.values, net.pre_activations(x), atol=1e-5)
    np.testing.assert_array_equal(features.smooth, net(x).argmax(1))
    with pytest.raises(ConceptError, match="htaf paper binarise"):
        folder.codes()
    assert folder.margins() is None


def test_other_settings_are_refused_and_other_batches_are_not(run: runs.Run, images: Images, tmp_path: Path) -> None:
    codes = extract(run, images, tmp_path / "a", parts=["test"])
    equal(codes, extract(run, images, tmp_path / "a", parts=["test"], batch=9, device="cpu"))
    with pytest.raises(ConceptError, match="features: False there, True here"):
        extract(run, images, tmp_path / "a", parts=["test"], keep=["features"])
    with pytest.raises(ConceptError, match=r"parts: \['test'\] there"):
        extract(run, images, tmp_path / "a")
    with pytest.raises(ConceptError, match="part_images: 10000 there, 1000 here"):
        extract(run, images, tmp_path / "a", parts=["test"], part_images=1000)
    with pytest.raises(ConceptError, match="model_sha256"):
        extract(made_run(tmp_path / "run", images, seed=1), images, tmp_path / "a", parts=["test"])
    with pytest.raises(ConceptError, match="batch must be >= 1, got 0"):
        extract(run, images, tmp_path / "b", batch=0)
    for size in (0, 999, 1001):
        with pytest.raises(ConceptError, match=f"multiple of 1,000, .*got {size:,}"):
            extract(run, images, tmp_path / "b", part_images=size)
    if not torch.cuda.is_available():
        with pytest.raises(ConceptError, match=r"expected a device of this machine \(.*cpu\), got cuda"):
            extract(run, images, tmp_path / "b", device="cuda")


@pytest.fixture
def chunks_of_100(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the images at once, so that there are several parts of few images."""
    for place in (module, store):
        monkeypatch.setattr(place, "CHUNK", 100)


@pytest.mark.usefixtures("chunks_of_100")
def test_any_parts_give_the_same_columns(run: runs.Run, images: Images, tmp_path: Path) -> None:
    one = extract(run, images, tmp_path / "one", keep=["features"])
    found = extract(run, images, tmp_path / "parts", part_images=300, keep=["features"])
    assert [part.images for part in one.parts] == [1259]
    assert [part.images for part in found.parts] == [300, 300, 300, 300, 59]
    equal(one, found)
    np.testing.assert_array_equal(found.features().values, one.features().values)
    np.testing.assert_array_equal(found.margins(), one.margins())  # pyright: ignore[reportArgumentType]
    assert found.info["run"] == str(run.path.resolve())


class Stops:
    """An engine that ends after so many parts, and counts those that are asked for."""

    def __init__(self, after: int) -> None:
        self.after, self.asked = after, 0

    def __call__(self, job: Job, blocks: Sequence[Block]) -> Iterator[Outcome]:
        self.asked = len(blocks)
        for number, outcome in enumerate(in_this_process(job, blocks)):
            yield outcome
            if number + 1 == self.after:
                raise KeyboardInterrupt


@pytest.mark.usefixtures("chunks_of_100")
def test_only_what_is_missing_is_made(run: runs.Run, images: Images, tmp_path: Path) -> None:
    extract(run, images, tmp_path / "whole", part_images=300)
    with pytest.raises(KeyboardInterrupt):
        extract(run, images, tmp_path / "a", part_images=300, engine=Stops(2))
    with pytest.raises(ConceptError, match="is not finished"):
        open_codes(tmp_path / "a")
    parts = tmp_path / "a" / "parts"
    (parts / ".part-00002.parquet.left").touch()  # of a process that was killed
    kept = (parts / "part-00000.parquet").stat().st_mtime_ns
    (parts / "part-00001.parquet").write_bytes(b"PAR1")
    (parts / "part-mine.parquet").touch()  # somebody else's
    engine = Stops(0)
    extract(run, images, tmp_path / "a", part_images=300, engine=engine, progress=True)
    assert engine.asked == 4
    assert (parts / "part-00000.parquet").stat().st_mtime_ns == kept
    (parts / "part-mine.parquet").unlink()
    assert content(tmp_path / "a") == content(tmp_path / "whole")
    (parts / "part-00003.parquet").unlink()  # of a finished folder
    for asked in (1, 0):
        engine = Stops(0)
        extract(run, images, tmp_path / "a", part_images=300, engine=engine)
        assert engine.asked == asked
    assert content(tmp_path / "a") == content(tmp_path / "whole")


@pytest.mark.usefixtures("chunks_of_100")
def test_a_full_disk_is_named_and_other_parts_stay(
    run: runs.Run, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pq.write_table

    def full(table: pa.Table, file: Path, **options: Any) -> None:
        if "part-00001" in str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        write(table, file, **options)

    monkeypatch.setattr(store.pq, "write_table", full)
    with pytest.raises(
        ConceptError, match=r"part-00001\.parquet cannot be written: No space left .*, [\d,]+ bytes free"
    ):
        extract(run, images, tmp_path / "a", part_images=300)
    assert [p.name for p in (tmp_path / "a" / "parts").iterdir()] == ["part-00000.parquet"]
    monkeypatch.undo()


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
    folder = extract(run, mixed, tmp_path / "a", batch=2)
    codes = folder.codes()
    assert list(codes.ids) == [str(path) for path in mixed[:5]]
    assert set(codes.labels) == {-1}
    assert set(codes.parts) == {3}
    assert codes.info["unreadable"] == 3
    assert codes.info["notes"] == ["3 of 8 files cannot be read and are left out"]
    assert [line.split(" (")[0] for line in codes.info["unreadable_files"]] == [str(path) for path in mixed[5:]]
    expected = run.predict_images(mixed[:5])["prediction"]
    assert [codes.classes[i] for i in codes.exact] == list(expected)
    equal(extract(run, mixed, tmp_path / "a"), folder)


def test_only_unreadable_files_or_none(run: runs.Run, mixed: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected image files, got .*truncated\.jpg"):
        extract(run, mixed[5:], tmp_path / "a")
    with pytest.raises(DataError, match="got none"):
        extract(run, [], tmp_path / "a")
    with pytest.raises(DataError, match=r"absent\.png: expected image files"):
        extract(run, [tmp_path / "absent.png"], tmp_path / "a")


def test_a_file_that_changed_is_another_extraction(run: runs.Run, mixed: list[Path], tmp_path: Path) -> None:
    extract(run, mixed[:2], tmp_path / "a")
    mixed[0].write_bytes(mixed[2].read_bytes())
    with pytest.raises(ConceptError, match="fingerprint"):
        extract(run, mixed[:2], tmp_path / "a")


COUNT = 220


@pytest.fixture(scope="module")
def photos(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(COUNT):
        pixels = images.train.batch(torch.tensor([number]))[0, 0].numpy()
        Image.fromarray(np.roll(pixels, number // 50, 0)).save(folder / f"{number:05d}.png")
    return folder


@pytest.mark.usefixtures("chunks_of_100")
def test_parquet_files(run: runs.Run, photos: Path, tmp_path: Path) -> None:
    names = sorted(photos.iterdir())
    for first in range(0, COUNT, 80):
        data = [name.read_bytes() for name in names[first : first + 80]]
        table = pa.table({"image": data, "label": [first // 80] * len(data), "cls": ["30"] * len(data)})
        pq.write_table(table, tmp_path / f"{first:05d}.parquet")
        pq.write_table(table.drop_columns("label"), tmp_path / f"unknown-{first:05d}.parquet")
    expected = extract(run, [str(photos)], tmp_path / "one")
    for kind in ("0", "unknown"):
        given = [str(file) for file in sorted(tmp_path.glob(f"{kind}*.parquet"))]
        found = extract(run, given, tmp_path / kind, part_images=100)
        assert [part.images for part in found.parts] == [100, 100, 20]
        equal(expected, found, "labels", "ids")
        labels = np.arange(COUNT) // 80 if kind == "0" else np.full(COUNT, -1)
        np.testing.assert_array_equal(found.codes().labels, labels)
        said = [note for note in found.info["notes"] if "labels are" in note]
        assert said == ([] if kind == "0" else ["220 labels are none of the 10 classes of the run: they are -1"])


@pytest.mark.usefixtures("chunks_of_100")
def test_a_parquet_file_that_is_damaged_in_the_middle(run: runs.Run, photos: Path, tmp_path: Path) -> None:
    """Its end says what it holds, so that only reading its images finds out."""
    names, many = sorted(photos.iterdir()), tmp_path / "many"
    many.mkdir()
    for number in range(2):
        rows = [name.read_bytes() for name in names[number * 110 : number * 110 + 110]]
        pq.write_table(pa.table({"image": rows}), many / f"{number}.parquet", row_group_size=90, use_dictionary=False)
    whole, last = (many / "1.parquet").read_bytes(), pq.read_metadata(many / "1.parquet").row_group(1).column(0)
    begin, end = last.data_page_offset + 100, last.data_page_offset + last.total_compressed_size - 100
    (many / "1.parquet").write_bytes(whole[:begin] + bytes(end - begin) + whole[end:])
    with pytest.raises(DataError, match=r"/1\.parquet: expected a Parquet file, got a damaged one .*kept"):
        extract(run, [str(many)], tmp_path / "a", part_images=100)
    assert len(list((tmp_path / "a" / "parts").glob("part-*"))) == 2
    (many / "1.parquet").write_bytes(whole)
    engine = Stops(0)
    found = extract(run, [str(many)], tmp_path / "a", part_images=100, engine=engine)
    assert engine.asked == 1
    np.testing.assert_array_equal(found.codes().bits, extract(run, [str(photos)], tmp_path / "b").codes().bits)


@torch.no_grad()
def test_features_of_the_backbone(run: runs.Run, images: Images, tmp_path: Path) -> None:
    found = extract(run, images, tmp_path / "a", parts=["test"], keep=["backbone"], batch=100).features()
    smooth: Any = run.model(exact=False)
    x = inputs(run, images.test.batch(torch.arange(len(images.test))))
    features = smooth.backbone(x)
    assert found.values.shape == features.shape == (len(images.test), smooth.projection.in_features)
    np.testing.assert_allclose(found.values, features.numpy(), atol=1e-5)
    np.testing.assert_array_equal(found.smooth, smooth(x).argmax(1).numpy())
    assert not found.weight.any()
    assert found.info["settings"]["layer"] == "backbone"
    codes = open_folder(extract(run, images, tmp_path / "b", parts=["test"]).path).codes()
    np.testing.assert_array_equal(codes.labels, found.labels)
    assert list(codes.ids) == list(found.ids)
