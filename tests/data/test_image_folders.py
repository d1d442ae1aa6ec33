"""Folders of images: every kind of file becomes RGB of one size, what cannot be read is left out and counted."""

import io
import os
import socket
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, features

from htaf.data.image_reading import decode, image_files, look, look_all, read_each
from htaf.data.image_sets import load, read_folder
from htaf.data.images import FilePart, Images, MemoryPart
from htaf.data.reading import DataError

SOURCE = Path(__file__).parents[2] / "src" / "htaf"


def picture(seed: int, size: tuple[int, int] = (20, 16), mode: str = "RGB") -> Image.Image:
    """Noise of (width, height)."""
    shape = (size[1], size[0], len(mode)) if len(mode) > 1 else (size[1], size[0])
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8), mode)


def fill(folder: Path, classes: dict[str, int], size: tuple[int, int] = (20, 16)) -> Path:
    for number, (name, count) in enumerate(classes.items()):
        (folder / name).mkdir(parents=True)
        for place in range(count):
            picture(100 * number + place, size).save(folder / name / f"{place:03}.png")
    return folder


def counts(images: Images) -> tuple[list[int], list[int]]:
    length = len(images.classes)
    return (
        torch.bincount(images.train.labels, minlength=length).tolist(),
        torch.bincount(images.test.labels, minlength=length).tolist(),
    )


