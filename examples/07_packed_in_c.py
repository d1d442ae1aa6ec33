"""
A network as bits, as C and on a microcontroller
================================================

With 0/1 activations and weights on a grid of integers, a network is a program of integer sums. We train one
on digits, pack it for fast inference, write it as C without floats, and run that C on this machine and on an
emulated microcontroller. Every form gives the same numbers.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import htaf
from htaf.program.integer import Input, integer_program, missing, run_c, to_c

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x).float(), torch.tensor(y)
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
(x, y), (x_test, y_test) = ((x[rows], y[rows]) for rows in order.split([1200, 597]))

# %%
# Train, then round
# -----------------
# ``on_grid`` rounds the weights in every forward pass to 8-bit integers times a power of two. The network
# learns with these weights, so rounding loses nothing afterwards.

torch.manual_seed(0)
layers = [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
net = htaf.on_grid(htaf.replace(nn.Sequential(*layers, nn.Linear(64, 10)), example=x), x)
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
for epoch in range(20):
    htaf.sharpen(net, epoch / 20)
    for rows in torch.randperm(len(y)).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
exact = htaf.harden(net.eval())
print(f"{(exact(x_test).argmax(1) == y_test).float().mean():.1%} of the test digits are right")

# %%
# Packed
# ------
# ``htaf.pack`` compares its outputs with the network's before it returns. Its report says which layers run over
# bits. The first one does not, as its inputs are pixels.

packed = htaf.pack(exact, x)
print(packed.report)
assert torch.equal(packed(x_test), exact(x_test))

# %%
# A program of integers
# ---------------------
# ``Input`` declares the integers that come in, here pixels from 0 to 16; without it htaf chooses them as fine as the
# network reads. ``run`` returns integers, ``outputs`` the network's own numbers.

program = integer_program(exact, x, input=Input("columns", (64,), low=0, high=16))
assert (program.outputs(x_test) == exact(x_test).detach().numpy()).all()
print(program)

# %%
# One digit: the integers that go in, the bits of the last step, the integers that come out.

_, bits = packed.with_bits(x_test[:1])
pixels = x_test.int().numpy()[:100]
figure, axes = plt.subplots(1, 3, figsize=(7, 2.2), layout="constrained")
axes[0].imshow(pixels[0].reshape(8, 8), cmap="Greys")
for at, pixel in enumerate(pixels[0]):
    axes[0].text(at % 8, at // 8, pixel, ha="center", va="center", fontsize=6, color="tab:orange")
axes[1].imshow(bits.reshape(8, 8), cmap="Greys")
axes[2].bar(range(10), program.run(pixels[:1])[0])
for one, title in zip(axes, ("64 integers in", "64 bits", "10 integers out"), strict=True):
    one.set_title(title)
axes[0].set_axis_off(), axes[1].set_axis_off()
plt.show()

# %%
# C, here and on small processors
# -------------------------------
# ``to_c`` writes C99 without floats, malloc or libraries. ``run_c`` compiles it and runs it, for a Cortex-M or
# RISC-V processor in the emulator QEMU. It needs compilers; ``missing`` names those that are not installed.

place = Path(tempfile.mkdtemp()) / "digits-c"
to_c(program, place, name="digits")
print("written:", ", ".join(sorted(file.name for file in place.iterdir())))
for target in ("host", "cortex-m0", "cortex-m4", "riscv32"):
    if lacking := missing(target):
        print(f"{target}: not run, as {', '.join(lacking)} is not installed")
        continue
    differ = run_c(place, pixels, target=target) != program.run(pixels)
    print(f"{target}: {differ.sum()} of {differ.size} outputs differ")
