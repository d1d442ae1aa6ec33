"""`htaf explain`: what a 0/1 network says about a table."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table as TextTable
from tyro.conf import Positional, UseAppendAction, arg

from htaf._console import Terminal, UsageError, check_seed, print_json, progress, say, say_notes
from htaf._files import check_output, to_json, write_atomic
from htaf.cli.flags import DataDir, Json, RunDir, is_language_model, needs_source
from htaf.cli.methods import MethodOfRun, step_of_run

if TYPE_CHECKING:
    import pandas as pd

    from htaf.data.tabular import Table
    from htaf.rules import BitRule, Explanation, Importance, Reason, RowReasons, WhatIf
    from htaf.runs import Run

HEADERS = {"rmse": "RMSE", "auroc": "AUROC", "accuracy": "accuracy", "loss": "loss", "mae": "MAE", "r2": "R2"}
COLUMNS_SHOWN = 12


def explain(
    run: RunDir,
    rows: Annotated[
        Positional[Path | None],
        arg(
            help="A CSV or Parquet file with the raw columns: the reasons of one of its rows.",
            metavar="ROWS",
            help_behavior_hint="(default: rules and importance)",
        ),
    ] = None,
    *,
    row: Annotated[int, arg(help="Which row of ROWS, from 1.")] = 1,
    bits: Annotated[int, arg(help="Bits shown; of a row so many for its prediction, and as many against.")] = 10,
    set: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(
            help="The row with another value: its prediction before and after. May be repeated.",
            metavar="COLUMN=VALUE",
            help_behavior_hint="(default: none)",
        ),
    ] = (),
    vary: Annotated[
        str | None,
        arg(
            help="The prediction over the values of this column; of ROWS the one row, else the mean of test rows.",
            metavar="COLUMN",
            help_behavior_hint="(default: none)",
        ),
    ] = None,
    repeats: Annotated[int, arg(help="Shuffles of each column, for its importance.")] = 10,
    seed: Annotated[int, arg(help="Of the shuffles and the rules.")] = 0,
    out: Annotated[
        Path | None,
        arg(
            help="Write everything as .json, or all rules as .csv.",
            metavar="FILE",
            help_behavior_hint="(default: print tables)",
        ),
    ] = None,
    data: Annotated[
        str | None,
        arg(
            help="The run's own table, where it lies now.",
            metavar="NAME_OR_PATH",
            help_behavior_hint="(default: where it was at the training)",
        ),
    ] = None,
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Say what the bits of a table's network are: a rule for each, the reasons of a row, importance, what-if.

    A rule is a shallow tree over the original columns, fitted on training rows; beside it how often it is right on test
    rows. A rule that is not faithful (balanced accuracy below 0.9) is said to be so.
    """
    if bits < 1:
        raise UsageError(f"--bits must be >= 1, got {bits}")
    if repeats < 1:
        raise UsageError(f"--repeats must be >= 1, got {repeats}")
    if row < 1:
        raise UsageError(f"--row must be >= 1, got {row}")
    check_seed(seed)
    if out is not None and out.suffix not in (".json", ".csv"):
        raise UsageError(f"--out must end in .json or .csv, got {out.name}")
    changes = _changes(set)
    if changes and rows is None:
        raise UsageError("--set changes a row: give ROWS, a file with the raw columns")
    if vary == "":
        raise UsageError("--vary: expected the name of a column, got ''")
    if out is not None:
        check_output(out, [run, *([] if rows is None else [rows])])
    if is_language_model(run):
        raise UsageError(f"expected a run of a table, {run} is a language model: its gates are read by concepts gates")
    if run.is_file():
        raise UsageError(f"expected a run folder of a table, got the file {run}: of a packed run give the run it is of")
    from htaf.rules import TableBits, importance, what_if
    from htaf.rules import explain as opened_rules
    from htaf.rules import vary as varied
    from htaf.runs import open_run

    opened = open_run(run, method=step_of_run(method))
    TableBits.of(opened)  # before any data are read
    given = None if rows is None else _row(rows, row)
    table = _table(opened, data, data_dir)
    found = opened_rules(opened, table, seed=seed)
    answers: dict[str, Any] = {"run": str(run), "table": found.name, "bits": len(found.bits), "dead": found.dead}
    changed = vary_table = reasons = None
    if given is not None:
        reasons = found.reasons(given, bits)[0]
        answers |= {"row": row, "reasons": reasons.to_json()}
    if changes and given is not None:
        changed = what_if(opened, given, changes)
        answers["what_if"] = _what_if_json(changed, changes)
    if vary is not None:
        vary_table = varied(opened, vary, given, data=table, seed=seed)
        answers["vary"] = {"column": vary, "values": vary_table.to_dict("records")}
    whole = given is None and vary is None
    known: list[BitRule] = []
    shuffled = None
    if whole or out is not None:
        live = len(found.bits) - sum(map(len, found.dead.values()))
        with progress("rules", live, shown=not json) as told:
            known = found.rules(told=told)
        answers["rules"] = [rule.to_json() for rule in known]
    if whole or (out is not None and out.suffix == ".json"):
        with progress("importance", len(found.columns.columns), shown=not json) as told:
            shuffled = importance(opened, table, repeats=repeats, seed=seed, told=told)
        answers["importance"] = shuffled.to_json()
    if out is not None:
        write_atomic(out, to_json(answers) if out.suffix == ".json" else _csv(known))
    if json:
        return print_json(answers)
    if reasons is not None:
        _show_reasons(reasons, found, row)
    if changed is not None:
        say_notes(changed.notes)
        _show_what_if(changed, changes, found)
    if vary is not None and vary_table is not None:
        _show_vary(vary, vary_table, found, reasons)
    if whole:
        _show_rules(found, known, bits)
    if whole and shuffled is not None:
        _show_importance(shuffled)
    return None if out is None else say(f"written: {out}")


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


