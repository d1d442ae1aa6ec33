"""Where in a model's code an activation is called, and how often: what tells such a call when the model runs again.

A place in the code may run any number of times. One that runs behind other layers each time, in a loop over them, has a
number for each of these layers.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

OUTERMOST = ("_forward", "_by_itself")  # of a module with diverted calls: `functional_sites`
_MODULE_FILE = nn.Module._call_impl.__code__.co_filename
_BETWEEN = ("torch.", "htaf.transform.convert.", "jaxtyping.", "beartype.", "@beartype")  # none of the model's code
# the calls that led from a forward to an activation, the innermost first: function, lines in it, columns
Place = tuple[tuple[str, int, int, int, int], ...]


@dataclass(frozen=True)
class Order:
    """The activation calls that the forwards of a module make, as the example showed them; each has a number.

    Attributes:
        kinds: by number: what it is.
        places: where it is, and its kind -> the numbers of what runs there: one, or one for each layer before it.
        sequence: the numbers of one forward; None where forwards differ.
        behind: by number: the layer (a module with parameters) that ran last before it, of calls at one place that
            these layers tell apart.
    """

    kinds: tuple[str, ...]
    places: dict[tuple[Place, str], tuple[int, ...]]
    sequence: tuple[int, ...] | None
    behind: dict[int, str] = field(default_factory=dict)

    def at(self, place: tuple[Place, str]) -> tuple[int, ...] | None:
        """What runs at a place; at one that is reached on another way than in the example, what runs there if that is
        clear. None: unknown."""
        if place in self.places:
            return self.places[place]
        (chain, kind), alike = place, []
        if chain:
            alike = [known for (other, name), known in self.places.items() if name == kind and other[:1] == chain[:1]]
        return alike[0] if len(alike) == 1 else None


def order_of(
    forwards: Sequence[Sequence[tuple[tuple[Place, str], object, str | None]]],
) -> tuple[Order, list[list[int]]]:
    """The order that the forwards of a module show.

    Args:
        forwards: of each its calls: the place, what tells calls at one place apart, and the layer that ran last.

    Returns:
        The order, and of each forward the numbers of its calls.
    """
    pairs: dict[tuple[Place, str], set[tuple[str | None, object]]] = {}
    for place, mark, layer in itertools.chain(*forwards):
        pairs.setdefault(place, set()).add((layer, mark))
    told = {  # places where the layer that ran last tells one call from another
        place
        for place, known in pairs.items()
        if 1 < len(known) == len(dict(known)) == len({mark for _, mark in known}) and None not in dict(known)
    }
    numbers: dict[tuple[tuple[Place, str], str | None], int] = {}
    sequences = [
        [numbers.setdefault((place, layer if place in told else None), len(numbers)) for place, _, layer in calls]
        for calls in forwards
    ]
    places: dict[tuple[Place, str], tuple[int, ...]] = {}
    for (place, _), number in numbers.items():
        places[place] = (*places.get(place, ()), number)
    behind = {number: layer for (_, layer), number in numbers.items() if layer is not None}
    kinds = tuple(kind for (_, kind), _ in numbers)
    same = all(sequence == sequences[0] for sequence in sequences)
    return Order(kinds, places, tuple(sequences[0]) if same else None, behind), sequences


def name_of(module: nn.Module, path: str | None = None) -> str | None:
    """The name under which orders know a layer: its path at the first `replace`, wherever it is put later."""
    return module.__dict__.get("_htaf_layer", path)


def place_of(frame: types.FrameType | None) -> Place:
    """Where a call is, from the frame that made it up to the forward of the module that runs."""
    found = []
    while frame is not None and frame.f_code.co_filename != _MODULE_FILE:
        module = frame.f_globals.get("__name__", "")
        if module == "htaf.transform.convert.functional_sites" and frame.f_code.co_name in OUTERMOST:
            break
        if not module.startswith(_BETWEEN):
            found.append(_position(frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _position(code: types.CodeType, at: int) -> tuple[str, int, int, int, int]:
    line, end, column, last = next(itertools.islice(code.co_positions(), at // 2, None))
    begin = 0 if code.co_name == "<lambda>" else code.co_firstlineno  # many have the same name
    line = line or begin
    return code.co_qualname, line - begin, (end or line) - begin, at if column is None else column, last or 0