def png(width: int, height: int) -> bytes:
    """A PNG of that size whose pixels are missing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


# --- layouts ---


def test_a_fifth_of_each_class_is_held_out(tmp_path: Path) -> None:
    images = read_folder(fill(tmp_path / "birds", {"b": 10, "a": 4, "c": 2}), None)
    assert images.name == "birds"
    assert images.classes == ("a", "b", "c")
    assert counts(images) == ([3, 8, 1], [1, 2, 1])
    assert "no test part: 20% of each class held out, 4 images, seeded" in images.notes
    again = read_folder(tmp_path / "birds", None)
    assert again.fingerprint == images.fingerprint
    assert torch.equal(again.test.batch(torch.arange(4)), images.test.batch(torch.arange(4)))
    pixels = {
        part.batch(torch.tensor([row])).numpy().tobytes()
        for part in (images.train, images.test)
        for row in range(len(part))
    }
    assert len(pixels) == 16  # noise: no image is in both parts, none is lost


@pytest.mark.parametrize("test_name", ["test", "val"])
def test_train_and_test_folders(tmp_path: Path, test_name: str) -> None:
    fill(tmp_path / "train", {"a": 3, "b": 2})
    assert counts(load(tmp_path)) == ([2, 1], [1, 1])
    fill(tmp_path / test_name, {"b": 2, "a": 1})
    images = load(tmp_path)
    assert counts(images) == ([3, 2], [1, 2])
    assert not [note for note in images.notes if "held out" in note]


def test_test_goes_before_val_and_classes_may_be_absent_from_it(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"a": 3, "b": 2})
    fill(tmp_path / "val", {"b": 2})
    fill(tmp_path / "test", {"b": 1})
    images = load(tmp_path)
    assert counts(images) == ([3, 2], [0, 1])
    assert "'test' is the test part; not used: 'val'" in images.notes
    assert "no test images of 'a'" in images.notes
    fill(tmp_path / "test", {"z": 1})
    with pytest.raises(DataError, match="expected the classes of 'train', got 'z' too"):
        load(tmp_path)


def test_nested_hidden_and_other_files(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "more").mkdir()
    picture(7).save(tmp_path / "a" / "more" / "x.PNG")
    (tmp_path / "a" / "._000.png").write_bytes(b"resource fork")
    (tmp_path / ".git").mkdir()
    (tmp_path / "a" / "readme.txt").write_text("hello")
    (tmp_path / "list.csv").write_text("hello")
    picture(8).save(tmp_path / "loose.png")
    images = load(tmp_path)
    assert counts(images) == ([3, 2], [1, 1])
    assert "1 file without an image's suffix not used: 'a/readme.txt'" in images.notes
    assert "1 image beside the folders of classes not used: 'loose.png'" in images.notes
    assert not [note for note in images.notes if "unreadable" in note]


def test_small_images_of_one_size_are_held_in_memory(tmp_path: Path) -> None:
    images = load(fill(tmp_path, {"a": 3, "b": 3}, (20, 16)))
    assert isinstance(images.train, MemoryPart)
    assert images.train.size == (16, 20)
    first = next(row for row in range(4) if images.train.labels[row] == 1)
    stored = {picture(100 + place, (20, 16)).tobytes() for place in range(3)}
    assert images.train.pixels[first].permute(1, 2, 0).numpy().tobytes() in stored


@pytest.mark.parametrize(("size", "expected"), [(None, 32), (40, 40), (65, 65)])
def test_images_of_several_sizes_are_brought_to_one(tmp_path: Path, size: int | None, expected: int) -> None:
    fill(tmp_path, {"a": 3, "b": 3}, (20, 16))
    picture(9, (90, 30)).save(tmp_path / "a" / "long.png")
    images = load(tmp_path, size=size)
    assert images.train.size == (expected, expected)
    assert images.train.batch(torch.tensor([2, 0])).shape == (2, 3, expected, expected)
    assert isinstance(images.train, MemoryPart if expected <= 64 else FilePart)
    why = "" if size else ", as the median of their shorter sides is 16; size (--size) sets another"
    said = f"images of 20 to 90 pixels wide and 16 to 30 high: resized and cropped to {expected} x {expected}{why}"
    assert said in images.notes


@pytest.mark.parametrize(("sides", "expected"), [((40, 60), 64), ((64, 65), 96), ((300, 400), 224), ((90, 33), 64)])
def test_the_size_follows_from_the_images(tmp_path: Path, sides: tuple[int, int], expected: int) -> None:
    """The median of the shorter sides, rounded up to a multiple of 32, at most 224."""
    fill(tmp_path, {"a": 2, "b": 2}, (sides[0], sides[0] + 20))
    fill(tmp_path, {"c": 2, "d": 2}, (sides[1] + 7, sides[1]))
    assert load(tmp_path).train.size == (expected, expected)


def test_file_and_memory_parts_agree(tmp_path: Path) -> None:
    images = load(fill(tmp_path, {"a": 6, "b": 6}, (80, 70)), size=66)
    assert isinstance(images.train, FilePart)
    memory = images.train.in_memory()
    rows = torch.tensor([3, 3, 0, 8])
    assert torch.equal(memory.batch(rows), images.train.batch(rows))
    assert (memory.size, memory.channels, len(memory)) == (images.train.size, images.train.channels, len(images.train))


def test_fingerprints_see_names_sizes_labels_and_nothing_else(tmp_path: Path) -> None:
    def fingerprint(folder: Path, size: int = 70) -> str:
        return load(folder, size=size).fingerprint

    first = fingerprint(fill(tmp_path / "one", {"a": 5, "b": 5}, (80, 80)))
    assert fingerprint(fill(tmp_path / "two", {"a": 5, "b": 5}, (80, 80))) == first
    assert fingerprint(tmp_path / "one", 71) != first
    (tmp_path / "two" / "a").rename(tmp_path / "two" / "aa")
    assert fingerprint(tmp_path / "two") != first
    picture(0, (81, 80)).save(tmp_path / "one" / "a" / "000.png")
    assert fingerprint(tmp_path / "one") != first


# --- what cannot be used ---


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a folder for each of two classes or more, got none"):
        load(tmp_path)
    fill(tmp_path, {"a": 3})
    with pytest.raises(DataError, match="two classes or more, got only 'a'"):
        load(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match="images of two classes or more in the folder, got none of 'b'"):
        load(tmp_path)
    (tmp_path / "b" / "x.png").write_bytes(b"")
    with pytest.raises(DataError, match="images of two classes or more in the folder, got none of 'b'"):
        load(tmp_path)
    picture(5).save(tmp_path / "b" / "x.png")
    with pytest.raises(DataError, match="expected two images or more of 'b', to hold out a test part, got 1"):
        load(tmp_path)


def test_a_class_without_images_is_left_out(tmp_path: Path) -> None:
    """As an unreadable file is."""
    fill(tmp_path / "train", {"a": 3, "c": 2, "d": 3})
    fill(tmp_path / "test", {"a": 1, "c": 1, "d": 2})
    (tmp_path / "train" / "b").mkdir()
    for file in (tmp_path / "train" / "c").iterdir():
        file.write_bytes(b"no image")
    (tmp_path / "test" / "b").mkdir()
    images = load(tmp_path)
    assert images.classes == ("a", "d")
    assert images.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.test.labels.tolist() == [0, 1, 1]
    assert "2 classes without a readable image in the training part left out: 'b', 'c'" in images.notes


def test_kinds_that_would_run_another_program_are_refused_by_their_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of the whole kind: every call of PIL's reader names the formats."""
    started: list[str] = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: started.append("gs"))
    path = tmp_path / "x.jpg"
    picture(1).save(path, "EPS")
    assert look(path).problem == "a file of another kind"
    with pytest.raises(DataError, match=r"x\.jpg: expected an image, got a file of another kind"):
        decode(path, 3, (8, 8))
    assert not started
    calls = [line for file in SOURCE.rglob("*.py") for line in file.read_text().splitlines() if "Image.open(" in line]
    assert calls
    assert all("formats=" in line for line in calls), calls


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_only_regular_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"a": 4, "b": 4})
    os.mkfifo(tmp_path / "a" / "pipe.png")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path / "b")  # names of sockets are short
        server.bind("socket.png")
    opened = Image.open

    def only_files(file: Any, *args: Any, **options: Any) -> Any:
        assert isinstance(file, io.BytesIO) or Path(file).is_file(), "it would wait for ever"
        return opened(file, *args, **options)

    monkeypatch.setattr(Image, "open", only_files)
    pipe, server = "expected a file, got a named pipe", "expected a file, got a socket"
    expected = f"2 unreadable files left out: 'a/pipe.png ({pipe})', 'b/socket.png ({server})'"
    assert expected in read_folder(tmp_path, 96).notes
    (tmp_path / "folder.png").mkdir()
    files, _ = image_files([tmp_path])
    assert len(files) == 10  # a folder is none, whatever it is called
    _, problems = read_each(files, 3, (8, 8))
    assert [files[row].name for row, why in enumerate(problems) if why] == ["pipe.png", "socket.png"]
    assert pipe in str(problems[4])
    (tmp_path / "large.webp").touch()
    os.truncate(tmp_path / "large.webp", 10**9)  # takes no room on disk; PIL would read all of it
    assert look(tmp_path / "large.webp").problem == "a file of 1.0 GB, more than 0.7"


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow was built without it")
def test_avif_is_read(tmp_path: Path) -> None:
    path = saved(Image.new("RGB", (20, 16), (200, 30, 90)), tmp_path / "x.avif")
    assert np.abs(decode(path, 3, (16, 20))[:, 8, 8] - np.array([200.0, 30, 90])).max() < 12
    assert image_files([tmp_path])[0] == [path]


