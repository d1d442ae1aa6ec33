"""Milliseconds a token: language models with 0/1 gates beside the same model without, once the tests of decoding pass.

    python benchmarks/language.py RUN [RUN ...] [--threads 1] [--count 16] [--rounds 15] [--no-compile]
                                  [--llama PYTHON --gguf FILE] [--json FILE] [--no-test]

RUN: folders of `htaf train llm`, all of one model. Beside each: the same folder with the rows of closed gates read too
(`dense`). Peers: the model as it was in transformers, eager and compiled, with a static cache; in our own loop
(`original`); and in llama.cpp, in the environment of --llama (benchmarks/peers/llama_cpp/decode.py), as F16 and
Q8_0 of the GGUF file. Every round decodes `count` tokens behind the same prompt once on each side, in reversed order
every other round. `bound`: bytes of weights that a token needs at this share of open gates, over those of the original.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import measuring
import torch
from measuring import Sample
from transformers import StaticCache

from htaf.language import files, packed
from htaf.language.run import read

HERE = Path(__file__).parent
PROMPT = "The wind had fallen, and over the water came the sound of a bell. Nobody in the boat spoke until"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Samples = dict[str, Callable[[], Sample]]


def own(model: packed.PackedLanguageModel, prompt: torch.Tensor, count: int, dense: bool) -> Sample:
    """Milliseconds a token in our own loop."""
    decoder = model.decoder
    decoder.restart()
    logits = decoder.read(prompt, dense=dense)
    began = time.perf_counter()
    for _ in range(count):
        logits = decoder.read(logits.argmax()[None], dense=dense)
    return ((time.perf_counter() - began) / count * 1e3,)


def transformers(model: Any, forward: Callable[..., Any], prompt: torch.Tensor, count: int) -> Sample:
    """Milliseconds a token with a static cache."""
    with torch.inference_mode():
        cache = StaticCache(config=model.config, max_cache_len=len(prompt) + count)
        logits = model(prompt[None], past_key_values=cache, logits_to_keep=1).logits
        began = time.perf_counter()
        for i in range(count):
            place = torch.tensor([len(prompt) + i])
            logits = forward(logits[:, -1:].argmax(-1), past_key_values=cache, cache_position=place).logits
        return ((time.perf_counter() - began) / count * 1e3,)


def llama(python: str, file: Path, kind: str, threads: int, folder: Path) -> tuple[str, measuring.Peer]:
    """llama.cpp in its own process, and its name."""
    peer = measuring.Peer(python, HERE / "peers" / "llama_cpp" / "decode.py", file, kind, threads, folder)
    return f"llama.cpp {peer.told['version']}, {kind}" + ("" if peer.told["rearranged"] else ", as in the file"), peer


def asked(peer: measuring.Peer, prompt: list[int], count: int) -> Sample:
    """Milliseconds a token."""
    return (peer.ask(prompt=prompt, count=count),)


def weights(model: packed.PackedLanguageModel, *, eight: bool) -> float:
    """Bytes of weights that a token needs with the gates as they opened, over those of the dense network.

    eight: the gate is read in 8 bits, and no row of it in floats.
    """
    shares, kept = model.open_shares(), model.tensors()
    head = kept.get("head", kept["embedding"])
    whole = needed = head.numel() * head.element_size()
    for name, tensor in kept.items():
        layer, _, part = name.partition(".")
        if part not in ("inputs", "output", "gate", "up", "down"):
            continue
        size = tensor.numel() * tensor.element_size()
        whole += size
        if part in ("up", "down"):
            size = round(size * shares.get(int(layer), 1.0))
        elif part == "gate" and eight and int(layer) in shares:
            size = tensor.numel()
        needed += size
    return needed / whole


def main() -> None:
    parser = measuring.parser(__doc__, rounds=15)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--threads", type=measuring.at_least_one, default=1)
    parser.add_argument("--count", type=measuring.at_least_one, default=16)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--llama", metavar="PYTHON", help="of an environment with llama-cpp-python")
    parser.add_argument("--gguf", type=Path, help="the model as llama.cpp reads it")
    given = measuring.begin(parser, "language/test_packed.py", "kernels/test_gated_mlp.py")
    torch.set_num_threads(given.threads)
    records = {run: read(run) for run in given.runs}
    original, *others = sorted({record["model"] for record in records.values()})
    if others:
        parser.error(f"expected runs of one model, got {', '.join([original, *others])}")
    if given.llama and not given.gguf:
        parser.error("--llama needs --gguf")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, dtype in DTYPES.items():
            model, tokenizer = files.load(original, dtype=dtype)
            prompt = tokenizer(PROMPT, return_tensors="pt")["input_ids"][0]
            samples: Samples = {"transformers, eager": partial(transformers, model, model, prompt, given.count)}
            if not given.no_compile:
                compiled = torch.compile(model.forward)
                samples["transformers, compiled"] = partial(transformers, model, compiled, prompt, given.count)
            plain = packed.pack(model, dtype)
            samples["own loop, original"] = partial(own, plain, prompt, given.count, False)
            bounds = {}
            for run, record in records.items():
                made = packed.pack(files.load(run)[0], dtype)
                key = f"{record['last_k']} layers with gates"
                without = packed.PackedLanguageModel(made.tensors(), made.about, eight=False)
                samples[f"{key}, dense"] = partial(own, without, prompt, given.count, True)
                samples[f"{key}, open rows"] = partial(own, without, prompt, given.count, False)
                samples[f"{key}, open rows, gate in 8 bits"] = partial(own, made, prompt, given.count, False)
                own(made, prompt, given.count, False)
                shares = made.open_shares()
                opened = {"open": sum(shares.values()) / len(shares)}
                bounds[f"{key}, open rows"] = {"bound": weights(made, eight=False)} | opened
                bounds[f"{key}, open rows, gate in 8 bits"] = {"bound": weights(made, eight=True)} | opened
            if given.llama:
                for kind in ("F16", "Q8_0") if name == "bfloat16" else ():
                    told, peer = llama(given.llama, given.gguf, kind, given.threads, Path(folder))
                    samples[told] = partial(asked, peer, prompt.tolist(), given.count)
            times = measuring.alternate(samples, given.rounds)
            for row, found in times.items():
                rows.append(
                    {
                        "weights": name,
                        "row": row,
                        "threads": given.threads,
                        "ms": measuring.spread(v[0] for v in found),
                        "ratio": measuring.ratio(found, times["own loop, original"]),
                        **bounds.get(row, {}),
                    }
                )
    cells = []
    for row in rows:
        bound = (f"{row['bound']:.2f}", f"{row['open']:.1%}") if "bound" in row else ("", "")
        cells.append((row["weights"], row["row"], str(row["ms"]), str(row["ratio"]), *bound))
    columns = ("weights", "row", "ms", "over own loop, original", "bound", "open gates")
    title = f"{original}: milliseconds a token, {given.threads} threads"
    measuring.show(title, columns, cells, ["weights", "row"])
    measuring.end(given, rows)


if __name__ == "__main__":
    main()
