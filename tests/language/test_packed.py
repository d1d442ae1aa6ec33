"""Packed language models compute what transformers computes."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from tests.kernels.instruction_sets import INSTRUCTION_SETS, using
from tests.language.models import tiny

from htaf import HTAF
from htaf._files import sealed_tensors
from htaf.kernels import decoder, native
from htaf.language import LanguageError, gates_of, replace_gates
from htaf.language.packed import FILE, PackedLanguageModel, load_packed, pack

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
    opened = packed.decoder.reading.opened.clone()
    packed.decoder.restart()
    for i, token in enumerate(tokens):
        assert torch.equal(packed.decoder.read(token[None]), whole[i])
    assert torch.equal(packed.decoder.reading.opened, opened)


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
    assert torch.equal(load_packed(tmp_path, eight=False).logits(tokens), wanted)
    assert torch.equal(packed.logits(tokens, dense=True), wanted)


def test_generates_what_transformers_generates(tmp_path):
    model, prompt = gated("llama"), torch.randint(3, 64, (7,))
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    pack(model, torch.float32).save(tmp_path)
    with torch.no_grad():
        wanted = model.generate(prompt[None], attention_mask=torch.ones(1, 7), do_sample=False, max_new_tokens=20)
    packed = load_packed(tmp_path)
    assert list(packed.generate(prompt, most=20)) == wanted[0, 7:].tolist()
    drawn = [list(packed.generate(prompt, most=20, temperature=1.0, seed=seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(list(load_packed(tmp_path, context=16).generate(prompt, most=100))) == 9


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
    with pytest.raises(LanguageError, match="fewer than 128 tokens, as the model reads at once, got 128"):
        next(packed.generate(torch.zeros(128, dtype=torch.int64)))
    with pytest.raises(LanguageError, match=f"has no {FILE}"):
        load_packed(tmp_path)
    (tmp_path / FILE).write_bytes(b"x" * 100)
    with pytest.raises(LanguageError, match="is damaged"):
        load_packed(tmp_path)
    del packed._tensors["1.up"]
    packed.save(tmp_path)
    with pytest.raises(LanguageError, match="parts do not fit: 'up'"):
        load_packed(tmp_path)


def moved(packed, tensors) -> None:
    ForkingPickler.dumps(packed)


def shared(packed, tensors) -> None:
    for x in tensors.values():
        x.share_memory_()


@pytest.mark.parametrize("act", [moved, shared, lambda packed, tensors: tensors.clear()])
def test_what_moves_or_changes_tensors_does_not_reach_the_decoder(act):
    made, tokens = pack(gated("llama"), torch.float32), torch.randint(64, (30,))
    arrays = {name: x.numpy().copy() for name, x in made.tensors().items()}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    packed, wanted = PackedLanguageModel(tensors, made.about), made.logits(tokens)
    act(packed, tensors)
    for array in arrays.values():  # what was theirs, if something still points there
        array.fill(np.nan)
    assert torch.equal(packed.logits(tokens), wanted)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda x: pickle.loads(ForkingPickler.dumps(x))])
def test_a_pickled_model_computes_the_same(how, tmp_path):
    pack(gated("qwen3", 4), torch.bfloat16).save(tmp_path)
    packed, tokens = load_packed(tmp_path, context=40), torch.randint(64, (30,))
    again = how(packed)
    assert again.context == 40
    assert torch.equal(again.logits(tokens), packed.logits(tokens))


def test_texts_at_the_same_time_do_not_mix(monkeypatch):
    packed = pack(gated("llama"), torch.float32)
    packed.about = replace(packed.about, ends=())
    prompts = [torch.randint(64, (n,)) for n in (3, 9)]
    alone = [list(packed.generate(prompt, most=12)) for prompt in prompts]
    together = zip(*(packed.generate(prompt, most=12) for prompt in prompts), strict=True)
    assert [list(tokens) for tokens in zip(*together, strict=True)] == alone

    class Together(decoder.Decoder):
        """Both texts have begun before either is read."""

        @property
        def reading(self):
            return self.last

        @reading.setter
        def reading(self, value):
            self.last = value
            barrier.wait(10)

    barrier = threading.Barrier(2)
    monkeypatch.setattr(packed.decoder, "__class__", Together)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda p: list(packed.generate(p, most=12)), prompts * 4)) == alone * 4


def test_a_flipped_bit_is_noticed(tmp_path):
    packed = pack(gated("llama"))
    written = []

    class Tokenizer:
        def save_pretrained(self, folder):
            written.append(folder / "tokenizer.json")
            written[0].write_text('{"a": 1}')
            return str(written[0]), str(folder / "none.json")

    packed.save(tmp_path, Tokenizer())
    whole = load_packed(tmp_path).logits(torch.arange(9))
    assert torch.equal(whole, packed.logits(torch.arange(9)))
    file = tmp_path / FILE
    data = file.read_bytes()
    for at in (300, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(LanguageError, match=r"damaged|got htaf"):
            load_packed(tmp_path)
    file.write_bytes(data)
    written[0].write_text('{"b": 1}')
    with pytest.raises(LanguageError, match=r"tokenizer\.json is damaged"):
        load_packed(tmp_path)
    written[0].unlink()
    with pytest.raises(LanguageError, match=r"tokenizer\.json is missing"):
        load_packed(tmp_path)


def test_another_default_dtype_changes_nothing():
    packed, tokens = pack(gated("llama"), torch.float32), torch.randint(64, (30,))
    wanted = packed.logits(tokens)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(packed.logits(tokens), wanted)
    finally:
        torch.set_default_dtype(torch.float32)


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
    assert packed.tensors()["0.gate"].dtype == torch.bfloat16
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
        about = {"format": "htaf-packed-language", "version": "2", "about": json.dumps(numbers), "files": "{}"}
        (tmp_path / FILE).write_bytes(sealed_tensors(packed.tensors(), about))
        with pytest.raises(LanguageError, match="is damaged"):
            load_packed(tmp_path)
    for frequencies in (None, torch.zeros(2, 2, 2, 2)):
        tensors = {k: v for k, v in packed.tensors().items() if k != "frequencies"}
        tensors |= {} if frequencies is None else {"frequencies": frequencies}
        (tmp_path / FILE).write_bytes(sealed_tensors(tensors, about | {"about": json.dumps(asdict(packed.about))}))
        with pytest.raises(LanguageError, match="parts do not fit"):
            load_packed(tmp_path)
    packed.save(tmp_path)
    with pytest.raises(LanguageError, match="context must be in 1 to 128, as the model was made for, got -3"):
        load_packed(tmp_path, context=-3)