@pytest.mark.parametrize("size", [None, 96])  # in memory, by pixels; in files, by their contents
def test_equal_images_in_both_parts_or_of_two_classes_are_told(tmp_path: Path, size: int | None) -> None:
    fill(tmp_path / "train", {"a": 4, "b": 4})
    fill(tmp_path / "test", {"b": 3, "a": 3})  # other seeds than those of the same class
    notes = load(tmp_path, size=size).notes
    same = [f"test/{two}/{n:03}.png = train/{one}/{n:03}.png" for one, two in ("ab", "ba") for n in range(3)]
    told = "6 of 6 test images are in the training part too, so the figures of the test part are too good: "
    assert f"{told}{', '.join(map(repr, same[:3]))} and 3 more" in notes
    pairs = [
        f"train/{one}/{n:03}.png ({one}) = test/{two}/{n:03}.png ({two})" for one, two in ("ab", "ba") for n in range(3)
    ]
    told = "12 images are equal to one of another class: "
    assert f"{told}{', '.join(map(repr, pairs[:3]))} and 3 more" in notes
    for file in (tmp_path / "test").rglob("*.png"):
        picture(int(file.stem) + 1000 + 10 * (file.parent.name == "a")).save(file)
    assert not [note for note in load(tmp_path, size=size).notes if "training part too" in note or "are equal" in note]


