"""The Hugging Face hub, asked without a long wait where there is no network."""

from __future__ import annotations

import os
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

SECONDS = 5.0  # in which its machine must answer


@contextmanager
def asking_hub(name: str | Path) -> Iterator[None]:
    """Load something by its name: from the cache alone where the hub is out of reach. Its client would try every file
    six times, with pauses, a minute in all.

    Args:
        name: on the hub, or a file or folder, for which nothing is asked.

    Raises:
        ConnectionError: it is not in the cache, and the hub is out of reach.
    """
    try:
        from huggingface_hub import constants
    except ImportError:  # who needs it says so
        yield
        return
    before, host = constants.HF_HUB_OFFLINE, urlsplit(constants.ENDPOINT)
    offline = not before and not os.path.exists(name) and not _answers(str(host.hostname), host.port or 443)
    if not offline:
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    except OSError as error:
        raise ConnectionError(f"it is not in the cache, and {host.hostname} is out of reach") from error
    finally:
        constants.HF_HUB_OFFLINE = before


def _answers(host: str, port: int) -> bool:
    """Whether a machine can be reached; behind a proxy that cannot be told, so yes."""
    if urllib.request.getproxies().keys() & {"https", "http", "all"}:
        return True
    try:
        socket.create_connection((host, port), SECONDS).close()
    except OSError:
        return False
    return True
