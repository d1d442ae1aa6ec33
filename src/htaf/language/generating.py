"""Text from a language model, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from htaf.language.errors import LanguageError
from htaf.language.packed import PackedLanguageModel


def prompt_tokens(tokenizer: Any, prompt: str, chat: bool | None = None) -> Tensor:
    """The tokens of a prompt, int64 [count].

    Args:
        tokenizer: of transformers.
        chat: put the prompt into the model's chat template; None: where it has one.

    Raises:
        LanguageError: the prompt is empty, or there is no chat template.
    """
    if not prompt.strip():
        raise LanguageError("expected a prompt, got an empty one")
    templated = tokenizer.chat_template is not None
    if chat and not templated:
        raise LanguageError("this model has no chat template: leave --chat out")
    if templated if chat is None else chat:
        message = [{"role": "user", "content": prompt}]
        given = tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    else:
        given = tokenizer(prompt, return_tensors="pt")
    return given["input_ids"][0]


def packed_pieces(
    model: PackedLanguageModel, tokenizer: Any, prompt: Tensor, *, tokens: int = 200, temperature: float = 0.0,
    seed: int = 0,
) -> Iterator[str]:  # fmt: skip
    """What a packed model says after a prompt, as it is made. Arguments and errors: as `pieces`."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=True)
    for token in model.generate(prompt, most=tokens, temperature=temperature, seed=seed):
        piece = stream.step(tokenizer.backend_tokenizer, token)  # None within a character
        if piece:
            yield piece


def pieces(
    model: Any,
    tokenizer: Any,
    prompt: Tensor,
    *,
    tokens: int = 200,
    temperature: float = 0.0,
    seed: int = 0,
) -> Iterator[str]:
    """What a model says after a prompt, as it is made; with a cache of keys and values.

    Args:
        model: of transformers, with gates or without. tokenizer: its own.
        prompt: of `prompt_tokens`.
        tokens: at most so many new ones.
        temperature: 0: always the likeliest token.
        seed: of what is drawn.

    Raises:
        LanguageError: the prompt is too long.
    """
    from transformers import TextIteratorStreamer

    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    count = len(prompt)
    if most is not None and count >= most:
        raise LanguageError(f"expected a prompt of fewer than {most} tokens, as the model reads at once, got {count}")
    given = prompt[None].to(model.device)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    options: dict[str, Any] = (
        {"do_sample": False}
        if temperature == 0
        else {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    )
    failure: list[BaseException] = []

    def work() -> None:
        try:
            torch.manual_seed(seed)
            model.generate(
                given, **options, attention_mask=torch.ones_like(given), streamer=streamer,
                max_new_tokens=tokens if most is None else min(tokens, most - count),
                pad_token_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
            )  # fmt: skip
        except BaseException as error:
            failure.append(error)
            streamer.end()

    worker = Thread(target=work, daemon=True)
    worker.start()
    yield from (piece for piece in streamer if piece)
    worker.join()
    if failure:
        raise failure[0]
