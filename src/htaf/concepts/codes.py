"""The concepts of many images as packed bits, with what is known of each image."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, UInt8

from htaf._ground.errors import HtafError, suggestion

PartName = Literal["train", "validation", "test", "other"]
PARTS: tuple[PartName, ...] = get_args(PartName)
CHUNK = 8192  # images whose bits are unpacked at once


class ConceptError(HtafError):
    """Concepts that cannot be used as asked."""


class MissingPartError(ConceptError):
    """There are no images of a part, or none with a label.

    part: that is missing. present: the parts that there are.
    """

    def __init__(self, part: PartName, present: Sequence[str], *, labelled: bool = False) -> None:
        self.part, self.present = part, tuple(present)
        what = "labelled images" if labelled else "images"
        super().__init__(f"expected {what} of the part {part!r}, got only {', '.join(present) or 'none'}")


def class_number(classes: Sequence[str], label: int | str | np.integer) -> int:
    """Return the number of a class, given by its name or its number; a name that looks like a number is a name.

    Raises:
        ConceptError: no such class.
    """
    if isinstance(label, str) and label in classes:
        return list(classes).index(label)
    number = int(label) if not isinstance(label, str) or label.isdecimal() else -1
    if not 0 <= number < len(classes):
        near = suggestion(str(label), classes)
        raise ConceptError(f"expected a class, by name or a number from 0 to {len(classes) - 1}, got {label!r}{near}")
    return number


class Listed:
    """N images with a head that reads C numbers of each; `arrays` names the fields that have a row for each image."""

    arrays: ClassVar[tuple[str, ...]]
    parts: UInt8[np.ndarray, " images"]
    ids: Sequence[str]
    weight: Float32[np.ndarray, "classes concepts"]
    bias: Float32[np.ndarray, " classes"]

    def __len__(self) -> int:
        """N."""
        return len(getattr(self, self.arrays[0]))

    def rows(self, part: PartName) -> Int64[np.ndarray, " rows"]:
        """Return row numbers of a part, ascending. Raises ConceptError: there is no such part."""
        if part not in PARTS:
            raise ConceptError(f"part must be one of {PARTS}, got {part!r}")
        return np.flatnonzero(np.asarray(self.parts) == PARTS.index(part))

    def take(self: Kind, rows: np.ndarray) -> Kind:
        """Return the images of these row numbers, copied into memory."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)[rows]) for name in self.arrays}
        return replace(self, **arrays, ids=[self.ids[row] for row in rows.tolist()])  # pyright: ignore[reportArgumentType]

    def unpack(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return what the head reads: [rows, C]."""
        raise NotImplementedError

    def logits(self, rows: np.ndarray | slice = slice(None)) -> Float32[np.ndarray, "rows classes"]:
        """float32 [rows, K] of the exact network: weight @ bits + bias."""
        return self.unpack(rows).astype(np.float32) @ self.weight.T + self.bias

    def predictions(self) -> Int32[np.ndarray, " images"]:
        """argmax of the logits of bits and head as they are now; ties go to the lower class."""
        found = np.empty(len(self), np.int32)
        for start in range(0, len(self), CHUNK):
            rows = slice(start, start + CHUNK)
            found[rows] = self.logits(rows).argmax(1)
        return found


Kind = TypeVar("Kind", bound="Listed")


@dataclass(frozen=True, eq=False)
class Codes(Listed):
    """The bits of N images: C concepts and K classes.

    Attributes:
        bits: uint8 [N, ceil(C / 8)], perhaps memory-mapped. Concept 8 i + j is bit j, counted from the least
            significant, of byte i, as `htaf.functional.pack_bits` has it; unused bits are 0.
        concepts: C.
        classes: names of the K classes.
        labels: int32 [N]; -1 where the class is not known.
        parts: uint8 [N], index into `PARTS`: what the image was to the training; "other" is anything else.
        ids: N names, such as paths relative to the data set's folder.
        weight: float32 [K, C] and
        bias: float32 [K] of the linear head: logits = weight @ bits + bias.
        smooth: int32 [N], classes that the smooth network predicts; -1 where there is none.
        exact: int32 [N], classes that the exact network predicts.
        saturated: int32 [N], how many of the C smooth outputs are > 0.99 or < 0.01; -1 where there are none.
        info: what concepts.json says of run and data.
    """

    bits: UInt8[np.ndarray, "images bytes"]
    concepts: int
    classes: tuple[str, ...]
    labels: Int32[np.ndarray, " images"]
    parts: UInt8[np.ndarray, " images"]
    ids: Sequence[str]
    weight: Float32[np.ndarray, "classes concepts"]
    bias: Float32[np.ndarray, " classes"]
    smooth: Int32[np.ndarray, " images"]
    exact: Int32[np.ndarray, " images"]
    saturated: Int32[np.ndarray, " images"]
    info: Mapping[str, Any] = field(default_factory=dict)

    arrays: ClassVar[tuple[str, ...]] = ("bits", "labels", "parts", "smooth", "exact", "saturated")

    def __repr__(self) -> str:
        return f"Codes({len(self):,} images, {self.concepts:,} concepts, {len(self.classes):,} classes)"

    def part(self, part: PartName) -> Codes:
        """Return the images of a part, copied into memory.

        Raises:
            MissingPartError: there are none.
        """
        rows = self.rows(part)
        if not len(rows):
            raise MissingPartError(part, [name for name in PARTS if len(self.rows(name))])
        return self.take(rows)

    def unpack(self, rows: np.ndarray | slice = slice(None)) -> UInt8[np.ndarray, "rows concepts"]:
        """0 and 1, uint8 [rows, C]."""
        return np.unpackbits(self.bits[rows], axis=1, count=self.concepts, bitorder="little")

    def has(self, concept: int, rows: np.ndarray | slice = slice(None)) -> Bool[np.ndarray, " rows"]:
        """Return whether images have a concept. Raises ConceptError: no such concept."""
        if not 0 <= concept < self.concepts:
            raise ConceptError(f"expected a concept from 0 to {self.concepts - 1}, got {concept}")
        return (np.asarray(self.bits[rows, concept // 8]) >> concept % 8 & 1).astype(bool)


def codes_key(codes: Codes) -> str:
    """Return the key by which files of names know the concepts of a network: 12 hexadecimal digits.

    Of the classes, the number of concepts, the head's bias and the thresholds of binarised features: bits of other
    images, or made on another device, have the same key, and so has a network whose head was edited
    (`htaf.concepts.run_heads`).
    """
    return network_key(codes.classes, codes.weight, codes.bias, codes.info.get("settings", {}).get("thresholds"))


def network_key(
    classes: Sequence[str],
    weight: Float32[np.ndarray, "classes concepts"],
    bias: Float32[np.ndarray, " classes"],
    thresholds: Any = None,
) -> str:
    """Return the `codes_key` of all codes of a network with these classes and this head."""
    said = (weight.shape[1], tuple(classes), thresholds)
    digest = hashlib.sha256(repr(said).encode("utf-8", "backslashreplace"))
    digest.update(np.ascontiguousarray(bias).data)
    if not bias.any():  # an untrained bias tells networks not apart
        digest.update(np.ascontiguousarray(weight).data)
    return digest.hexdigest()[:12]


def codes_of(
    values: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    *,
    classes: Sequence[str] = (),
    parts: np.ndarray | PartName = "train",
    ids: Sequence[str] = (),
) -> Codes:
    """Make codes from bits at hand, for programs that have their own.

    Args:
        values: bool or 0/1 [N, C].
        labels: N class numbers.
        weight: [K, C]. bias: [K].
        classes: K names; default: the numbers.
        parts: a part for all, or uint8 [N], index into `PARTS`.
        ids: N names; default: the row numbers.

    Raises:
        ConceptError: shapes that do not fit together.
    """
    values = np.asarray(values)
    labels = np.asarray(labels, dtype=np.int32)
    weight, bias = np.asarray(weight, dtype=np.float32), np.asarray(bias, dtype=np.float32)
    if values.ndim != 2 or weight.shape != (len(bias), values.shape[1]) or labels.shape != values.shape[:1]:
        raise ConceptError(
            "expected values [N, C], labels [N], weight [K, C] and bias [K], "
            f"got {values.shape}, {labels.shape}, {weight.shape} and {bias.shape}"
        )
    n = len(values)
    none = np.full(n, -1, dtype=np.int32)
    number = np.full(n, PARTS.index(parts), dtype=np.uint8) if isinstance(parts, str) else parts
    codes = Codes(
        bits=np.packbits(values.astype(bool), axis=1, bitorder="little"),
        concepts=values.shape[1],
        classes=tuple(classes) or tuple(map(str, range(len(bias)))),
        labels=labels,
        parts=np.asarray(number, dtype=np.uint8),
        ids=list(ids) or list(map(str, range(n))),
        weight=weight,
        bias=bias,
        smooth=none,
        exact=none,
        saturated=none,
    )
    return replace(codes, exact=codes.predictions())
