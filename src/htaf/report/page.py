"""The page of a report: one file of HTML, without scripts, from the figures alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from htaf._console import direction
from htaf.report import drawing, parts
from htaf.report.drawing import number, text
from htaf.report.parts import Cell

LABELLED = 30  # classes whose confusion matrix is shown whole
SHOWN = 15  # columns by importance before the rest is folded away
NAMES = {"rmse": "RMSE", "mae": "MAE", "r2": "R²", "auroc": "AUROC", "accuracy": "accuracy", "loss": "loss"}
PARTS = ("train", "validation", "test")
METHODS = {"htaf": "HTAF", "ste": "straight-through", "ss": "scaled sigmoid", "relu": "ReLU"}
BASELINES = {
    "constant": "constant",
    "linear": "linear regression (ridge)",
    "logistic": "logistic regression",
    "boosting": "histogram boosting",
}


def page(values: dict[str, Any]) -> str:
    """The page of a report.

    Args:
        values: of `htaf.report.contents.contents`.

    Returns:
        HTML: the same text for the same values. All that comes from data is escaped.
    """
    title = f"{values['data']}: {values['target']}"
    sections = [
        _head(values),
        _result(values),
        _baselines(values),
        _training(values),
        _calibration(values),
        _residuals(values),
        _confusion(values),
        _importance(values),
        _rules(values),
        _columns(values),
        _recipe(values),
    ]
    return parts.document(f"{title} - report", filter(None, sections))


def _named(metric: str) -> str:
    return NAMES.get(metric, metric)


def _ordered(metrics: Iterable[str]) -> list[str]:
    """The names of metrics as `NAMES` orders them."""
    return sorted(metrics, key=lambda name: [*NAMES, name].index(name))


def _figure(metric: str, value: float | None, sign: str = "") -> str:
    """A metric as tables of the command show it; of a target with a small unit three significant digits."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:{sign},.1f}"
    small = 0 < abs(value) < 0.01 and metric in ("rmse", "mae") and not sign
    return f"{value:.3g}" if small else f"{0.0 if abs(value) < 5e-5 else value:{sign}.4f}"


def _gap(metric: str, value: float) -> str:
    """A difference, with its sign."""
    shown = _figure(metric, value, "+")
    return f"{value:+.2g}" if value and not shown.strip("+-0.") else shown


def _head(values: dict[str, Any]) -> str:
    method, rows = METHODS.get(values["method"], values["method"]), values["rows"]
    bits = "real activations" if values["method"] == "relu" else f"activations that are 0 or 1 ({method})"
    kind = "Regression"
    if values["task"] == "classification":
        kind = f"Classification into {len(values['classes'])} classes"
    counted = ", ".join(f"{rows[part]:,} {part}" for part in PARTS if part in rows)
    about = f"{kind} by a network with {bits}. Rows: {counted}. Seed {values['seed']}."
    if values["parameters"]:
        about += f" {values['parameters']:,} parameters."
    return (
        f"<header><p class='what'>{text(values['data'])}</p><h1>{text(values['target'])}</h1>"
        f"<p class='muted'>{text(about)}</p></header>"
    )


def _result(values: dict[str, Any]) -> str:
    """The headline figures, and those of all parts."""
    part, headline, lower = values["part"], values["headline"], values["lower_is_better"]
    name = _named(headline)
    found = values["results"][part]
    tiles = []
    if found["exact"] is not None:
        tiles.append(_tile("exact network", _figure(headline, found["exact"]), "main"))
    label = "smooth network" if values["method"] != "relu" else "network"
    tiles.append(_tile(label, _figure(headline, found["smooth"]), ""))
    if found["gap"] is not None:
        said = f"{_gap(headline, found['gap'])} {found['direction']}"
        tiles.append(_tile("gap, exact - smooth", said, found["direction"].replace(" ", "-")))
    better = "lower is better" if lower else "higher is better"
    if headline == "auroc" and len(values["classes"]) == 2:
        better += f"; the positive class is {values['classes'][1]}"
    sentence = ""
    if found["gap"] is not None:
        share = f" ({abs(found['gap'] / found['smooth']):.1%})" if found["smooth"] else ""
        word = found["direction"]
        than = "the same as" if word == "the same" else f"{word} than"
        by = "" if word == "the same" else f" by {_gap(headline, found['gap'])[1:]}{share}"
        sentence = f"<p>On the {text(part)} part the exact network is {than} the smooth one{by}.</p>"
    rows: list[list[Cell]] = []
    metrics = values["metrics"]
    for one in (part for part in PARTS if part in metrics["smooth"]):
        for metric in _ordered(metrics["smooth"][one]):
            value = metrics["smooth"][one][metric]
            exact = metrics["exact"][one][metric] if metrics["exact"] else None
            gap = None if value is None or exact is None else exact - value
            way = "" if gap is None else direction(gap, lower_is_better=metric in ("loss", "rmse", "mae"))
            shown = "-" if gap is None else f"{_gap(metric, gap)} {way}".strip()
            cells = [(_figure(metric, value), True), (_figure(metric, exact), True), (text(shown), True)]
            rows.append([(text(one), False), (text(_named(metric)), False), *cells])
    table = parts.table(("part", "metric", "smooth", "exact", "exact - smooth"), rows, "All metrics of all parts")
    return parts.section(
        "result",
        f"{name[0].upper()}{name[1:]} on the {part} part",
        f"<p class='muted'>{text(better)}</p><div class='tiles'>{''.join(tiles)}</div>{sentence}"
        + parts.folded("All metrics, all parts", table),
    )


