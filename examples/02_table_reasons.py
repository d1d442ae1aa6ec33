"""
A table: reasons for a row, and columns that matter
===================================================

``htaf.fit`` takes a data frame, with text and missing values, and the name of the column to predict. Then ask
the network: why this prediction for this row, which columns matter, and how would another value change it?
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import htaf

# %%
# We invent customers by a known rule, to see whether the answers are right. Customers with a monthly contract
# leave in their first year, and so does everyone with four complaints or more. Age, fee and town have no effect.
# One customer in twenty tosses a coin, and a tenth of the ages is missing.

rng = np.random.default_rng(0)
customers = pd.DataFrame({
    "contract": rng.choice(["monthly", "yearly", "two years"], 3000, p=[0.5, 0.3, 0.2]),
    "months": rng.integers(1, 60, 3000),
    "complaints": rng.poisson(1.5, 3000),
    "age": np.where(rng.random(3000) < 0.1, np.nan, rng.integers(18, 90, 3000)),
    "fee": rng.integers(10, 90, 3000),
    "town": rng.choice(["Aalen", "Bonn", "Celle", "Daun"], 3000),
})  # fmt: skip
leaves = (customers["contract"] == "monthly") & (customers["months"] <= 12) | (customers["complaints"] >= 4)
coin = rng.random(3000) < 0.05
customers["leaves"] = np.where(np.where(coin, rng.random(3000) < 0.5, leaves), "yes", "no")
train, held = customers[:2000], customers[2000:]

model = htaf.fit(train, "leaves", random_state=0)
print(f"right on customers it has not seen: {model.score(held, held['leaves']):.1%}")

# %%
# Reasons of a row
# ----------------
# Take a customer who leaves. Each column in turn gets the values of 200 other customers, while all other columns
# stay. ``adds`` is how much the customer's own value adds to the decision, compared with these, in logits.

customer = held[(held["contract"] == "monthly") & (held["months"] <= 6) & (held["complaints"] == 0)].head(1)
reasons = htaf.inspection.reasons(model, customer, held)
print(f"{reasons.prediction} rather than {reasons.instead}")
print(reasons.columns.round(2))

# %%
# What matters, and what if
# -------------------------
# Left: how much worse is the network if a column is shuffled? Right: predictions for the same customer with every
# number of months. They show the first year. With a yearly contract the customer would stay.

importance = htaf.inspection.importance(model, held).columns[::-1]

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
left.barh(importance.index, importance["worse"], xerr=importance["std"], color="C0")
left.set_xlabel("AUROC lost when shuffled")
months = np.arange(1, 60)
for contract, style in (("monthly", "C1o-"), ("yearly", "C0s--")):
    others = pd.concat([customer] * len(months)).assign(months=months, contract=contract)
    right.plot(months, model.predict_proba(others)[:, 1], style, label=contract)
right.set(xlabel="months", ylabel="probability that the customer leaves", ylim=(0, 1))
right.legend(title="contract")
plt.show()
