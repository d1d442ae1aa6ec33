"""The model card of what is shared at the Hugging Face hub: the words are in card.md.jinja, the facts in its record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from htaf._ground.console import markdown_text
from htaf._ground.errors import installed
from htaf.concepts.embeddings.bottleneck import ConceptBottleneck
from htaf.data.images import ImagePreprocessor
from htaf.data.notes import from_record, told
from htaf.data.tabular import FRAME
from htaf.program.packed import PackedModel
from htaf.training.runs import PackedRun, Run

TEMPLATE = Path(__file__).with_name("card.md.jinja")
NETWORKS = {
    "mlp": "An MLP", "wide_resnet": "A WideResNet", "resnet": "A ResNet", "bireal": "A Bi-Real Net",
    "sew_resnet": "A SEW-ResNet of spiking neurons",
}  # fmt: skip
BESIDE = {"direct": "a linear part of the inputs, in real numbers", "leaves": "leaves of boosted trees, as bits"}


def card(name: str, what: Any, license: str | None) -> str:
    """Return README.md of a folder at the hub.

    Args:
        name: owner/name. what: a run, a packed network, a `ConceptBottleneck`, or the record of a language model, {}
            where it has none. license: None: none is given.
    """
    with installed():
        from huggingface_hub import EvalResult, ModelCard, ModelCardData
    facts: dict[str, Any]
    if isinstance(what, Run):
        facts = {"kind": "run"} | _of_run(what)
    elif isinstance(what, PackedRun):
        facts = {"kind": "packed"} | _of_packed(what)
    elif isinstance(what, PackedModel):
        facts = {"kind": "packed", "record": {}}
    elif isinstance(what, ConceptBottleneck):
        facts = {"kind": "bottleneck", "record": {}} | _of_bottleneck(what)
    else:
        scores = [(model, what[model]) for model in ("before", "calibrated", "trained") if what.get(model)]
        facts = {"kind": "language", "record": what, "scores": scores, "task": "text-generation"}
    data, task = facts.get("data", ""), facts.get("task")
    title = name.partition("/")[2]
    metrics = facts.get("metrics") or {}
    tested = (metrics.get("exact") or metrics.get("smooth") or {}).get("test", {})
    results = [
        EvalResult(
            task_type=str(task), dataset_type=re.sub(r"[^\w.-]+", "-", data).strip("-") or "data", dataset_name=data,
            dataset_split="test", metric_type=metric, metric_value=round(float(value), 6),
        )
        for metric, value in tested.items() if isinstance(value, int | float)
    ]  # fmt: skip
    binary = ["binary-activations"] if facts.get("step", True) else []
    about = ModelCardData(
        library_name="htaf", license=license, tags=["htaf", *binary], pipeline_tag=task, eval_results=results or None,
        model_name=title,
    )  # fmt: skip
    own = {"name": name, "title": title, "license": license, "plain": _plain, "number": _number}
    return str(ModelCard.from_template(about, str(TEMPLATE), yaml=about.to_yaml(), **own, **facts)) + "\n"


def _of_run(run: Run) -> dict[str, Any]:
    """What the template says of a run."""
    record = run.record
    model, weights = record["model"], record.get("weights") or {}
    network, values = _activations(model)
    facts = _of_data(record, run.preprocessor())
    if first := next((weights[entry] for entry in ("package", "url", "file") if weights.get(entry)), None):
        facts["facts"].append(
            ("first weights", f"{first}, {weights.get('licence') or 'of a licence that is not known'}")
        )
    kept = next((row for row in (record.get("heads") or {}).get("rows", ()) if row["kept"]), {})
    return facts | {
        "network": network,
        "values": values,
        "step": run.has_step,
        "own_smooth": run.has_own_smooth,
        "concepts": model.get("concepts"),
        "per_class": kept.get("target"),
        "beside": [words for entry, words in BESIDE.items() if model.get(entry)],
        "notes": told(from_record(record["notes"])),
    }


def _of_packed(what: PackedRun) -> dict[str, Any]:
    """What the template says of a packed run."""
    return _of_data(what.about, what.preprocessor()) | {"checked": what.about.get("checked")}


def _of_data(record: Mapping[str, Any], preprocessor: Any) -> dict[str, Any]:
    """What both say of their data and figures, and of what the network takes and gives."""
    data = record.get("data") or {}
    name = str(data.get("name", "data"))
    name = "a data frame" if name == FRAME else name
    images = isinstance(preprocessor, ImagePreprocessor)
    facts = [("data", name), *((f"{part} rows", f"{count:,}") for part, count in (record.get("rows") or {}).items())]
    facts += [("positive class", record["positive"])] if "positive" in record else []
    if images:
        facts.append(("size", " x ".join(map(str, preprocessor.size))))
    else:
        facts.append(("target", preprocessor.target.name))
    return {
        "record": record,
        "data": name,
        "task": f"{'image' if images else 'tabular'}-{data.get('task') or 'classification'}",
        "images": images,
        "preprocessor": preprocessor,
        "facts": facts,
        "classes": preprocessor.classes if images else preprocessor.target.classes,
        "columns": [] if images else [column.name for column in preprocessor.columns if column.kind != "dropped"],
        "metrics": record.get("metrics"),
    }


def _of_bottleneck(model: ConceptBottleneck) -> dict[str, Any]:
    """What the template says of a bottleneck."""
    bits, features = model.bits_.directions.shape
    facts = [(f"{part} rows", f"{len(model.fitted_.part(part)):,}") for part in ("train", "validation")]
    return {"bits": bits, "features": features, "facts": facts, "classes": model.classes_.tolist()}


def _activations(model: Mapping[str, Any]) -> tuple[str, str]:
    """What a network is, with its activations, by a run's record; and which values these have."""
    step = model.get("activation") or {}
    levels, values = step.get("levels", 1), "-1 or 1" if step.get("bipolar") else "0 or 1"
    if levels > 1:
        values = f"one of {levels + 1} values"
    if model["kind"] == "icbm":
        return f"{'An implicit' if model.get('bottleneck') == 'implicit' else 'A'} concept bottleneck model", values
    network = NETWORKS.get(model["kind"], "A network")
    if step.get("method") == "relu":
        return f"{network} with ReLU", values
    return f"{network} with activations that are {values}", values


def _plain(text: Any) -> str:
    return markdown_text(str(text))


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"
