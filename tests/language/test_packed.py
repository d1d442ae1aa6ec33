"""Packed language models compute what transformers computes."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial

import pytest
import safetensors.torch
import torch
from tests.kernels.instruction_sets import INSTRUCTION_SETS, using
from tests.language.models import tiny

from htaf import HTAF
from htaf.kernels import native
from htaf.language import LanguageError, gates_of, replace_gates
from htaf.language.packed import FILE, load, pack

pytestmark = pytest.mark.skipif(native.load()[0] is None, reason="packed language models need the compiled kernels")


def gated(kind, last_k=2, **changes):
    model = tiny(kind, **changes)
    if last_k:
        replace_gates(model, last_k)
        with torch.no_grad():
            for gate in gates_of(model).values():
                gate.threshold.uniform_(-0.5, 0.5)
                gate.scale.uniform_(0.5, 2)
    return model


def logits(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens[None], use_cache=False).logits[0]


@pytest.mark.parametrize("last_k", [0, 2, 4])
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "phi3"])
def test_the_same_logits_as_transformers(kind, last_k):
    model, tokens = gated(kind, last_k), torch.randint(64, (50,))
    packed = pack(model, torch.float32)
    torch.testing.assert_close(packed.logits(tokens), logits(model, tokens), rtol=1e-4, atol=1e-4)
    assert set(packed.open_shares()) == set(gates_of(model))
    assert all(0 < share < 1 for share in packed.open_shares().values())


def test_one_token_at_a_time_or_all_at_once_with_the_same_bits():
    packed, tokens = pack(gated("llama"), torch.float32), torch.randint(64, (40,))
    whole = packed.logits(tokens)
    opened = packed.decoder.opened.clone()
    packed.decoder.restart()
    for i, token in enumerate(tokens):
        assert torch.equal(packed.decoder.read(token[None]), whole[i])
    assert torch.equal(packed.decoder.opened, opened)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_every_instruction_set(name):
    model, tokens = gated("qwen3", hidden_size=40, head_dim=10), torch.randint(64, (20,))
    with using(name):
        packed = pack(model, torch.float32)
        torch.testing.assert_close(packed.logits(tokens), logits(model, tokens), rtol=1e-4, atol=1e-4)


def test_dense_and_8_bit_gates_change_no_bit(tmp_path):
    packed, tokens = pack(gated("qwen3", 4), torch.bfloat16), torch.randint(64, (30,))
    packed.save(tmp_path)
    wanted = packed.logits(tokens)
    assert torch.equal(load(tmp_path, eight=False).logits(tokens), wanted)
    assert torch.equal(packed.logits(tokens, dense=True), wanted)


def test_generates_what_transformers_generates(tmp_path):
    model, prompt = gated("llama"), torch.randint(3, 64, (7,))
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    pack(model, torch.float32).save(tmp_path)
    with torch.no_grad():
        wanted = model.generate(prompt[None], attention_mask=torch.ones(1, 7), do_sample=False, max_new_tokens=20)
    packed = load(tmp_path)
    assert list(packed.generate(prompt, most=20)) == wanted[0, 7:].tolist()
    drawn = [list(packed.generate(prompt, most=20, temperature=1.0, seed=seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(list(load(tmp_path, context=16).generate(prompt, most=100))) == 9


def test_a_model_of_another_family_says_so():
    for kind in ("gemma2", "qwen3_5_text", "gemma"):
        with pytest.raises(LanguageError, match="Llama family that can be packed"):
            pack(gated(kind))
    smooth = tiny("llama")
    replace_gates(smooth, 2, partial(HTAF, 0.5, 5.0))
    with pytest.raises(LanguageError, match="smooth ones in layers 2, 3"):
        pack(smooth)


def test_bad_input(tmp_path):
    packed = pack(gated("llama"))
    for tokens in (torch.tensor([64]), torch.tensor([], dtype=torch.int64), torch.tensor([-1])):
        with pytest.raises(LanguageError, match="one or more tokens in 0 to 63"):
            packed.logits(tokens)
    with pytest.raises(LanguageError, match="at most 128 tokens in all, got 129"):
        packed.logits(torch.zeros(129, dtype=torch.int64))
    with pytest.raises(LanguageError, match="fewer than 128 tokens, got 128"):
        next(packed.generate(torch.zeros(128, dtype=torch.int64)))
    with pytest.raises(LanguageError, match=f"has no {FILE}"):
        load(tmp_path)
    (tmp_path / FILE).write_bytes(b"x" * 100)
    with pytest.raises(LanguageError, match="is damaged"):
        load(tmp_path)
    del packed.tensors["1.up"]
    packed.save(tmp_path)
    with pytest.raises(LanguageError, match="parts do not fit: 'up'"):
        load(tmp_path)


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_length_are_refused(rope):
    factors = {"short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0], "original_max_position_embeddings": 64}
    given = {"rope_type": rope, "rope_theta": 10000.0, "factor": 2.0, **(factors if rope == "longrope" else {})}
    with pytest.raises(LanguageError, match=f"of the kind {rope}"):
        pack(tiny("llama", rope_parameters=given))


def test_a_small_difference_is_refused():
    model = tiny("granite", logits_scaling=1.05)
    with pytest.raises(LanguageError, match="computes something else"):
        pack(model)


def test_half_precision_models_stay_as_they_are():
    model = gated("llama").bfloat16()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    packed = pack(model)
    assert packed.tensors["0.gate"].dtype == torch.bfloat16
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_context_longer_than_the_first_room(monkeypatch):
    monkeypatch.setattr("htaf.kernels.decoder.FIRST_ROOM", 4)
    model, tokens = gated("llama"), torch.randint(64, (40,))
    packed = pack(model, torch.float32)
    packed.decoder.restart()
    found = torch.stack([packed.decoder.read(token[None]) for token in tokens])
    torch.testing.assert_close(found, logits(model, tokens), rtol=1e-4, atol=1e-4)


def test_damaged_numbers(tmp_path):
    packed = pack(gated("llama"))
    for change in ({"epsilon": -1.0}, {"ends": 5}, {"heads": 0}, {"activations": []}, {"windows": [0]}, {"x": 1}):
        numbers = {**asdict(packed.about), **change}
        about = {"format": "htaf-packed-language", "version": "1", "about": json.dumps(numbers)}
        (tmp_path / FILE).write_bytes(safetensors.torch.save(packed.tensors, about))
        with pytest.raises(LanguageError, match="is damaged"):
            load(tmp_path)
    for frequencies in (None, torch.zeros(2, 2, 2, 2)):
        tensors = {k: v for k, v in packed.tensors.items() if k != "frequencies"}
        tensors |= {} if frequencies is None else {"frequencies": frequencies}
        (tmp_path / FILE).write_bytes(
            safetensors.torch.save(tensors, about | {"about": json.dumps(asdict(packed.about))})
        )
        with pytest.raises(LanguageError, match="parts do not fit"):
            load(tmp_path)
    packed.save(tmp_path)
    with pytest.raises(LanguageError, match="context must be in 1 to 128, as the model was made for, got -3"):
        load(tmp_path, context=-3)
