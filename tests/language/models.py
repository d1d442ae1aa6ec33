"""Tiny random language models of every architecture that the tests convert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from htaf.language.lora import Training

QUICK = Training(steps=6, batch_size=2, lr=0.003, validate=3)
WORDS = [
    f"{a} {b} the {c}."
    for a in ("red", "blue", "old")
    for b in ("cats see", "dogs hear")
    for c in ("sun", "sea", "moon")
]
TEXT = "\n\n".join(" ".join(WORDS[i % 12 :]) for i in range(300))

SMALL = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "initializer_range": 0.2,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "qwen3_5_text": {
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    },
    "mistral": {"sliding_window": 8},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 4, "sliding_window": 8},
    "gemma3_text": {"query_pre_attn_scalar": 4, "sliding_window": 8},
    "phi3": {"pad_token_id": 0},
}  # fmt: skip


def tiny(kind: str, **changes: Any) -> Any:
    """A causal language model with random weights, the same for the same arguments."""
    config = AutoConfig.for_model(kind, **{**SMALL, **MORE.get(kind, {}), **changes})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def write_model(folder: Path, **changes: Any) -> None:
    """A folder of transformers with a tiny model and a tokenizer of `TEXT`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "<s>", "</s>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    tokenizer.train_from_iterator([TEXT], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    tiny("llama", vocab_size=300, **changes).save_pretrained(folder)


def write_gguf(file: Path) -> None:
    """A GGUF file with a tiny Llama, whose head is its embedding, and a tokenizer of bytes."""
    network = tiny("llama", vocab_size=260, tie_word_embeddings=True)
    config = network.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ca"])
    writer.add_token_merges(["c a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {
        "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
        "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
    }  # fmt: skip
    for path, weight in network.model.named_parameters():
        *parents, last = path.removesuffix(".weight").split(".")
        block = f"blk.{parents[1]}." if parents else ""
        writer.add_tensor(f"{block}{names[last]}.weight", weight.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
