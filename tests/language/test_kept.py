"""What is computed once: kept, and computed again where its file was damaged."""

from __future__ import annotations

from htaf.language.kept import kept


def test_what_was_kept_and_has_changed_is_computed_again(tmp_path):
    file = tmp_path / "kept.safetensors"
    asked = [kept(file, lambda loss=loss: ({}, {"loss": loss})) for loss in (1.25, 9.0)]
    file.write_bytes(file.read_bytes().replace(b"1.25", b"1.24"))  # one bit
    asked.append(kept(file, lambda: ({}, {"loss": 2.5})))
    assert asked == [({}, {"loss": 1.25}, True), ({}, {"loss": 1.25}, False), ({}, {"loss": 2.5}, True)]
