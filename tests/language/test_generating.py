"""A prompt is gone on from with models and tokenizers of every kind."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from htaf.language.generating import continued

SIZES = {
    "mamba": {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4},
    "openai-gpt": {"n_embd": 16, "n_layer": 1, "n_head": 2},
    "llama": {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SIZES)
def test_models_that_keep_keys_and_values_and_others(kind: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=50, **SIZES[kind])).eval()
    text = torch.tensor([5, 6, 7])
    made = continued(model, text, most=6).tolist()
    assert made
    for token in made:
        with torch.no_grad():
            assert token == model(input_ids=text[None]).logits[0, -1].argmax()
        text = torch.cat([text, torch.tensor([token])])


def test_drawn_tokens_depend_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=50, **SIZES["llama"])).eval()
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    before = torch.get_rng_state()
    drawn = [continued(model, torch.tensor([5]), most=12, temperature=1.0, seed=seed).tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert torch.equal(torch.get_rng_state(), before)
