"""The command `htaf`: every verb is a row of a table; its file is imported when the verb is run."""

from __future__ import annotations

import functools
import io
import pkgutil
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any, NamedTuple, get_type_hints

from htaf import __version__
from htaf._ground.compat import no_trace
from htaf._ground.console import UsageError, ended_by_signals, plain_errors, running, say
from htaf._ground.errors import suggestion

GROUPS = {
    "train": "Train a network with 0/1 activations.",
    "concepts": "Extract, score, name and edit the concepts of an ICBM.",
}
ABOUT = """Networks whose activations are 0 or 1, trained by ordinary gradient descent.
To begin: htaf train tabular --data digits --out runs/digits; then htaf evaluate runs/digits."""
WIDTH = 100  # letters of a line
FAMILY = "htaf.cli.training:train_"  # functions that take the fields of a recipe


class Verb(NamedTuple):
    """A row of the table."""

    function: str  # module:function; its arguments are the flags
    help: str  # for the list of verbs; the function's docstring begins with it
    keeps: bool = False  # stopped, the same command goes on from what is done


VERBS = {
    "train tabular": Verb(
        "htaf.cli.training:train_tabular",
        "Train an MLP with 0/1 activations on a table; smooth and exact results, and how they differ.",
        keeps=True,
    ),
    "train logic": Verb(
        "htaf.cli.training:train_logic",
        "Train a network of truth tables on a table or on small images: a lookup a neuron, for small devices.",
        keeps=True,
    ),
    "train dhn": Verb(
        "htaf.cli.training:train_dhn",
        "Train a WideResNet with 0/1 activations on images; smooth and exact results, and how they differ.",
        keeps=True,
    ),
    "train bnn": Verb(
        "htaf.cli.training:train_bnn",
        "Train a Bi-Real Net, binary activations and weights, on images; smooth and exact results, side by side.",
        keeps=True,
    ),
    "train snn": Verb(
        "htaf.cli.training:train_snn",
        "Train a SEW-ResNet of spiking neurons on images; smooth and exact results, and how they differ.",
        keeps=True,
    ),
    "train icbm": Verb(
        "htaf.cli.training:train_icbm",
        "Train an implicit concept bottleneck model: any image backbone, its last features as bits.",
        keeps=True,
    ),
    "train llm": Verb(
        "htaf.cli.language:train_llm",
        "Give the MLPs of a language model 0/1 gates: calibrated in closed form, then trained with LoRA.",
        keeps=True,
    ),
    "evaluate": Verb(
        "htaf.cli.evaluating:evaluate", "Measure the smooth and the exact network of a run, and how they differ."
    ),
    "predict": Verb(
        "htaf.cli.predicting:predict",
        "Predict with the exact network: a column `prediction`, and a probability per class.",
    ),
    "explain": Verb(
        "htaf.cli.evaluating:explain",
        "Say what a table's network does: importance of the columns, what they add to a row.",
    ),
    "demo": Verb(
        "htaf.cli.demo:demo",
        "Train a network whose features are bits on handwritten digits, and write a page that shows what they mean.",
        keeps=True,
    ),
    "doctor": Verb(
        "htaf.cli.doctor:doctor",
        "Say what this machine can do: versions, processor, accelerator, kernels, data sets.",
    ),
    "pack": Verb("htaf.cli.packing:pack", "Pack the exact network: bits instead of floats."),
    "export": Verb(
        "htaf.cli.packing:export",
        "Write the exact network as ONNX or NIR; or one with weights on a grid as integers alone: C, Verilog, ONNX.",
    ),
    "verify": Verb(
        "htaf.cli.packing:verify",
        "Run the same rows through a network and an exported form of it, and count the numbers that differ.",
    ),
    "serve": Verb(
        "htaf.cli.serving:serve",
        "Serve a packed file over HTTP: an image file, or rows as JSON, in; predictions as JSON out.",
    ),
    "concepts extract": Verb(
        "htaf.cli.concepts:extract",
        "Write the bits of images, and both networks' predictions, to a folder.",
        keeps=True,
    ),
    "concepts score": Verb(
        "htaf.cli.concepts:score",
        "Score concepts: accuracy, dead concepts, concept accuracy, class specificity, redundancy, sparsity.",
    ),
    "concepts find": Verb(
        "htaf.cli.concepts:find",
        "Find a concept of your own: the bit or the direction that follows it, by chance or not, and whether it is "
        "used.",
    ),
    "concepts edit": Verb(
        "htaf.cli.concepts:edit",
        "Write a new run whose head has some weights at 0, measured again on validation and test images.",
    ),
    "concepts name": Verb(
        "htaf.cli.concepts:name_command",
        "Name concepts by attributes of the classes or by a language model, each name checked on classes that did "
        "not choose it.",
        keeps=True,
    ),
    "explore": Verb(
        "htaf.cli.concepts:explore",
        "Write a page to look at concepts, check and rename them, and flip bits.",
        keeps=True,
    ),
}


