"""Tiny random language models of every architecture that the tests convert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
from tokenizers import pre_tokenizers

import made_language
from htaf.language.options import Training

QUICK = Training(steps=6, batch_size=2, lr=0.003, validate=3)
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
    return made_language.tiny(kind, **{**MORE.get(kind, {}), **changes})


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
