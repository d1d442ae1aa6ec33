"""What is shared at the hub comes back as it was, with a card; what strangers put there is refused, never run."""

from __future__ import annotations

import functools
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

import htaf
from htaf import sharing
from htaf._ground.errors import HtafError
from htaf._ground.files import SEAL, sealed
from htaf.sharing import PACKED, SharingError, card, push_to_hub, without_paths
from htaf.training import runs
from htaf.training.runs import HASHED, RECORD
from made_hub import Hub, serving
from made_language import write_model
from made_runs import digits, made_run


@dataclass
class Shared:
    """A folder or file of one kind, and what it says of new rows."""

    place: Path
    says: Callable[[Any], np.ndarray]
    names: set[str]  # that it has at the hub, beside its card
    told: tuple[str, ...]  # in the card


ROWS = pd.DataFrame({"a": np.linspace(-2, 2, 60), "kind": [*"xyz"] * 20})
WEIGHTS = {"record.json", "model.safetensors", "preprocessing.json"}


class Kinds:
    """One of each kind, made when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.root, self.made = root, dict[str, Shared]()

    def __getitem__(self, kind: str) -> Shared:
        if kind not in self.made:
            self.made[kind] = getattr(self, f"_{kind}")()
        return self.made[kind]

    def _of_images(self, opened: Any) -> np.ndarray:
        image = self.root / "image.png"
        if not image.exists():
            Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 4).save(image)
        return opened.predict_images([image]).iloc[:, 1:].to_numpy(dtype=np.float64)

    def _table(self) -> Shared:
        table = ROWS.assign(y=np.where(ROWS["a"] + (ROWS["kind"] == "x") > 0, "yes", "no"))
        model = htaf.fit(table, "y", epochs=2, hidden=(8,), random_state=0)
        source = {"name": str(self.root / "rows.csv"), "data_dir": str(self.root), "target": "y"}
        model.run_.record["source"] = source
        place = model.save(self.root / "table")
        said = ("An MLP", "Columns: a, kind.", "no, yes")
        return Shared(place, lambda opened: opened.predict_proba(ROWS), WEIGHTS, said)

    def _icbm(self) -> Shared:
        made_run(self.root / "icbm", digits())
        said = ("concept bottleneck", "21 concepts", "predict_images")
        return Shared(self.root / "icbm", self._of_images, WEIGHTS, said)

    @functools.cached_property
    def deep(self) -> runs.Run:
        return made_run(self.root / "deep", digits(), kind="wide_resnet")

    def _hardened(self) -> Shared:
        (self.root / "hardened").mkdir()
        smooth = self.deep.model(exact=False)
        torch.nn.init.zeros_(next(smooth.parameters()))
        made = runs.finish_run(
            self.root / "hardened", self.deep.record, self.deep.model(), self.deep.preprocessor(),
            smooth=smooth,
        )  # fmt: skip
        names = WEIGHTS | {"smooth.safetensors"}
        return Shared(made.path, self._of_images, names, ("weights of its own", "| test | accuracy"))

    def _packed(self) -> Shared:
        made = runs.pack_run(self.deep, self.root / "deep.packed")
        return Shared(made.path, self._of_images, {PACKED}, ("packed by htaf", "test rows are predicted as"))

    def _concepts(self) -> Shared:
        features = np.random.default_rng(0).normal(size=(90, 6))
        labels = np.array(["low", "high"])[(features[:, 0] > 0).astype(int)]
        place = htaf.ConceptBottleneck(n_concepts=8, epochs=2).fit(features, labels).save(self.root / "concepts")
        names = {"bottleneck.json", "bottleneck.safetensors"}
        return Shared(place, lambda opened: opened.predict_proba(features), names, ("8 bits of 6 features",))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Kinds:
    return Kinds(tmp_path_factory.mktemp("trained on this machine"))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with serving(tmp_path / "cache") as found:
        yield found


EACH = ("table", "icbm", "hardened", "packed", "concepts")


@pytest.mark.parametrize("kind", EACH)
def test_what_is_shared_comes_back_as_it_was(kind: str, kinds: Kinds, hub: Hub) -> None:
    shared = kinds[kind]
    expected = shared.says(htaf.load(shared.place))
    commit = htaf.push_to_hub(shared.place, "ann/net", license="mit")
    np.testing.assert_array_equal(shared.says(htaf.load("ann/net")), expected)
    shown = hub.repositories["ann/net"].files(commit)
    assert set(shown) == shared.names | {"README.md", ".gitattributes"}
    asked = [word for word in hub.asked if word.startswith("GET /ann/net/resolve/")]
    assert {word.rpartition("/")[2] for word in asked} == shared.names
    text = shown["README.md"].decode()
    about = yaml.safe_load(text.split("---")[1])
    assert (about["library_name"], about["license"]) == ("htaf", "mit")
    assert all(word in text for word in (*shared.told, 'htaf.load("ann/net")', "## Limits", "Licence: mit."))
    machine = str(shared.place.parent)
    assert [name for name, data in shown.items() if machine in data.decode(errors="replace")] == []
    assert htaf.push_to_hub(shared.place, "ann/net", license="mit") == commit, "nothing has changed"
    if kind == "table":
        with pytest.raises(runs.UnknownSourceError, match="does not say where its data came from"):
            htaf.load("ann/net").run_.data()
    hub.stop()
    for place in ("ann/net", f"ann/net@{commit}"):  # from the cache
        np.testing.assert_array_equal(shared.says(htaf.load(place)), expected)
    with pytest.raises(SharingError, match="there is no ann/other here, nor can it be fetched from the hub: it is not"):
        htaf.load("ann/other")
    with pytest.raises(SharingError, match="ann/net cannot be written at the hub: it is out of reach"):
        htaf.push_to_hub(shared.place, "ann/net")


def test_branches_private_names_and_another_kind(kinds: Kinds, hub: Hub) -> None:
    first = htaf.push_to_hub(kinds["table"].place, "ann/net", private=True)
    assert hub.repositories["ann/net"].private
    htaf.push_to_hub(kinds["packed"].place, "ann/net", revision="packed")
    files = hub.repositories["ann/net"].files("packed")
    assert set(files) == {PACKED, "README.md", ".gitattributes"}, "nothing of the other kind is left"
    assert isinstance(htaf.load("ann/net@packed"), runs.PackedRun)
    assert isinstance(htaf.load("ann/net", revision=first), htaf.HtafClassifier)
    with pytest.raises(SharingError, match="a commit, branch or tag of ann/net at the hub, got 'v2'"):
        htaf.load("ann/net@v2")
    hub.put("ann/open", {})
    asked = len(hub.asked)
    for place in ("./ann/net", "ann/net/", Path("ann/net"), "ann/net@a/../b"):
        with pytest.raises(SharingError, match="or a name at the hub, found none at"):
            htaf.load(place)
    for revision in ("a/../b", "", "a b", 1):
        with pytest.raises(SharingError, match="expected a commit, branch or tag as revision, got"):
            htaf.load("ann/net", revision=revision)
    assert len(hub.asked) == asked
    with pytest.raises(SharingError, match="ann/open is public already"):
        htaf.push_to_hub(kinds["table"].place, "ann/open", private=True)
    with pytest.raises(SharingError, match="found neither here nor there ann/nothing; what is private there"):
        htaf.load("ann/nothing")


def test_without_a_login_nothing_is_written(kinds: Kinds, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import utils

    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(utils._headers, "get_token", lambda: None)
    with pytest.raises(SharingError, match=r"it does not know you.* \(401\): `hf auth login`"):
        htaf.push_to_hub(kinds["table"].place, "ann/net")
    assert not hub.repositories


def test_the_command(kinds: Kinds, hub: Hub, htaf: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    commit = push_to_hub(kinds["table"].place, "ann/net", license="mit")
    push_to_hub(kinds["packed"].place, "ann/words")
    ROWS.to_csv("rows.csv", index=False)
    own = htaf("predict", kinds["table"].place, "rows.csv")[1]
    assert htaf("predict", f"ann/net@{commit}", "rows.csv")[1] == own
    write_model(tmp_path / "llama")
    hub.put_folder("ann/plain", tmp_path / "llama")
    assert "its config.json is of another library" in htaf("evaluate", "ann/plain")[2]
    assert "a commit, branch or tag of ann/words at the hub, got 'v9'" in htaf("predict", "ann/words@v9", "rows.csv")[2]
    asked = len(hub.asked)
    Path("runs").mkdir()
    assert "found none at runs/net" in htaf("evaluate", "runs/net")[2]
    assert len(hub.asked) == asked, "a folder of this machine that is not there is not asked for"
    for name, given, said in (
        ("net", {}, "owner/name"),
        ("a/b", {"revision": "a b"}, "branch"),
        ("a/b", {"license": ""}, "lic"),
    ):
        with pytest.raises(HtafError, match=f"expected {'the name of a ' if said != 'owner/name' else ''}{said}"):
            push_to_hub(kinds["table"].place, name, **given)


# what strangers put there


def resealed(folder: Path, name: str, **changes: Any) -> None:
    """A record as an attacker writes it: whole in itself."""
    content = json.loads((folder / name).read_text())
    content.pop(SEAL, None)
    (folder / name).write_text(sealed(content | changes))


def with_weights(folder: Path, data: bytes) -> None:
    """Other bytes in place of the tensors, with their SHA-256 in the record."""
    digest = sha256(data).hexdigest()
    for name, record, entry in (
        ("model.safetensors", RECORD, HASHED["model.safetensors"]),
        ("bottleneck.safetensors", "bottleneck.json", "tensors"),
        (PACKED, "", ""),
    ):
        if (folder / name).exists():
            (folder / name).write_bytes(data)
            if record:
                resealed(folder, record, **{entry: digest})


def huge_header(folder: Path) -> None:
    with_weights(folder, (2**40).to_bytes(8, "little") + b"{}" + bytes(64))


def pickled(folder: Path) -> None:
    with_weights(folder, pickle.dumps(Boom()))


def giant(folder: Path) -> None:
    if (folder / RECORD).exists():
        model = json.loads((folder / RECORD).read_text())["model"]
        sizes = {"hidden": [10**9]} if model["kind"] == "mlp" else {"concepts": 10**9, "width": 10**5}
        resealed(folder, RECORD, model=model | sizes)
    elif (folder / "bottleneck.json").exists():
        resealed(folder, "bottleneck.json", dtype="|S20000000")
    else:  # tests/packed/test_safety.py has programs that no network has
        huge_header(folder)


def changed(folder: Path) -> None:
    for file in folder.iterdir():
        if file.suffix == ".safetensors":
            data = bytearray(file.read_bytes())
            data[-3] ^= 1
            file.write_bytes(data)


class Boom:
    """Runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("a pickle was read",)


