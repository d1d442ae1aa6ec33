"""The experiment on names from pictures: drawn attributes are read back, and a small cell."""

from __future__ import annotations

import numpy as np

from htaf.concepts.naming.evidence import album
from htaf_paper.drawn import FIXED, FREE, LINKED, NAMES, drawn, read
from htaf_paper.pictured import STUDY, WRONG, cell, outcome, planted
from htaf_paper.vision_model import images_in


def test_drawn_attributes_are_read_from_what_is_sent() -> None:
    pictures = drawn(4, 60, np.random.default_rng(0))
    sent = images_in(album(pictures.pixels, 64, title="Pictures"))["Pictures"]
    assert (read(sent) == pictures.has).all()
    assert {*FIXED, *LINKED, *FREE} == set(range(len(NAMES)))


def test_classes_have_the_attributes_that_they_should() -> None:
    pictures = drawn(2, 400, np.random.default_rng(0))
    shares = np.stack([pictures.has[pictures.labels == k].mean(0) for k in (0, 1)])
    assert sorted(shares[:, FIXED[0]].tolist()) == [0, 1]
    assert np.abs(np.sort(shares[:, LINKED], axis=0) - [[0.1] * 4, [0.9] * 4]).max() < 0.08
    codes, null = (planted(pictures, np.random.default_rng(0), null=null) for null in (False, True))
    assert (codes.unpack() == pictures.has).all()
    assert 0.3 < (null.unpack() == pictures.has).mean() < 0.7
    assert [(codes.parts[codes.labels == k] == 2).mean().round(2) for k in (0, 1)] == [0.33, 0.33]


def test_a_small_cell() -> None:
    (settings,) = STUDY.plan("smoke")
    found = cell(settings["classes"], settings["errs"], settings["seed"], settings["images"])
    assert found["accepted"]["true"] == found["accepted"]["made"] == found["found"] == found["accepted"]["class"] == 1
    for key in ("random", "null", "random sorting", "fits always"):
        assert found["accepted"][key] == 0
    assert found["beyond_class"]["true"] == 1
    assert found["beyond_class"]["class"] < 1
    assert set(found["auc"]) == set(WRONG)
    first, *_ = outcome([found], "full").tables
    assert first.rows[0] == ("true, given", "100.0 ± 0.0")
