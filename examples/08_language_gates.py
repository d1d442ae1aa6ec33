"""
A language model whose gates are 0 or 1
=======================================

In the MLPs of today's language models a gate says how much each neuron counts: down(silu(gate(x)) * up(x)).
``htaf.language.calibrate`` turns it into a step, so that a neuron counts or does not. A closed gate costs nothing.
Our model trains in a minute. It learns numpy's documentation, letter by letter.
"""

import copy
import inspect

import matplotlib.pyplot as plt
import numpy as np
import torch
import transformers

from htaf.language import calibrate, open_gates

texts = [inspect.getdoc(getattr(np, name)) or "" for name in dir(np) if callable(getattr(np, name))]
letters = torch.tensor(list("\n\n".join(texts).encode("ascii", "replace")))
blocks = letters[: len(letters) // 128 * 128].view(-1, 128)
torch.manual_seed(0)
train, test = blocks[torch.randperm(len(blocks))].split([len(blocks) - 64, 64])

# %%
# A small Llama from transformers. For a model of your own begin with ``load("name")``.

size = {"hidden_size": 48, "intermediate_size": 144, "num_hidden_layers": 4, "num_attention_heads": 4}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=128, **size))
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=200)
for _ in range(200):
    batch = train[torch.randint(len(train), (12,))]
    optimizer.zero_grad()
    model(batch, labels=batch).loss.backward()
    optimizer.step()
    schedule.step()


def perplexity(model):
    with torch.no_grad():
        return model.eval()(test, labels=test).loss.exp().item()


# %%
# From smooth gates to steps
# --------------------------
# No gradient is needed. *Plain* puts the step at 0. *Gates* finds the best threshold and scale of each neuron in
# closed form. *Down* then refits the matrix behind the gates to what the layer should add.

print(f"smooth gates: perplexity {perplexity(model):.2f}")
for last in (2, 4):
    for kind in ("plain", "gates", "down"):
        stepped = copy.deepcopy(model)
        layers = calibrate(stepped, train[:48], last_k=last, calibration=kind)
        print(f"last {last} of 4 layers, {kind}: perplexity {perplexity(stepped):.2f}")
print("open gates: " + ", ".join(f"{layer.open:.0%} in layer {layer.layer}" for layer in layers))

# %%
# What a gate looks at
# --------------------
# We count how often a gate is open at each of the 30 most frequent characters, on test text. These twelve gates
# differ most between characters. A black cell is a character that always opens the gate. Most other gates depend
# on more than one character.

bits = open_gates(stepped, test)[3]  # of the last layer, [tokens, neurons]
frequent = torch.bincount(test.flatten(), minlength=128).argsort(descending=True)[:30]
shares = torch.stack([bits[test.flatten() == code].float().mean(0) for code in frequent], 1)
shares = shares[shares.std(1).argsort(descending=True)[:12]]

figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
image = axes.imshow(shares.numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto")
names = [{" ": "blank", "\n": "line end"}.get(chr(code), chr(code)) for code in frequent]
axes.set_xticks(range(30), names, rotation=90, family="monospace")
axes.set(yticks=[], ylabel="gates of the last layer", xlabel="character that is read")
figure.colorbar(image, label="share of times open")
plt.show()