def _tile(label: str, value: str, kind: str) -> str:
    return f"<div class='tile {kind}'><span>{text(label)}</span><b>{text(value)}</b></div>"


def _baselines(values: dict[str, Any]) -> str:
    found, part, metric = values["baselines"], values["part"], values["headline"]
    if not found:
        return ""
    result = values["results"][part]
    own = result["smooth"] if result["exact"] is None else result["exact"]
    known = next((one["metrics"][part] for one in found if one["metrics"]), {})
    others = [name for name in _ordered(known) if name != metric]
    network = "network" if result["exact"] is None else "exact network"
    of = values["metrics"]["exact"] or values["metrics"]["smooth"]
    rows: list[list[Cell]] = [
        [
            (f"<b>{network}</b>", False),
            (f"<b>{_figure(metric, own)}</b>", True),
            ("", False),
            *((_figure(name, of[part][name]), True) for name in others),
            ("-" if values["seconds"] is None else f"{values['seconds']:,.1f}", True),
        ]
    ]
    notes = []
    for one in found:
        name = BASELINES.get(one["name"], one["name"])
        known = one["metrics"].get(part, {})
        value = known.get(metric)
        gap = None if own is None or value is None else own - value
        way = "-"
        if gap is not None:
            word = direction(gap, lower_is_better=values["lower_is_better"])
            way = f"{word} by {_gap(metric, gap)[1:]}" if word else "the same"
        rows.append(
            [
                (text(name), False),
                (_figure(metric, value), True),
                (text(way), False),
                *((_figure(other, known.get(other)), True) for other in others),
                (f"{one['seconds']:,.1f}", True),
            ]
        )
        if one["note"]:
            notes.append(f"<li>{text(name)}: {text(one['note'])}</li>")
    heads = ("model", _named(metric), f"the {network} is", *map(_named, others), "seconds")
    said = (
        "Models of scikit-learn, at their defaults, on the same training rows and raw columns, measured on the same "
        f"{part} rows. Seconds: of fitting; of the network its whole training."
    )
    listed = f"<ul class='notes'>{''.join(notes)}</ul>" if notes else ""
    body = f"<p class='muted'>{text(said)}</p>{parts.table(heads, rows, 'The network beside baselines')}{listed}"
    return parts.section("baselines", "Beside baselines", body)


def _training(values: dict[str, Any]) -> str:
    epochs = values["training"]["epochs"]
    if not epochs:
        return ""
    lines = {"train_loss": "train", "val_loss_smooth": "smooth", "val_loss": "exact"}
    names = {"train_loss": "training", "val_loss_smooth": "validation, smooth", "val_loss": "validation, exact"}
    if values["method"] == "relu":
        del lines["val_loss_smooth"]
        names["val_loss"] = "validation"
    best, stages = values["training"]["best_epoch"], values["training"]["stages"]
    keys = [f"<span class='key {kind}'>{names[name]}</span>" for name, kind in lines.items()]
    keys.append(f"<span class='key kept'>kept, epoch {best}</span>")
    if stages:
        keys.append("<span class='key stage'>a stage begins</span>")
    rows = [
        [(number(row["epoch"]), True), *((number(row[name]), True) for name in lines)]
        for row in epochs
    ]  # fmt: skip
    table = parts.table(("epoch", *(names[name] for name in lines)), rows, "Losses by epoch")
    picture = drawing.losses(epochs, best, stages, lines)
    body = f"<figure>{picture}<figcaption>{''.join(keys)}</figcaption></figure>{parts.folded('Losses by epoch', table)}"
    return parts.section("training", "Training", body)


