"""Which tokens open a gate."""

from __future__ import annotations

import json

import pytest
import torch
from tests.language.models import tiny

from htaf.language import LanguageError, files, gates_of, replace_gates
from htaf.language.meanings import Meaning, OpeningToken, Snippet, meanings
from htaf.report.gates import GATES, PAGE, write_gates


def test_a_detector_of_a_token_is_found(model):
    network, tokenizer = files.load(model)
    replace_gates(network, 1)
    layer, gate = network.model.layers[3], gates_of(network)[3]
    blocks = torch.randint(3, 60, (32, 60))
    seen = []
    handle = layer.mlp.gate_proj.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    with torch.no_grad():
        for block in blocks:
            network(input_ids=block[None])
        handle.remove()
        # neuron 0 sees what is the same wherever token 7 stands, neuron 1 opens by chance, neuron 2 never
        gate.threshold[:] = torch.inf
        layer.mlp.gate_proj.register_forward_hook(lambda module, args, out: _planted(out, next(queue)))
        gate.threshold[0], gate.threshold[1] = 0.5, 0.5
    queue = iter([block == 7 for block in blocks])
    found = {(m.layer, m.neuron): m for m in meanings(network, tokenizer, blocks)}
    assert len(found) == 24
    detector, chance, dead = (found[3, i] for i in range(3))
    share = (blocks == 7).float().mean().item()
    assert detector.open == pytest.approx(share)
    assert detector.by_token > 0.8
    assert detector.tokens[0].token == tokenizer.decode([7])
    assert detector.tokens[0].share == 1
    assert all(snippet.token == tokenizer.decode([7]) for snippet in detector.snippets)
    assert chance.by_token < 0.2
    assert (dead.open, dead.by_token, dead.snippets) == (0, 0, ())


def _planted(out, is_seven):
    out = out.clone()
    out[0, :, 0] = is_seven.float()
    out[0, :, 1] = (torch.rand(out.shape[1]) > 0.5).float()
    return out


def test_the_page(run, tmp_path, htaf):
    out, _ = run
    page = tmp_path / "page"
    assert "48 gates of 2 layers" in htaf("concepts", "gates", out, "--out", page, "--blocks", "4")[1]
    lines = [json.loads(line) for line in (page / GATES).read_text().splitlines()]
    assert [(g["layer"], g["neuron"]) for g in lines] == [(layer, i) for layer in (2, 3) for i in range(24)]
    told = (page / PAGE).read_text()
    assert "Layer 2" in told
    assert told.count('<th scope="row">') == sum(0 < gate["open"] < 1 for gate in lines)
    assert "at random" not in told  # there are not so many
    assert "<script" not in told
    (tmp_path / "x").write_text("x")
    with pytest.raises(LanguageError, match="holds other files"):
        write_gates([], tmp_path, "x")


def test_the_page_shows_text_as_it_is(tmp_path):
    bad = "<script>alert(1)</script>"
    tokens = (OpeningToken(bad, 1.0, 4), OpeningToken("\n the\t", 1.0, 4))
    write_gates(
        [Meaning(0, 0, 0.5, 0.1, tokens, (Snippet(bad, bad, bad), Snippet("a", " \n", "b")))], tmp_path, bad, [bad]
    )
    page = (tmp_path / PAGE).read_text()
    assert "<script" not in page
    assert "<code>↵␣the⇥</code> 100%" in page
    assert "a<b>␣↵</b>b" in page


def test_errors():
    with pytest.raises(LanguageError, match="one without"):
        meanings(tiny("llama"), None, torch.zeros(2, 4, dtype=torch.int64))
    network = tiny("llama")
    replace_gates(network, 1)
    with pytest.raises(LanguageError, match="two blocks of text or more, got 1"):
        meanings(network, None, torch.zeros(1, 4, dtype=torch.int64))
