"""Every verb of the command `htaf`, a row each. A verb's file is imported when the verb is run."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import NamedTuple


class Verb(NamedTuple):
    """A row of the table."""

    function: str  # module:function; its arguments are the flags
    help: str  # for the list of verbs; the function's docstring begins with it
    keeps: bool = False  # stopped, the same command goes on from what is done


GROUPS = {
    "train": "Train a network with 0/1 activations.",
    "concepts": "Extract, score, name and edit the concepts of an ICBM.",
}

VERBS = {
    "train tabular": Verb(
        "htaf.cli.training:train_tabular",
        "Train an MLP with 0/1 activations on a table; smooth and exact results, and how they differ.",
        keeps=True,
    ),
    "train logic": Verb(
        "htaf.cli.training:train_logic",
        "Train a network of truth tables on a table: a few hundred lookups a row, for small devices.",
        keeps=True,
    ),
    "train logic-images": Verb(
        "htaf.cli.training:train_logic_images",
        "Train a network of truth tables on small images: a lookup a neuron, for small devices.",
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
    "generate": Verb("htaf.cli.language:generate", "Go on from a prompt with a language model, word by word."),
    "evaluate": Verb(
        "htaf.cli.evaluating:evaluate", "Measure the smooth and the exact network of a run, and how they differ."
    ),
    "report": Verb(
        "htaf.cli.reporting:report",
        "Write the report of a run of a table: report.html, a page of one file, and its figures, report.json.",
    ),
    "predict": Verb(
        "htaf.cli.predicting:predict",
        "Predict with the exact network: a column `prediction`, and a probability per class.",
    ),
    "explain": Verb(
        "htaf.cli.explaining:explain",
        "Say what a table's network does: one tree for all, importance, rules of bits, reasons of a row, what-if.",
    ),
    "demo": Verb(
        "htaf.cli.demo:demo",
        "Train three methods on handwritten digits, harden them, compare; then read the bits of a concept bottleneck, "
        "and write the page of its concepts.",
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
    "push": Verb(
        "htaf.cli.pushing:push", "Share a run, a packed file or a language model at the Hugging Face hub, with a card."
    ),
    "concepts extract": Verb(
        "htaf.cli.concepts:extract",
        "Write the bits of images, and both networks' predictions, to a folder.",
        keeps=True,
    ),
    "concepts score": Verb(
        "htaf.cli.concepts:score",
        "Score concepts: accuracy, dead concepts, concept accuracy, class specificity, redundancy, sparsity.",
        keeps=True,
    ),
    "concepts sparse": Verb(
        "htaf.cli.sparse_heads:sparse",
        "Fit heads in which each class draws on few concepts.",
        keeps=True,
    ),
    "concepts where": Verb(
        "htaf.cli.where:where",
        "Draw where in its images a concept is seen, from the strongest to the barely on; with an index.",
    ),
    "concepts find": Verb(
        "htaf.cli.finding:find",
        "Find a concept of your own: the bit or the direction that follows it, by chance or not, and whether it is "
        "used.",
    ),
    "concepts edit": Verb(
        "htaf.cli.editing:edit",
        "Write a new run whose head has some weights at 0, measured again on validation and test images.",
    ),
    "concepts name": Verb(
        "htaf.cli.naming:name_command",
        "Name concepts by attributes of the classes or by a language model, each name checked on classes that did "
        "not choose it.",
        keeps=True,
    ),
    "explore": Verb(
        "htaf.cli.exploring:explore",
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
    """Ours and those of other distributions: modules with GROUPS and VERBS, by entry points in `htaf.verbs`."""
    groups, verbs = dict(GROUPS), dict(VERBS)
    for entry in metadata.entry_points(group="htaf.verbs"):
        module = entry.load()
        groups |= module.GROUPS
        verbs |= module.VERBS
    return Known(groups, verbs)