def _calibration(values: dict[str, Any]) -> str:
    found = values["calibration"]
    if not found or not found["bins"]:
        return ""
    if found["of"] == "class 1":
        name = values["classes"][1]
        of, seen = f"probability of {name}", f"share that is {name}"
        said = f"When the network says 70%, the answer should be {name} in 70% of the rows."
    else:
        of, seen = "highest probability", "share that is right"
        said = "When the network is 70% sure, it should be right in 70% of the rows."
    bins = found["bins"]
    rows = [
        [
            (f"{one['low']:.0%} to {one['high']:.0%}", False),
            (f"{one['rows']:,}", True),
            (f"{one['predicted']:.1%}", True),
            (f"{one['observed']:.1%}", True),
        ]
        for one in bins
    ]
    table = parts.table(("bin", "rows", "predicted", "observed"), rows, "Reliability by bin")
    error = f"Mean distance (expected calibration error): {found['error']:.1%}. The larger a dot, the more rows."
    picture = drawing.reliability(bins, (_short(of), _short(seen)))
    return parts.section(
        "calibration",
        "Calibration",
        f"<p class='muted'>{text(said)}</p><figure>{picture}<figcaption>{text(error)}</figcaption></figure>"
        + parts.folded("Reliability by bin", table),
    )


def _short(name: str, most: int = 34) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _residuals(values: dict[str, Any]) -> str:
    found = values["residuals"]
    if not found or not found["bins"]:
        return ""
    rows = [
        [(f"{number(one['low'])} to {number(one['high'])}", False), (f"{one['rows']:,}", True)]
        + [(number(one[name]), True) for name in ("mean", "q10", "median", "q90")]
        for one in found["bins"]
    ]
    heads = ("predicted", "rows", "mean", "10%", "median", "90%")
    table = parts.table(heads, rows, "True value minus prediction, by prediction")
    told = (
        f"True value minus prediction: mean {number(found['mean'])}, standard deviation {number(found['deviation'])}. "
        "Dots: the mean of each bin; lines: the middle 80% of its rows."
    )
    picture = drawing.spreads(found["bins"], _short(values["target"], 24))
    return parts.section(
        "residuals",
        "Residuals",
        f"<figure>{picture}<figcaption>{text(told)}</figcaption></figure>{parts.folded('Residuals by bin', table)}",
    )


def _confusion(values: dict[str, Any]) -> str:
    found, classes = values["confusion"], values["classes"]
    if not found:
        return ""
    body = ""
    if found["matrix"] is not None and len(classes) <= LABELLED:
        head = "".join(f"<th scope='col' class='num'>{text(name)}</th>" for name in classes)
        lines = []
        for name, row in zip(classes, found["matrix"], strict=True):
            total = sum(row) or 1
            cells = "".join(f"<td class='num shade' style='--s:{count / total:.3f}'>{count:,}</td>" for count in row)
            lines.append(f"<tr><th scope='row'>{text(name)}</th>{cells}</tr>")
        inside = f"<thead><tr><th scope='col'>true \\ predicted</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
        body = parts.scrolled("Confusion matrix", f"<table class='matrix'>{inside}</table>")
        body = f"<p class='muted'>Rows: the true class. Columns: the predicted one. Stronger: a larger share.</p>{body}"
    if len(classes) > 2 and found["pairs"]:
        rows = [
            [(text(classes[p["true"]]), False), (text(classes[p["predicted"]]), False), (f"{p['rows']:,}", True)]
            for p in found["pairs"]
        ]
        table = parts.table(("true", "taken for", "rows"), rows, "Classes that are most often confused")
        body += parts.folded("Most often confused", table, opened=not body)
    return parts.section("confusion", "Confusion", body) if body else ""


def _importance(values: dict[str, Any]) -> str:
    found = values["importance"]
    if not found["columns"]:
        return ""
    top = max(one["worse"] for one in found["columns"])
    rows: list[list[Cell]] = []
    for one in found["columns"]:
        share = max(0.0, one["worse"] / top) if top > 0 else 0.0
        bar = f"<span class='bar' style='--s:{share:.3f}'></span>"
        around = f" ± {one['std']:.1g}" if found["repeats"] > 1 else ""
        shown = f"{_figure(found['metric'], one['worse'])}{around}"
        rows.append([(text(one["column"]), False), (bar, False), (shown, True)])
    metric, times = _named(found["metric"]), found["repeats"]
    told = (
        f"How much worse {metric} becomes where a column is shuffled, so that it says nothing: {found['rows']:,} rows "
        f"of the {values['part']} part, {'once' if times == 1 else f'{times} times'}. Columns that say the same stand "
        "in for each other, and each of them then seems to matter little."
    )
    if found["left_out"]:
        told += f" {found['left_out']:,} columns to which the network is less sensitive were left out."
    heads = ("column", "", "worse by")
    table = parts.table(heads, rows[:SHOWN], "Importance of columns", kind="bars")
    rest = ""
    if len(rows) > SHOWN:
        more = parts.table(heads, rows[SHOWN:], "Importance of the other columns", kind="bars")
        rest = parts.folded(f"{len(rows) - SHOWN:,} more columns", more)
    return parts.section("importance", "Which columns matter", f"<p class='muted'>{text(told)}</p>{table}{rest}")


