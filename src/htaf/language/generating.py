"""Text from a language model, word by word."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from htaf._errors import first_line
from htaf.language.errors import LanguageError

BEGIN = 60  # seconds until the process of a chat template has begun
LONGEST, LARGEST, MOST = 10, 1 << 30, 100_000  # its seconds and bytes, and its characters


class Clock:
    """How long it took to read a prompt and to write after it.

    read, written: tokens. seconds_read: until the first token was there; seconds_written: from then to the last one.

    Args:
        read: tokens of the prompt, which is read from now on.
    """

    def __init__(self, read: int) -> None:
        self.read, self.written = read, 0
        self.seconds_read = self.seconds_written = 0.0
        self._began = self._first = perf_counter()

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


def continued(
    model: Any,
    prompt: Int[Tensor, " count"],
    *,
    most: int = 200,
    temperature: float = 0.0,
    seed: int = 0,
    streamer: Any = None,
) -> Int[Tensor, " more"]:
    """The tokens that follow a prompt by a model of transformers, without the one that ends the text.

    Of the model's generation_config.json only the tokens that end a text count: a penalty or a filter there would make
    another token than the likeliest.

    Args:
        prompt: of `prompt_tokens`.
        most: at most so many tokens; fewer where the model reads no more at once.
        temperature: 0: always the likeliest token.
        seed: of what is drawn.
        streamer: is given the prompt and each token, see `words`.

    Raises:
        LanguageError: the prompt is longer than the model reads, logits are not finite, or the model fails.
    """
    from transformers import GenerationConfig

    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if context is not None and len(prompt) >= context:
        raise LanguageError(
            f"expected a prompt of fewer than {context} tokens, as the model reads at once, got {len(prompt)}"
        )
    ends = ends_of(model)
    drawn: dict[str, Any] = {"temperature": temperature, "top_k": 0} if temperature else {}
    own, model.generation_config = model.generation_config, GenerationConfig(
        max_new_tokens=most if context is None else min(most, context - len(prompt)), do_sample=temperature > 0,
        eos_token_id=list(ends) or None, pad_token_id=ends[0] if ends else 0, **drawn,
    )  # fmt: skip
    given = prompt[None].to(model.device)
    devices = [] if given.device.type == "cpu" else [given.device]
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            made = model.generate(
                given, attention_mask=torch.ones_like(given), logits_processor=[_finite], streamer=streamer
            )
    except LanguageError:
        raise
    except Exception as error:  # whatever values of a configuration that make no sense bring about
        raise LanguageError(f"{type(model).__name__} cannot go on from a prompt: {first_line(error)}") from error
    finally:
        model.generation_config = own
    tokens = made[0, len(prompt) :].cpu()
    return tokens[:-1] if len(tokens) and int(tokens[-1]) in ends else tokens


def _finite(tokens: Tensor, logits: Tensor) -> Tensor:
    """Return the logits. Raises LanguageError for NaN or infinity; minus infinity means: never this token."""
    if not bool((logits < float("inf")).all()):
        raise LanguageError("expected finite logits of the next token, the model gives NaN or infinity")
    return logits


def words(tokenizer: Any, clock: Clock, tell: Callable[[str], None]) -> Any:
    """A streamer for `continued` that tells the text word by word, and the clock each token."""
    from transformers import TextStreamer

    class Words(TextStreamer):
        def put(self, value: Tensor) -> None:
            if not self.next_tokens_are_prompt:
                clock.token()
            super().put(value)

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            tell(text)

    return Words(tokenizer, skip_prompt=True, skip_special_tokens=True)


def ends_of(model: Any) -> tuple[int, ...]:
    """The tokens that end a text of a model of transformers."""
    given = (model.generation_config.eos_token_id, model.config.get_text_config().eos_token_id)
    ends = next((one for one in given if one is not None), ())
    return (ends,) if isinstance(ends, int) else tuple(ends)
