"""Text from a language model, piece by piece."""

from __future__ import annotations

import copy
import multiprocessing
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from htaf._errors import HtafError, first_line
from htaf.language.errors import LanguageError, expect_scores
from htaf.language.packed import PackedLanguageModel

BEGIN = 60  # seconds until the process of a chat template has begun
LONGEST, LARGEST, MOST = 10, 1 << 30, 100_000  # its seconds and bytes, and its characters


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
        LanguageError: the prompt is empty or no text, or there is no chat template, or none that gives a text within 10
            seconds and a gibibyte.
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
        given = tokenizer(_rendered(tokenizer, prompt), add_special_tokens=False, return_tensors="pt")
    else:
        given = tokenizer(prompt, return_tensors="pt")
    return given["input_ids"][0]


def _rendered(tokenizer: Any, prompt: str) -> str:
    """The prompt as a message in the chat template: a program of whoever made the model, so it runs in a process of
    its own, which may not take long or much memory."""
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else None)  # elsewhere it is not safe
    ours, theirs = context.Pipe(duplex=False)
    worker = context.Process(target=_render, args=(tokenizer, prompt, theirs), daemon=True)
    good, text = False, f"its process did not begin within {BEGIN} seconds"
    try:
        with theirs:
            worker.start()
        if ours.poll(BEGIN):
            ours.recv()
            good, text = ours.recv() if ours.poll(LONGEST) else (False, f"it took more than {LONGEST} seconds")
    except EOFError:  # it was ended by the system
        text = f"it took more than {LARGEST >> 30} GiB of memory, or its process ended"
    except (AssertionError, OSError) as error:  # such as in a process of a pool, which may start none
        text = f"its process cannot be started: {first_line(error)}"
    finally:
        if worker.pid is not None:
            worker.kill()
            worker.join()
        ours.close()
    if not good:
        raise LanguageError(f"the chat template of this model fails: {text}; --chat off gives the prompt as plain text")
    return text


def _render(tokenizer: Any, prompt: str, answer: Any) -> None:
    """In a process of its own: send that it has begun, then (whether it went well, the text or what was wrong)."""
    _limit_memory()
    answer.send(None)
    try:
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        if not isinstance(text, str) or not 0 < len(text) <= len(prompt) + MOST:
            raise ValueError(f"expected a text of 1 to {MOST:,} characters and the prompt, got {text!r:.40}")
        text.encode()  # half of a surrogate pair has no tokens
        answer.send((True, text))
    except MemoryError:
        answer.send((False, f"it took more than {LARGEST >> 30} GiB of memory"))
    except Exception as error:  # a template raises what it likes
        answer.send((False, first_line(error)))


def _limit_memory() -> None:
    """Let this process take `LARGEST` bytes more than it has, where the system can see to it."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + LARGEST
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


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

    Of the model's generation_config.json only the tokens that end a text count: a penalty or a filter there would make
    another token than the likeliest.

    Args:
        model: of transformers, with gates or without. tokenizer: its own.
        prompt: of `prompt_tokens`.
        tokens: at most so many new ones.
        temperature: 0: always the likeliest token.
        seed: of what is drawn.
        clock: is told each token.

    Raises:
        LanguageError: the prompt is too long, or the model gives NaN.
    """
    from transformers import GenerationConfig, TextIteratorStreamer

    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    count = len(prompt)
    if most is not None and count >= most:
        raise LanguageError(f"expected a prompt of fewer than {most} tokens, as the model reads at once, got {count}")
    given = prompt[None].to(model.device)
    view = copy.copy(model)  # shares all but its generation_config, since several texts may be made at once
    view.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
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

    def check(ids: Tensor, scores: Tensor) -> Tensor:
        expect_scores(scores)
        return scores

    def work() -> None:
        try:
            with torch.random.fork_rng(devices=[] if given.device.type == "cpu" else [given.device]):
                torch.manual_seed(seed)
                view.generate(
                    given, **options, attention_mask=torch.ones_like(given), streamer=streamer,
                    logits_processor=[check],
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
    if failure and (isinstance(failure[0], HtafError) or not isinstance(failure[0], Exception)):
        raise failure[0]
    if failure:  # transformers raises nearly everything on values of a configuration that make no sense
        raise LanguageError(
            f"{type(model).__name__} cannot go on from a prompt: {first_line(failure[0])}"
        ) from failure[0]
