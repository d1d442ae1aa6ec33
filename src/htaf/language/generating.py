"""Text from a language model, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import torch

from htaf.language.errors import LanguageError


def pieces(
    model: Any,
    tokenizer: Any,
    prompt: str,
    *,
    tokens: int = 200,
    temperature: float = 0.0,
    chat: bool | None = None,
    seed: int = 0,
) -> Iterator[str]:
    """What a model says after a prompt, as it is made; with a cache of keys and values.

    Args:
        model: of transformers, with gates or without. tokenizer: its own.
        tokens: at most so many new ones.
        temperature: 0: always the likeliest token.
        chat: put the prompt into the model's chat template; None: where it has one.
        seed: of what is drawn.

    Raises:
        LanguageError: the prompt is empty or too long, or there is no chat template.
    """
    from transformers import TextIteratorStreamer

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
    given = {name: given[name].to(model.device) for name in ("input_ids", "attention_mask")}
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    count = given["input_ids"].shape[1]
    if most is not None and count >= most:
        raise LanguageError(f"expected a prompt of fewer than {most} tokens, as the model reads at once, got {count}")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    options: dict[str, Any] = (
        {"do_sample": False} if temperature == 0 else {"do_sample": True, "temperature": temperature}
    )
    failure: list[BaseException] = []

    def work() -> None:
        try:
            torch.manual_seed(seed)
            model.generate(
                **given, **options, max_new_tokens=tokens if most is None else min(tokens, most - count),
                streamer=streamer, pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id,
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
