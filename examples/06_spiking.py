"""
A spiking network in time
=========================

A leaky integrate-and-fire neuron adds up what comes in, forgets a part of it at every time step, and sends
a spike, 0 or 1, when its potential reaches a threshold. ``htaf.LIF`` takes the spike as an argument: with
HTAF the network is smooth and has an ordinary gradient, and ``htaf.harden`` makes it exact.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import htaf

# %%
# Which click came first?
# -----------------------
# Each of two ears hears one click, two to six steps apart, and now and then a wrong one. Was the left or the right
# ear first? At the second click the network must still remember the first.

torch.manual_seed(0)


def clicks(n, steps=24):
    """Inputs [steps, n, 2] of 0 and 1, and which ear was first."""
    first, gap, ear = torch.randint(2, 14, (n,)), torch.randint(2, 7, (n,)), torch.randint(0, 2, (n,))
    x, row = (torch.rand(steps, n, 2) < 0.01).float(), torch.arange(n)
    x[first, row, ear] = x[first + gap, row, 1 - ear] = 1
    return x, ear


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.early = nn.Linear(2, 32), htaf.LIF(htaf.HTAF(1.0, 5.0), tau=4.0)
        self.middle, self.late = nn.Linear(32, 32), htaf.LIF(htaf.HTAF(1.0, 5.0), tau=4.0)
        self.out = nn.Linear(32, 2)
        for layer in (self.enter, self.middle):
            nn.init.normal_(layer.weight)  # large enough for a spike now and then

    def forward(self, x):
        spikes = self.late(self.middle(self.early(self.enter(x))))
        return self.out(spikes.mean(0))  # how often each neuron fired


net, (x, y), (x_test, y_test) = Network(), clicks(2000), clicks(1000)
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(30):
    for rows in torch.randperm(len(y)).split(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[:, rows]), y[rows]).backward()
        optimizer.step()

# %%
# Made exact, and repaired
# ------------------------
# ``finish`` swaps in the exact spike and repairs what that changes. The loss on held-out sounds decides what
# it keeps.

exact, report = htaf.finish(net, [(x[:, :1500], y[:1500])], valid=(x[:, 1500:], y[1500:]))
for name, network in {"smooth": net, "exact": htaf.harden(net), "finished": exact}.items():
    with torch.no_grad():
        print(f"{name}: {(network(x_test).argmax(1) == y_test).float().mean():.1%} of new sounds are right")

# %%
# What the neurons do
# -------------------
# One sound, left ear first. ``step`` returns the potentials. Below are the two late neurons that speak most for
# either answer. Each fires again and again until a click pushes it far below 0. It takes many steps to come back:
# so the network remembers.

sound = x_test[:, [int((y_test == 0).nonzero()[0])]]
with torch.no_grad():
    early = exact.early(exact.enter(sound))
    spikes, potentials, potential = [], [], None
    for current in exact.middle(early):
        spike, potential = exact.late.step(current, potential)
        spikes.append(spike[0])
        potentials.append(torch.where(spike > 0, 1, potential)[0])  # at a spike: the threshold
    late, potentials = torch.stack(spikes), torch.stack(potentials)

figure, axes = plt.subplots(4, 1, figsize=(6.4, 6.4), sharex=True, layout="constrained")
for one, spikes, name in zip(
    axes, (sound[:, 0], early[:, 0], late), ("ears", "early neurons", "late neurons"), strict=False
):
    one.eventplot([train.nonzero().flatten() for train in spikes.T], colors="k", linelengths=0.9, linewidths=2)
    one.set_ylabel(name)
axes[0].set_yticks([0, 1], ["left", "right"])
speaks = (exact.out.weight[0] - exact.out.weight[1]).detach() * late.mean(0)
for neuron, style, name in ((speaks.argmax(), "C0o-", "for left"), (speaks.argmin(), "C1s-", "for right")):
    axes[3].plot(potentials[:, neuron], style, markersize=4, label=f"late neuron {neuron}, {name}")
axes[3].axhline(1, color="k", linestyle="--", linewidth=0.8)
axes[3].set(xlabel="time step", ylabel="potential")
axes[3].legend()
plt.show()
