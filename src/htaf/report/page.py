"""The page of a report: one file of HTML, without scripts, from the figures alone; the words are in a template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from htaf._console import direction
from htaf.report import drawing
from htaf.report.drawing import number
from htaf.report.parts import templates

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
Section = dict[str, Any]  # what the template shows of it; empty where there is nothing to show


def page(values: dict[str, Any]) -> str:
    """The page of a report.

    Args:
        values: of `htaf.report.contents.contents`.

    Returns:
        HTML: the same text for the same values. All that comes from data is escaped.
    """
    shown = {name: values[name] for name in ("data", "target", "part", "classes")}
    template = templates().get_template("run.html")
    return template.render(
        shown,
        most=SHOWN,
        about=_about(values),
        result=_result(values),
        baselines=_baselines(values),
        training=_training(values),
        calibration=_calibration(values),
        residuals=_residuals(values),
        confusion=_confusion(values),
        importance=_importance(values),
        rules=_rules(values),
        columns=_columns(values),
        noted=values["notes"],
        recipe=_recipe(values),
    )


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


def _about(values: dict[str, Any]) -> str:
    method, rows = METHODS.get(values["method"], values["method"]), values["rows"]
    bits = "real activations" if values["method"] == "relu" else f"activations that are 0 or 1 ({method})"
    kind = "Regression"
    if values["task"] == "classification":
        kind = f"Classification into {len(values['classes'])} classes"
    counted = ", ".join(f"{rows[part]:,} {part}" for part in PARTS if part in rows)
    about = f"{kind} by a network with {bits}. Rows: {counted}. Seed {values['seed']}."
    return f"{about} {values['parameters']:,} parameters." if values["parameters"] else about


def _result(values: dict[str, Any]) -> Section:
    """The headline figures, and those of all parts."""
    part, headline, name = values["part"], values["headline"], _named(values["headline"])
    found = values["results"][part]
    gap, word = found["gap"], found["direction"]
    tiles = []
    if found["exact"] is not None:
        tiles.append(("exact network", _figure(headline, found["exact"]), "main"))
    label = "smooth network" if values["method"] != "relu" else "network"
    tiles.append((label, _figure(headline, found["smooth"])))
    sentence = ""
    if gap is not None:
        tiles.append(("gap, exact - smooth", f"{_gap(headline, gap)} {word}", word.replace(" ", "-")))
        share = f" ({abs(gap / found['smooth']):.1%})" if found["smooth"] else ""
        how = "the same as the smooth one" if word == "the same" else f"{word} than the smooth one by "
        by = "" if word == "the same" else f"{_gap(headline, gap)[1:]}{share}"
        sentence = f"On the {part} part the exact network is {how}{by}."
    better = "lower is better" if values["lower_is_better"] else "higher is better"
    if headline == "auroc" and len(values["classes"]) == 2:
        better += f"; the positive class is {values['classes'][1]}"
    title = f"{name[0].upper()}{name[1:]} on the {part} part"
    return {"title": title, "better": better, "tiles": tiles, "sentence": sentence, "rows": _metrics(values["metrics"])}


def _metrics(metrics: dict[str, Any]) -> list[list[str]]:
    """Rows of all metrics of all parts: part, metric, smooth, exact, their difference."""
    rows = []
    for part in (part for part in PARTS if part in metrics["smooth"]):
        for metric in _ordered(metrics["smooth"][part]):
            value = metrics["smooth"][part][metric]
            exact = metrics["exact"][part][metric] if metrics["exact"] else None
            gap = None if value is None or exact is None else exact - value
            way = "" if gap is None else direction(gap, lower_is_better=metric in ("loss", "rmse", "mae"))
            shown = "-" if gap is None else f"{_gap(metric, gap)} {way}".strip()
            rows.append([part, _named(metric), _figure(metric, value), _figure(metric, exact), shown])
    return rows


def _baselines(values: dict[str, Any]) -> Section:
    found, part, metric = values["baselines"], values["part"], values["headline"]
    if not found:
        return {}
    result = values["results"][part]
    own = result["smooth"] if result["exact"] is None else result["exact"]
    known = next((one["metrics"][part] for one in found if one["metrics"]), {})
    others = [name for name in _ordered(known) if name != metric]
    network = "network" if result["exact"] is None else "exact network"
    of = (values["metrics"]["exact"] or values["metrics"]["smooth"])[part]
    seconds = "-" if values["seconds"] is None else f"{values['seconds']:,.1f}"
    rows: list[list[Any]] = [
        [network, _figure(metric, own), "", *(_figure(name, of[name]) for name in others), seconds]
    ]
    for one in found:
        known = one["metrics"].get(part, {})
        value = known.get(metric)
        gap = None if own is None or value is None else own - value
        way = "-"
        if gap is not None:
            word = direction(gap, lower_is_better=values["lower_is_better"])
            way = f"{word} by {_gap(metric, gap)[1:]}" if word else "the same"
        figures = [_figure(other, known.get(other)) for other in others]
        name = BASELINES.get(one["name"], one["name"])
        rows.append([name, _figure(metric, value), way, *figures, f"{one['seconds']:,.1f}"])
    return {
        "heads": ("model", _named(metric), f"the {network} is", *map(_named, others), "seconds"),
        "rows": rows,
        "numbers": (1, *range(3, 4 + len(others))),
        "notes": [f"{BASELINES.get(one['name'], one['name'])}: {one['note']}" for one in found if one["note"]],
    }


def _training(values: dict[str, Any]) -> Section:
    epochs = values["training"]["epochs"]
    if not epochs:
        return {}
    lines = {"train_loss": "train", "val_loss_smooth": "smooth", "val_loss": "exact"}
    names = {"train_loss": "training", "val_loss_smooth": "validation, smooth", "val_loss": "validation, exact"}
    if values["method"] == "relu":
        del lines["val_loss_smooth"]
        names["val_loss"] = "validation"
    best, stages = values["training"]["best_epoch"], values["training"]["stages"]
    keys = [*((kind, names[name]) for name, kind in lines.items()), ("kept", f"kept, epoch {best}")]
    return {
        "picture": drawing.losses(epochs, best, stages, lines),
        "legend": keys + [("stage", "a stage begins")] * bool(stages),
        "heads": ("epoch", *(names[name] for name in lines)),
        "rows": [[number(row["epoch"]), *(number(row[name]) for name in lines)] for row in epochs],
        "numbers": range(1 + len(lines)),
    }


def _calibration(values: dict[str, Any]) -> Section:
    found = values["calibration"]
    if not found or not found["bins"]:
        return {}
    if found["of"] == "class 1":
        name = values["classes"][1]
        of, seen = f"probability of {name}", f"share that is {name}"
        said = f"When the network says 70%, the answer should be {name} in 70% of the rows."
    else:
        of, seen = "highest probability", "share that is right"
        said = "When the network is 70% sure, it should be right in 70% of the rows."
    return {
        "said": said,
        "picture": drawing.reliability(found["bins"], (_short(of), _short(seen))),
        "error": f"{found['error']:.1%}",
        "rows": [
            [
                f"{one['low']:.0%} to {one['high']:.0%}",
                f"{one['rows']:,}",
                f"{one['predicted']:.1%}",
                f"{one['observed']:.1%}",
            ]
            for one in found["bins"]
        ],
    }


def _short(name: str, most: int = 34) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _residuals(values: dict[str, Any]) -> Section:
    found = values["residuals"]
    if not found or not found["bins"]:
        return {}
    return {
        "picture": drawing.spreads(found["bins"], _short(values["target"], 24)),
        "mean": number(found["mean"]),
        "deviation": number(found["deviation"]),
        "rows": [
            [f"{number(one['low'])} to {number(one['high'])}", f"{one['rows']:,}"]
            + [number(one[name]) for name in ("mean", "q10", "median", "q90")]
            for one in found["bins"]
        ],
    }


def _confusion(values: dict[str, Any]) -> Section:
    found, classes = values["confusion"], values["classes"]
    if not found:
        return {}
    matrix = []
    if found["matrix"] is not None and len(classes) <= LABELLED:
        for name, row in zip(classes, found["matrix"], strict=True):
            total = sum(row) or 1
            matrix.append((name, [(f"{count:,}", f"{count / total:.3f}") for count in row]))
    pairs = [(classes[p["true"]], classes[p["predicted"]], f"{p['rows']:,}") for p in found["pairs"]]
    pairs = pairs if len(classes) > 2 else []
    return {"matrix": matrix, "pairs": pairs} if matrix or pairs else {}


def _importance(values: dict[str, Any]) -> Section:
    found = values["importance"]
    if not found["columns"]:
        return {}
    top = max(one["worse"] for one in found["columns"])
    rows = []
    for one in found["columns"]:
        share = max(0.0, one["worse"] / top) if top > 0 else 0.0
        around = f" ± {one['std']:.1g}" if found["repeats"] > 1 else ""
        rows.append([one["column"], f"{share:.3f}", f"{_figure(found['metric'], one['worse'])}{around}"])
    return {
        "metric": _named(found["metric"]),
        "measured": found["rows"],
        "times": "once" if found["repeats"] == 1 else f"{found['repeats']} times",
        "left_out": found["left_out"],
        "rows": rows,
    }


def _rules(values: dict[str, Any]) -> Section:
    """The bits that do most, as rules over the columns."""
    found = values["rules"]
    if not found or not found["shown"]:
        return {}
    doubts = {True: "", False: "not faithful", None: "not tested"}
    rows = []
    for one in found["shown"]:
        about = one["fidelity"]
        balanced = "-" if about["balanced"] is None else f"{about['balanced']:.2f}"
        right = f"{about['accuracy']:.2f} ({about['majority']:.2f})"
        figures = (balanced, right, f"{one['on']:.0%}", f"{one['effect']:.3g}")
        doubt = doubts[about["faithful"]]
        rows.append({"bit": one["bit"], "doubt": doubt, "text": one["text"], "figures": figures})
    share = found["share"]
    return {
        "rows": rows,
        "bits": found["bits"],
        "dead": sum(found["dead"].values()),
        "share": f"{share:.0%}" if share >= 0.1 else f"{share:.1%}",
        "measured": found["rows"],
        "good": sum(one["fidelity"]["faithful"] is True for one in found["shown"]),
        "unit": "in the unit of the target" if values["task"] == "regression" else "in logits",
    }


def _columns(values: dict[str, Any]) -> Section:
    read = [[one["name"], one["kind"], f"{one['inputs']:,}", one["read"]] for one in values["columns"]]
    return {
        "used": sum(one["kind"] != "not used" for one in values["columns"]),
        "inputs": sum(one["inputs"] for one in values["columns"]),
        "rows": read + [[one["name"], "left out", "", one["why"]] for one in values["left_out"]],
    }


def _recipe(values: dict[str, Any]) -> Section:
    facts = [("commit", values["commit"]), *sorted(values["versions"].items()), ("threads", values["threads"])]
    facts += [("run key", values["key"]), ("fingerprint of the data", values["fingerprint"])]
    return {
        "command": values["command"],
        "fields": [(name, _shown(value)) for name, value in sorted(values["recipe"].items())],
        "facts": [(name, _shown(value)) for name, value in facts],
    }


def _shown(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(_shown, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
