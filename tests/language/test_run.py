"""The whole way: a model and text in, a folder out that other programs read."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from tests.language.models import MORE, QUICK, tiny
from tests.quick import slow_but
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

from htaf.language import LanguageError, files, gates_of
from htaf.language.options import Data, Machine, Training
from htaf.language.run import prepare, read
from htaf.language.text import Document, blocks
from made_language import TEXT


def test_the_record(run):
    out, record = run
    assert record == read(out)
    assert record["before"]["kl"] is None
    assert min(row["kl"] for row in record["validation"]) < record["validation"][0]["kl"]
    assert set(record["documents"]) == {"train", "validation", "test"}
    assert [gate["layer"] for gate in record["gates"]] == [2, 3]
    assert all(0 <= gate["dead"] + gate["always"] <= 1 and 0 < gate["open"] < 1 for gate in record["gates"])
    assert not (out / "work").exists()


@pytest.mark.parametrize("reader", [AutoConfig, LlamaForCausalLM])
def test_no_other_reader_computes_the_old_activation(run, reader):
    out, _ = run
    with pytest.raises((ValueError, OSError), match=r"htaf.language.load|no file named model.safetensors"):
        reader.from_pretrained(out)
    # what converters look for: llama.cpp reads architectures, vLLM and MLX model_type
    content = json.loads((out / "config.json").read_text())
    assert content["architectures"] == ["HtafGatedForCausalLM"]
    assert "hidden_act" not in content
    ids = AutoTokenizer.from_pretrained(out)("red cats")["input_ids"]  # a tokenizer is the same everywhere
    assert ids == files.load(out)[1]("red cats")["input_ids"]


@pytest.mark.parametrize("kind", slow_but(MORE, "qwen3_5_text"))
def test_every_architecture_is_trained_saved_and_read(kind, model, fitted, tmp_path):
    tiny(kind, vocab_size=300).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path / "model")
    record = fitted(tmp_path / "out", replace(QUICK, steps=3), network=tmp_path / "model")
    network, tokenizer = files.load(tmp_path / "out")
    assert list(gates_of(network)) == [2, 3]
    test = prepare(Data(**record["data"]), tokenizer)[0].test
    with torch.no_grad():
        found = [network(input_ids=x, labels=x).loss.item() for x in test.split(1)]
    assert sum(found) / len(found) == pytest.approx(record["trained"]["loss"], rel=1e-4)


def test_the_command(model, text, tmp_path, htaf):
    flags = ["--steps", "3", "--length", "32", "--last-k", "1", "--training-blocks", "20", "--lr", "0.001"]
    made = tmp_path / "made"

    command = ["train", "llm", "--model", str(model), "--text", str(text), "--out", str(made)]
    _, out, _ = htaf(*command, *flags)
    assert "open gates:" in out
    assert read(made)["trained"]["tokens"] > 0
    assert "already done" in htaf(*command, *flags)[2]
    code, _, told = htaf(
        *(str(made) if word == str(model) else word for word in command[:-1]), tmp_path / "twice", *flags
    )
    assert "has gates already" in told, told
    assert code == 1
    assert not (tmp_path / "twice").exists()


def test_a_token_in_front_of_texts_begins_each_block(model):
    _, tokenizer = files.load(model)
    documents = [Document("a", TEXT)]
    plain = blocks(documents, tokenizer, 32)
    template = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    tokenizer.backend_tokenizer.post_processor = template
    made = blocks(documents, tokenizer, 33)
    assert (made[:, 0] == 1).all()
    assert torch.equal(made[:, 1:], plain)


def test_gates_beside_the_configuration_of_the_original(model, run, tmp_path):
    shutil.copytree(run[0], tmp_path, dirs_exist_ok=True)
    shutil.copy(model / "config.json", tmp_path)
    with pytest.raises(LanguageError, match=r"has gates, and its config.json is none of format 2"):
        files.load(tmp_path)


def test_outputs_beside_what_is_read(model, text, tmp_path, htaf):
    shutil.copytree(text.parent, tmp_path / "texts")
    command = ["train", "llm", "--model", model, "--text", tmp_path / "texts", "--out"]
    code, _, told = htaf(*command, tmp_path / "texts" / "out")
    assert (code, "lies in the folder of --text" in told) == (2, True)
    code, _, told = htaf(*command, tmp_path / "out", "--cache", tmp_path / "texts" / "cache")
    assert (code, "--cache" in told, "lies in the folder of --text" in told) == (2, True, True)


def test_a_folder_goes_on_being_that_of_its_run(text, run, fitted, shared, tmp_path):
    """Known by its content, free after a wrong first call, completed or repaired by its command."""
    out, record = run
    moved = tmp_path / "elsewhere.txt"
    moved.write_text(text.read_text())
    assert fitted(out, file=moved) == record
    moved.write_text(text.read_text() + "x")
    with pytest.raises(LanguageError, match="another run, or its inputs have changed"):
        fitted(out, file=moved)
    alone, weights = Training(steps=0), tmp_path / "a" / "model.htaf.safetensors"
    with pytest.raises(LanguageError, match="last_k must be in 1 to 4, the layers of this model, got 9"):
        fitted(tmp_path / "a", alone, last_k=9)
    first = fitted(tmp_path / "a", alone, machine=shared, save=False)
    assert (first["trained"], first["validation"], weights.exists()) == (first["calibrated"], [], False)
    assert fitted(tmp_path / "a", alone, machine=shared)["trained"] == first["trained"]
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + b"x")
    fitted(tmp_path / "a", alone, machine=shared)
    assert weights.read_bytes() == whole


def test_a_stopped_run_goes_on_to_the_same_bits(run, fitted, tmp_path):
    (out, record), said = run, []

    def stop(what, done, of):
        if (what, done) == ("training", 4):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "a", progress=stop)
    again = fitted(tmp_path / "a", say=said.append)
    assert not any(line.startswith(("layer", "step 0")) for line in said)  # calibration and first steps were kept
    assert again["trained"] == record["trained"]
    for name in ("model.htaf.safetensors", files.GATES):
        assert (tmp_path / "a" / name).read_bytes() == (out / name).read_bytes()


def test_runs_share_hidden_states_calibrations_and_scores(run, fitted, tmp_path):
    (_, alone), said, computed = run, [], []
    shared = Machine(cache=tmp_path / "cache")
    made = [
        fitted(
            tmp_path / name, machine=shared, say=said.append,
            progress=lambda what, done, of: computed.append(what) if done == of else None,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    assert [computed.count(f"scores, {what}") for what in ("original", "calibrated", "trained")] == [1, 1, 2]
    assert sum(line.startswith("layer 3:") for line in said) == 1
    for part in ("before", "calibrated", "trained", "layers"):
        assert alone[part] == made[0][part] == made[1][part]
    less = fitted(tmp_path / "c", Training(steps=0), last_k=1, machine=shared, save=False)
    assert less["before"] == alone["before"]
    assert less["calibrated"] != alone["calibrated"]
    whole = {file: file.read_bytes() for file in shared.cache.glob("*.calibrated.safetensors")}
    for file, was in whole.items():
        file.write_bytes(was[:-1] + bytes([was[-1] ^ 1]))
    fitted(tmp_path / "d", Training(steps=0), last_k=1, machine=shared, save=False)
    assert sorted(file.read_bytes() == was for file, was in whole.items()) == [False, True]  # of 1 layer, and of 2


def test_rounded_weights_and_rounded_products_share_no_hidden_states(fitted, tmp_path):
    for dtype, precision in (("bfloat16", "float32"), ("float32", "bfloat16")):
        machine, training = Machine(dtype=dtype, cache=tmp_path / "cache"), replace(QUICK, steps=1, precision=precision)
        fitted(tmp_path / dtype, training, last_k=1, machine=machine, save=False)
    assert len(list((tmp_path / "cache").glob("*/00000.safetensors"))) == 6  # three parts each
