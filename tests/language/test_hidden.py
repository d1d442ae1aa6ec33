"""Hidden states on disk: the rest of the model computes from them what the whole one does."""

from __future__ import annotations

import pytest
import torch
from tests.language.models import MORE, tiny

from htaf.language.hidden import hidden_states, starting_at

TOKENS = torch.randint(3, 64, (20, 16), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", MORE)
def test_the_rest_of_a_model(kind, tmp_path):
    model = tiny(kind)
    kept = hidden_states(model, TOKENS, 3, tmp_path)
    tokens, inputs, outputs = kept.at(torch.tensor([4, 17]))
    with torch.no_grad():
        whole = model(TOKENS[[4, 17]]).logits
        for start, given in ((3, inputs), (4, outputs)):
            with starting_at(model, start) as run:
                torch.testing.assert_close(run(tokens, given), whole, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(model(TOKENS[[4, 17]]).logits, whole, rtol=0, atol=0)


ALL = torch.arange(20)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.at(ALL), other.at(ALL), strict=True))


def test_it_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    model, told = tiny("llama"), []

    def stop(done, of):
        told.append((done, of))
        if len(told) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hidden_states(model, TOKENS, 2, tmp_path, tell=stop)
    kept = hidden_states(model, TOKENS, 2, tmp_path, tell=stop)
    assert told == [(16, 20), (20, 20)]
    assert same(kept, hidden_states(model, TOKENS, 2, tmp_path / "whole"))
    hidden_states(model, TOKENS[:16], 2, tmp_path, tell=stop)  # other tokens have another folder
    assert told[2:] == [(16, 16)]
    assert same(hidden_states(model, TOKENS, 2, tmp_path, tell=stop), kept)
    assert len(told) == 3
    monkeypatch.setattr("htaf.language.hidden.FORMAT", 0)
    hidden_states(model, TOKENS[:16], 2, tmp_path, tell=stop)  # so have files of another format
    assert told[3:] == [(16, 16)]


@pytest.mark.parametrize("change", [lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], lambda data: data[:-3]])
def test_what_was_damaged_is_computed_again(tmp_path, change):
    model, told = tiny("llama"), []
    whole = hidden_states(model, TOKENS, 2, tmp_path / "whole")
    hidden_states(model, TOKENS, 2, tmp_path / "kept")
    file = next((tmp_path / "kept").glob("*/00001.safetensors"))
    file.write_bytes(change(file.read_bytes()))
    assert same(hidden_states(model, TOKENS, 2, tmp_path / "kept", tell=lambda done, of: told.append(done)), whole)
    assert told == [20]
