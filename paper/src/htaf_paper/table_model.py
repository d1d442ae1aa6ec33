"""A stand-in for a language model: it knows a table of classes and attributes, and reads nothing but the prompt."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel

from htaf.concepts.llm import Message, quoted
from htaf.concepts.naming.by_attributes import chosen
from htaf.data.attributes import Attributes

Behaviour = Literal[
    "table", "errs on 20%", "random name", "same name", "lists classes", "random sorting", "all under label 1"
]
R = TypeVar("R", bound=BaseModel)
LINE = re.compile(r'\d+\. (".*")')
PHRASE = 190  # characters of a label that lists classes


class TableModel:
    """Names with the attribute that separates the listed classes best, sorts by the table.

    Args:
        attributes: the table; classes of a prompt that are not in it have no attribute.
        behaviour: "table" does as said; "errs on 20%" puts each class under the wrong label with that probability,
            each time anew; the others name badly (a random attribute; always the first one; as many
            classes of group A as a label holds) or sort badly (at random; all under the first label).
        seed: of what is random; the same prompt is answered in the same way.
    """

    def __init__(self, attributes: Attributes, behaviour: Behaviour = "table", seed: int = 0) -> None:
        self.model = f"table model: {behaviour}"
        self.behaviour, self.seed = behaviour, seed
        self.table = attributes
        self.row = {json.loads(quoted(name)): number for number, name in enumerate(attributes.classes)}
        self.column = {name: number for number, name in enumerate(attributes.names)}

    def ask(self, messages: Sequence[Message], reply: type[R], *, context: Mapping[str, Any] | None = None) -> R:
        """As `htaf.concepts.llm.ServerClient`."""
        return reply.model_validate(json.loads(self.answer(messages)), context=context)

    def answer(self, messages: Sequence[Message]) -> str:
        """The text of the reply, JSON."""
        text = next((m["content"] for m in reversed(messages) if "Task: " in m["content"]), "")
        digest = hashlib.sha256(f"{self.seed} {text}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        lists = read_lists(text)
        return json.dumps(self._sorting(text, lists["Classes"], rng) if "Classes" in lists else self._name(lists, rng))

    def _name(self, lists: dict[str, list[str]], rng: np.random.Generator) -> dict[str, Any]:
        groups = [lists[group] for group in ("Group A", "Group B")]
        rows = [self.row[name] for name in groups[0] + groups[1]]
        if self.behaviour == "lists classes":
            fitting = [name for place, name in enumerate(groups[0]) if len("; ".join(groups[0][: place + 1])) <= PHRASE]
            return {"concept": "one of a list", "label_1": "; ".join(fitting) or "any", "label_0": "any other class"}
        if self.behaviour == "random name":
            place, negated = int(rng.integers(len(self.column))), bool(rng.integers(2))
        elif self.behaviour == "same name":
            place, negated = 0, False
        else:
            some = Attributes(self.table.names, tuple(groups[0] + groups[1]), self.table.values[rows])
            inside = np.arange(len(rows)) < len(groups[0])
            place, negated, _ = (each.item() for each in chosen(inside, np.ones((1, len(rows)), dtype=bool), some))
        name = self.table.names[place]
        labels = (f"not {name}", name) if negated else (name, f"not {name}")
        return {"concept": name, "label_1": labels[0], "label_0": labels[1], "justification": "the table says so"}

    def _sorting(self, text: str, classes: list[str], rng: np.random.Generator) -> dict[str, list[int]]:
        found = re.search(r'^Label 1: (".*")$', text, re.MULTILINE)
        label = json.loads(found[1]) if found else ""
        name = label.removeprefix("not ")
        if self.behaviour == "random sorting":
            first = rng.random(len(classes)) < 0.5
        elif self.behaviour == "all under label 1":
            first = np.ones(len(classes), dtype=bool)
        elif name in self.column:
            have = self.table.binary()[[self.row[each] for each in classes], self.column[name]]
            first = have ^ (name != label)
        else:
            first = np.array([each in label.split("; ") for each in classes])
        if self.behaviour == "errs on 20%":
            first = first ^ (rng.random(len(classes)) < 0.2)
        numbers = np.arange(1, len(classes) + 1)
        return {"label_1": numbers[first].tolist(), "label_0": numbers[~first].tolist()}


def read_lists(text: str) -> dict[str, list[str]]:
    """The numbered lists of a prompt by the lines above them, without what stands in brackets there."""
    lists: dict[str, list[str]] = {}
    heading = ""
    for line in text.split("\n"):
        if found := LINE.fullmatch(line):
            lists.setdefault(heading, []).append(json.loads(found[1]))
        else:
            heading = re.sub(r" \(.*\)", "", line).rstrip(":")
    return lists
