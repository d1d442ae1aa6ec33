"""The official layouts of the public sets, small ones made here and real ones under HTAF_DATA; their attributes."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
import torch
from PIL import Image

from htaf.data import attributes
from htaf.data.attributes import Attributes, read_cub_attributes, supervising
from htaf.data.image_sets import folder_of, load, read_cub, read_digits
from htaf.data.images import FilePart, MemoryPart, fit_preprocessor
from htaf.data.reading import DataError


def test_public_sets_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HTAF_DATA", raising=False)
    with pytest.raises(DataError, match="cub: expected the folder CUB_200_2011, got none: download http"):
        folder_of("cub")
    for place in ("given", "variable"):
        (tmp_path / place / "CUB_200_2011").mkdir(parents=True)
    monkeypatch.setenv("HTAF_DATA", str(tmp_path / "variable"))
    assert folder_of("cub") == tmp_path / "variable" / "CUB_200_2011"
    assert folder_of("cub", tmp_path / "given") == tmp_path / "given" / "CUB_200_2011"
    assert folder_of("cub", tmp_path / "given" / "CUB_200_2011") == tmp_path / "given" / "CUB_200_2011"
    with pytest.raises(DataError, match=r"cifar10: expected the folder cifar-10-batches-py, got none in '.*given', '"):
        load("cifar10", data_dir=tmp_path / "given")
    with pytest.raises(DataError, match="data_dir: expected a folder"):
        folder_of("cub", tmp_path / "absent")


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('the pickle ran code')",))


@pytest.mark.parametrize(("name", "folder"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")])
def test_cifar_files_that_are_not_the_published_ones_are_not_opened(tmp_path: Path, name: str, folder: str) -> None:
    (tmp_path / folder).mkdir()
    for file in ("data_batch_1", "test_batch", "batches.meta", "train", "test", "meta"):
        (tmp_path / folder / file).write_bytes(pickle.dumps({"data": Evil()}))
    with pytest.raises(DataError, match=rf"{folder}: expected the files of {name} as they are published, got others"):
        load(name, data_dir=tmp_path)


# --- CUB ---


def write_cub(
    folder: Path, classes: tuple[str, ...] = ("001.A_bird", "002.B_bird", "003.C_bird"), each: int = 3
) -> Path:
    lists: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": [], "classes": []}
    for number, name in enumerate(classes, 1):
        lists["classes"].append(f"{number} {name}")
        (folder / "images" / name).mkdir(parents=True)
        for place in range(each):
            image = len(lists["images"]) + 1
            Image.new("RGB", (30 + place, 24), (50 * number, 0, 0)).save(folder / "images" / name / f"{place}.jpg")
            lists["images"].append(f"{image} {name}/{place}.jpg")
            lists["image_class_labels"].append(f"{image} {number}")
            lists["train_test_split"].append(f"{image} {int(place > 0)}")
    for name, lines in lists.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_cub(tmp_path: Path) -> None:
    images = read_cub(write_cub(tmp_path), 96)
    assert images.classes == ("001.A_bird", "002.B_bird", "003.C_bird")
    assert isinstance(images.train, FilePart)
    assert images.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert images.test.labels.tolist() == [0, 1, 2]
    red = images.test.batch(torch.tensor([2, 0]))[:, 0].double().mean((1, 2))
    assert torch.allclose(red, torch.tensor([150.0, 50.0], dtype=torch.float64), atol=2)
    assert read_cub(tmp_path).train.size == (224, 224)


def test_cub_with_some_of_the_classes(tmp_path: Path) -> None:
    folder = write_cub(tmp_path)
    for path in (folder / "images" / "002.B_bird").iterdir():
        path.unlink()
    (folder / "images" / "002.B_bird").rmdir()
    images = read_cub(folder, 64)
    assert images.classes == ("001.A_bird", "003.C_bird")
    assert images.train.labels.tolist() == [0, 0, 1, 1]
    assert "2 of 3 classes; no images of '002.B_bird'" in images.notes


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("images.txt", None),
        ("images.txt", "1\n"),
        ("classes.txt", "1 001.A_bird\n2 002.B_bird\n"),
        ("image_class_labels.txt", "1 1\n"),
        ("train_test_split.txt", "".join(f"{n} 2\n" for n in range(1, 10))),
    ],
)
def test_cub_with_something_wrong(tmp_path: Path, name: str, content: str | None) -> None:
    folder = write_cub(tmp_path)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(DataError, match="expected"):
        read_cub(folder)


# --- digits, and the real sets ---


def test_digits() -> None:
    images = read_digits()
    assert (len(images.train) + len(images.test), images.train.channels, images.train.size) == (1797, 1, (8, 8))
    assert images.classes == tuple("0123456789")
    assert 350 < len(images.test) < 370
    assert images.train.labels.bincount().min() > 135
    assert images.test.labels.bincount().min() > 33
    bunch = sklearn.datasets.load_digits()
    official = {(image.tobytes(), label) for image, label in zip(bunch.images * 15.9375, bunch.target, strict=True)}
    for part in (images.train, images.test):
        assert isinstance(part, MemoryPart)
        for pixels, label in zip(part.pixels[:50, 0].double(), part.labels[:50].tolist(), strict=True):
            assert (((pixels / 15.9375).round() * 15.9375).numpy().tobytes(), label) in official
    assert load("Digits").fingerprint == images.fingerprint


@pytest.mark.data
def test_real_cifar10(data_dir: Path) -> None:
    images = load("cifar10", data_dir=data_dir)
    assert images.classes[0] == "airplane"
    assert images.classes[9] == "truck"
    assert (len(images.train), len(images.test)) == (50_000, 10_000)
    assert images.train.labels.bincount().tolist() == [5000] * 10
    assert images.test.labels[:8].tolist() == [3, 8, 8, 0, 6, 6, 1, 6]  # cat, ship, ship, airplane, frog, frog, ...
    assert images.train.batch(torch.tensor([0]))[0, :, 0, 0].tolist() == [59, 62, 63]
    fitted = fit_preprocessor(images, torch.arange(0, 50_000, 5))
    np.testing.assert_allclose(fitted.mean, (0.4914, 0.4822, 0.4465), atol=2e-3)  # of all, as published everywhere
    np.testing.assert_allclose(fitted.std, (0.2470, 0.2435, 0.2616), atol=2e-3)


# ---- attributes of classes: CUB's layout, tables, rows by name, the rule of the concept bottleneck paper ----


def write_cub_attributes(folder: Path, values: str = "0 50 100\n12.5 49.9 0\n1 2 3\n", beside: bool = False) -> Path:
    folder = folder / "CUB_200_2011"
    (folder / "attributes").mkdir(parents=True)
    (folder / "classes.txt").write_text("1 001.Black_footed_Albatross\n2 002.Laysan_Albatross\n")
    names = "1 has_bill_shape::dagger\n2 has_wing_color::blue\n3 has_size::large_(16_-_32_in)\n"
    ((folder.parent if beside else folder) / "attributes.txt").write_text(names)
    (folder / "attributes" / "class_attribute_labels_continuous.txt").write_text(values)
    return folder


@pytest.mark.parametrize("beside", [False, True], ids=["in the folder", "beside it"])
def test_cub_layout(tmp_path: Path, beside: bool) -> None:
    write_cub_attributes(tmp_path, beside=beside)
    found = attributes.load("CUB", data_dir=tmp_path)
    assert found.names == ("has_bill_shape::dagger", "has_wing_color::blue", "has_size::large_(16_-_32_in)")
    assert found.classes == ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003")
    assert found.values.dtype == np.float32
    np.testing.assert_array_equal(found.values, np.array([[0, 0.5, 1], [0.125, 0.499, 0], [0.01, 0.02, 0.03]], "f4"))
    np.testing.assert_array_equal(found.binary(), [[False, True, True], [False] * 3, [False] * 3])
    assert found.notes == ("1 of 3 classes are not in classes.txt: they go by number",)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("0 50 100\n1 2\n", "from 3 to 2 at row 2"),
        ("0 50 x\n1 2 3\n", "numbers .*'x'"),
        ("0 50 101\n1 2 3\n", "percents of 3 attributes, got .* 0.0 to 101.0"),
        ("0 50 100\n", "a line for each of 2 classes, .* got 1 lines"),
        ("", "got 0 lines"),
    ],
)
def test_cub_with_wrong_values(tmp_path: Path, values: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_cub_attributes(write_cub_attributes(tmp_path, values))


def test_attributes_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HTAF_DATA", raising=False)
    with pytest.raises(DataError, match="cub: expected the folder CUB_200_2011, got none: download http"):
        attributes.load("cub")
    with pytest.raises(DataError, match=r"'cubs': expected 'cub', 'digits' or a CSV .*did you mean 'cub'"):
        attributes.load("cubs")


def test_strokes_of_digits() -> None:
    found = attributes.load("Digits")
    assert (len(found.names), found.classes) == (11, tuple("0123456789"))
    loops = found.values[:, found.names.index("closed loop")]
    assert [digit for digit, has in zip(found.classes, loops, strict=True) if has] == list("0689")
    assert len({tuple(row) for row in found.values.tolist()}) == 10, "each digit has strokes of its own"


@pytest.mark.data
def test_cub_here(data_dir: Path) -> None:
    cub = attributes.load("cub", data_dir=data_dir)
    assert (len(cub.names), len(cub.classes)) == (312, 200)
    raw = np.loadtxt(data_dir / "CUB_200_2011/attributes/class_attribute_labels_continuous.txt")
    np.testing.assert_allclose(cub.values, raw / 100, atol=1e-7)
    assert len(supervising("cub", data_dir=data_dir).names) == 112
    albatross = cub.of(["Black-footed albatross"])
    assert albatross.values[0, cub.names.index("has_bill_shape::hooked_seabird")] > 0.5


@pytest.mark.parametrize("kind", ["numbers.csv", "truth.csv", "semicolons.csv", "shares.parquet", "truth.parquet"])
def test_tables_of_attributes(tmp_path: Path, kind: str) -> None:
    values = np.array([[1, 0], [0, 1], [1, 1]], dtype=bool)
    frame = pd.DataFrame(values, columns=["has wings", "swims"])
    if kind in ("numbers.csv", "shares.parquet"):
        frame = frame.astype(float) * (0.25 if kind == "shares.parquet" else 1)
    if kind == "semicolons.csv":
        frame = frame.map(lambda value: "yes" if value else "FALSE")
    frame.insert(0, "Class", ["kiwi", "gull", "duck"])
    if kind.endswith("csv"):
        frame.to_csv(tmp_path / kind, index=False, sep=";" if kind == "semicolons.csv" else ",")
    else:
        frame.to_parquet(tmp_path / kind)
    found = attributes.load(tmp_path / kind)
    assert (found.names, found.classes) == (("has wings", "swims"), ("kiwi", "gull", "duck"))
    np.testing.assert_array_equal(found.values, values * np.float32(0.25 if kind == "shares.parquet" else 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,a\nx,1\n", "expected the first column 'class' .* got 'name'"),
        ("class,a\nx,1\nx,0\n", "expected distinct classes, got 'x' more than once"),
        ("class,a\n,1\n", "expected a class in each row, got none in row 1"),
        ("class,a\nx,\n", "column 'a', class 'x': expected 0 or 1, .* got ''"),
        ("class,a\nx,maybe\n", "got 'maybe'"),
        ("class,a\nx,0.5\ny,1.5\n", "class 'y': .* got '1.5'; divide percent by 100"),
        ("class,a\n", "header only"),
    ],
)
def test_tables_of_attributes_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        attributes.load(tmp_path / "t.csv")


def three_classes() -> Attributes:
    values = np.array([[0.5, 0.1], [0.9, 0.2], [0.0, 0.8]], dtype=np.float32)
    return Attributes(("a", "b"), ("001.Gray_Catbird", "snow goose", "3"), values)


def test_rows_by_name() -> None:
    found = three_classes().of(["Snow_Goose", "3", "gray catbird"])
    assert found.classes == ("Snow_Goose", "3", "gray catbird")
    np.testing.assert_array_equal(found.values, three_classes().values[[1, 2, 0]])
    with pytest.raises(DataError, match=r"got none of 'snow gose', 'x' .did you mean 'snow goose'"):
        three_classes().of(["3", "snow gose", "x"])


def test_a_name_that_two_classes_share_is_not_guessed() -> None:
    both = Attributes(("a",), ("1.crow", "2.crow"), np.array([[0.0], [1.0]], dtype=np.float32))
    with pytest.raises(DataError, match="got none of 'crow'"):
        both.of(["crow"])
    assert both.of(["2.crow"]).values[0, 0] == 1


def test_binary_attributes() -> None:
    np.testing.assert_array_equal(three_classes().binary()[:, 0], three_classes().values[:, 0] >= 0.5)