def test_mostly_unreadable(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2, "b": 2})
    for place in range(5):
        (tmp_path / "a" / f"bad{place}.jpg").write_bytes(b"no image")
    with pytest.raises(
        DataError, match=r"got 5 of 9 unreadable: 'a/bad0.jpg \(a file of another kind\)', .* and 2 more"
    ):
        load(tmp_path)


def test_damaged_files_are_left_out_and_counted(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 9, "b": 9})
    kinds = {"jpg": "JPEG", "png": "PNG", "gif": "GIF", "webp": "WEBP", "bmp": "BMP"}
    for suffix, kind in kinds.items():
        buffer = io.BytesIO()
        picture(1, (64, 48)).save(buffer, kind)
        (tmp_path / "a" / f"cut.{suffix}").write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    (tmp_path / "a" / "empty.png").write_bytes(b"")
    (tmp_path / "a" / "text.png").write_text("no image")
    (tmp_path / "b" / "bomb.png").write_bytes(png(10_000, 9_500))
    (tmp_path / "b" / "larger.png").write_bytes(png(40_000, 40_000))
    (tmp_path / "b" / "float.tiff").write_bytes(b"")
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "b" / "float.tiff")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = load(tmp_path)
    note = next(note for note in images.notes if "unreadable" in note)
    assert note.startswith("10 unreadable files left out: 'a/cut.bmp (")
    assert note.endswith(" and 5 more")
    assert len(images.train) + len(images.test) == 18
    paths = sorted(tmp_path.rglob("*.*"))
    problems = {path.name: seen.problem for path, seen in zip(paths, look_all(paths), strict=True)}
    assert problems["empty.png"] == "an empty file"
    assert problems["bomb.png"] == "10000 x 9500 pixels, more than 89,478,485"
    assert "decompression bomb" in problems["larger.png"]
    assert problems["float.tiff"] == "floating-point values: 8 or 16 bits are read"
    wide = tmp_path / "b" / "wide.tiff"
    Image.fromarray(np.full((4, 4), -5, np.int32)).save(wide)
    with pytest.raises(DataError) as error:
        decode(wide, 3, (4, 4))
    assert (
        str(error.value) == f"{wide}: expected an image, got values from -5 to -5: 8 or 16 bits, 0 to 65535, are read"
    )
    assert problems["000.png"] == ""


def test_a_gone_or_damaged_file_at_batch_time(tmp_path: Path) -> None:
    images = load(fill(tmp_path, {"a": 6, "b": 6}, (80, 80)))
    assert isinstance(images.train, FilePart)
    path = tmp_path / images.train.names[1]
    path.write_bytes(path.read_bytes()[:500])
    with pytest.warns(UserWarning, match=f"{path.name}: expected an image, got .*; zeros stand in for it"):
        batch = images.train.batch(torch.tensor([0, 1, 2]))
    assert (batch.flatten(1).amax(1) > 0).tolist() == [True, False, True]
    with pytest.raises(DataError, match="expected an image, got"):
        images.train.in_memory()
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        images.train.batch(torch.tensor([0, 1, 2]))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 6, "b": 6})
    (tmp_path / "a" / "000.png").chmod(0)
    assert "1 unreadable file left out: 'a/000.png (" in " ".join(load(tmp_path).notes)


# --- kinds of images ---


