"""A tiny language model with random weights, and a text: the smoke scale of language models, without data."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

WORDS = [
    f"{a} {b} the {c}."
    for a in ("red", "blue", "old")
    for b in ("cats see", "dogs hear")
    for c in ("sun", "sea", "moon")
]
TEXT = "\n\n".join(" ".join(WORDS[i % 12 :]) for i in range(300))
SMALL = {
    "vocab_size": 300, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "initializer_range": 0.2,
}  # fmt: skip


def write_model(folder: Path) -> None:
    """A folder of transformers with a tiny Llama and a tokenizer of `TEXT`; always the same weights."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "<s>", "</s>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    tokenizer.train_from_iterator([TEXT], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SMALL)).save_pretrained(folder)


def write_all(folder: Path) -> tuple[Path, Path]:
    """The model and the text: their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    model, text = folder / "model", folder / "text.txt"
    write_model(model)
    text.write_text(TEXT)
    return model, text
