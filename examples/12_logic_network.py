"""
A logic network for an FPGA
===========================

A logic network classifies digits of 8 x 8 pixels by truth tables of six bits. One table is one LUT of an FPGA. How
many tables does it need, and what does the Verilog look like?
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import htaf
from htaf.models.mlp import Thermometer
from htaf.program.integer import Circuit, Input, integer_program, to_verilog

digits, classes = load_digits(return_X_y=True)
x, test_x, y, test_y = (torch.as_tensor(part) for part in train_test_split(digits, classes, random_state=0))
x, test_x = x.float(), test_x.float()

# %%
# Train
# -----
# Three thresholds a pixel make bits. Each table reads six bits. The score of a class is the sum of its tables' bits.
# The smooth network trains like any other; ``harden`` makes each entry of a table 0 or 1.


def trained(tables: int) -> nn.Module:
    torch.manual_seed(0)
    bits = Thermometer([3] * 64)
    bits.threshold.copy_(torch.tensor([1.5, 7.5, 12.5]).repeat(64))
    layer = htaf.LUTLayer(bits.out_features, tables)
    net = nn.Sequential(bits, layer, htaf.GroupSum(10, divisor=2.0))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(15):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    layer.settle()  # the connections stay, what chose them goes
    return htaf.harden(net).eval()


sizes = [20, 50, 100, 200]
networks = [trained(size) for size in sizes]
accuracy = [(net(test_x).argmax(1) == test_y).float().mean().item() for net in networks]

figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
axes.plot(sizes, accuracy, "o-")
axes.set(xlabel="tables, a LUT each", ylabel="right on digits it has not seen", xscale="log")
axes.set_xticks(sizes, [f"{size}" for size in sizes])
axes.minorticks_off()
axes.grid(alpha=0.3)

# %%
# One Verilog file
# ----------------
# The integer program takes pixels of 0 to 16. It gives the same numbers as the network, and so do the Verilog,
# which a testbench checks, and the compiled circuit for this processor.

program = integer_program(networks[-1], x, input=Input("columns", (64,), 0, 16))
pixels = test_x.long().numpy()
assert (program.run(pixels).argmax(1) == networks[-1](test_x).argmax(1).numpy()).all()
assert (Circuit(program).run(pixels) == program.run(pixels)).all()

with tempfile.TemporaryDirectory() as folder:
    luts = to_verilog(program, folder, name="digits", rows=pixels[:16])
    text = (Path(folder) / "digits.v").read_text()
print(f"{accuracy[-1]:.1%} right; about {luts} LUTs with thresholds, counts and the class")
print("\n".join(line for line in text.splitlines() if " >> " in line)[:800])
