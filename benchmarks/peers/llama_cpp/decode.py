"""Decodes with llama.cpp for benchmarks/language.py: a line in, the milliseconds of a token out.

    pip install llama-cpp-python==0.3.36 numpy    # an environment apart from htaf's
    python decode.py FILE.gguf F16|BF16|Q8_0 THREADS FOLDER

FILE is brought to the format in FOLDER first. Each line of input is JSON {"prompt": [tokens], "count": n}: the prompt
is read, and n tokens are decoded one by one, each the likeliest.

llama.cpp rearranges quantised weights for the processor. Where that ends the process (0.3.36 built by GCC 12 with
AVX-512: a protection fault in Q8_0), which a first process finds out, they stay as they are in the file.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as low

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


def loaded(file: Path, threads: int, *, rearranged: bool) -> llama_cpp.Llama:
    """The model; its constructor has no argument for the weights' arrangement."""
    defaults = low.llama_model_default_params

    def chosen() -> low.llama_model_params:
        made = defaults()
        made.use_extra_bufts = rearranged
        return made

    low.llama_model_default_params = chosen
    try:
        return llama_cpp.Llama(str(file), n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False)
    finally:
        low.llama_model_default_params = defaults


def main() -> None:
    if sys.argv[1] == "--try":
        loaded(Path(sys.argv[2]), 1, rearranged=True).eval([1, 2, 3])
        return
    source, kind, threads, folder = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    file = converted(source, kind, folder)
    rearranged = subprocess.run([sys.executable, __file__, "--try", str(file)], capture_output=True).returncode == 0
    model = loaded(file, threads, rearranged=rearranged)
    print(json.dumps({"version": llama_cpp.__version__, "rearranged": rearranged}), flush=True)
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
