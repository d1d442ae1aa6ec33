"""
Concepts of an image folder
===========================

An implicit concept bottleneck model (ICBM) decides by bits that it finds itself. Images that have a bit show
afterwards what it means. We draw the images here, so that we know what there is to find.
"""

import tempfile
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image, ImageDraw

import htaf

# %%
# A folder of images
# ------------------
# One folder for each class: three forms, filled or hollow, with a dot or without.

place, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
attributes = ("round", "square", "triangle"), ("filled", "hollow"), ("dot", "plain")
for name in 80 * [" ".join(words) for words in product(*attributes)]:
    image = Image.new("L", (24, 24), int(rng.integers(0, 60)))
    pen, ink = ImageDraw.Draw(image), int(rng.integers(150, 255))
    corner, size = rng.integers(1, 7, 2), int(rng.integers(13, 17))
    look = {"fill": ink if "filled" in name.split() else None, "outline": ink, "width": 2}
    if "triangle" in name:
        pen.regular_polygon((*(corner + size // 2).tolist(), size // 2 + 2), 3, **look)
    else:
        (pen.ellipse if "round" in name else pen.rectangle)([*corner, *(corner + size)], **look)
    if "dot" in name:
        x, y = rng.choice([0, 17], 2)
        pen.ellipse([x, y, x + 6, y + 6], fill=255, outline=0)
    (folder := place / "shapes" / name).mkdir(parents=True, exist_ok=True)
    image.save(folder / f"{rng.integers(10**9)}.png")

# %%
# One call
# --------
# ``discover`` trains, extracts the bits of every image and writes a page, as the command ``htaf demo --data`` does.
# Here a small network learns from these images alone. Without "small" and the options behind it, the bits are
# trained on a pretrained network, which is better on photos.

found = htaf.discover(place / "shapes", place / "out", "small", depth=10, concepts=12, lr=0.05, precision="float32")
codes = found.codes.part("test")
print(f"{(codes.exact == codes.labels).mean():.0%} of {len(codes)} test images right, by {codes.concepts} bits")

# %%
# What the bits mean
# ------------------
# For each bit, the attribute with the highest correlation over test images. At 1 they are the same.

words = ["round", "square", "triangle", "filled", "dot"]
has = np.array([[word in codes.classes[label].split() for word in words] for label in codes.labels])
match = np.abs(np.corrcoef(codes.unpack().T, has.T)[:12, 12:])
order = np.argsort(-match.max(1))
for bit in order:
    print(f"concept {bit:2d}: {words[match[bit].argmax()]:8s} {match[bit].max():.2f}")

# %%
# Images with and without
# -----------------------
# For your own images there is no such table, so you look at random images with and without the bit. The last bit
# here fits our list worst. It may follow something that we did not list.

figure, grid = plt.subplots(3, 13, figsize=(8, 2.4), layout="constrained", subplot_kw={"xticks": [], "yticks": []})
for line, bit in zip(grid, order[[0, 2, -1]], strict=True):
    drawn = rng.permutation(len(codes))
    for first, side in ((0, codes.has(int(bit), drawn)), (7, ~codes.has(int(bit), drawn))):
        for axes, row in zip(line[first:], drawn[side][:6], strict=False):
            axes.imshow(Image.open(place / "shapes" / codes.ids[row]), cmap="gray", vmin=0, vmax=255)
    line[0].set_ylabel(f"concept {bit}", rotation=0, ha="right", va="center")
for axes in grid[:, 6]:
    axes.set_axis_off()
grid[0, 2].set_title("with it"), grid[0, 9].set_title("without")
plt.show()

# %%
# The page
# --------
# The page shows the reasons for each decision, the mistakes, and where in an image a bit is seen. It needs no server.

print(f"open {found.page} in a browser: {found.summary['test_images']} test images, {codes.concepts} concepts")
