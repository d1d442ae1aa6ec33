"""
Search in codes: the ten nearest images, at a few bytes each
============================================================

A code of 32 bits takes four bytes where 64 real numbers take 256, and two codes are compared by counting bits. Which
neighbours do you still find? We compare the bits of a ``ConceptBottleneck`` with ITQ, which turns principal components
into bits, and with product quantisation (PQ), which stores the nearest of 256 centroids for each part of the vector.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import pairwise_distances
from sklearn.model_selection import train_test_split

import htaf

x, y = load_digits(return_X_y=True)
base, query, y_base, y_query = train_test_split(x, y, test_size=400, random_state=0)


def nearest(distances):
    return np.argsort(distances, axis=1, kind="stable")[:, :10]


true = nearest(pairwise_distances(query, base))

# %%
# Three kinds of codes
# --------------------
# Bits are compared by their number of differences. PQ compares the real query with the stored centroids. Only the bits
# of htaf have seen which digit an image shows.


def htaf_bits(size):
    model = htaf.ConceptBottleneck(n_concepts=8 * size, random_state=0).fit(base, y_base)
    return nearest(pairwise_distances(model.concepts(query), model.concepts(base), "manhattan"))


def itq(size):
    pca = PCA(8 * size, random_state=0).fit(base)
    z = pca.transform(base)
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((8 * size, 8 * size)))[0]
    for _ in range(50):
        left, _, right = np.linalg.svd(z.T @ np.sign(z @ turn))
        turn = left @ right
    return nearest(pairwise_distances(pca.transform(query) @ turn > 0, z @ turn > 0, "manhattan"))


def pq(size):
    squared = 0
    for part in np.array_split(np.arange(64), size):
        means = KMeans(256, n_init=1, max_iter=10, random_state=0).fit(base[:, part])
        squared = squared + (means.transform(query[:, part]) ** 2)[:, means.labels_]
    return nearest(squared)


# %%
# Two questions
# -------------
# Recall at 10: how many of the ten nearest images do the codes find? And how many of the images that they find show
# the query's digit?

sizes, methods = (1, 2, 4, 6), {"htaf": htaf_bits, "ITQ": itq, "PQ": pq}
recall = {name: [] for name in methods}
same = {name: [] for name in methods}
for name, search in methods.items():
    for size in sizes:
        found = search(size)
        recall[name].append(np.mean([len(np.intersect1d(*rows)) / 10 for rows in zip(found, true, strict=True)]))
        same[name].append((y_base[found] == y_query[:, None]).mean())
    print(f"{name}: recall {np.round(recall[name], 2)}, same digit {np.round(same[name], 3)} at {sizes} bytes")
real = (y_base[true] == y_query[:, None]).mean()
print(f"the real vectors, 256 bytes: same digit {real:.3f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for name, style in zip(methods, ("C1o-", "C0s--", "C2^:"), strict=True):
    left.plot(sizes, recall[name], style, label=name)
    right.plot(sizes, same[name], style, label=name)
right.axhline(real, color="k", linewidth=0.8, label="real vectors")
left.set(xlabel="bytes an image", ylabel="recall at 10", ylim=(0, 1))
right.set(xlabel="bytes an image", ylabel="share of the query's digit", ylim=(0.5, 1))
right.legend()
plt.show()

# %%
# To find the same neighbours again, use PQ. To find images of the same kind, train bits with the labels that you have.
