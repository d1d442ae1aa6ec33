"""Fixtures that the tests of language models share."""

from __future__ import annotations

import pytest
from tests.language.models import QUICK

from htaf.language.options import Data, Machine
from htaf.language.run import fit
from made_language import TEXT, write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A folder with a tiny Llama and a tokenizer made from the text."""
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture(scope="session")
def fitted(model, text):
    """Converts the tiny model on the text, or what is given instead."""

    def fit_one(out, training=QUICK, *, network=model, file=text, last_k=2, **given):
        data = Data(str(file), length=32, calibration=16, training=40, test=8)
        return fit(str(network), data, training, out, last_k=last_k, **given)

    return fit_one


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A machine whose hidden states, calibrations and scores these tests share."""
    return Machine(cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def run(fitted, tmp_path_factory):
    """(folder, record) of a finished run on them."""
    out = tmp_path_factory.mktemp("run") / "out"
    return out, fitted(out)
