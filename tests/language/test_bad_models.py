"""Models, prompts and kills that a user meets."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import gguf
import numpy as np
import pytest
import torch
from tests.language.models import tiny, write_gguf

from htaf._files import sealed
from htaf.language import LanguageError, calibrate, files
from htaf.language.generating import Clock, pieces, prompt_tokens
from htaf.language.run import RECORD, read


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


LARGE = {
    "layers": ({"num_hidden_layers": 10**7}, "layers as its weights can have, config.json says 10,000,000"),
    "layers of a list": ({"model_type": "qwen2", "num_hidden_layers": 10**9}, "config.json says 1,000,000,000"),
    "tensors": ({"num_hidden_layers": 1000}, "expected a network of .* got a larger one"),
    "words": ({"vocab_size": 10**10}, "expected a network of .* got a larger one"),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_configuration_asks_for_no_more_than_the_files_hold(model, tmp_path, name):
    changes, said = LARGE[name]
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(LanguageError, match=said):
        files.load(tmp_path)


def test_an_unknown_name_without_a_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(LanguageError, match=r"no-one/no-model is not in the cache.*give a folder"):
        files.load("no-one/no-model")


def test_models_without_gates_by_the_command(model, text, tmp_path, htaf):
    for kind, said in (("phi", "expected a gated MLP"), ("gpt2", "expected a")):
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2} if kind == "gpt2" else {}
        tiny(kind, vocab_size=300, **sizes).save_pretrained(tmp_path / kind)
        files.tokenizer_of(model).save_pretrained(tmp_path / kind)
        flags = ["--text", text, "--out", tmp_path / f"{kind}-out", "--last-k", "1", "--length", "32"]
        code, _, told = htaf("train", "llm", "--model", tmp_path / kind, *flags)
        assert (code, said in told) == (1, True), told


def test_prompts(run, tmp_path, htaf):
    out, _ = run
    htaf("pack", out, "--out", tmp_path / "packed")
    for folder in (out, tmp_path / "packed"):
        assert "expected a prompt, got an empty one" in htaf("generate", folder, " ")[2]
        code, _, told = htaf("generate", folder, "red cats " * 100)
        assert (code, "expected a prompt of fewer than 128 tokens" in told) == (1, True)
        assert "expected a prompt in UTF-8" in htaf("generate", folder, "\udcff")[2]
        assert "--temperature must be 0, or >= 0.001" in htaf("generate", folder, "x", "--temperature", "1e-40")[2]
        assert "in 1 to 128" in htaf("generate", tmp_path / "packed", "x", "--context", "1000")[2]
    assert "no config.json" in htaf("generate", tmp_path, "x")[2]
    assert "has no htaf_record.json" in htaf("evaluate", tmp_path / "packed")[2]
    assert "--context is for" in htaf("generate", out, "x", "--context", "10")[2]


def test_a_reader_who_goes_ends_the_generation(run):
    out, _ = run
    network, tokenizer = files.load(out)
    clock, before = Clock(), threading.active_count()
    made = pieces(network, tokenizer, prompt_tokens(tokenizer, "red cats"), tokens=100, clock=clock)
    next(made)
    made.close()
    assert threading.active_count() <= before
    assert (clock.read, 1 <= clock.written < 100) == (2, True)


def test_words_that_are_not_known(run):
    tried = (  # in another process, where types are not checked
        "from htaf.language import Data, Training, fit\n"
        "for make in (lambda: Training(precision='float16'), lambda: Training(slope='relu'),\n"
        "             lambda: fit('x', Data('y'), Training(), 'new', calibration='all')):\n"
        "    try: make()\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    said = subprocess.run([sys.executable, "-c", tried], check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == [
        "LanguageError precision must be float32, bfloat16, got float16",
        "LanguageError slope must be sigmoid, tanh, rectangular, got relu",
        "LanguageError calibration must be plain, gates, down, got all",
    ]
    network, _ = files.load(run[0])
    with pytest.raises(LanguageError, match="expected tokens in 0 to"):
        calibrate(network, torch.full((2, 8), 10**6), 1)


@pytest.mark.slow
def test_killed_at_any_time_it_ends_with_the_same_bits(model, text, tmp_path):
    def command(out):
        words = ["train", "llm", "--model", model, "--text", text, "--out", out, "--length", "32", "--last-k", "2"]
        words += ["--steps", "60", "--training-blocks", "60", "--batch-size", "2"]
        return [sys.executable, "-m", "htaf.cli", *map(str, words)]

    began = time.monotonic()
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    took = time.monotonic() - began
    chance, kills = random.Random(0), 0
    while True:
        process = subprocess.Popen(command(tmp_path / "killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + took * chance.uniform(0.3, 0.8)
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        if process.poll() is not None or kills == 4:
            assert process.wait() == 0
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills
    whole, killed = (read(tmp_path / name) for name in ("whole", "killed"))
    assert killed["trained"] == whole["trained"]
    assert killed["validation"] == whole["validation"]
    for name in ("model.htaf.safetensors", files.GATES):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "killed" / RECORD).is_file()


def test_a_run_that_was_begun_is_not_read(run, tmp_path):
    out, _ = run
    (tmp_path / RECORD).write_text(sealed(read(out) | {"status": "running"}))
    with pytest.raises(LanguageError, match="unfinished training: give its command again"):
        read(tmp_path)
    with pytest.raises(LanguageError, match=r"has no htaf_record\.json"):
        read(tmp_path / "none")


def test_numbers_that_are_not_finite_say_the_step(model, text, tmp_path):
    from htaf.language.lora import Training
    from htaf.language.run import Data, fit

    with pytest.raises(LanguageError, match="the training loss became nan at step"):
        fit(
            str(model), Data(str(text), length=32, calibration=8, training=20, test=4),
            Training(steps=40, batch_size=2, lr=1e30, clip=0.0), tmp_path / "a", last_k=1,
        )  # fmt: skip
    assert torch.is_grad_enabled()
