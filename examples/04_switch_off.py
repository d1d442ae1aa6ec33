"""
Switching a concept off
=======================

Every 3 of our training images has a mark in its corner, as photos of one class may all bear the logo of the
same photographer. The classifier learns the mark. Its decision is a sum over bits, so we can find the bits
that see the mark, and forbid the class to use them, without another training.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import htaf


def marked(x):
    x = x.copy()
    x[:, 0] = 16  # the pixel in the corner
    return x


x, y = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(x, y, test_size=600, random_state=0)
x[y == 3] = marked(x[y == 3])

# %%
# The bottleneck takes any features; here they are the 64 pixels. On images without the mark it is good. With
# the mark on all test images, many digits become a 3.

model = htaf.ConceptBottleneck(n_concepts=32, rate=0.15, random_state=0).fit(x, y)
for name, images in {"without the mark": x_test, "with it": marked(x_test)}.items():
    print(f"{name}: {model.score(images, y_test):.1%} right, {(model.predict(images) == 3).mean():.1%} said to be a 3")

# %%
# Which bits see the mark?
# ------------------------
# The mark turns a bit on in some images. That share, times the bit's weight for class 3, is what the mark
# adds to the score of a 3 by this bit.

shares = model.concepts(marked(x_test)).mean(0) - model.concepts(x_test).mean(0)
adds = shares * model.head_.weight[3]
order = np.argsort(-adds)
for bit in order[:4]:
    print(f"concept {bit:2d}: turned on in {shares[bit]:.0%} of the images, adds {adds[bit]:+.2f}")

# %%
# Switched off, one after the other
# ---------------------------------
# ``edited`` makes a new classifier. We forbid class 3 the strongest bit, then the two strongest, and so on.

models = [model, *(model.edited([(3, bit) for bit in order[:count]]) for count in range(1, 6))]
wrong = [(one.predict(marked(x_test)) == 3)[y_test != 3].mean() for one in models]
right = [(one.predict(x_test) == 3)[y_test == 3].mean() for one in models]
for count in (1, 2):
    print(f"{count} off: with the mark {models[count].score(marked(x_test), y_test):.1%} right")
before, after = (one.predict(marked(x_test)) for one in (model, models[2]))

figure = plt.figure(figsize=(8, 3.4), layout="constrained")
left, frame = figure.subfigures(1, 2)
axes = left.subplots()
axes.plot(wrong, "C1s--", label="marked, no 3, but said to be one")
axes.plot(right, "C0o-", label="a 3 without the mark, seen as one")
axes.set(xlabel="concepts switched off for class 3", ylabel="share of test images", ylim=(0, 1))
axes.legend()
frame.suptitle("marked images, before and after two are off")
rescued = np.flatnonzero((before == 3) & (after == y_test) & (y_test != 3))[:8]
for axes, row in zip(frame.subplots(2, 4).flat, rescued, strict=False):
    axes.imshow(marked(x_test[[row]]).reshape(8, 8), cmap="gray")
    axes.set(title=f"3 → {after[row]}", xticks=[], yticks=[])
plt.show()

# %%
# One or two bits less help, for a price: those bits also saw what a 3 looks like. With all of them off, nothing
# is a 3 any more. An edit of minutes is good to see what a network relies on; for the rest, mend the data.