def only_pickles(folder: Path) -> None:
    for file in [*folder.iterdir()]:
        file.unlink() if file.is_file() else shutil.rmtree(file)
    for name in ("pytorch_model.bin", "model.pkl", "model.joblib"):
        (folder / name).write_bytes(pickle.dumps(Boom()))


def folder_of(shared: Shared, out: Path) -> Path:
    """A copy of it as it is at the hub."""
    if shared.place.is_file():
        out.mkdir()
        shutil.copy(shared.place, out / PACKED)
    else:
        shutil.copytree(shared.place, out)
    return out


def used(place: Any) -> None:
    opened = htaf.load(place)
    if isinstance(opened, runs.Run):  # its network is built when it is used
        opened.model()


@pytest.mark.parametrize("change", [huge_header, pickled, giant, changed, only_pickles])
@pytest.mark.parametrize("kind", EACH)
def test_folders_of_strangers_are_refused(
    kind: str, change: Callable[[Path], None], kinds: Kinds, hub: Hub, tmp_path: Path
) -> None:
    folder = folder_of(kinds[kind], tmp_path / "made")
    kinds[kind].says(htaf.load(folder))  # as it is it is read
    change(folder)
    hub.put_folder("eve/net", folder)
    for place in ("eve/net", folder):
        with pytest.raises(HtafError) as told:
            used(place)
        if change is only_pickles:
            assert "of another library, and a pickle can run code: not read" in str(told.value)
    assert not any(".bin" in word or ".pkl" in word for word in hub.asked)