def saved(image: Image.Image, path: Path, **options) -> Path:
    image.save(path, **options)
    return path


def test_kinds_become_rgb(tmp_path: Path) -> None:
    grey = picture(1, mode="L")
    rgb = picture(2)
    for name, image, expected in (
        ("grey.png", grey, grey.convert("RGB")),
        ("rgb.png", rgb, rgb),
        ("palette.gif", grey, grey.convert("RGB")),
        ("alpha.png", picture(3, mode="RGBA"), picture(3, mode="RGBA").convert("RGB")),
        ("bits.png", grey.convert("1"), grey.convert("1").convert("RGB")),
    ):
        pixels = decode(saved(image, tmp_path / name), 3, (16, 20))
        np.testing.assert_array_equal(pixels, np.array(expected).transpose(2, 0, 1), err_msg=name)
    luma = decode(tmp_path / "rgb.png", 1, (16, 20))
    np.testing.assert_array_equal(luma[0], np.array(rgb.convert("L")))


def test_cmyk(tmp_path: Path) -> None:
    path = saved(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), tmp_path / "cyan.jpg")
    pixels = decode(path, 3, (16, 16))[:, 8, 8].astype(int)
    assert pixels[0] < 10
    assert pixels[1:].min() > 245


def test_every_value_of_sixteen_bits_is_rounded(tmp_path: Path) -> None:
    values = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    path = saved(Image.fromarray(values), tmp_path / "all.png")
    np.testing.assert_array_equal(decode(path, 1, (256, 256))[0], np.round(values / 257))


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("L", (10, 10), value) for value in (50, 200)]
    path = saved(frames[0], tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    assert (decode(path, 3, (10, 10)) == 50).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(tmp_path: Path, kind: str, orientation: int) -> None:
    """Stored row 0 and column 0 are the visual (top, left), ...: EXIF 2.3, table of tag 274."""
    upright = np.zeros((24, 16), dtype=np.uint8)
    upright[:12, :8], upright[:12, 8:], upright[12:, :8] = 250, 160, 80
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: upright.T[::-1],
        7: upright.T[::-1, ::-1],
        8: upright.T[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[274] = orientation
    image = Image.fromarray(np.ascontiguousarray(stored)).convert("RGB")
    path = saved(image, tmp_path / "turned", format=kind, exif=exif)
    assert look(path).size == (24, 16)
    pixels = decode(path, 1, (24, 16))[0].astype(int)
    assert np.abs(pixels - upright).max() < 30


@pytest.mark.parametrize(
    ("size", "target"),
    [((40, 30), (15, 15)), ((30, 40), (16, 8)), ((7, 9), (20, 20)), ((1, 16), (32, 32)), ((900, 20), (16, 16))],
)
def test_the_shorter_side_is_resized_and_the_centre_cropped(
    tmp_path: Path, size: tuple[int, int], target: tuple[int, int]
) -> None:
    image = picture(4, size)
    pixels = decode(saved(image, tmp_path / "x.png"), 3, target)
    scale = max(target[1] / size[0], target[0] / size[1])
    width, height = round(size[0] * scale), round(size[1] * scale)
    resized = np.array(image.resize((width, height), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    top, left = (height - target[0]) // 2, (width - target[1]) // 2
    np.testing.assert_array_equal(pixels, resized[:, top : top + target[0], left : left + target[1]])


def test_large_jpegs_are_close_to_the_full_decoding(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 800)[:, None, None] * np.linspace(1, 0, 1000)[None, :, None] * np.array([1, 0.5, 0.2])
    image = Image.fromarray(ramp.astype(np.uint8))
    path = saved(image, tmp_path / "large.jpg", quality=95)
    with Image.open(path) as opened:
        full = opened.resize((80, 64), Image.Resampling.BILINEAR).crop((8, 0, 72, 64))
    difference = decode(path, 3, (64, 64)).astype(int) - np.array(full).transpose(2, 0, 1)
    assert np.abs(difference).max() <= 3
