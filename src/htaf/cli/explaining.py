"""`htaf explain`: what a 0/1 network says about a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from htaf._ground.console import UsageError, print_json, progress, say, say_notes, show
from htaf.cli.flags import DataDir, Json, MethodOfRun, Place, RunDir, is_language_model, needs_source, opened_run
from htaf.data.notes import told

if TYPE_CHECKING:
    import pandas as pd

    from htaf.data.columns import Target
    from htaf.data.preprocess import Preprocessor
    from htaf.data.tabular import Table
    from htaf.tables.rules import BitRule, Explanation, Importance, RowReasons, Surrogate, WhatIf
    from htaf.training.runs import Run

HEADERS = {"rmse": "RMSE", "auroc": "AUROC"}  # other metrics are shown by their names
COLUMNS_SHOWN = 12
BITS = 10  # shown, unless --bits says how many
CHANGED = 5  # of the bits that change with --set; the prediction says more
CLASSES = 6  # whose probabilities are shown
DEAD_SHOWN = 20
RULES = 128  # of the bits that do most are fitted, whether shown or not


def explain(
    run: RunDir,
    rows: Annotated[Positional[Path | None], arg(metavar="[ROWS]")] = None,
    *,
    row: int | None = None,
    bits: int | None = None,
    set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="COLUMN=VALUE")] = (),
    data: Place = None,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Say what a table's network does: one tree for all, importance, rules of bits, reasons of a row, what-if.

    Trees and rules are over the original columns, fitted on training rows; beside each stands how often it is right on
    test rows. Of the strongest bits those are shown whose rule is faithful (balanced accuracy of 0.9), with --bits all.

    Args:
        rows: A CSV or Parquet file with the raw columns: the reasons of one of its rows; none: the network.
        row: Which row of ROWS, from 1; none: the first.
        bits: Bits shown, faithful or not; none: the faithful ones of 10, with --set 5 of those that change.
        set: The row with another value: its prediction before and after, not its reasons.
        data: The run's own table, where it lies now; of a run on a data frame any rows with the target; none: where it
            was at the training.
    """
    if bits is not None and bits < 1:
        raise UsageError(f"--bits must be >= 1, got {bits}")
    most_bits = bits or BITS
    if row is not None and row < 1:
        raise UsageError(f"--row must be >= 1, got {row}")
    if row is not None and rows is None:
        raise UsageError("--row is one of ROWS: give ROWS, a file with the raw columns")
    row = row or 1
    changes = _changes(set)
    if changes and rows is None:
        raise UsageError("--set changes a row: give ROWS, a file with the raw columns")
    if is_language_model(run):
        raise UsageError(f"expected a run of a table, {run} is a language model")
    if run.is_file():
        raise UsageError(f"expected a run folder of a table, got the file {run}: of a packed run give the run it is of")
    from htaf.tables.rules import TableBits, importance, surrogate, what_if
    from htaf.tables.rules import explain as opened_rules
    from htaf.training.runs.data import rows_are_known

    opened = opened_run(run, method)
    preprocessor = TableBits.of(opened).preprocessor  # before any data are read
    target, given = preprocessor.target, None if rows is None else _row(rows, row, preprocessor)
    changes = _with_points(changes, preprocessor)
    table = _table(opened, data, data_dir)
    if not rows_are_known(opened):
        say_notes([f"the rows of the training are not known: rules are by 70% of {data}, importance by all"])
    found = opened_rules(opened, table)
    answers: dict[str, Any] = {"run": str(run), "table": found.name, "bits": len(found.bits), "dead": found.dead}
    if target.threshold is not None:
        answers["threshold"] = target.threshold
    if given is None:
        most = min(max(most_bits, RULES), len(found.bits) - sum(map(len, found.dead.values())))
        with progress("rules", most) as more:
            known = found.rules(most, progress=more)
        tree, shuffled = surrogate(opened, table), importance(opened, table)
        answers["rules"] = [rule.to_json() for rule in known]
        answers |= {"surrogate": tree.to_json(), "importance": shuffled.to_json()}
        if json:
            return print_json(answers)
        _say_threshold(target)
        _show_tree(tree, found)
        _show_importance(shuffled)
        return _show_rules(found, known, most_bits, faithful_alone=bits is None)
    reasons = found.reasons(given)
    answers |= {"row": row, "reasons": vars(reasons) | {"columns": reasons.columns.reset_index().to_dict("records")}}
    changed = what_if(opened, changes, given) if changes else None
    if changed is not None:
        answers["what_if"] = _what_if_json(changed, changes)
        say_notes(told(changed.notes))
    if json:
        return print_json(answers)
    _say_threshold(target)
    _show_decision(reasons, found, row)
    return _show_columns(reasons, given) if changed is None else _show_what_if(changed, changes, found, bits or CHANGED)


