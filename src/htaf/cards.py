"""The model card of what is shared at the Hugging Face hub, made from its record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from htaf._console import markdown_text
from htaf._errors import installed
from htaf.data.images import ImagePreprocessor
from htaf.data.notes import from_record, told
from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import FRAME
from htaf.embeddings.bottleneck import ConceptBottleneck
from htaf.packed import PackedModel
from htaf.report.writing import own_values
from htaf.runs import PackedRun, Run

MOST = 30  # columns and classes that a card names
NETWORKS = {
    "mlp": "An MLP", "wide_resnet": "A WideResNet", "resnet": "A ResNet", "bireal": "A Bi-Real Net",
    "sew_resnet": "A SEW-ResNet of spiking neurons",
}  # fmt: skip
READ = (
    "`pip install 'htaf[hub]'` brings what this needs; `revision=` pins a commit. Only tensors, JSON and a tokenizer's "
    "texts are read, and nothing in them is run as code."
)
CHOSE = "The validation rows chose the epoch, so their figures flatter."
BESIDE = {"direct": "a linear part of the inputs, in real numbers", "leaves": "leaves of boosted trees, as bits"}


class Said(NamedTuple):
    """What a card says: one sentence, lines of Python that open it, parts by their headings, limits, figures."""

    about: str
    code: Sequence[str]
    parts: Mapping[str, Sequence[str]]
    limits: Sequence[str]
    task: str | None = None  # as the hub calls it
    figures: Mapping[str, float] = {}  # of the test part
    data: str = ""
    tags: Sequence[str] = ("binary-activations",)


def card(name: str, what: Any, license: str | None) -> str:
    """README.md of a folder at the hub.

    Args:
        name: owner/name. what: a run, a packed network, a `ConceptBottleneck`, or the record of a language model, {}
            where it has none. license: None: none is given.
    """
    with installed():
        from huggingface_hub import EvalResult, ModelCardData
    if isinstance(what, Run):
        said = _of_run(what)
    elif isinstance(what, PackedRun | PackedModel):
        said = _of_packed(what)
    else:
        said = _of_bottleneck(what) if isinstance(what, ConceptBottleneck) else _of_language(what)
    results = [
        EvalResult(
            task_type=str(said.task), dataset_type=re.sub(r"[^\w.-]+", "-", said.data).strip("-") or "data",
            dataset_name=said.data, dataset_split="test", metric_type=metric, metric_value=round(value, 6),
        )
        for metric, value in said.figures.items()
    ]  # fmt: skip
    title = name.partition("/")[2]
    data = ModelCardData(
        library_name="htaf", license=license, tags=["htaf", *said.tags], pipeline_tag=said.task,
        eval_results=results or None, model_name=title,
    )  # fmt: skip
    licence = f"Licence: {license}." if license else "No licence is given: ask its author before you use it."
    parts = {
        **{head: lines for head, lines in said.parts.items() if lines},
        "Limits": [f"- {line}" for line in (*said.limits, licence)],
    }
    code = "\n".join(("```python", "import htaf", "", *(line.replace("NAME", name) for line in said.code), "```"))
    text = [f"---\n{data.to_yaml().strip()}\n---", f"# {title}", said.about, code, READ]
    return (
        "\n\n".join([*text, *("\n".join((f"## {head}", "", *lines)) for head, lines in parts.items() if lines)]) + "\n"
    )


def _of_run(run: Run) -> Said:
    record, preprocessor = run.record, run.preprocessor()
    data = record["data"]
    name = _name(data)
    facts = [("data", name), *((f"{part} rows", f"{count:,}") for part, count in (record.get("rows") or {}).items())]
    if run.takes_images:
        report = {}
        code = ('run = htaf.load("NAME")', 'print(run.predict_images(["image.png"]))')
    else:
        report = own_values(run) or {}
        facts.append(("split", data.get("split") or "none"))
        facts += [("positive class", record["positive"])] if "positive" in record else []
        code = ('model = htaf.load("NAME")', "print(model.predict(rows))  # a data frame with the columns below")
    concepts = record["model"].get("concepts")
    about, values = _activations(record["model"])
    bits = ["None: it was trained with ReLU, to compare with."]
    if run.has_step:
        own = "weights of its own" if run.has_own_smooth else "the same weights"
        bits = [
            f"Its {'concepts' if concepts else 'activations'} are {values}, by exact steps. The smooth network is the "
            f"one that was trained, by method {_plain(record['recipe']['method'])}; it is here too, with {own}. "
            "Predictions are those of the exact one."
        ]
    if concepts and run.has_step:
        bits += ["", f"It has {concepts:,} concepts, bits of an image, and a linear head on them{_drawn(record)}."]
    beside = [words for entry, words in BESIDE.items() if record["model"].get(entry)]
    if beside:
        bits += ["", f"Beside them: {' and '.join(beside)}."]
    if run.has_step and (layers := record.get("layers")):
        shares = ("units", "{:,}"), ("firing_rate", "{:.1%}"), ("flip_rate", "{:.2%}")
        rows = [(one["path"], *(form.format(one[name]) for name, form in shares)) for one in layers]
        bits += ["", *_table(("layer", "bits", "on", "other than in the smooth network"), rows)]
    weights = record.get("weights") or {}
    if first := next((weights[entry] for entry in ("package", "url", "file") if weights.get(entry)), None):
        facts.append(("first weights", f"{first}, {weights.get('licence') or 'of a licence that is not known'}"))
    tested = (record.get("rows") or {}).get("test")
    limits = [f"The test figures are of {tested:,} rows of one source: of others they say nothing."] if tested else []
    parts = {
        "Data": _taken(facts, preprocessor),
        "What was noticed": [f"- {_plain(note)}" for note in told(from_record(record["notes"]))[:MOST]],
        "Figures": _figures(record, report),
        "Bits": bits,
    }
    task = f"{'image' if run.takes_images else 'tabular'}-{data.get('task') or 'classification'}"
    limits += [CHOSE] if record["recipe"].get("keep") == "best" else []
    if weights.get("licence"):
        limits.append(f"The licence of its first weights holds too: {_plain(weights['licence'])}.")
    about = f"{about}, trained by htaf on {_plain(name)}."
    tags = ("binary-activations",) if run.has_step else ()
    return Said(about, code, parts, limits, task, _tested(record), name, tags)


def _taken(facts: Sequence[tuple[str, Any]], preprocessor: Preprocessor | ImagePreprocessor) -> list[str]:
    """What is known of the data, and what the network takes and gives."""
    if isinstance(preprocessor, ImagePreprocessor):
        size = " x ".join(map(str, preprocessor.size))
        return [*_table(("what", "value"), [*facts, ("size", size)]), *_named("Classes", preprocessor.classes)]
    columns = [column.name for column in preprocessor.columns if column.kind != "dropped"]
    table = _table(("what", "value"), [*facts, ("target", preprocessor.target.name)])
    return [*table, *_named("Classes", preprocessor.target.classes), *_named("Columns", columns)]


def _name(data: Mapping[str, Any]) -> str:
    """What a network was trained on."""
    name = str(data.get("name", "data"))
    return "a data frame" if name == FRAME else name


def _drawn(record: Mapping[str, Any]) -> str:
    """On how many concepts a class draws, where a sparse head was fitted."""
    kept = next((row for row in (record.get("heads") or {}).get("rows", ()) if row["kept"]), {})
    return f", which draws on {kept['target']} of them a class" if kept.get("target") else ""


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


def _of_packed(what: PackedRun | PackedModel) -> Said:
    said = "A network of exact steps, packed by htaf: layers that read their bits count these in machine words."
    if isinstance(what, PackedModel):
        return Said(said, ('packed = htaf.load("NAME")', "print(packed(inputs))  # a tensor"), {}, ())
    about, call = what.about, 'predict_images(["image.png"])' if what.takes_images else "predict(rows)  # a data frame"
    data = about.get("data") or {}
    parts = {"Data": _taken([("data", _name(data))], what.preprocessor())}
    if about.get("metrics"):
        parts["Figures"] = _figures(about, {})
    if checked := about.get("checked"):
        part = "" if checked["part"] == "all" else f"{checked['part']} "
        same = f"{checked['same']:,} of {checked['rows']:,} {part}rows"
        others = "" if checked["same"] == checked["rows"] else "; rounding decides the others"
        parts["Bits"] = [f"{same} are predicted as by the network that was packed{others}."]
    call, _, comment = call.partition("  ")
    code = ('packed = htaf.load("NAME")', f"print(packed.{call})" + (f"  {comment}" if comment else ""))
    task = f"{'image' if what.takes_images else 'tabular'}-{data.get('task') or 'classification'}"
    return Said(said, code, parts, (), task, _tested(about), _name(data))


def _of_bottleneck(model: ConceptBottleneck) -> Said:
    concepts, features = model.bits_.directions.shape
    rows = [(f"{part} rows", f"{len(model.fitted_.part(part)):,}") for part in ("train", "validation")]
    parts = {
        "Data": [*_table(("what", "value"), rows), *_named("Classes", model.classes_.tolist())],
        "Bits": [
            "Bit j of a row x is 1 where `directions[j] @ x + offsets[j] >= 0`; logits are `weight @ bits + bias`, so "
            "what each bit is worth to a decision is exact."
        ],
    }
    limits = (
        "Features must come from the embedding of the training, which is not part of this.",
        "It keeps the bits and labels of the rows of its training.",
    )
    about = f"A concept bottleneck of htaf: {concepts:,} bits of {features:,} features, and a linear head on the bits."
    code = ('model = htaf.load("NAME")', "print(model.predict(features))  # [rows, features]")
    return Said(about, code, parts, limits)


def _of_language(record: Mapping[str, Any]) -> Said:
    about = "A language model whose gated MLPs have 0/1 gates, made by htaf"
    limits = ["Readers other than htaf refuse it: they would compute the original activation."]
    code = ['model, tokenizer = htaf.load("NAME")', 'tokens = tokenizer("Once upon", return_tensors="pt")["input_ids"]']
    if not record:
        return Said(f"{about}.", code, {}, limits, "text-generation")
    scores = [(name, record[name]) for name in ("before", "calibrated", "trained") if record.get(name)]
    rows = [(name, _number(one.get("perplexity")), f"{one.get('tokens') or 0:,}") for name, one in scores]
    gates = [(one["layer"], f"{one['open']:.1%}") for one in record.get("gates") or ()]
    said = f"Held-out text: {_plain(record['data'].get('text') or 'none')}."
    parts = {
        "Figures": [said, "", *_table(("model", "perplexity", "tokens"), rows)],
        "Bits": ["A closed gate takes its neuron out of the sum.", "", *_table(("layer", "open"), gates)],
    }
    code.append("print(tokenizer.decode(model.generate(tokens, max_new_tokens=20)[0]))")
    limits.append("Only losses were measured, nobody looked at answers: what the original says wrongly, this may too.")
    return Said(f"{about} from {_plain(record['model'])}.", code, parts, limits, "text-generation")


def _tested(record: Mapping[str, Any]) -> dict[str, float]:
    """The figures of the test part, of the exact network where there is one."""
    metrics = record.get("metrics") or {}
    found = (metrics.get("exact") or metrics.get("smooth") or {}).get("test", {})
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def _figures(record: Mapping[str, Any], report: Mapping[str, Any]) -> list[str]:
    """A table of both networks by part and metric, with intervals where a report of this run has them."""
    metrics, rows = record["metrics"], list[tuple[str, ...]]()
    for part, of_part in metrics["smooth"].items():
        known = (report.get("intervals") or {}) if report.get("part") == part else {}
        both = {"smooth": of_part, "exact": (metrics["exact"] or {}).get(part, {})}
        for name in of_part:
            figures = (_number(of.get(name), (known.get(net) or {}).get(name)) for net, of in both.items())
            rows.append((part, name, *figures))
    lines = _table(("part", "metric", "smooth network", "exact network"), rows)
    beside = "In brackets: the middle 95% of a bootstrap over the rows, not over trainings."
    return [*lines, "", beside] if report.get("intervals") else lines


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *([_plain(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _named(what: str, names: Sequence[Any]) -> list[str]:
    more = f" and {len(names) - MOST:,} more" if len(names) > MOST else ""
    return ["", f"{what}: {', '.join(map(_plain, names[:MOST]))}{more}."] if names else []


def _plain(text: Any) -> str:
    return markdown_text(str(text))


def _number(value: Any, interval: Sequence[float] | None = None) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.4g}" + (f" [{interval[0]:.4g}, {interval[1]:.4g}]" if interval else "")
