"""Decodes with llama.cpp for benchmarks/language.py: a line in, the milliseconds of a token out.

    python decode.py FILE.gguf F16|BF16|Q8_0 THREADS FOLDER

FILE is brought to the format in FOLDER first. Each line of input is JSON {"prompt": [tokens], "count": n}: the prompt
is read, and n tokens are decoded one by one, each the likeliest.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np

FORMATS = {"F16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16, "BF16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
           "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}  # fmt: skip


def converted(source: Path, kind: str, folder: Path) -> Path:
    """The file in another format."""
    made = folder / f"{source.stem}.{kind}.gguf"
    if not made.is_file():
        given = llama_cpp.llama_model_quantize_default_params()
        given.ftype, given.allow_requantize = FORMATS[kind], True
        if llama_cpp.llama_model_quantize(str(source).encode(), str(made).encode(), ctypes.byref(given)):
            sys.exit(f"{source} cannot be written as {kind}")
    return made


def main() -> None:
    source, kind, threads, folder = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    model = llama_cpp.Llama(
        str(converted(source, kind, folder)), n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False,
        logits_all=False,
    )  # fmt: skip
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        model.reset()
        model.eval(asked["prompt"])
        began = time.perf_counter()
        for _ in range(asked["count"]):
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(model.ctx, -1), (model.n_vocab(),))
            model.eval([int(logits.argmax())])
        print(json.dumps((time.perf_counter() - began) / asked["count"] * 1e3), flush=True)


if __name__ == "__main__":
    main()
