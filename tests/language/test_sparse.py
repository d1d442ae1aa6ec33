"""Reading open rows alone gives what the dense network gives."""

from __future__ import annotations

import pytest
import torch
from tests.language.models import tiny

from htaf.language import LanguageError, calibrate
from htaf.language.gates import replace_gates
from htaf.language.sparse import SparseGatedMLP, read_open_rows_only

TOKENS = torch.randint(3, 64, (6, 16), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["llama", "phi3", "gemma3_text"])
@pytest.mark.parametrize("eight", [False, True])
def test_the_same_text(kind, eight):
    model = tiny(kind)
    calibrate(model, TOKENS, 3)
    with torch.no_grad():
        wanted = [model(TOKENS[:1, :n]).logits for n in (3, 16)]
        text = model.generate(TOKENS[:1], max_new_tokens=12, do_sample=False)
        assert read_open_rows_only(model, eight=eight) == 3
        assert sum(isinstance(module, SparseGatedMLP) for module in model.modules()) == 3
        for n, logits in zip((3, 16), wanted, strict=True):
            torch.testing.assert_close(model(TOKENS[:1, :n]).logits, logits, atol=1e-4, rtol=1e-4)
        assert torch.equal(model.generate(TOKENS[:1], max_new_tokens=12, do_sample=False), text)


def test_errors():
    from functools import partial

    from htaf import HTAF

    model = tiny("llama")
    replace_gates(model, 1, partial(HTAF, 2.0, 11.0))
    with pytest.raises(LanguageError, match="layer 3 has a smooth one"):
        read_open_rows_only(model)
    model = tiny("llama").double()
    replace_gates(model, 1)
    with pytest.raises(LanguageError, match=r"layer 3 has torch\.float64 on cpu"):
        read_open_rows_only(model)
    model = tiny("llama", mlp_bias=True)
    replace_gates(model, 1)
    with pytest.raises(LanguageError, match="layer 3 has some"):
        read_open_rows_only(model)
