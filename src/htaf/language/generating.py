"""Text from a language model, piece by piece."""

from __future__ import annotations

from collections.abc import Generator
from threading import Event, Thread
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from htaf.language.errors import LanguageError
from htaf.language.packed import PackedLanguageModel


class Clock:
    """How long it took to read a prompt and to write after it.

    read, written: tokens; written with the one that ends the text, if it was made. seconds_read: until the first token
    was there; seconds_written: from then to the last one.
    """

    def __init__(self) -> None:
        self.read = self.written = 0
        self.seconds_read = self.seconds_written = 0.0
        self._began = self._first = 0.0

    def begin(self, read: int) -> None:
        """A prompt of so many tokens is read from now on."""
        self.read, self.written, self._began = read, 0, perf_counter()

    def token(self) -> None:
        """A token is there."""
        now = perf_counter()
        if self.written == 0:
            self._first, self.seconds_read = now, now - self._began
        self.written += 1
        self.seconds_written = now - self._first

    def __str__(self) -> str:
        text = f"{self.read} tokens read in {self.seconds_read:.2f} s, {self.written} written"
        if self.written < 2:
            return text
        return f"{text}: {(self.written - 1) / self.seconds_written:.1f} a second"


def prompt_tokens(tokenizer: Any, prompt: str, chat: bool | None = None) -> Tensor:
    """The tokens of a prompt, int64 [count].

    Args:
        tokenizer: of transformers.
        chat: put the prompt into the model's chat template; None: where it has one.

    Raises:
        LanguageError: the prompt is empty or no text, or there is no chat template.
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
    seed: int = 0, clock: Clock | None = None,
) -> Generator[str]:  # fmt: skip
    """What a packed model says after a prompt, as it is made. Arguments and errors: as `pieces`."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=True)
    clock = Clock() if clock is None else clock
    clock.begin(len(prompt))
    for token in model.generate(prompt, most=tokens, temperature=temperature, seed=seed):
        clock.token()
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
    clock: Clock | None = None,
) -> Generator[str]:
    """What a model says after a prompt, as it is made; with a cache of keys and values.

    Args:
        model: of transformers, with gates or without. tokenizer: its own.
        prompt: of `prompt_tokens`.
        tokens: at most so many new ones.
        temperature: 0: always the likeliest token.
        seed: of what is drawn.
        clock: is told each token.

    Raises:
        LanguageError: the prompt is too long.
    """
    from transformers import TextIteratorStreamer

    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    count = len(prompt)
    if most is not None and count >= most:
        raise LanguageError(f"expected a prompt of fewer than {most} tokens, as the model reads at once, got {count}")
    given = prompt[None].to(model.device)
    clock = Clock() if clock is None else clock
    stopped = Event()

    class Timed(TextIteratorStreamer):
        """Tells the clock of each token; the first that comes is the prompt."""

        def put(self, value: Tensor) -> None:
            if not self.next_tokens_are_prompt:
                clock.token()
            super().put(value)

    streamer = Timed(tokenizer, skip_prompt=True, skip_special_tokens=True)
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
                stopping_criteria=[lambda ids, _: torch.full((len(ids),), stopped.is_set(), device=ids.device)],
                max_new_tokens=tokens if most is None else min(tokens, most - count),
                pad_token_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
            )  # fmt: skip
        except BaseException as error:
            failure.append(error)
            streamer.end()

    worker = Thread(target=work, daemon=True)
    clock.begin(count)
    worker.start()
    try:
        yield from (piece for piece in streamer if piece)
    finally:  # a reader who goes, or Ctrl-C: the worker must not outlive this
        stopped.set()
        worker.join()
    if failure:
        raise failure[0]
