"""What belongs to the whole process: a table of it, and what has changed since."""

from __future__ import annotations

import gc
import locale
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
import zlib
from collections.abc import Callable
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageFile
from threadpoolctl import threadpool_info


def _levels() -> dict[str, Any]:
    """Of every logger but those by which PyTorch traces itself."""
    known = logging.root.manager.loggerDict.items()
    loggers = {name: one for name, one in known if isinstance(one, logging.Logger) and not name.startswith("torch.__")}
    return {name: (one.level, one.disabled, len(one.handlers)) for name, one in loggers.items()}


def _wakeup() -> int:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    return before


STATES: dict[str, Callable[[], Any]] = {
    "warning filters": lambda: [*warnings.filters],
    "how warnings are shown": lambda: (warnings.showwarning, warnings.formatwarning),
    "threads of torch": lambda: (torch.get_num_threads(), torch.get_num_interop_threads()),
    "threads of BLAS and OpenMP": lambda: {one["filepath"]: one["num_threads"] for one in threadpool_info()},
    "environment": lambda: {**os.environ},
    "random state of python": lambda: hash(random.getstate()),
    "random state of numpy": lambda: repr(np.random.get_state()),  # noqa: NPY002
    "random state of torch": lambda: zlib.crc32(torch.get_rng_state().numpy().tobytes()),
    "random state of torch on GPUs": lambda: [zlib.crc32(s.numpy().tobytes()) for s in torch.cuda.get_rng_state_all()],
    "settings of matplotlib, its backend among them": lambda: dict.copy(mpl.rcParams),
    "default dtype and device": lambda: (torch.get_default_dtype(), torch.get_default_device()),
    "gradients": lambda: (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
    "deterministic algorithms": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ),
    "cudnn": lambda: [
        getattr(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
    ],
    "float32 matmul precision": lambda: (torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled),
    "sharing of tensors": torch.multiprocessing.get_sharing_strategy,
    "log levels and handlers": _levels,
    "root logger": lambda: (logging.root.level, [*logging.root.handlers], logging.root.manager.disable),
    "signal handlers": lambda: {number: signal.getsignal(number) for number in signal.valid_signals()},
    "wake-up of signals": _wakeup,
    "hooks of exceptions": lambda: (sys.excepthook, sys.unraisablehook, threading.excepthook),
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "working folder": os.getcwd,
    "mask of new files": lambda: (os.umask(mask := os.umask(0)), mask)[1],
    "folder of temporary files": tempfile.gettempdir,
    "places of modules": lambda: [*sys.path],  # libraries put finders into sys.meta_path as they are imported
    "start of processes": multiprocessing.get_start_method,  # the default too, which joblib looks up
    "processes": multiprocessing.active_children,
    "limits of the interpreter": lambda: (sys.getrecursionlimit(), sys.get_int_max_str_digits(), gc.isenabled()),
    "numbers of numpy": lambda: (np.geterr(), np.get_printoptions()),
    "options of pandas": lambda: cast("Any", pd).describe_option(_print_desc=False),
    "limits of images": lambda: (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES),
}


def snapshot() -> dict[str, Any]:
    """Every state by its name."""
    return {name: state() for name, state in STATES.items()}


def changed(before: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """State -> what it was and what it is, of those that differ; of tables only the entries that were there before,
    and new ones that say something."""
    found = {}
    for name, now in snapshot().items():
        was = before[name]
        if name == "log levels and handlers":  # a logger that is new says nothing until it has a level
            was, now = ({k: v for k, v in one.items() if k in before[name]} for one in (was, now))
        elif name == "threads of BLAS and OpenMP":  # a library that is loaded first now has a number of its own
            now = {file: count for file, count in now.items() if file in was}
        if was != now:
            if isinstance(was, dict):
                now = {key: value for key, value in now.items() if key not in was or was[key] != value}
                was = {key: was.get(key) for key in now}
            found[name] = (was, now)
    return found
