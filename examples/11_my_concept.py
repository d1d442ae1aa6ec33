"""
My concept: does the network see it, and use it?
================================================

You suspect that a network sees something that it was never told of: a logo, a border, a hue. Give it some
examples with it and some without. ``find`` looks for a bit and for a direction in the features that follow
your concept, says whether that can be chance, and what the classifier does with it.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split

import htaf

# %%
# Digits, where in training every 3 was taken with a smudge on the lens: one pixel at the edge is bright. The
# features are 32 principal components, as an encoder would give them.


def smudged(x):
    x = x.copy()
    x[:, 31] += 12  # row 3, at the right
    return x


x, y = load_digits(return_X_y=True)
x, held, y, y_held = train_test_split(x, y, test_size=600, random_state=0)
x[y == 3] = smudged(x[y == 3])
encoder = PCA(32, random_state=0).fit(x)
model = htaf.ConceptBottleneck(n_concepts=32, random_state=0).fit(encoder.transform(x), y)

# %%
# Pairs tell most
# ---------------
# Twenty digits, none of them a 3, with the smudge and without. ``p`` is the share of random divisions of the
# same images that follow anything as well.

plain = held[y_held != 3][:20]
noise = np.random.default_rng(0).normal(0, 0.3, plain.shape)
for name, changed in {"smudge": smudged(plain), "noise": plain + noise}.items():
    found = model.find(encoder.transform(changed), encoder.transform(plain), paired=True)
    bit, direction = found.bit, found.direction
    print(f"{name}: concept {bit.concept} agrees in {bit.agreement:.0%} (p = {bit.p:.3f})")
    print(f"  a direction tells {direction.auc:.0%} of left-out pairs (p = {direction.p:.3f})")
    print(f"  moved along it, {direction.changed:.0%} of the predictions change")
    if name == "smudge":
        smudge = found

# %%
# What the classifier does with it
# --------------------------------
# Left: the scores along the direction, each from a fit without that pair. Right: how much the score of each class
# changes when images are moved along it. A class in orange changes more than by chance, and we know why the
# 3 gains most. Noise, which we tried too, is followed by nothing: that answer matters as much.

direction = smudge.direction
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for has_concept, marker, name in ((True, "C1s", "with smudge"), (False, "C0o", "without")):
    scores = direction.scores[smudge.has_concept == has_concept]
    left.plot(scores, range(len(scores)), marker, label=name)
left.set(xlabel="score along the direction", ylabel="pair", ylim=(-1, 25))
left.legend(loc="upper center", ncols=2)
sure = direction.gains_p <= 0.05
right.bar(range(10), direction.gains, color=np.where(sure, "C1", "C0"))
right.axhline(0, color="k", linewidth=0.8)
right.set(xlabel="class", ylabel="change of its score", xticks=range(10))
plt.show()