def _rules(values: dict[str, Any]) -> str:
    """The bits that do most, as rules over the columns."""
    found = values["rules"]
    if not found or not found["shown"]:
        return ""
    rows: list[list[Cell]] = []
    for one in found["shown"]:
        about = one["fidelity"]
        doubt = {True: "", False: "<b class='doubt'>not faithful</b> ", None: "<b class='doubt'>not tested</b> "}
        balanced = "-" if about["balanced"] is None else f"{about['balanced']:.2f}"
        rows.append(
            [
                (f"{one['bit']}", True),
                (f"{doubt[about['faithful']]}{text(one['text'])}", False),
                (balanced, True),
                (f"{about['accuracy']:.2f} ({about['majority']:.2f})", True),
                (f"{one['on']:.0%}", True),
                (f"{one['effect']:.3g}", True),
            ]
        )
    good = sum(one["fidelity"]["faithful"] is True for one in found["shown"])
    dead = sum(found["dead"].values())
    count, unit = len(found["shown"]), "in the unit of the target" if values["task"] == "regression" else "in logits"
    of = f"The prediction is a sum over {found['bits']:,} bits that are on or off"
    of += f"; {dead:,} of them never change." if dead else "."
    told = (
        f"{of} The {count} that do most have {_percent(found['share'])} of the effect of all. A short rule over the "
        f"columns is fitted to each on training rows; on {found['rows']:,} test rows {good} of {count} say what their "
        "bit does (balanced accuracy of at least 0.9). One that is not faithful hints at it and no more."
    )
    more = (
        f"Accuracy: in brackets that of always guessing the more frequent value. Effect: mean |contribution| {unit}. "
        "All bits, the reasons of a row, and what would be if:"
    )
    words = "<pre tabindex='0' aria-label='command for all rules'>htaf explain RUN --out rules.csv</pre>"
    heads = ("bit", "rule", "balanced", "accuracy", "on", "effect")
    table = parts.table(heads, rows, "Rules of the bits that do most", kind="rules")
    body = f"<p class='muted'>{text(told)}</p>{table}<p class='muted'>{text(more)}</p>{words}"
    return parts.section("rules", "What the bits say", body)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _columns(values: dict[str, Any]) -> str:
    rows = [
        [
            (text(one["name"]), False),
            (text(one["kind"]), False),
            (f"{one['inputs']:,}", True),
            (text(one["read"]), False),
        ]
        for one in values["columns"]
    ]
    count = sum(one["inputs"] for one in values["columns"])
    used = sum(one["kind"] != "not used" for one in values["columns"])
    body = f"<p class='muted'>{used:,} {'column makes' if used == 1 else 'columns make'} {count:,} inputs.</p>"
    gone = [[(text(one["name"]), False), ("left out", False), ("", True), (text(one["why"]), False)]
            for one in values["left_out"]]  # fmt: skip
    rows += gone
    table = parts.table(("column", "kind", "inputs", "read as"), rows[:SHOWN], "How the columns were read")
    if len(rows) > SHOWN:
        more = parts.table(("column", "kind", "inputs", "read as"), rows[SHOWN:], "How the other columns were read")
        table += parts.folded(f"{len(rows) - SHOWN:,} more columns", more)
    if values["notes"]:
        notes = "".join(f"<li>{text(note)}</li>" for note in values["notes"])
        table += f"<h3>Notes</h3><ul class='notes'>{notes}</ul>"
    return parts.section("columns", "How the columns were read", body + table)


def _recipe(values: dict[str, Any]) -> str:
    body = ""
    if values["command"]:
        shown = f"<pre tabindex='0' aria-label='command'>{text(values['command'])}</pre>"
        body = f"<p class='muted'>To train it again, in the folder of the data:</p>{shown}"
    rows = [[(text(name), False), (text(_shown(value)), False)] for name, value in sorted(values["recipe"].items())]
    body += parts.folded("Recipe", parts.table(("field", "value"), rows, "Recipe"))
    facts = [("commit", values["commit"]), *sorted(values["versions"].items()), ("threads", values["threads"])]
    facts += [("run key", values["key"]), ("fingerprint of the data", values["fingerprint"])]
    made = [[(text(name), False), (text(_shown(value)), False)] for name, value in facts]
    body += parts.folded("Versions and keys", parts.table(("name", "value"), made, "Versions and keys"))
    return parts.section("recipe", "Recipe", body)


def _shown(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(_shown, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
