"""A prompt is gone on from with models and tokenizers of every kind."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from htaf.language.generating import pieces, unpacked_tokens

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
    made = list(unpacked_tokens(model, text, most=6))
    assert made
    for token in made:
        with torch.no_grad():
            assert token == model(input_ids=text[None]).logits[0, -1].argmax()
        text = torch.cat([text, torch.tensor([token])])


def test_a_tokenizer_without_a_compiled_part() -> None:
    class Bytes:
        """A token is a byte of UTF-8."""

        def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
            return bytes(tokens).decode("utf-8", "replace")

    said = "naïve €"
    assert list(pieces(said.encode(), Bytes())) == list(said)
    assert "".join(pieces(said.encode()[:-1], Bytes())) == "naïve \ufffd"
