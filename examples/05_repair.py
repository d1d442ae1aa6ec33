"""
Repairing an exact network
==========================

A network that was trained smooth loses accuracy when the step replaces its curve, because later layers then read
0 and 1 instead of values in between. Most of the accuracy comes back in seconds, without another training.
``htaf.finish`` does all of this and keeps what helps. Here are its steps one by one.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import htaf

x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x).float().view(-1, 1, 8, 8) / 16, torch.tensor(y)
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
train, valid, test = ((x[rows], y[rows]) for rows in order.split([1000, 200, 597]))


def trained(seed):
    """A smooth network of nine layers."""
    torch.manual_seed(seed)
    layers = []
    for place, stride in enumerate((1, 1, 2, 1, 1, 2, 1, 1)):
        layers += [nn.Conv2d(16 if place else 1, 16, 3, stride, padding=1), nn.BatchNorm2d(16)]
        layers += [htaf.HTAF(1.0, 5.0)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(12):
        for rows in torch.randperm(1000).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(train[0][rows]), train[1][rows]).backward()
            optimizer.step()
    return net.eval()


# %%
# Each function takes a network and returns a new one and a report:
#
# - ``harden`` puts in the steps and keeps the weights;
# - ``recalibrate`` measures the batch norms again, because bits have other means and variances;
# - ``repair`` fits each layer to compute from bits what the smooth network computed;
# - ``refit_head`` fits the last layer to the labels.


def stages(smooth):
    yield "smooth", smooth
    yield "harden", (exact := htaf.harden(smooth))
    yield "recalibrate", (exact := htaf.recalibrate(exact, [train])[0])
    yield "repair", (exact := htaf.repair(exact, smooth, [train])[0])
    yield "refit_head", htaf.refit_head(exact, [train], validation=[valid])[0]
    yield "finish", htaf.finish(smooth, [train], valid=valid)[0]


def wrong(net):
    with torch.no_grad():
        return 100 * (net(test[0]).argmax(1) != test[1]).float().mean().item()


# %%
# Three networks, from three seeds. Not every correction helps every network, because a fit to training images may
# overfit. So ``finish``, at the right, keeps a correction only if the loss on other images falls.

figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
for seed, style in enumerate(("C0o-", "C1s--", "C2^:")):
    errors = {name: wrong(net) for name, net in stages(trained(seed))}
    axes.plot(list(errors), list(errors.values()), style, label=f"network {seed}")
    print(f"network {seed}: " + ", ".join(f"{name} {error:.1f}%" for name, error in errors.items()))
axes.set(ylabel="test images that are wrong, %", ylim=(0, None))
axes.legend()
plt.show()
