"""The page of a report: one file of HTML, without scripts, from the figures alone; the words are in templates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from htaf._ground.console import direction, visible
from htaf.tables.report import drawing
from htaf.tables.report.contents import BASELINES, NAMES
from htaf.tables.report.drawing import number, short

TEMPLATES = Path(__file__).with_name("templates")
LABELLED = 30  # classes whose confusion matrix is shown whole
SHOWN = 15  # columns by importance before the rest is folded away
PARTS = ("train", "validation", "test")
METHODS = {"htaf": "HTAF", "ste": "straight-through", "ss": "scaled sigmoid", "relu": "ReLU"}
WEIGHTED = " Rows count by their weights in all figures, but for numbers of rows and the confusion."
Section = dict[str, Any]  # what the template shows of it; empty where there is nothing to show


def templates(*folders: Path) -> Environment:
    """Find templates of pages in folders; they may use the parts and the page of this room.

    All text that they are given is escaped, and has nothing hidden in it.
    """
    made = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_without_hidden,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["comma"] = "{:,}".format
    return made


def _without_hidden(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def page(values: dict[str, Any]) -> str:
    """Write the page of a report.

    Args:
        values: of `htaf.tables.report.contents.contents`.

    Returns:
        HTML: the same text for the same values. All that comes from data is escaped.
    """
    shown = {name: values[name] for name in ("data", "target", "part", "classes")}
    return (
        templates()
        .get_template("run.html")
        .render(
            shown,
            most=SHOWN,
            about=_about(values),
            verdict=values["verdict"],
            result=_result(values),
            readable=_readable(values),
            baselines=_baselines(values),
            calibration=_calibration(values),
            residuals=_residuals(values),
            confusion=_confusion(values),
            importance=_importance(values),
            circuit=_circuit(values),
            columns=_columns(values),
            noted=values["notes"],
            warned=[note for note in values["notes"] if note.startswith("WARNING: ")],
            recipe=[(name, _shown(value)) for name, value in sorted(values["recipe"].items())],
        )
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
    return f"{value:+.2g}" if abs(value) >= 1e-9 and not shown.strip("+-0.") else shown


def _interval(found: dict[str, Any] | None, metric: str, sign: str = "") -> str:
    """The interval of a metric in words; "" where there is none."""
    within = (found or {}).get(metric)
    return "" if within is None else " to ".join(_figure(metric, bound, sign) for bound in within)


def _better_by(within: Sequence[float] | None, metric: str, lower_is_better: bool) -> str:
    """The interval of a difference with plus for better."""
    if within is None:
        return ""
    low, high = (-within[1], -within[0]) if lower_is_better else within
    return f"{_figure(metric, low, '+')} to {_figure(metric, high, '+')}"


def _about(values: dict[str, Any]) -> str:
    method, rows = METHODS.get(values["method"], values["method"]), values["rows"]
    bits = "real activations" if values["method"] == "relu" else f"activations that are 0 or 1 ({method})"
    kind = "Regression"
    if values["task"] == "classification":
        kind = f"Classification into {len(values['classes'])} classes"
    counted = ", ".join(f"{rows[part]:,} {part}" for part in PARTS if part in rows)
    about = f"{kind} by a network with {bits}. Rows: {counted}. Seed {values['seed']}."
    about += f" {values['parameters']:,} parameters." if values["parameters"] else ""
    return about + WEIGHTED * values["weighted"]


def _result(values: dict[str, Any]) -> Section:
    """The headline figures, and those of all parts."""
    part, headline, name = values["part"], values["headline"], _named(values["headline"])
    found, within = values["results"][part], values["intervals"]
    gap, word = found["gap"], found["direction"]
    tiles = []
    if found["exact"] is not None:
        tiles.append(("exact network", _figure(headline, found["exact"]), "main", _interval(within["exact"], headline)))
    label = "smooth network" if values["method"] != "relu" else "network"
    tiles.append((label, _figure(headline, found["smooth"]), "", _interval(within["smooth"], headline)))
    sentence = ""
    if gap is not None and values["refitted"] is not None:
        sentence = (
            "The exact network was refitted after hardening, so its difference from the smooth network is not the"
        )
        sentence += " cost of hardening."
    elif gap is not None:
        shown = f"{_gap(headline, gap)} {word}"
        tiles.append(
            ("gap, exact - smooth", shown, word.replace(" ", "-"), _interval(within["gap"], headline, sign="+"))
        )
    better = "Lower is better" if values["lower_is_better"] else "Higher is better"
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
    within = values["intervals"]["exact"] or values["intervals"]["smooth"]

    def cell(name: str, figure: float | None, intervals: dict[str, Any]) -> tuple[str, str]:
        return _figure(name, figure), _interval(intervals, name)

    rows: list[list[Any]] = [
        [network, cell(metric, own, within), "", *(cell(name, of[name], within) for name in others), seconds]
    ]
    for one in found:
        known = one["metrics"].get(part, {})
        value = known.get(metric)
        gap = None if own is None or value is None else own - value
        way = "-"
        if gap is not None:
            word = direction(gap, lower_is_better=values["lower_is_better"])
            shown = f"{word} by {_gap(metric, gap)[1:]}" if word else "the same"
            way = (shown, _better_by(one["ahead"].get(metric), metric, values["lower_is_better"]))
        figures = [cell(other, known.get(other), one["intervals"]) for other in others]
        name = BASELINES.get(one["name"], one["name"])
        rows.append([name, cell(metric, value, one["intervals"]), way, *figures, f"{one['seconds']:,.1f}"])
    return {
        "heads": ("model", _named(metric), f"the {network} is (+ better)", *map(_named, others), "seconds"),
        "rows": rows,
        "numbers": (1, *range(3, 4 + len(others))),
        "notes": [f"{BASELINES.get(one['name'], one['name'])}: {one['note']}" for one in found if one["note"]],
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
    if weights := values["recipe"]["class_weight"]:
        said += f" But the training weighted the classes ({', '.join(weights)}): its probabilities are those of classes"
        said += " with such shares, while the rows here are as they come, so the two are far from each other by design."
    return {
        "said": said,
        "picture": drawing.reliability(found["bins"], (short(of), short(seen))),
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


def _residuals(values: dict[str, Any]) -> Section:
    found = values["residuals"]
    if not found or not found["bins"]:
        return {}
    return {
        "picture": drawing.spreads(found["bins"], short(values["target"], 24)),
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
    if len(classes) > LABELLED:
        pairs = [(classes[p["true"]], classes[p["predicted"]], f"{p['rows']:,}") for p in found["pairs"]]
        return {"matrix": [], "pairs": pairs}
    matrix = []
    for name, row in zip(classes, found["matrix"], strict=True):
        total = sum(row) or 1
        matrix.append((name, [(f"{count:,}", f"{count / total:.3f}") for count in row]))
    return {"matrix": matrix, "pairs": []}


def _importance(values: dict[str, Any]) -> Section:
    found = values["importance"]
    if not found or not found["columns"]:
        return {}
    top = max(one["worse"] for one in found["columns"])
    rows = []
    for one in found["columns"]:
        share = max(0.0, one["worse"] / top) if top > 0 else 0.0
        rows.append([one["column"], f"{share:.3f}", _figure(found["metric"], one["worse"])])
    return {
        "metric": _named(found["metric"]),
        "measured": found["rows"],
        "times": "once" if found["repeats"] == 1 else f"{found['repeats']} times",
        "rows": rows,
    }


def _circuit(values: dict[str, Any]) -> Section:
    found, classes = values["circuit"], values["classes"]
    if not found:
        return {}
    most = max((one["tables"] for one in found["asked"]), default=1)
    told = [[f"{one['own']:.0%}", f"{one['others']:.0%}", "; ".join(one["reads"])] for one in found["telling"]]
    names = [classes[one["class"]] if classes else "above the median" for one in found["telling"]]
    return found | {
        "asked": [[one["column"], f"{one['tables'] / most:.3f}", f"{one['tables']:,}"] for one in found["asked"]],
        "telling": [[name, *cells] for name, cells in zip(names, told, strict=True)],
    }


def _readable(values: dict[str, Any]) -> Section:
    """The whole model of a readable network: pictures, the card, and the sum of one row."""
    found = values["readable"]
    if not found:
        return {}
    outputs, unit, several = found["outputs"], found["unit"], len(found["outputs"]) > 1
    names = outputs if several else ["points"]
    shown, card = [], [["every row", "", "", *(f"{points:+,}" for points in found["bias"])]]
    for term in found["terms"]:
        rows = [[one["text"], f"{one['share']:.1%}", *(f"{p:+,}" for p in one["points"])] for one in term["levels"]]
        card += [[term["name"] if k == 0 else "", *row] for k, row in enumerate(rows)]
        if not term["rule"]:
            shown.append({"name": term["name"], "picture": drawing.effect(_drawn(term), names, "points")})
    said = f"Of a row add up the points; {values['target']} is {number(found['center'])} + {unit:.6g} x points."
    if found["center"] is None:
        said = f"Of a row add up the points s; the probability of {outputs[0]} is 1 / (1 + exp(-{unit:g} s))."
    if several:
        said = f"Of a row add up the points s of each class; its probability is proportional to exp({unit:g} s)."
    row = [[one["name"], f"{one['points']:+,}"] for one in found["row"]]
    total = sum(one["points"] for one in found["row"])
    return {
        "said": said,
        "columns": shown,
        "legend": [(f"c{k}", short(name)) for k, name in enumerate(names)] if several else [],
        "heads": ("column", "value", "rows", *names),
        "card": card,
        "numbers": range(2, 3 + len(names)),
        "row": [*row, ["sum", f"{total:+,}"]],
        "output": outputs[0],
    }


def _drawn(term: dict[str, Any]) -> dict[str, Any]:
    """A term as `htaf.tables.report.drawing.effect` takes it: of a number from a little below its first step to a
    little above its last one."""
    levels = [one for one in term["levels"] if one["end"] is not None or term["kind"] == "category"]
    points = [{"value": one["end"] or 0.0, "label": one["text"], "mean": one["points"]} for one in levels]
    if term["kind"] == "number":
        first, last = points[0]["value"], points[-1]["value"]
        edge = (last - first) / 10 or abs(first) / 10 or 1.0
        points = [
            {"value": first - edge, "label": term["levels"][0]["text"], "mean": term["levels"][0]["points"]},
            *points,
        ]
        points.append(points[-1] | {"value": last + edge})
    return {"column": term["name"], "kind": term["kind"], "points": points}


def _columns(values: dict[str, Any]) -> Section:
    read = [[one["name"], one["kind"], f"{one['inputs']:,}", one["read"]] for one in values["columns"]]
    return {
        "used": sum(one["kind"] != "not used" for one in values["columns"]),
        "inputs": sum(one["inputs"] for one in values["columns"]),
        "rows": read + [[one["name"], "left out", "", one["why"]] for one in values["left_out"]],
    }


def _shown(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(_shown, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
