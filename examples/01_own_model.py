"""
Your own model with 0/1 activations
===================================

You have a PyTorch model and a training loop. ``htaf.replace`` puts a step, 0 or 1, in place of every
activation, your loop gets one new line, and ``htaf.finish`` refits norms and head. We look at what
this costs on handwritten digits, beside the same network with ReLU.
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


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    for channels in (16, 32):
        layers += [nn.Conv2d(channels, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


# %%
# A step for every activation
# ---------------------------
# The example tells ``replace`` which activations lie between layers, and how wide the gradient of each step
# has to be. ``htaf.conversion`` says what was replaced, and would name what stays, such as a last sigmoid.

steps = htaf.replace(network(), example=train[0])
print(htaf.conversion(steps))

# %%
# These steps are exact from the first batch on. The paper trains with a smooth curve instead and puts in the step
# at the end. For that, give ``replace`` another activation. We train both, and ReLU for comparison.

smooth = htaf.replace(network(), lambda: htaf.HTAF(1.0, 5.0), example=train[0])
nets = {"ReLU": network(), "steps": steps, "HTAF, smooth": smooth}


def accuracy(net):
    with torch.no_grad():
        return (net.eval()(test[0]).argmax(1) == test[1]).float().mean().item()


loss = nn.functional.cross_entropy
curves = {name: [] for name in [*nets, "HTAF, made exact"]}
for name, net in nets.items():
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for epoch in range(20):
        if name == "steps":
            htaf.sharpen(net, epoch / 20)  # the new line: gradients are wide at first, then narrow
        net.train()
        for rows in torch.randperm(1000).split(50):
            optimizer.zero_grad()
            loss(net(train[0][rows]), train[1][rows]).backward()
            optimizer.step()
        curves[name].append(accuracy(net))
        if name == "HTAF, smooth":
            curves["HTAF, made exact"].append(accuracy(htaf.harden(net)))

figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
for (name, curve), style in zip(curves.items(), ("k-", "C0-", "C1--", "C1-"), strict=True):
    axes.plot(range(1, 21), curve, style, label=name)
axes.set(xlabel="epoch", ylabel="accuracy on test images", ylim=(0.85, 1), xticks=range(2, 21, 2))
axes.legend()
plt.show()

# %%
# Refitted
# --------
# The dashed line needs values between 0 and 1, so it is not a 0/1 network. ``finish`` recovers part of the
# difference: it re-estimates norms, repairs layers and refits the head, and keeps each change that lowers the loss on
# held-out rows.
# On a network this small, bits cost about two points. ``replace(..., levels=2)`` or more channels help.

for name in ("steps", "HTAF, smooth"):
    exact, report = htaf.finish(nets[name], [train], valid=valid)
    print(f"{name}: {accuracy(htaf.harden(nets[name])):.1%} exact, {accuracy(exact):.1%} finished\n{report}")