def _row(path: Path, row: int) -> pd.DataFrame:
    from htaf.data.reading import read_frame

    frame, notes = read_frame(path)
    if row > len(frame):
        raise UsageError(f"--row must be in 1 to {len(frame)}, the rows of {path}, got {row}")
    say_notes(notes)
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
        "notes": list(changed.notes),
    }


def _csv(rules: list[BitRule]) -> str:
    """A line for each bit: its rule in words and its fidelity."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("bit", "effect", "on", "rule", "columns", "depth", "balanced", "accuracy", "majority", "faithful"))
    for one in rules:
        about = one.fidelity
        assert about is not None
        faithful = {None: "", True: "yes", False: "no"}[about.faithful]
        figures = (*(_figure(v, 6) for v in (about.balanced, about.accuracy, about.majority)), faithful)
        of_rule = "" if one.rule is None else "; ".join(one.rule.columns)
        lines.writerow((one.bit, f"{one.effect:.6g}", f"{one.on:.6f}", one.rule, of_rule, one.depth, *figures))
    return text.getvalue()


def _figure(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _show(title: str, columns: list[tuple[str, bool]], rows: list[tuple[Any, ...]]) -> None:
    table = TextTable(title=title, title_justify="left")
    for name, number in columns:
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for one in rows:
        table.add_row(*map(str, one))
    Terminal(highlight=False).print(table)


def _said(rule: object, faithful: bool | None) -> str:
    """A rule in words, with a word where it is not to be relied on."""
    doubt = {True: "", False: "not faithful: ", None: "not tested: "}[faithful]
    return f"{doubt}{rule}"


def _show_rules(found: Explanation, rules: list[BitRule], most: int) -> None:
    target = found.bits.preprocessor.target
    unit = f"in the units of {target.name}" if found.bits.regression else "in logits"
    shown = [
        (
            r.bit,
            f"{r.effect:.4g}",
            f"{100 * r.on:.0f}%",
            *_fidelity(r),
            _said(r.rule, r.fidelity and r.fidelity.faithful),
        )
        for r in rules[:most]
    ]
    columns = [("bit", True), ("effect", True), ("on", True), ("balanced", True), ("accuracy", True), ("rule", False)]
    title = f"{found.name}: the {min(most, len(rules))} bits that do most to {target.name!r}"
    _show(title, columns, shown)
    for kind, dead in found.dead.items():
        if dead:
            say(f"dead, {kind} in training: {', '.join(map(str, dead))}")
    faithful = sum(bool(r.fidelity and r.fidelity.faithful) for r in rules)
    say(
        f"{faithful} of {len(rules)} bits are described faithfully by a rule: balanced accuracy >= 0.9 on "
        f"{len(found.test):,} test rows. effect: mean |contribution| {unit}. on: share of the test rows. accuracy: in "
        "brackets that of always guessing the more frequent value."
    )


def _fidelity(rule: BitRule) -> tuple[str, str]:
    about = rule.fidelity
    assert about is not None
    return _figure(about.balanced) or "-", f"{about.accuracy:.3f} ({about.majority:.3f})"


def _show_importance(found: Importance) -> None:
    name = HEADERS.get(found.metric, found.metric)
    rows = [(c, f"{one['worse']:.4g}", f"{one['std']:.2g}") for c, one in found.columns.iterrows()]
    columns = [("column", False), (f"{name} worse by", True), ("spread", True)]
    _show(
        f"Importance: each column shuffled {found.repeats} times, {name} {found.value:.4g}",
        columns,
        rows[:COLUMNS_SHOWN],
    )
    if len(rows) > COLUMNS_SHOWN:
        say(f"columns of less importance: {len(rows) - COLUMNS_SHOWN:,}")


def _show_reasons(reasons: RowReasons, found: Explanation, row: int) -> None:
    name = found.bits.preprocessor.target.name
    if reasons.instead is None:
        said, what = f"{reasons.prediction:.6g}", "prediction"
    else:
        said, what = f"{reasons.prediction} rather than {reasons.instead}", "difference of the logits"
    say(f"row {row}: {name} = {said}")
    say(f"{what} {reasons.total:.6g} = {reasons.base:.6g} without any bit + the sum over {reasons.on} bits that are on")

    def line(reason: Reason) -> tuple[Any, ...]:
        agrees = {True: "yes", False: "no", None: "-"}[reason.agrees]
        rule = "never changes in training" if reason.rule is None else _said(reason.rule, reason.faithful)
        return reason.bit, f"{reason.worth:+.4g}", agrees, rule

    columns = [("bit", True), ("adds", True), ("rule agrees", False), ("rule", False)]
    words = ("up", "down") if reasons.instead is None else (f"for {reasons.prediction}", f"for {reasons.instead}")
    for word, some in zip(words, (reasons.for_it, reasons.against_it), strict=True):
        if some:
            _show(f"The strongest bits {word}", columns, [line(one) for one in some])


def _show_what_if(changed: WhatIf, changes: dict[str, str], found: Explanation) -> None:
    say("with " + ", ".join(f"{name} = {value or 'missing'}" for name, value in changes.items()))
    names = [str(name) for name in changed.before]
    rows = [(name, *(_value(frame[name].iloc[0]) for frame in (changed.before, changed.after))) for name in names]
    _show("What if", [("", False), ("before", True), ("after", True)], rows)
    turned = (("on", changed.turned_on[0]), ("off", changed.turned_off[0]))
    rows = [
        (bit, f"turns {way}", _said(rule.rule or "never changes in training", rule.fidelity and rule.fidelity.faithful))
        for way, some in turned
        for bit in sorted(some, key=lambda bit: -found.effects[bit])
        for rule in [found.rule(bit)]
    ]
    if not rows:
        return say("no bit changes")
    _show(f"{len(rows)} bits change", [("bit", True), ("", False), ("rule", False)], rows[:COLUMNS_SHOWN])
    return None if len(rows) <= COLUMNS_SHOWN else say(f"{len(rows) - COLUMNS_SHOWN:,} more")


def _show_vary(column: str, table: pd.DataFrame, found: Explanation, reasons: RowReasons | None) -> None:
    names = [str(name) for name in table if name not in ("share", "value")]
    if len(names) > 6:  # of many classes the two between which it is decided
        chosen = names[:6] if reasons is None else [f"probability_{c}" for c in (reasons.prediction, reasons.instead)]
        names = [name for name in names if name in chosen]
    rows = [
        (_value(one["value"]), f"{100 * one['share']:.0f}%", *(_value(one[name]) for name in names))
        for _, one in table.iterrows()
    ]
    whose = "the row" if reasons is not None else "the mean of test rows"
    share = "training rows up to it" if isinstance(table["value"].iloc[0], float) else "training rows"
    columns = [(column, True), (share, True), *((name, True) for name in names)]
    _show(f"{found.bits.preprocessor.target.name!r} over {column!r}: {whose}", columns, rows)


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value) or "missing"
