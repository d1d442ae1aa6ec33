"""`transformers serve`, a real OpenAI-compatible server, with a tiny model: the protocol holds, garbage is survived."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from pydantic import BaseModel

from htaf.concepts.llm import MalformedReply, ModelError, ServerClient

pytestmark = pytest.mark.slow

ASKED = [{"role": "user", "content": "Name it."}]
SERVE = "import htaf; from transformers.cli.transformers import main; main()"  # htaf mends torchvision first


class Name(BaseModel):
    name: str


class Other(BaseModel):
    number: int


def make_model(folder: Path, reply: str) -> None:
    """A Llama of one layer over bytes, taught to answer ASKED with one reply."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokens = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    letters = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters, bos_token="<s>", eos_token="</s>", pad_token="</s>",
        chat_template="{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}assistant: ",
    )  # fmt: skip
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=8192, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    start = tokenizer.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    rows = torch.tensor([[*tokenizer.encode(start + reply), 1]])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(300):
        optimizer.zero_grad()
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
    model.generation_config.do_sample = False
    model.generation_config.temperature = None
    model.generation_config.max_new_tokens = 60
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


class Served:
    """The server's process, its base URL and the name of its model."""

    def __init__(self, folder: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = ["serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        surroundings = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(log.parent / "home")}
        self.base_url, self.model = f"http://127.0.0.1:{port}/v1", str(folder)
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, *words, "--dtype", "float32"], env=surroundings, stdout=file, stderr=file
            )
        self._wait(f"http://127.0.0.1:{port}/health")

    def _wait(self, url: str) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(240):
            try:
                with opener.open(url, timeout=2):
                    return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.5)
        self.kill()
        pytest.fail(f"the server did not start:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=10)


def test_the_protocol_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "htaf.concepts.llm.REPLY_TOKENS", 40
    )  # where it was taught nothing, it does not know when to end
    make_model(tmp_path / "model", '{"name": "wings"}')
    server = Served(tmp_path / "model", tmp_path / "log.txt")
    try:
        settings = {"base_url": server.base_url, "cache": tmp_path / "replies"}
        with ServerClient(server.model, **settings) as model:
            assert model.ask(ASKED, Name).name == "wings"
            assert model.usage["calls"] == 1
            with pytest.raises(MalformedReply, match="no usable reply in 3 attempts"):
                model.ask([*ASKED, *ASKED], Other)
            assert (model.usage["calls"], model.usage["malformed"]) == (4, 3)
            assert model.usage["tokens"] > 4 * 20  # the prompt has that many letters
        with ServerClient("other", **settings) as other, pytest.raises(ModelError, match="Server is pinned to"):
            other.ask(ASKED, Name)
        server.kill()
        with ServerClient(server.model, **settings) as model:
            with pytest.raises(ModelError, match="cannot be reached"):
                model.ask([*ASKED, *ASKED, *ASKED], Name)
            assert model.ask(ASKED, Name).name == "wings"
    finally:
        server.kill()
