"""Networks that take ids, masks or bytes: what comes before the first step stays as it is, the rest is packed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import htaf
from htaf.program.packed import PackedError, PackedModel, load, pack, save, verify

WORDS, ROWS = 50, 24


class Text(nn.Module):
    """Words of a short text."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.layers = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers(self.words(ids).flatten(1))


class Encoder(nn.Module):
    """Words of a padded text, under attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 32, padding_idx=0), nn.Embedding(6, 32)
        self.layer, self.head = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), nn.Linear(32, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(6))
        return self.head(self.layer(x, src_key_padding_mask=ids == 0).mean(1))


class Recommender(nn.Module):
    """A user and an item, in one tensor or two."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items, self.bias = nn.Embedding(20, 8), nn.Embedding(WORDS, 8), nn.Embedding(WORDS, 1)
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, users: Tensor, items: Tensor | None = None) -> Tensor:
        users, items = (users[:, 0], users[:, 1]) if items is None else (users, items)
        both = torch.cat([self.users(users), self.items(items)], -1)
        return (self.layers(both) + self.bias(items)).squeeze(-1)


class Masked(nn.Module):
    """Ids, a mask of them and floats."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.layers = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, ids: Tensor, kept: Tensor, x: Tensor) -> Tensor:
        return self.layers(torch.cat([(self.words(ids) * kept.unsqueeze(-1)).sum(1), x], -1))


class Pixels(nn.Module):
    """Bytes of images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.float() / 255 - 0.5)


def ids(*size: int, below: int = WORDS, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(below, (ROWS, *size), dtype=dtype)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], int]] = {
    "text": (Text, lambda: (ids(6),), 2),
    "text of int32": (Text, lambda: (ids(6, dtype=torch.int32),), 2),
    "encoder": (Encoder, lambda: (ids(6).index_fill(1, torch.tensor([0]), 1),), 1),
    "recommender of one tensor": (Recommender, lambda: (ids(2, below=20),), 2),
    "recommender of two": (Recommender, lambda: (ids(below=20), ids()), 2),
    "masked": (Masked, lambda: (ids(6), torch.rand(ROWS, 6) > 0.5, torch.randn(ROWS, 8)), 1),
    "pixels": (Pixels, lambda: (ids(3, 8, 8, below=256, dtype=torch.uint8),), 2),
}


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_packed_is_the_hardened_network(name: str, levels: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, inputs, layers = CASES[name]
    given, others = inputs(), inputs()
    exact = htaf.harden(htaf.replace(make().eval(), example=given, levels=levels))
    packed = pack(exact, given)
    assert packed.report.layers == layers, packed.report
    found = verify(packed, exact, others)
    assert found.ok, found
    assert not found.count
    save(packed, tmp_path / "net.htaf")
    again = load(tmp_path / "net.htaf")
    for some in (slice(None), slice(1), slice(3, 10)):
        part = tuple(x[some] for x in others)
        with torch.no_grad():
            torch.testing.assert_close(packed(*part), exact(*part), rtol=1e-5, atol=1e-5)
        assert torch.equal(again(*part), packed(*part))
    with pytest.raises(PackedError, match=r"expected an input in torch\.(int64|int32|uint8), got torch\.float32"):
        again(*(x.float() for x in others))


@pytest.fixture(scope="module")
def text() -> tuple[PackedModel, nn.Module]:
    torch.manual_seed(0)
    exact = htaf.harden(htaf.replace(Text().eval(), example=ids(6)))
    return pack(exact, ids(6)), exact


@pytest.mark.parametrize(("beyond", "said"), [(WORDS, f"0 to {WORDS}"), (-1, "-1 to 0")])
def test_ids_that_the_table_has_not_are_named(beyond: int, said: str, text: tuple[PackedModel, nn.Module]) -> None:
    packed, exact = text
    bad = torch.zeros(2, 6, dtype=torch.int64)
    bad[1, 3] = beyond
    for run in (lambda: packed(bad), lambda: pack(exact, bad), lambda: verify(packed, exact, bad)):
        with pytest.raises(PackedError, match=f"expected ids from 0 to {WORDS - 1} for an embedding, got {said}$"):
            run()


def test_dtypes_that_no_network_takes_are_refused(text: tuple[PackedModel, nn.Module]) -> None:
    for x in (torch.randn(4, 6).double(), torch.randn(4, 6).half(), torch.randn(4, 6) + 1j):
        with pytest.raises(PackedError, match="expected an example in float32, integers or bools, got torch"):
            pack(text[1], x)
    with pytest.raises(PackedError, match=r"torch\.export does not take Text: Expected tensor .* 'indices'"):
        pack(text[1], torch.zeros(4, 6))