@pytest.mark.parametrize("kind", EACH)
def test_nothing_but_the_files_of_its_kind_is_fetched(kind: str, kinds: Kinds, hub: Hub, tmp_path: Path) -> None:
    given = {
        file.name: file.read_bytes() for file in folder_of(kinds[kind], tmp_path / "made").iterdir() if file.is_file()
    }
    bad = {
        "modeling.py",
        "pytorch_model.bin",
        "../../outside.json",
        "a/record.json",
        "tokenizer/../../../outside.json",
        "tokenizer/evil.json",
        "x.safetensors",
    }
    hub.put("eve/net", given | dict.fromkeys(bad, pickle.dumps(Boom())))
    kinds[kind].says(htaf.load("eve/net"))
    got = {file.name for file in (tmp_path / "cache").rglob("snapshots/*/*")}
    assert got <= kinds[kind].names
    assert not [*tmp_path.rglob("outside.json")]


def test_a_folder_of_another_library_is_refused_before_its_weights_come(hub: Hub, tmp_path: Path) -> None:
    llama = tmp_path / "llama"
    write_model(llama)
    hub.put_folder("eve/llama", llama)
    for place in ("eve/llama", llama):
        with pytest.raises(SharingError, match=r"its config.json is of another library; htaf.language.load reads"):
            htaf.load(place)
    assert not any("safetensors" in word for word in hub.asked)
    hub.put("eve/empty", {"README.md": b""})
    with pytest.raises(SharingError, match=r"expected a folder that htaf wrote, with one of record.json"):
        htaf.load("eve/empty")


