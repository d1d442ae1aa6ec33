"""
The paper's Figure 1: which curve still has a gradient?
=======================================================

A network of steps can only learn where the curve in place of the step has a gradient. HTAF,
sigmoid(a1 tanh(a0 x)), and a scaled sigmoid can be equally steep at 0 and very different further out. And a
gradient that exists on paper may be rounded to 0 by the computer.
"""

import matplotlib.pyplot as plt
import torch

import htaf

# %%
# The curves and their slopes
# ---------------------------
# All three rise equally steeply at 0. The slope of the sigmoid falls like exp(-22 \|x\|), that of HTAF(2, 11)
# like exp(-4 \|x\|): at 2 it is larger by twelve orders of magnitude.

curves = {
    "scaled sigmoid, beta = 22": (htaf.ScaledSigmoid(22.0), "k:"),
    "HTAF(1, 22)": (htaf.HTAF(1.0, 22.0), "C1--"),
    "HTAF(2, 11)": (htaf.HTAF(2.0, 11.0), "C0-"),
}
x = torch.linspace(-3, 3, 601, dtype=torch.float64, requires_grad=True)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for name, (curve, style) in curves.items():
    y = curve(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    axes[0].plot(x.detach(), y.detach(), style, label=name)
    axes[1].semilogy(x.detach(), slope, style, label=name)
    print(f"{name}: slope {slope[300]:.2f} at 0, {slope[500]:.1e} at 2")
axes[0].set(xlabel="x", ylabel="activation", xlim=(-0.6, 0.6))
axes[1].set(xlabel="x", ylabel="slope", ylim=(1e-30, 1e2))
axes[1].legend()
plt.show()

# %%
# A verdict: "choose a small alpha0 and a large alpha1"
# -----------------------------------------------------
# The paper says that this keeps gradients from vanishing. Take its six pairs, all equally steep at 0, and ask
# how many inputs from a normal distribution have a gradient above 1e-6. The claim does not hold: the pairs
# in the middle are best, and the smallest alpha0 is no better than a scaled sigmoid.

pairs = ((0.1, 220.0), (0.5, 44.0), (1.0, 22.0), (2.0, 11.0), (3.0, 7.3), (5.0, 4.4))
inputs = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000)
inputs.requires_grad_()


def share(curve):
    return (torch.autograd.grad(curve(inputs).sum(), inputs)[0] > 1e-6).double().mean().item()


shares = [share(lambda x, pair=pair: htaf.functional.htaf(x, *pair)) for pair in pairs]
figure, axes = plt.subplots(figsize=(6.4, 3), layout="constrained")
axes.bar([f"({alpha0:g}, {alpha1:g})" for alpha0, alpha1 in pairs], shares, color="C0")
axes.axhline(share(htaf.ScaledSigmoid(22.0)), color="k", linestyle=":", label="scaled sigmoid")
axes.set(xlabel="(alpha0, alpha1)", ylabel="inputs with a gradient", ylim=(0, 1))
axes.legend(loc="upper left")
plt.show()

# %%
# What floating point does to it
# -------------------------------
# Written out in PyTorch, the gradient is a product with 1 - sigmoid(...), which is rounded to 0 where the
# sigmoid is rounded to 1. htaf computes the slope itself. Here is the share of inputs in [-6, 6] whose gradient
# is exactly 0 in float32, though a float32 could hold it.


def written_out(x, alpha0, alpha1):
    return torch.sigmoid(alpha1 * torch.tanh(alpha0 * x))


def slopes(function, x, pair):
    return torch.autograd.grad(function(x, *pair).sum(), x)[0]


x = torch.linspace(-6, 6, 4001, requires_grad=True)
for pair in pairs:
    held = slopes(htaf.functional.htaf, x.double(), pair) >= torch.finfo(torch.float32).tiny
    lost = [(slopes(f, x, pair) == 0)[held].float().mean() for f in (written_out, htaf.functional.htaf)]
    print(f"{pair}: written out {lost[0]:.0%}, htaf {lost[1]:.0%}")
