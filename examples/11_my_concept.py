"""
A stamp on photographs: found, and switched off
===============================================

You suspect that a network uses something that you did not teach it: a logo, a border, a hue. Give ``find`` some images
with it and some without. It looks for a bit and for a direction in the features that follow your concept, and says
whether that can be chance. ``edited`` removes bits from the classifier, without another training.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image
from sklearn.decomposition import PCA

import htaf

# %%
# We cut two photographs, a temple and a flower, into small views. Two thirds of the flower's training views have a
# stamp, as photos of one class may have the logo of one photographer. We train on the left halves of the photographs
# and test on the right halves.

SIDE = 32


def views(name):
    """Return views of the left and of the right half of a photograph: [N, 32, 32, 3] each."""
    photo = load_sample_image(name) / np.float32(255)
    found = np.lib.stride_tricks.sliding_window_view(photo, (SIDE, SIDE), axis=(0, 1))[::14, ::14]
    middle = found.shape[1] // 2  # views of the two halves do not overlap
    return [
        np.moveaxis(half, 2, -1).reshape(-1, SIDE, SIDE, 3) for half in (found[:, : middle - 2], found[:, middle + 2 :])
    ]


def stamped(x):
    x = x.copy()
    x[:, 2:9, 2:9] = (1, 0.9, 0.1)
    x[:, 4:7, 4:7] = 0.1
    return x


(temple, temple_test), (flower, flower_test) = views("china.jpg"), views("flower.jpg")
flower = np.concatenate([flower[::3], stamped(flower[1::3]), stamped(flower[2::3])])
x, y = np.concatenate([temple, flower]), np.repeat([0, 1], [len(temple), len(flower)])
x_test, y_test = np.concatenate([temple_test, flower_test]), np.repeat([0, 1], [len(temple_test), len(flower_test)])
encoder = PCA(64, svd_solver="randomized", random_state=0).fit(x.reshape(len(x), -1))


def features(x):
    """Return the features that the bottleneck reads; an embedding of your own images would do better."""
    return encoder.transform(x.reshape(len(x), -1))


model = htaf.ConceptBottleneck(n_concepts=32, rate=0.15, random_state=0).fit(features(x), y)
plain, stamps = features(x_test), features(stamped(x_test))
for name, seen in {"without the stamp": plain, "with it": stamps}.items():
    print(f"{name}: {model.score(seen, y_test):.1%} right, {model.predict(seen).mean():.1%} said to be the flower")

# %%
# Does the network see it?
# ------------------------
# Twenty test views of the temple, with the stamp and without. ``p`` is the share of random divisions of the same images
# that follow anything as well. Noise, tried in the same way, should not be found.

some = temple_test[:: len(temple_test) // 20][:20]
noisy = some + np.random.default_rng(0).normal(0, 0.02, some.shape).astype(np.float32)
for name, changed in {"stamp": stamped(some), "noise": noisy}.items():
    found = model.find(features(changed), features(some), paired=True)
    bit, direction = found.bit, found.direction
    print(f"{name}: concept {bit.concept} agrees in {bit.agreement:.0%} (p = {bit.p:.3f})")
    print(f"  a direction tells {direction.auc:.0%} of left-out pairs (p = {direction.p:.3f})")
    print(f"  moved along it, {direction.changed:.0%} of the predictions change")

# %%
# Which bits does the classifier use for it?
# ------------------------------------------
# The decision is a sum over bits. The stamp turns a bit on in a share of the views. That share, times what the bit is
# worth to the flower against the temple, is what the stamp adds to the flower's score by this bit.

shares = model.concepts(stamps).mean(0) - model.concepts(plain).mean(0)
adds = shares * (model.head_.weight[1] - model.head_.weight[0])
order = np.argsort(-adds)
for bit in order[:4]:
    print(f"concept {bit:2d}: on in {shares[bit]:+.0%} of the views, adds {adds[bit]:+.2f}")

# %%
# Switched off, one after the other
# ---------------------------------
# ``edited`` makes a new classifier. We switch off the strongest bit, then the two strongest, and so on.

models = [model]
for count in range(1, 6):
    models.append(model.edited([(label, bit) for bit in order[:count] for label in (0, 1)]))
with_stamp = [one.score(stamps, y_test) for one in models]
without = [one.score(plain, y_test) for one in models]
for count in (0, 1, 2):
    print(f"{count} off: {with_stamp[count]:.1%} right with the stamp, {without[count]:.1%} without")

figure = plt.figure(figsize=(8, 3.4), layout="constrained")
left, frame = figure.subfigures(1, 2)
axes = left.subplots()
axes.plot(with_stamp, "C1s--", label="test views with the stamp")
axes.plot(without, "C0o-", label="test views without")
axes.set(xlabel="concepts switched off", ylabel="accuracy", ylim=(0.4, 1))
axes.legend()
frame.suptitle("stamped temples, before and after two are off")
before, after = (one.predict(stamps) for one in (model, models[2]))
rescued = np.flatnonzero((before == 1) & (after == 0) & (y_test == 0))
for axes, row in zip(frame.subplots(2, 4).flat, rescued[:: max(1, len(rescued) // 8)], strict=False):
    axes.imshow(stamped(x_test[[row]])[0])
    axes.set(title="flower → temple", xticks=[], yticks=[])
    axes.title.set_fontsize(8)
plt.show()

# %%
# Switching bits off shows what a network relies on. To solve the problem, correct the data.