def test_links_give_nothing_away(kinds: Kinds, hub: Hub, tmp_path: Path) -> None:
    """Of a folder that came from elsewhere, pushed on in good faith."""
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    folder = folder_of(kinds["table"], tmp_path / "table")
    (folder / "metrics.csv").unlink()
    (folder / "metrics.csv").symlink_to(secret)
    htaf.push_to_hub(folder, "ann/table")
    for data in (data for one in hub.repositories.values() for data in one.files().values()):
        assert b"a secret" not in data


def test_paths_of_the_machine_stay_there() -> None:
    record = {
        "recipe": {"family": "/kept/as/it/is"},
        "data": {"name": "x.csv"},
        "source": {"name": "/home/ann smith/clients/acme.csv", "data_dir": "C:\\Users\\ann\\data", "test": "in/t.csv"},
        "repaired": {"from": "../runs/secret/a"},
        "notes": [
            "the exact network of /home/ann/runs/a after repair",
            {"values": ["n/a", "km/h", "1/2", "uci:adult", "~ 3/4 of rows", ".5 / year"]},
            ["file '/home/ann smith/x y.csv'", "file:///home/ann/x.csv", "~ann/x.csv", "../a/b.csv"],
        ],
        "other": "https://example.org/data/x.csv",
        "estimator": {"classes": ["/a label/of/data", "./x"]},
    }
    found = without_paths(record)
    assert found["source"] == {"name": "acme.csv", "data_dir": "data", "test": "t.csv"}
    assert found["repaired"] == {"from": "a"}
    assert found["notes"][:2] == ["the exact network of a after repair", record["notes"][1]]
    assert found["notes"][2] == ["file 'x y.csv'", "x.csv", "x.csv", "b.csv"]
    assert all(found[name] == record[name] for name in ("recipe", "data", "other", "estimator"))


def test_a_card_has_no_markup_of_its_data(kinds: Kinds) -> None:
    run = runs.open_run(kinds["table"].place)
    run.record["data"]["name"] = "<script>|x|\n# y"
    text = card("ann/net", run, None).split("\n---\n")[1]
    assert "<script>" not in text
    assert "\n# y" not in text
    assert "No licence is given" in text


def test_a_folder_that_was_trained_on_is_no_source_elsewhere(kinds: Kinds, tmp_path: Path) -> None:
    run = runs.open_run(kinds["icbm"].place)
    assert run.record["source"]["name"] == "digits"
    for name, there in (("digits", "digits"), ("photos", None), ("/home/ann/birds", None)):
        run.record["source"]["name"] = name
        (place := tmp_path / name.rpartition("/")[2]).mkdir()
        assert sharing._write(run, place).record["source"]["name"] == there


def test_a_record_is_not_read_past_what_records_have(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "LARGEST", 10)
    for kind in ("table", "icbm", "concepts"):
        with pytest.raises(SharingError, match="expected at most 10 bytes of JSON, got "):
            htaf.load(kinds[kind].place)