def _say_threshold(target: Target) -> None:
    if target.threshold is not None:
        say(f"threshold: {target.classes[1]!r} is predicted from a probability of {target.threshold:.4g}")


def _changes(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set: expected COLUMN=VALUE, got {text!r}")
        if name.strip() in found:
            raise UsageError(f"--set: expected each column once, got {name.strip()!r} more than once")
        found[name.strip()] = value.strip()
    return found


def _with_points(changes: dict[str, str], preprocessor: Preprocessor) -> dict[str, str]:
    """Changes whose numbers are written as in the file of the training, with decimal points."""
    from htaf.data.table_files import number_as_in

    numbers = {column.name for column in preprocessor.columns if column.kind == "number"}
    return {
        name: number_as_in(text, preprocessor.separators, name) if name in numbers else text
        for name, text in changes.items()
    }


def _row(path: Path, row: int, preprocessor: Preprocessor) -> pd.DataFrame:
    from htaf.data.table_files import read_frame

    frame, notes = read_frame(path, separators=preprocessor.separators)
    if row > len(frame):
        raise UsageError(f"--row must be in 1 to {len(frame)}, the rows of {path}, got {row}")
    say_notes(told(notes))
    return frame.iloc[[row - 1]]


def _table(run: Run, data: str | None, data_dir: str | None) -> Table | None:
    if data is not None and not data.strip():
        raise UsageError("--data: expected a name or a path, got ''")
    with needs_source("give --data"):
        return run.data(data, data_dir=data_dir)  # pyright: ignore[reportReturnType]


def _what_if_json(changed: WhatIf, changes: dict[str, str]) -> dict[str, Any]:
    return {
        "set": changes,
        "before": changed.before.to_dict("records")[0],
        "after": changed.after.to_dict("records")[0],
        "turned_on": list(changed.turned_on[0]),
        "turned_off": list(changed.turned_off[0]),
        "notes": told(changed.notes),
    }


def _said(rule: object, faithful: bool | None) -> str:
    """A rule in words, with a word where it is not to be relied on."""
    doubt = {True: "", False: "not faithful: ", None: "not tested: "}[faithful]
    return f"{doubt}{rule}"


def _show_tree(tree: Surrogate, found: Explanation) -> None:
    """The tree that stands for the network, a condition a line."""
    target, classes = found.bits.preprocessor.target, not found.bits.regression
    rows = []
    for one in tree.branches:
        says = "" if one.says is None else _value(one.says)
        chance = ["" if one.chance is None else f"{one.chance:.2f}"] if classes else []
        rows.append(("  " * one.depth + one.text, says, *chance, f"{one.rows:.0%}"))
    headers = ("where", target.name, *([tree.chance] if classes else []), "rows")
    doubt = "" if tree.faithful else "not faithful: "
    show(
        f"{doubt}one tree for the whole network", headers, rows, left=("where", target.name) if classes else ("where",)
    )
    if tree.rule:
        say(tree.rule)
    say(tree.text)


def _show_rules(found: Explanation, rules: list[BitRule], most: int, *, faithful_alone: bool) -> None:
    target = found.bits.preprocessor.target
    faithful = [bool(r.fidelity and r.fidelity.faithful) for r in rules]
    chosen = [r for r, holds in zip(rules[:most], faithful[:most], strict=True) if holds or not faithful_alone]
    shown = [
        (r.bit, f"{r.effect:.4g}", f"{r.on:.0%}", *_fidelity(r), _said(r.rule, r.fidelity and r.fidelity.faithful))
        for r in chosen
    ]
    title = f"{found.name}: the {min(most, len(rules))} bits that do most to {target.name!r}"
    if faithful_alone:
        title += f", {len(shown)} with a rule that is faithful"
    if shown:
        show(title, ("bit", "effect", "on", "balanced", "accuracy", "rule"), shown, left=("rule",))
    for kind, dead in found.dead.items():
        if dead:
            more = f" and {len(dead) - DEAD_SHOWN:,} more" if len(dead) > DEAD_SHOWN else ""
            say(f"dead, {kind} in training: {', '.join(map(str, dead[:DEAD_SHOWN]))}{more}")
    live = len(found.bits) - sum(map(len, found.dead.values()))
    which = "bits" if len(rules) == live else f"strongest of {live:,} bits"
    share = found.share(min(most, len(rules)))
    effect, linear = (f"{of:.{0 if of >= 0.1 else 1}%}" for of in (share, found.linear_share))
    beside = f", the linear part has {linear}" if found.linear_effects else ""
    unit = f"in the units of {target.name}" if found.bits.regression else "in logits"
    say(
        f"{sum(faithful)} of the {len(rules):,} {which} are described faithfully by a rule: balanced accuracy >= 0.9 "
        f"on {len(found.test):,} test rows. The {min(most, len(rules))} that do most have {effect} of the effect of "
        f"all{beside}. effect: mean |contribution| {unit}. on: share of the test rows. accuracy: in brackets that of "
        "always guessing the more frequent value."
    )
    if len(rules) < live:
        say(f"all rules: --bits {live}")


def _fidelity(rule: BitRule) -> tuple[str, str]:
    about = rule.fidelity
    assert about is not None
    return "-" if about.balanced is None else f"{about.balanced:.3f}", f"{about.accuracy:.3f} ({about.majority:.3f})"


def _show_importance(found: Importance) -> None:
    name = HEADERS.get(found.metric, found.metric)
    rows = [(c, f"{of['worse']:.4g}", f"{of['std']:.2g}") for c, of in found.columns.iterrows()]
    times = f"each column shuffled {found.repeats} times on {found.rows:,} test rows"
    columns = ("column", f"{name} worse by", "spread")
    show(f"Importance: {times}, {name} {found.value:.4g}", columns, rows[:COLUMNS_SHOWN])
    if len(rows) > COLUMNS_SHOWN:
        say(f"columns of less importance: {len(rows) - COLUMNS_SHOWN:,}")


def _show_decision(reasons: RowReasons, found: Explanation, row: int) -> None:
    """What is predicted."""
    said = (
        f"{reasons.prediction:.6g}"
        if reasons.instead is None
        else f"{reasons.prediction} rather than {reasons.instead}"
    )
    say(f"row {row}: {found.bits.preprocessor.target.name} = {said}")


def _show_columns(reasons: RowReasons, given: pd.DataFrame) -> None:
    """What each column adds."""
    what = "prediction" if reasons.instead is None else "difference of the logits"
    rows = [
        (column, _value(given[column].iloc[0]), f"{of['adds']:+.4g}", f"{of['std']:.2g}")
        for column, of in reasons.columns.head(COLUMNS_SHOWN).iterrows()
    ]
    title = f"What its values add: {what} {reasons.decision:.6g} minus the mean with the values of other rows, one"
    show(f"{title} column at a time", ("column", "value", "adds", "spread"), rows)
    if len(reasons.columns) > COLUMNS_SHOWN:
        say(f"columns that add less: {len(reasons.columns) - COLUMNS_SHOWN:,}")


def _show_what_if(changed: WhatIf, changes: dict[str, str], found: Explanation, most: int) -> None:
    """Before and after, and the bits that change, so many of them."""
    import pandas as pd

    say("with " + ", ".join(f"{name} = {value or 'missing'}" for name, value in changes.items()))
    names = [str(name) for name in changed.before]
    likely = pd.concat([changed.before, changed.after])[names[1:]].max().sort_values(ascending=False, kind="stable")
    left = [*likely.index[CLASSES:]]
    rows = [
        (
            name.replace("probability_", "probability of ", 1),
            *(_shown(frame[name].iloc[0]) for frame in (changed.before, changed.after)),
        )
        for name in names
        if name not in left
    ]
    show("What if", ("", "before", "after"), rows)
    if left:
        say(f"classes that are less likely before and after: {len(left):,}")
    ways = dict.fromkeys(changed.turned_on[0], "turns on") | dict.fromkeys(changed.turned_off[0], "turns off")
    if not ways:
        return say("no bit changes")
    order = sorted(ways, key=lambda bit: -found.effects[bit])[:most]
    rows = [
        (bit, ways[bit], _said(rule.rule or "never changes in training", rule.fidelity and rule.fidelity.faithful))
        for bit, rule in ((bit, found.rule(bit)) for bit in order)
    ]
    title = f"{len(ways):,} of {len(found.bits):,} bits change"
    title += f", the {most} that do most" if len(ways) > most else ""
    return show(title, ("bit", "", "rule"), rows, left=("", "rule"))


def _shown(value: Any) -> str:
    """A prediction; a small probability is not written as 5e-05."""
    return f"{value:.4f}" if isinstance(value, float) and abs(value) < 1 else _value(value)


def _value(value: Any) -> str:
    """A value of a column or a prediction; NaN, None and "" are missing."""
    if isinstance(value, float):
        return "missing" if value != value else f"{value:.6g}"
    return "missing" if value is None or str(value) in ("", "NaT", "<NA>") else str(value)
