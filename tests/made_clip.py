"""A tiny CLIP with random weights, in a folder as transformers keeps one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

WORDS = ("a", "closed", "loop", "round", "stroke", "at", "the", "top", "bottom", "left", "right")
LENGTH, SIDE, VECTOR = 12, 16, 8


def write_clip(folder: Path, *, seed: int = 0) -> Path:
    """16-px images, texts of 12 tokens, vectors of 8; the licence stands in a model card."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    special = ("<s>", "</s>", "<pad>", "<unk>")
    known = {word: number for number, word in enumerate((*special, *WORDS))}
    raw: Any = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    named = dict(zip(("bos_token", "eos_token", "pad_token", "unk_token"), special, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **named)
    layers = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**layers, "vocab_size": len(known), "max_position_embeddings": LENGTH, "bos_token_id": 0}
    text |= {"eos_token_id": 1, "pad_token_id": 2}
    vision = {**layers, "image_size": SIDE, "patch_size": 8}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=VECTOR))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    about = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3], "size": {"shortest_edge": SIDE}}
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    (folder / "README.md").write_text("---\ntags: [x]\nlicense: mit\n---\nMade by a test.\n")
    return folder
