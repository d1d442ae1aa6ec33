"""
In a scikit-learn pipeline
==========================

``HtafClassifier`` and ``HtafRegressor`` are used as scikit-learn's own estimators are: in pipelines behind a
ColumnTransformer, in cross-validation, in a grid search, and with its tools of inspection.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import htaf

# %%
# 178 wines of three growers. To have something to prepare, we turn one of the thirteen measurements into text and
# remove some values.

X, y = load_wine(return_X_y=True, as_frame=True)
X["hue"] = pd.cut(X["hue"], 3, labels=["brick", "ruby", "purple"]).astype(str)
X.loc[::9, "ash"] = np.nan
prepared = make_column_transformer(
    (make_pipeline(SimpleImputer(), StandardScaler()), list(X.columns.drop("hue"))),
    (OneHotEncoder(handle_unknown="ignore"), ["hue"]),
)

# %%
# Cross-validation, beside two others
# -----------------------------------

pipelines = {
    "HtafClassifier": make_pipeline(prepared, htaf.HtafClassifier()),
    "logistic regression": make_pipeline(prepared, LogisticRegression()),
    "histogram boosting": make_pipeline(prepared, HistGradientBoostingClassifier()),
}
for name, pipeline in pipelines.items():
    scores = cross_val_score(pipeline, X, y, cv=3)
    print(f"{name}: {scores.mean():.1%} ({scores.min():.1%} to {scores.max():.1%})")

# %%
# A grid search
# -------------
# The usual settings are arguments of the estimator. All others are fields of its recipe. A search sets the whole
# recipe.

grid = {"htafclassifier__recipe": [{"leaves": 0}, {"leaves": 256}]}  # leaves of boosted trees among the bits
train, test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
search = GridSearchCV(pipelines["HtafClassifier"], grid, cv=2).fit(train, y_train)
print(f"best: {search.best_params_}, {search.score(test, y_test):.1%} on rows left out")

# %%
# htaf itself needs no pipeline: it scales numbers, encodes texts and fills gaps.

alone = htaf.HtafClassifier().fit(train, y_train)
print(f"on the columns as they are: {alone.score(test, y_test):.1%}")

# %%
# Which columns matter
# --------------------
# scikit-learn shuffles one column after the other and measures the fitted pipeline again.

found = permutation_importance(search, test, y_test, n_repeats=5, random_state=0)
order = found.importances_mean.argsort()
figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
axes.barh(X.columns[order], found.importances_mean[order], xerr=found.importances_std[order])
axes.set_xlabel("accuracy lost when the column is shuffled")
plt.show()