class Known(NamedTuple):
    """Groups of verbs and verbs."""

    groups: dict[str, str]
    verbs: dict[str, Verb]


@functools.cache
def known() -> Known:
    """Return our verbs and those of other distributions: modules with GROUPS and VERBS, by entry points in
    `htaf.verbs`."""
    groups, verbs = dict(GROUPS), dict(VERBS)
    for entry in metadata.entry_points(group="htaf.verbs"):
        module = entry.load()
        groups |= module.GROUPS
        verbs |= module.VERBS
    return Known(groups, verbs)


def main() -> None:
    """Entry point of the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # names of classes and columns are any text
    with ended_by_signals(), plain_errors():
        words, verbs = sys.argv[1:], known().verbs
        verb = next((verb for verb in verbs if words[: len(verb.split())] == verb.split()), None)
        with running(verb, keeps=verb is not None and verbs[verb].keeps, json="--json" in _flags(words)):
            _run(verb, words)


def _flags(words: list[str]) -> list[str]:
    """Return the words before `--`, behind which none is a flag."""
    return words[: words.index("--")] if "--" in words else words


def _run(verb: str | None, words: list[str]) -> None:
    """Run a verb, with the words behind it as its flags; or list the verbs."""
    if words in (["--version"], ["-V"]):
        return say(f"htaf {__version__}")
    groups, verbs = known()
    if verb is not None:
        with no_trace():
            import tyro

            import_module("rich.style")  # which tyro takes later; it draws a number of `random`

        from htaf.cli.flags import registry

        words = words[len(verb.split()) :]
        function = pkgutil.resolve_name(verbs[verb].function)
        if verbs[verb].function.startswith(FAMILY):
            from htaf.cli.training import fitted

            function, words = fitted(verb.split()[1], words)
        _expect_once(words, function)

        @functools.wraps(function)
        def given(*args: Any, **named: Any) -> Callable[[], None]:
            return functools.partial(function, *args, **named)

        return tyro.cli(given, prog=f"htaf {verb}", args=words, registry=registry)()
    if words in ([], ["help"]):
        words = ["--help"]
    group = words[0] if words and words[0] in groups else None
    word = next(iter(words[0 if group is None else 1 :]), None)
    if word in ("-h", "--help"):
        return _list(group)
    raise UsageError(_unknown(word, group))


def _expect_once(words: list[str], function: Callable[..., None]) -> None:
    """Raise UsageError for a flag that is given twice: the first one would count for nothing."""
    from tyro.conf import UseAppendAction

    hints = get_type_hints(function, include_extras=True).items()
    repeated = {name for name, kind in hints if UseAppendAction in getattr(kind, "__metadata__", ())}
    given = [word.partition("=")[0][2:].replace("_", "-") for word in _flags(words) if word.startswith("--")]
    flags = [name.removeprefix("no-") for name in given]
    for name in flags:
        if flags.count(name) > 1 and name not in repeated:
            raise UsageError(f"expected --{name} once, got it {flags.count(name)} times: give all its values after one")


def _unknown(word: str | None, group: str | None) -> str:
    """Return the message for a word that is no verb, or for none."""
    verbs = known().verbs
    if group is None:
        what, names = "a verb", list(dict.fromkeys(verb.split()[0] for verb in verbs))
    else:
        what, names = f"a verb of htaf {group}", [verb.split()[1] for verb in verbs if verb.split()[0] == group]
    expected = f"expected {what}: {', '.join(names)}"
    if word is None:
        return f"{expected}; got none"
    same = [f" (did you mean {verb!r}?)" for verb in verbs if verb.split()[-1] == word]  # `htaf score`
    return f"{expected}; got {word!r}{suggestion(word, names) or ''.join(same[:1])}"


def _list(group: str | None) -> None:
    """List the verbs, or those of a group, with what each does."""
    abouts, verbs = known()
    shown = {}
    for verb, row in verbs.items():
        own, _, name = verb.rpartition(" ")
        if own == (group or ""):
            shown[name] = row.help
        elif group is None:
            shown[own] = abouts[own]
    path = " ".join(("htaf", group) if group else ("htaf",))
    say(f"usage: {path} VERB ...; {path} VERB --help lists the flags of a verb")
    say(f"\n{abouts[group] if group else ABOUT}\n")
    indent = max(map(len, shown)) + 4
    for name, help_ in shown.items():
        say(textwrap.fill(f"  {name:{indent - 2}}{help_}", WIDTH, subsequent_indent=" " * indent))
