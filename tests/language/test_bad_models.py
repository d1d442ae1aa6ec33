"""Models, prompts and kills that a user meets."""

from __future__ import annotations

import json
import shutil

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch
from tests.language.models import tiny, write_gguf

from htaf.language import LanguageError, Training, calibrate, files
from htaf.language.losses import TextScores
from htaf.language.run import RECORD, read
from htaf.models import hub


def test_a_gguf_file_of_an_unknown_architecture(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "no-such-architecture")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    with pytest.raises(LanguageError, match=r"x.gguf cannot be read as a causal language model.*no-such-architecture"):
        files.load(tmp_path / "x.gguf")


def test_a_gguf_file_is_read(tmp_path):
    write_gguf(tmp_path / "x.gguf")
    network, tokenizer = files.load(tmp_path / "x.gguf")
    assert network.lm_head.weight is network.model.embed_tokens.weight
    assert tokenizer.decode(tokenizer("red cats")["input_ids"]) == "red cats"
    with torch.no_grad():
        assert torch.isfinite(network(torch.arange(3, 20)[None]).logits).all()
    report = calibrate(network, torch.randint(3, 259, (4, 16)), 1)
    assert [layer.layer for layer in report] == [3]


def test_one_changed_byte_of_any_file_is_told(run, tmp_path):
    for folder, load in ((run[0], files.load),):
        names = sorted(file.name for file in folder.iterdir() if file.name not in (RECORD, ".lock"))
        assert len(names) >= 3
        shutil.copytree(folder, tmp_path / "changed", dirs_exist_ok=True)
        load(tmp_path / "changed")
        for name in names:
            data = (folder / name).read_bytes()
            for place in (len(data) // 3, len(data) - 3):
                changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
                (tmp_path / "changed" / name).write_bytes(changed)
                with pytest.raises(LanguageError, match=r"is damaged|cannot be read|is none of format 2"):
                    load(tmp_path / "changed")
            (tmp_path / "changed" / name).write_bytes(data)
        shutil.rmtree(tmp_path / "changed")
    shutil.copy(run[0] / RECORD, tmp_path)
    text = (tmp_path / RECORD).read_text()
    (tmp_path / RECORD).write_text(text.replace('"perplexity": 6', '"perplexity": 5', 1))
    with pytest.raises(LanguageError, match=r"htaf_record.json was changed or is damaged: .*; put back a copy of it"):
        read(tmp_path)


def with_config(**changes):
    return lambda folder: edit(folder / "config.json", **changes)


def edit(file, **changes):
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | changes))


def nan_weight(folder):
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["model.layers.2.mlp.up_proj.weight"][3, 3] = float("nan")
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})


def without_a_layer(folder):
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "layers.3.mlp" not in name}
    safetensors.torch.save_file(kept, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_a_layer, "expected all weights.*3 are missing: model.layers.3.mlp.down_proj"),
        (with_config(quantization_config={"quant_method": "fp8"}), r"as floats, .* quantised ones \('fp8'\)"),
        (with_config(model_type=None), "expected config.json with a model_type, got None"),
        (lambda folder: edit(folder / "adapter_config.json", base_model_name_or_path="a/b"), "holds an adapter: merge"),
        (nan_weight, "expected finite weights in .*, model.layers.2.mlp.up_proj.weight holds NaN"),
        (lambda folder: edit(folder / "tokenizer_config.json", model_max_length="x"), "cannot be read as a causal"),
        (lambda folder: edit(folder / "tokenizer.json", model=[1]), "cannot be read as a causal"),
    ],
)
def test_folders_of_strangers_that_are_refused(model, tmp_path, change, said):
    shutil.copytree(model, tmp_path / "made")
    change(tmp_path / "made")
    with pytest.raises(LanguageError, match=said):
        files.load(tmp_path / "made")


def test_a_configuration_loads_nothing(model, tmp_path):
    network, tokenizer = files.load(model)
    prompt = tokenizer("red cats", return_tensors="pt")
    wanted = network.generate(**prompt, do_sample=False, max_new_tokens=12)
    shutil.copytree(model, tmp_path / "made")
    kernel = dict.fromkeys(("attn_implementation", "experts_implementation"), "owner/kernel")
    code = {"auto_map": {"AutoConfig": "a/b--c.D"}, "transformers_weights": "other.safetensors"}
    edit(tmp_path / "made" / "config.json", **kernel, **code)
    made, _ = files.load(tmp_path / "made")
    assert torch.equal(made.generate(**prompt, do_sample=False, max_new_tokens=12), wanted)


def test_scores_that_are_not_finite():
    with pytest.raises(LanguageError, match="expected a finite loss on the text"):
        TextScores(1, float("nan"), 1.0, 0.0, 1.0)


def test_places_without_a_model(fitted, model, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUFxxxx")
    for given, said in (
        ("no/such/place/here", "expected a folder of transformers, a .gguf file or a name at the hub"),
        (tmp_path / "none.gguf", "expected a GGUF file, there is none"),
        (tmp_path / "x.gguf", "cannot be read as a causal language model"),
        (tmp_path, r"holds GGUF files: give one of them, such as .*x\.gguf"),
        (model.parent, "has no config.json"),
    ):
        with pytest.raises(LanguageError, match=said):
            files.load(given)
    shutil.copytree(model, tmp_path / "other")
    tiny("llama").save_pretrained(tmp_path / "other")  # 64 tokens instead of 300
    with pytest.raises(LanguageError, match="expected a tokenizer for the 64 tokens of"):
        fitted(tmp_path / "a", network=tmp_path / "other", last_k=1)
    assert not (tmp_path / "a").exists()


def test_an_unknown_name_without_a_network(monkeypatch):
    monkeypatch.setattr(hub, "_answers", lambda host, port: False)  # else its client tries each file six times
    with pytest.raises(LanguageError, match=r"no-one/no-model is not in the cache.*out of reach.*give a folder"):
        files.load("no-one/no-model")


def test_a_language_model_is_not_packed(run, tmp_path, htaf):
    out, _ = run
    assert "is a language model" in htaf("pack", out, "--out", tmp_path / "packed")[2]


def test_numbers_that_are_not_finite_say_the_step(fitted, tmp_path):
    with pytest.raises(LanguageError, match="the training loss became nan at step"):
        fitted(tmp_path / "a", Training(steps=40, batch_size=2, lr=1e30), last_k=1)
    assert torch.is_grad_enabled()
