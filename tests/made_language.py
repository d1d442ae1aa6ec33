"""Tiny language models with random weights, and a text that their tokenizer knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from htaf_paper import tiny_language
from htaf_paper.tiny_language import SMALL, TEXT

__all__ = ["TEXT", "tiny", "write_model"]


def tiny(kind: str = "llama", **changes: Any) -> Any:
    """A causal language model of transformers with random weights, the same for the same arguments."""
    config = AutoConfig.for_model(kind, **{**SMALL, "vocab_size": 64, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


def write_model(folder: Path, **changes: Any) -> None:
    """A folder of transformers with a tiny Llama and a tokenizer of `TEXT`."""
    tiny_language.write_model(folder)
    if changes:
        tiny(vocab_size=300, **changes).save_pretrained(folder)
