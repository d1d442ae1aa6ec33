"""Text from a language model, by transformers."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from htaf._ground.errors import first_line
from htaf.language.errors import LanguageError


def prompt_tokens(tokenizer: Any, prompt: str, chat: bool | None = None) -> Tensor:
    """Return the tokens of a prompt, int64 [count].

    Args:
        tokenizer: of transformers.
        chat: put the prompt into the model's chat template; None: where it has one.

    Raises:
        LanguageError: the prompt is empty or no text, or there is no chat template, or one that fails.
    """
    if not prompt.strip():
        raise LanguageError("expected a prompt, got an empty one")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise LanguageError("expected a prompt in UTF-8, got something else") from None
    templated = tokenizer.chat_template is not None
    if chat and not templated:
        raise LanguageError("this model has no chat template: give the prompt as plain text (--chat off)")
    if not (templated if chat is None else chat):
        return tokenizer(prompt, return_tensors="pt")["input_ids"][0]
    try:
        given = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    except Exception as error:  # a template raises what it likes
        raise LanguageError(
            f"the chat template of this model fails: {first_line(error)}; --chat off gives the prompt as plain text"
        ) from None
    return given["input_ids"][0]


def continued(
    model: Any,
    prompt: Int[Tensor, " count"],
    *,
    most: int = 200,
    temperature: float = 0.0,
    seed: int = 0,
    streamer: Any = None,
) -> Int[Tensor, " more"]:
    """Continue a prompt with a model of transformers and return the new tokens, without the one that ends the text.

    Args:
        prompt: of `prompt_tokens`.
        most: at most so many tokens; fewer where the model reads no more at once.
        temperature: 0: the likeliest token. Penalties and filters are those of the model's generation_config.json.
        seed: of what is drawn.
        streamer: of transformers; is given the prompt and each token.

    Raises:
        LanguageError: the prompt is longer than the model reads, logits are not finite, or the model fails.
    """
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if context is not None and len(prompt) >= context:
        raise LanguageError(
            f"expected a prompt of fewer than {context} tokens, as the model reads at once, got {len(prompt)}"
        )
    drawn: dict[str, Any] = {"temperature": temperature, "top_k": 0} if temperature else {}
    given = prompt[None].to(model.device)
    try:
        with torch.random.fork_rng(devices=[] if given.device.type == "cpu" else [given.device]):
            torch.manual_seed(seed)
            made = model.generate(
                given, attention_mask=torch.ones_like(given), logits_processor=[_finite], streamer=streamer,
                max_new_tokens=most if context is None else min(most, context - len(prompt)),
                do_sample=temperature > 0, num_beams=1, **drawn,
            )  # fmt: skip
    except LanguageError:
        raise
    except Exception as error:  # whatever values of a configuration that make no sense bring about
        raise LanguageError(f"{type(model).__name__} cannot go on from a prompt: {first_line(error)}") from error
    tokens, ends = made[0, len(prompt) :].cpu(), model.generation_config.eos_token_id
    return tokens[:-1] if len(tokens) and int(tokens[-1]) in (ends if isinstance(ends, list) else [ends]) else tokens


def _finite(tokens: Tensor, logits: Tensor) -> Tensor:
    """Return the logits. Raises LanguageError for NaN or infinity; minus infinity means: never this token."""
    if not bool((logits < float("inf")).all()):
        raise LanguageError("expected finite logits of the next token, the model gives NaN or infinity")
    return logits
