"""Nothing is left behind in what belongs to the whole process: the table of states in `global_state.py`, before and
after every public function and every verb."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import htaf as library
from global_state import STATES, changed, snapshot
from htaf._ground.compat import no_trace
from quick import slow_but

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
BATCHES = [(X, Y)]
FRAME = pd.DataFrame(X.numpy(), columns=list("abcd")).assign(y=Y.numpy())


def net(step: Callable[[], nn.Module] = library.HTAF) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        layers = (nn.Linear(4, 8), nn.BatchNorm1d(8), step(), nn.Linear(8, 8), nn.BatchNorm1d(8), step())
        return nn.Sequential(*layers, nn.Linear(8, 2)).eval()


@pytest.fixture(scope="module")
def fitted() -> Any:
    return library.HtafClassifier(epochs=2, hidden=(4,), random_state=0).fit(FRAME.drop(columns="y"), FRAME["y"])


@pytest.fixture(scope="module")
def run(fitted: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, and its rows beside it."""
    folder = fitted.save(tmp_path_factory.mktemp("state") / "run")
    FRAME.to_csv(folder.with_name("rows.csv"), index=False)
    return folder


FUNCTIONS: dict[str, Callable[[Any, Path], Any]] = {
    "fit": lambda _, __: library.fit(FRAME, "y", epochs=2, hidden=(4,)),
    "fit, with dropout": lambda _, __: library.fit(FRAME, "y", epochs=1, hidden=(4,), recipe={"dropout": 0.1}),
    "HtafRegressor": lambda _, __: library.HtafRegressor(epochs=1, hidden=(4,)).fit(X.numpy(), X[:, 0].numpy()),
    "predict_proba": lambda model, _: model.predict_proba(FRAME.drop(columns="y")),
    "load": lambda _, run: library.load(run),
    "replace": lambda _, __: library.replace(net(nn.ReLU), library.HTAF, example=X),
    "sites": lambda _, __: library.sites(net(), example=X),
    "conversion": lambda _, __: library.conversion(library.harden(net())),
    "harden": lambda _, __: library.harden(net()),
    "on_grid": lambda _, __: library.on_grid(net(), X),
    "recalibrate": lambda _, __: library.recalibrate(library.harden(net()), BATCHES),
    "repair": lambda _, __: library.repair(library.harden(net()), net(), BATCHES),
    "refit_head": lambda _, __: library.refit_head(library.harden(net()), BATCHES),
    "pack": lambda _, __: library.pack(library.harden(net()), X)(X),
    "functional": lambda _, __: library.functional.htaf(X, 2.0, 11.0),
}
VERB_WORDS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "doctor": lambda run: (),
    "predict": lambda run: (run, run.with_name("rows.csv"), "--json"),
    "explain": lambda run: (run, "--data", run.with_name("rows.csv")),
    "train tabular": lambda run: (
        *("--data", run.with_name("rows.csv"), "--target", "y", "--epochs", "1"),
        *("--hidden", "4", "--out", run.with_name("new")),
    ),
}


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {  # a change, and how to undo it
    "warning filters": (lambda: warnings.simplefilter("ignore", ImportWarning), lambda: warnings.filters.pop(0)),  # pyright: ignore[reportAttributeAccessIssue]
    "threads of torch": (lambda: torch.set_num_threads(THREADS + 1), lambda: torch.set_num_threads(THREADS)),
    "environment": (lambda: os.environ.update(HTAF_STATE="1"), lambda: os.environ.pop("HTAF_STATE")),
    "random state of torch": (lambda: torch.rand(1), lambda: None),
    "signal handlers": (
        lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ),
}  # fmt: skip
THREADS = torch.get_num_threads()


@pytest.mark.parametrize("state", CHANGES)
def test_a_change_is_seen(state: str) -> None:
    assert state in STATES
    before, (change, undo) = snapshot(), CHANGES[state]
    change()
    found = changed(before)
    undo()
    assert state in found


DRAWN = {"random state of python"}  # beartype draws from it as it checks types, in these tests alone


@pytest.mark.parametrize("name", slow_but(FUNCTIONS, *(FUNCTIONS.keys() - {"pack", "fit, with dropout"})))
def test_a_function_leaves_all_as_it_was(name: str, fitted: Any, run: Path) -> None:
    before = snapshot()
    FUNCTIONS[name](fitted, run)
    assert changed(before).keys() <= DRAWN, changed(before)


@pytest.mark.parametrize("verb", VERB_WORDS)
def test_a_verb_leaves_all_as_it_was(verb: str, run: Path, htaf: Callable[..., Any]) -> None:
    before = snapshot()
    code, _, err = htaf(*verb.split(), *VERB_WORDS[verb](run))
    assert code == 0, err
    assert changed(before).keys() <= DRAWN, changed(before)


def test_a_warning_filter_of_an_import_goes_where_another_thread_is_within_catch_warnings() -> None:
    """The other thread puts the list aside that has the filter, and brings it back after the import."""

    class Theirs(UserWarning):
        pass

    before = [*warnings.filters]
    imports, other = no_trace(), warnings.catch_warnings()
    with imports:
        warnings.simplefilter("ignore", Theirs)
        other.__enter__()
    within = [*warnings.filters]
    other.__exit__(None, None, None)
    assert [*warnings.filters] == before
    assert not any(one[2] is Theirs for one in within)


@pytest.mark.slow
def test_workers_of_scikit_learn_start_after_a_fit() -> None:
    """It sends them the filters of warnings, with the classes in them."""
    code = """
        import numpy as np
        from htaf import HtafClassifier
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV, cross_val_score
        X = np.random.default_rng(0).normal(size=(60, 3))
        y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int)
        ours = HtafClassifier(epochs=1, hidden=(4,)).fit(X, y)
        search = GridSearchCV(ours, {"lr": [0.01, 0.1]}, n_jobs=2, cv=2)
        print(len(cross_val_score(LogisticRegression(), X, y, n_jobs=2)), len(cross_val_score(ours, X, y, n_jobs=2)))
        print(search.fit(X, y).best_params_["lr"] in (0.01, 0.1))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout == "5 5\nTrue\n", done.stderr
